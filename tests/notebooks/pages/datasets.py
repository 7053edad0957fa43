# A custom Dataset, a sampler, a collate function, random_split and a generator of its own.
# A restart loses: batches
# %%
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, WeightedRandomSampler, random_split

class Words(Dataset):
    """Words of different lengths."""

    def __init__(self, text, transform=None):
        self.words = text.split()
        self.transform = transform
        self.cache = {}

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        if i not in self.cache:
            self.cache[i] = torch.tensor([ord(c) - 96 for c in self.words[i]])
        return self.cache[i] if self.transform is None else self.transform(self.cache[i])

ds = Words("the cat sat on the mat and the dog lay on a log by the sea", transform=lambda t: t.float())
len(ds)
# %%
ds[1]
# %%
def collate(items):
    lengths = torch.tensor([len(each) for each in items])
    return torch.nn.utils.rnn.pad_sequence(items, batch_first=True), lengths

class ByLength(Sampler):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(sorted(range(len(self.data)), key=lambda i: len(self.data[i])))

    def __len__(self):
        return len(self.data)

loader = DataLoader(ds, batch_size=4, sampler=ByLength(ds), collate_fn=collate)
for padded, lengths in loader:
    print(padded.shape, lengths.tolist())
# %%
g = torch.Generator().manual_seed(11)
train, val = random_split(ds, [12, 4], generator=g)
val.indices
# %%
type(train), isinstance(train, Subset), train.dataset is ds, len(ds.cache)
# %%
loader = DataLoader(train, batch_size=5, shuffle=True, generator=g, collate_fn=collate)
[lengths.tolist() for _, lengths in loader]
# %%
batches = iter(loader)
first = next(batches)
first[0].shape
# %%
[lengths.tolist() for _, lengths in loader]
# %%
weights = torch.tensor([1.0 / len(w) for w in ds.words])
sampler = WeightedRandomSampler(weights, 8, generator=torch.Generator().manual_seed(3))
list(sampler)
# %%
list(sampler), g.initial_seed()
# %%
sampler.weights.data_ptr() == weights.data_ptr(), loader.generator is g
