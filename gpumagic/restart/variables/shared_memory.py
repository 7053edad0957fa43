"""Memory that arrays and tensors share: each block is written once, and shared again."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumagic.cuda import storages, torch_cuda

#: An array that covers less than this part of its block of memory is copied.
_SPARSE = 0.5


@dataclass
class Block:
    """A block of memory, with the numbers of the arrays and tensors in it."""

    start: int
    end: int
    arrays: list[int] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the bytes."""
        return self.end - self.start

    def memory(self) -> Any:
        """Return the block's memory."""
        return (ctypes.c_char * self.size).from_address(self.start)


def extent(array: Any) -> tuple[int, int]:
    """Return the addresses between which an array's elements lie."""
    low = high = int(array.__array_interface__["data"][0])
    if not array.size:
        return low, low
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize


@dataclass(frozen=True)
class TensorView:
    """How a tensor views a storage."""

    #: The storage's number.
    storage: int
    dtype: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugated: bool
    negated: bool

    def on_storage(self, storage: Any) -> Any:
        """Return the tensor as a view of a storage."""
        torch = torch_cuda.require()
        tensor = torch.empty(0, dtype=self.dtype, device=storage.device)
        tensor.set_(storage, self.offset, self.size, self.stride)
        tensor = torch._neg_view(tensor) if self.negated else tensor
        return tensor.conj() if self.conjugated else tensor


def has_storage(tensor: Any) -> bool:
    """Return whether a tensor is a plain view of a storage with data."""
    torch = torch_cuda.require()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        return False
    if tensor.device.type not in ("cpu", "cuda"):
        return False
    try:
        storage = tensor.untyped_storage()
        if storages.is_parked(storage):
            return True
        # A wrapper of other tensors has none; nor have those that functional transforms track.
        return bool(storage.nbytes() == 0 or storage.data_ptr())
    except (RuntimeError, NotImplementedError):
        return False


def view_of(tensor: Any, storage: int) -> TensorView:
    """Return how ``tensor`` views its storage, which has that number."""
    return TensorView(
        storage,
        tensor.dtype,
        tuple(tensor.size()),
        tuple(tensor.stride()),
        tensor.storage_offset(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def storage_of(tensor: Any) -> tuple[int, int] | None:
    """Return the addresses of a tensor's host memory; None for any other tensor."""
    if tensor.device.type != "cpu" or not has_storage(tensor):
        return None
    storage = tensor.untyped_storage()
    start = int(storage.data_ptr())
    return (start, start + int(storage.nbytes())) if start else None


def memory_blocks(arrays: Sequence[Any], tensors: Sequence[Any]) -> list[Block]:
    """Return the blocks of memory of arrays, with the tensors that view parts of them."""
    pieces: list[tuple[int, int, str, int]] = []
    for number, array in enumerate(arrays):
        pieces.append((*extent(array), "arrays", number))
    if arrays:
        for number, tensor in enumerate(tensors):
            span = storage_of(tensor)
            if span is not None and span[1] > span[0]:
                pieces.append((*span, "tensors", number))
    blocks: list[Block] = []
    for start, end, kind, number in sorted(pieces):
        if not blocks or start >= blocks[-1].end:
            blocks.append(Block(start, end))
        blocks[-1].end = max(blocks[-1].end, end)
        getattr(blocks[-1], kind).append(number)
    return [block for block in blocks if block.arrays]


def is_sparse(block: Block, arrays: Sequence[Any]) -> bool:
    """Return whether a block has one array that covers little of it, such as a table's column."""
    if len(block.arrays) != 1 or block.tensors:
        return False
    return bool(arrays[block.arrays[0]].nbytes < _SPARSE * block.size)


@dataclass
class BlockRecord:
    """Where a block is in the file, and what is in it."""

    offset: int
    size: int
    #: Its address in the old process, for the alignment.
    start: int
    #: number → (dtype, shape, strides, offset within the block, writeable)
    arrays: dict[int, tuple[Any, tuple[int, ...], tuple[int, ...], int, bool]]
    #: number → (how it views its storage, offset and bytes of the storage in the block)
    tensors: dict[int, tuple[TensorView, int, int]]


def record_of(
    block: Block, offset: int, arrays: Sequence[Any], tensors: Sequence[Any]
) -> BlockRecord:
    """Return what restores a block that is written at ``offset``."""
    written = BlockRecord(offset, block.size, block.start, {}, {})
    for number in block.arrays:
        array = arrays[number]
        within = int(array.__array_interface__["data"][0]) - block.start
        flags = array.flags.writeable
        written.arrays[number] = (array.dtype, array.shape, array.strides, within, flags)
    for number in block.tensors:
        tensor, span = tensors[number], storage_of(tensors[number])
        assert span is not None
        written.tensors[number] = (view_of(tensor, -1), span[0] - block.start, span[1] - span[0])
    return written


def allocate(written: BlockRecord) -> tuple[Any, Any]:
    """Allocate memory for a block; return it as an array of bytes, and the array that owns it.

    An array that was alone in its block and filled it owns it again; else the alignment is kept.
    """
    import numpy as np

    if len(written.arrays) == 1 and not written.tensors:
        ((dtype, shape, strides, offset, _),) = written.arrays.values()
        for order in ("C", "F"):
            make: Any = np.empty
            owner = make(shape, dtype, order=order)
            if owner.nbytes == written.size and owner.strides == strides and not offset:
                return owner.ravel(order="K").view(np.uint8), owner
    more = np.empty(written.size + 64, np.uint8)
    shift = (written.start - more.ctypes.data) % 64
    return more[shift : shift + written.size], None


def rebuild(written: BlockRecord, buffer: Any, owner: Any) -> tuple[dict[int, Any], dict[int, Any]]:
    """Return the arrays and tensors of a block, by number, as views of memory of `allocate`."""
    import numpy as np

    arrays = {}
    for number, (dtype, shape, strides, offset, writeable) in written.arrays.items():
        array = owner
        if array is None:
            array = np.ndarray(shape, dtype, buffer, offset, strides)
        if not writeable:
            array.flags.writeable = False
        arrays[number] = array
    return arrays, dict(_tensors(written, buffer))


def _tensors(written: BlockRecord, buffer: Any) -> Iterator[tuple[int, Any]]:
    storages: dict[tuple[int, int], Any] = {}
    for number, (how, offset, length) in written.tensors.items():
        torch = torch_cuda.require()
        if (offset, length) not in storages:
            memory = torch.from_numpy(buffer[offset : offset + length])
            storages[offset, length] = memory.untyped_storage()
        yield number, how.on_storage(storages[offset, length])
