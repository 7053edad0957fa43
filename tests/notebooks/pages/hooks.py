# Hooks and feature extraction: forward hooks, gradients of activations, a module that is wrapped.
# %%
import torch
import torch.nn as nn
from collections import OrderedDict, defaultdict

torch.manual_seed(0)
model = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 3), relu=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(4, 2)))
model.eval()
# %%
activations = {}
def save(name):
    def hook(module, inputs, output):
        activations[name] = output.detach()
    return hook

handles = [getattr(model, name).register_forward_hook(save(name)) for name in ("conv", "pool")]
len(handles)
# %%
img = torch.rand(1, 3, 6, 6)
out = model(img)
{k: tuple(v.shape) for k, v in activations.items()}
# %%
activations["pool"].flatten()
# %%
calls = defaultdict(int)
def count(module, args):
    calls[type(module).__name__] += 1
for m in model.modules():
    m.register_forward_pre_hook(count)
model(img);
dict(calls)
# %%
model(img + 1)
dict(calls), activations["pool"].flatten()
# %%
handles[0].remove()
activations.clear()
model(img).argmax().item(), list(activations)
# %%
grads = []
fmap = model.relu(model.conv(img))
fmap.retain_grad()
fmap.register_hook(lambda g: grads.append(g.abs().sum().item()))
model.fc(model.flat(model.pool(fmap)))[0, 1].backward()
len(grads), fmap.grad.shape
# %%
cam = (fmap * fmap.grad.mean((2, 3), keepdim=True)).sum(1).relu().detach()
cam
# %%
class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.seen = []
        inner.fc.register_forward_hook(self.remember)

    def remember(self, module, inputs, output):
        self.seen.append(output.shape)

    def forward(self, x):
        return self.inner(x)

wrapped = Wrapped(model)
wrapped(img)
wrapped.seen
# %%
wrapped(torch.rand(2, 3, 6, 6))
wrapped.seen, wrapped.inner is model, sorted(activations)
# %%
model.state_dict().keys()
