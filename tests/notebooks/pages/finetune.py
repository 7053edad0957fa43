# Fine-tuning: a config dataclass, a frozen backbone, two parameter groups, early stopping.
# %%
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
import random, numpy as np, torch

class Mode(Enum):
    HEAD = "head"
    FULL = "full"

@dataclass
class Config:
    lr: float = 0.05
    epochs: int = 6
    mode: Mode = Mode.HEAD
    hidden: tuple = (16, 8)
    out: Path = Path("runs")
    tags: list = field(default_factory=list)

cfg = Config(tags=["demo"])
cfg
# %%
def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False

set_seed(7)
# %%
backbone = torch.nn.Sequential(
    torch.nn.Linear(10, cfg.hidden[0]), torch.nn.ReLU(), torch.nn.Linear(*cfg.hidden), torch.nn.Tanh()
)
head = torch.nn.Linear(cfg.hidden[1], 1)
net = torch.nn.Sequential(backbone, head)
backbone.requires_grad_(False)
net
# %%
X = torch.from_numpy(np.random.randn(80, 10).astype("float32"))
y = (X[:, :3].sum(1, keepdim=True) > 0).float()
X.dtype, y.mean().item()
# %%
class EarlyStopping:
    def __init__(self, patience=2):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        return self.bad >= self.patience

    def __repr__(self):
        return f"EarlyStopping(best={self.best:.4f}, bad={self.bad})"

stopper = EarlyStopping()
stopper
# %%
def fit(cfg):
    params = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.SGD(params, lr=cfg.lr, momentum=0.9)
    for epoch in range(cfg.epochs):
        order = torch.randperm(len(X))
        for idx in order.split(20):
            loss = torch.nn.functional.binary_cross_entropy_with_logits(net(X[idx]), y[idx])
            opt.zero_grad(); loss.backward(); opt.step()
        if stopper(loss.item()):
            print("stopped in epoch", epoch)
            break
    return opt

opt = fit(cfg)
stopper
# %%
backbone[0].weight.grad is None, net[0] is backbone, cfg.mode is Mode.HEAD
# %%
cfg = replace(cfg, mode=Mode("full"), lr=cfg.lr / 10)
for p in backbone.parameters():
    p.requires_grad = True
opt.add_param_group({"params": list(backbone.parameters()), "lr": cfg.lr})
[(g["lr"], len(g["params"])) for g in opt.param_groups]
# %%
stopper = EarlyStopping(patience=3)
opt = fit(cfg)
((net(X) > 0).float() == y).float().mean()
# %%
asdict(cfg)
# %%
random.random(), np.random.rand(2).round(4), torch.rand(2)
# %%
torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
