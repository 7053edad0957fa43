# A CNN with a DataLoader, trained, evaluated and looked at.
# %%
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)
device = torch.device("cpu")
device
# %%
BATCH_SIZE = 16
images = torch.randn(96, 1, 8, 8)
labels = (images.mean(dim=(1, 2, 3)) > 0).long()
labels.bincount()
# %%
train_ds = TensorDataset(images[:64], labels[:64])
test_ds = TensorDataset(images[64:], labels[64:])
train_loader = DataLoader(train_ds, batch_size=BATCH_SIZE, shuffle=True)
test_loader = DataLoader(test_ds, batch_size=BATCH_SIZE)
len(train_loader), train_loader.batch_size
# %%
xb, yb = next(iter(train_loader))
print(xb.shape, yb.shape)
# %%
class CNN(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.bn = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(channels * 16, 2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
        return self.fc(self.dropout(x.flatten(1)))

model = CNN().to(device)
model
# %%
sum(p.numel() for p in model.parameters())
# %%
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer
# %%
def train_epoch(model, loader):
    model.train()
    total = 0.0
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(model(xb.to(device)), yb.to(device))
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
    return total / len(loader.dataset)

train_epoch(model, train_loader)
# %%
history = []
for epoch in range(3):
    history.append(train_epoch(model, train_loader))
history[-1]
# %%
@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in loader)
    return hits / len(loader.dataset)

accuracy(model, test_loader)
# %%
for _ in range(2):
    history.append(train_epoch(model, train_loader))
print([round(h, 4) for h in history])
# %%
model.conv1.weight[0], optimizer.state[model.fc.bias]["step"]
