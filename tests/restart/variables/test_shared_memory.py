"""Blocks of memory that arrays and tensors share: found, recorded, and shared again."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.restart.variables import shared_memory

np = pytest.importorskip("numpy")


@pytest.mark.parametrize(
    ("view", "low", "high"),
    [
        (lambda a: a, 0, 96),
        (lambda a: a[::-1], 0, 96),
        (lambda a: a[:, 1], 8, 88),
        (lambda a: a[1:3, ::2], 24, 72),
        (lambda a: a[:0], 0, 0),
    ],
)
def test_extent(view: Any, low: int, high: int) -> None:
    array = np.zeros((4, 3))
    start = array.__array_interface__["data"][0]
    assert shared_memory.extent(view(array)) == (start + low, start + high)


def _again(arrays: list[Any], tensors: list[Any]) -> tuple[dict[int, Any], dict[int, Any]]:
    """Write all blocks to memory, and rebuild what is in them."""
    made: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
    for block in shared_memory.memory_blocks(arrays, tensors):
        record = shared_memory.record_of(block, 0, arrays, tensors)
        buffer, owner = shared_memory.allocate(record)
        buffer[...] = np.frombuffer(bytes(block.memory()), np.uint8)
        for into, found in zip(made, shared_memory.rebuild(record, buffer, owner), strict=True):
            into.update(found)
    return made


def test_what_is_shared_is_shared_again() -> None:
    base = np.arange(12.0).reshape(3, 4)
    column, alone = base[:, 1], np.asfortranarray(np.ones((2, 3)))
    frozen = base[1:]
    frozen.flags.writeable = False
    assert len(shared_memory.memory_blocks([base, column, alone, frozen], [])) == 2
    arrays, _ = _again([base, column, alone, frozen], [])
    for number, array in enumerate([base, column, alone, frozen]):
        assert (arrays[number] == array).all()
        assert arrays[number].strides == array.strides
    arrays[0][2, 1] = -1
    assert arrays[1][2] == -1
    assert arrays[3][1, 1] == -1
    assert not arrays[3].flags.writeable
    assert arrays[2].base is None or arrays[2].flags.owndata


def test_a_sparse_block_is_one_array_that_covers_little_of_it() -> None:
    table = np.zeros((100, 100))
    (block,) = shared_memory.memory_blocks([table[:, 0]], [])
    assert shared_memory.is_sparse(block, [table[:, 0]])
    (block,) = shared_memory.memory_blocks([table], [])
    assert not shared_memory.is_sparse(block, [table])
    both = [table[:, 0], table[:, 1]]
    (block,) = shared_memory.memory_blocks(both, [])
    assert not shared_memory.is_sparse(block, both)


def test_tensors_on_the_memory_of_arrays() -> None:
    torch = pytest.importorskip("torch")
    array = np.arange(6.0)
    tensor, other = torch.from_numpy(array)[2:], torch.ones(3)
    start = array.__array_interface__["data"][0]
    assert shared_memory.storage_of(tensor) == (start, start + 48)
    assert shared_memory.storage_of(torch.ones(2).to_sparse()) is None
    assert not shared_memory.has_storage(torch.ones(2).to_sparse())
    arrays, tensors = _again([array], [other, tensor])
    assert [*tensors] == [1]  # the other one is in no array's memory
    assert tensors[1].tolist() == [2.0, 3.0, 4.0, 5.0]
    arrays[0][5] = 9
    assert tensors[1][3] == 9
    conjugated = torch.ones(2, dtype=torch.complex64).conj()
    view = shared_memory.view_of(conjugated, 0)
    assert view.on_storage(conjugated.untyped_storage()).is_conj()
