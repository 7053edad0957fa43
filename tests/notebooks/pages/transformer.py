# A transformer's training loop, with mixed precision, a scheduler and gradient clipping.
# %%
import math
import torch
from torch import nn, optim

torch.manual_seed(1337)
text = "the quick brown fox jumps over the lazy dog. " * 20
chars = sorted(set(text))
vocab_size = len(chars)
print("".join(chars), vocab_size)
# %%
stoi = {ch: i for i, ch in enumerate(chars)}
itos = dict(enumerate(chars))
encode = lambda s: [stoi[c] for c in s]
decode = lambda ids: "".join(itos[i] for i in ids)
decode(encode("lazy dog"))
# %%
data = torch.tensor(encode(text))
block_size, n_embd, n_head = 16, 16, 2
data[:10]
# %%
def get_batch(batch=8):
    ix = torch.randint(len(data) - block_size, (batch,))
    return torch.stack([data[i : i + block_size] for i in ix]), torch.stack(
        [data[i + 1 : i + block_size + 1] for i in ix]
    )

xb, yb = get_batch()
xb.shape
# %%
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 32), nn.GELU(), nn.Linear(32, n_embd))
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.register_buffer("mask", torch.triu(torch.ones(block_size, block_size), 1).bool())

    def forward(self, x):
        h = self.ln1(x)
        n = x.shape[1]
        x = x + self.attn(h, h, h, attn_mask=self.mask[:n, :n], need_weights=False)[0]
        return x + self.mlp(self.ln2(x))
# %%
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(2)])
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, x):
        return self.head(self.blocks(self.tok(x)))

model = Model()
model.head.weight is model.tok.weight
# %%
opt = optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
sched = optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=60)
scaler = torch.amp.GradScaler("cpu", enabled=False)
loss_fn = nn.CrossEntropyLoss()
sched.get_last_lr()
# %%
lrs, losses = [], []
def step():
    xb, yb = get_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_fn(model(xb).flatten(0, 1).float(), yb.flatten())
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt); scaler.update(); sched.step()
    losses.append(loss.item()); lrs.append(sched.get_last_lr()[0])
    return norm

step()
# %%
for i in range(10):
    norm = step()
f"{losses[-1]:.3f} {norm:.3f}"
# %%
for i in range(10):
    norm = step()
print(f"loss {losses[-1]:.3f}, lr {lrs[-1]:.2e}, perplexity {math.exp(losses[-1]):.2f}")
# %%
@torch.inference_mode()
def generate(prompt, n=12):
    ids = encode(prompt)
    for _ in range(n):
        logits = model(torch.tensor([ids[-block_size:]]))[0, -1]
        ids.append(torch.multinomial(logits.softmax(-1), 1).item())
    return decode(ids)

generate("the ")
# %%
opt.param_groups[0]["lr"] == lrs[-1], len(losses), model.blocks[0].mask.sum()
