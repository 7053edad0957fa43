# Settings that change figures: default dtype, print options, no_grad, seeds, pandas, NumPy.
# %%
import numpy as np, pandas as pd, random, torch
torch.set_default_dtype(torch.float64)
torch.set_printoptions(precision=2, sci_mode=False)
np.set_printoptions(precision=3, suppress=True)
pd.set_option("display.precision", 2, "display.max_columns", 4)
# %%
torch.manual_seed(0); np.random.seed(0); random.seed(0)
torch.rand(3), np.random.rand(3), random.random()
# %%
torch.ones(2).dtype, torch.tensor(1 / 3), torch.nn.Linear(1, 1).weight.dtype
# %%
pd.DataFrame(np.random.rand(2, 6), columns=list("abcdef"))
# %%
torch.set_grad_enabled(False)
w = torch.ones(2, requires_grad=True)
(w * 2).requires_grad
# %%
(w * 2).requires_grad, torch.is_grad_enabled()
# %%
torch.set_grad_enabled(True)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
# %%
torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
# %%
np.array([1 / 3, 1e-9]), pd.Series([1 / 3]), torch.tensor([1e-9, 1.0])
# %%
torch.randn(2), np.random.normal(size=2), random.choice("abc"), np.random.default_rng(5).random()
# %%
torch.set_default_dtype(torch.float32)
torch.set_printoptions(profile="default")
np.set_printoptions()
pd.reset_option("display.precision")
torch.rand(2), np.array([1 / 3])
# %%
torch.rand(2), pd.Series([1 / 3]), torch.ones(1).dtype, torch.get_default_dtype()
