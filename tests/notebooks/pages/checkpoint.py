# Training that ends with a saved checkpoint, and begins again from it.
# A restart loses: frozen
# %%
import copy, json, pickle
from pathlib import Path
import torch
from torch import nn

torch.manual_seed(123)
out = Path("checkpoints")
out.mkdir(exist_ok=True)
out
# %%
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=20)
x = torch.randn(32, 4)
target = x.sum(1, keepdim=True).sin()
# %%
def train(steps):
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(x), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        for a, b in zip(ema.parameters(), model.parameters()):
            a.lerp_(b, 0.1)
    return loss.item()

best, state = float("inf"), None
train(3)
# %%
for epoch in range(3):
    value = train(2)
    if value < best:
        best, state = value, copy.deepcopy(model.state_dict())
best
# %%
state["0.bias"]
# %%
torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(), "best": best}, out / "last.pt")
[p.name for p in out.iterdir()]
# %%
checkpoint = torch.load(out / "last.pt", weights_only=True)
checkpoint.keys()
# %%
after = train(4)
sched.get_last_lr(), sched.last_epoch
# %%
model.load_state_dict(checkpoint["model"])
# %%
opt.load_state_dict(checkpoint["opt"]); sched.load_state_dict(checkpoint["sched"])
train(4) == after, opt.param_groups[0]["nesterov"]
# %%
len(opt.state), opt.state[model[0].weight]["momentum_buffer"].norm()
# %%
(out / "config.json").write_text(json.dumps({"best": round(best, 4)}))
# %%
frozen = torch.jit.trace(ema, x)
torch.allclose(frozen(x), ema(x))
# %%
model.load_state_dict(state)
model.half().dtype if hasattr(model, "dtype") else next(model.half().parameters()).dtype
# %%
del checkpoint, state
ema[0].weight.sum(), json.loads((out / "config.json").read_text()), sched.optimizer is opt
