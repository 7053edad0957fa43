# A first tutorial: tensors, views, autograd, a regression by hand.
# %%
import torch
import numpy as np
torch.manual_seed(0)
# %%
x = torch.arange(12).reshape(3, 4)
x
# %%
x.shape, x.dtype, x.device
# %%
row = x[1]
row[:] = -1
x
# %%
a = np.ones(3)
t = torch.from_numpy(a)
t
# %%
t = torch.rand(2, 3)
t * 2
# %% follows
_ - t
# %%
w = torch.tensor([1.0, 2.0], requires_grad=True)
w
# %%
loss = (w ** 2).sum()
loss
# %% follows
loss.backward()
w.grad
# %%
w.grad.zero_()
X = torch.linspace(-1, 1, 50).unsqueeze(1)
y = 3 * X + 0.5 + 0.1 * torch.randn(X.shape)
X.size(), y.mean()
# %%
coef = torch.zeros(2, requires_grad=True)
for step in range(200):
    error = ((coef[0] * X + coef[1] - y) ** 2).mean()
    error.backward()
    with torch.no_grad():
        coef -= 0.1 * coef.grad
        coef.grad = None
    if step % 50 == 0:
        print(f"{step:4d} {error.item():.4f}")
# %%
coef
# %%
x[1], row is x, torch.equal(row, x[1]), row.data_ptr() == x[1].data_ptr()
# %%
del a, t
[n for n in ("a", "t", "x") if n in globals()]
