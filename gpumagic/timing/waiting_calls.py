"""The calls of torch's in which the host waits for the GPU, and how they are named."""

from __future__ import annotations

PAGEABLE = "pageable copy with non_blocking=True"
MASK = "boolean mask"
INDEX = "blocking copy of an index"
ASSIGNMENT = "blocking copy by an assignment"
STORAGE = "UntypedStorage.cpu()"
#: Copies to the CPU by methods that also copy to a GPU.
TO_HOST = {"to": '.to("cpu")', "cuda": ".cuda()", "type": ".type() on the CPU"}
#: A wait that is found by times, of a call that is not known.
UNNAMED = "a call without a known name"

#: Methods that wait for a tensor on a GPU, and how they are named.
METHODS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "__bool__": "bool(tensor)",
    "__int__": "int(tensor)",
    "__float__": "float(tensor)",
    "__complex__": "complex(tensor)",
    "__index__": "tensor as an index",
    "__repr__": "tensor as text",
    "is_nonzero": ".is_nonzero()",
    "cpu": ".cpu()",
    "numpy": ".numpy()",
    "nonzero": ".nonzero()",
    "argwhere": ".argwhere()",
    "masked_select": ".masked_select()",
    "unique": ".unique()",
    "equal": ".equal()",
    "allclose": ".allclose()",
    "unique_consecutive": ".unique_consecutive()",
    "bincount": ".bincount()",
    "to_sparse": ".to_sparse()",
    "to_sparse_csr": ".to_sparse_csr()",
    "to_sparse_csc": ".to_sparse_csc()",
    "inverse": ".inverse()",
}
#: Functions of torch's modules that wait, as they are written: how a wait is named that is found by
#: times.
FUNCTIONS = frozenset(
    {
        *(
            f"torch.{name}"
            for name in (
                *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"),
                *("equal", "allclose", "is_nonzero", "bincount", "histc", "inverse"),
                *("tensor", "as_tensor", "where", "repeat_interleave", "save"),
                *("cuda.synchronize", "accelerator.synchronize", "nn.functional.one_hot"),
            )
        ),
        # These check on the host whether the GPU found an error.
        *(
            f"torch.linalg.{name}"
            for name in (
                *("cholesky", "eig", "eigh", "eigvals", "eigvalsh", "inv", "ldl_factor"),
                *("lu_factor", "solve", "svd", "svdvals", "tensorinv", "tensorsolve"),
            )
        ),
        *("F.one_hot", "pickle.dumps"),
    }
)
