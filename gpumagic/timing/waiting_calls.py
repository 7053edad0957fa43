"""The calls of torch's in which the host waits for the GPU, and how they are named."""

from __future__ import annotations

PAGEABLE = "pageable copy with non_blocking=True"
MASK = "boolean mask"
INDEX = "blocking copy of an index"
ASSIGNMENT = "blocking copy by an assignment"

#: Methods that wait for a tensor on a GPU, and how they are named.
METHODS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "__bool__": "bool(tensor)",
    "__int__": "int(tensor)",
    "__float__": "float(tensor)",
    "__complex__": "complex(tensor)",
    "__index__": "tensor as an index",
    "is_nonzero": ".is_nonzero()",
    "cpu": ".cpu()",
    "nonzero": ".nonzero()",
    "argwhere": ".argwhere()",
    "masked_select": ".masked_select()",
    "unique": ".unique()",
    "equal": ".equal()",
    "allclose": ".allclose()",
    "unique_consecutive": ".unique_consecutive()",
    "bincount": ".bincount()",
    "to_sparse": ".to_sparse()",
    "inverse": ".inverse()",
}
OF_TORCH = (
    *("nonzero", "argwhere", "masked_select", "unique", "equal", "allclose", "is_nonzero"),
    *("unique_consecutive", "bincount", "inverse"),
)
#: Those that check on the host whether the GPU found an error.
OF_LINALG = (
    *("cholesky", "eig", "eigh", "eigvals", "eigvalsh", "inv", "ldl_factor", "lu_factor"),
    *("solve", "svd", "svdvals", "tensorinv", "tensorsolve"),
)
#: Functions of torch's modules that are wrapped, as they are written.
FUNCTIONS = (
    *(f"torch.{name}" for name in (*OF_TORCH, "tensor", "as_tensor", "where")),
    "torch.repeat_interleave",
    *(f"torch.linalg.{name}" for name in OF_LINALG),
)
