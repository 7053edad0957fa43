"""What is declared on the extension of a shell, and how it is found."""

from __future__ import annotations

from typing import Any

import pytest

from gpumagic.magics.extension import find, of
from gpumagic.magics.magic_class import GpuMagic
from gpumagic.memory.peak_ledger import LEDGER
from tests.support.shells import shell


def test_found_by_what_ipython_has_registered() -> None:
    with shell(load=False) as ip:
        assert find(ip) is None
        with pytest.raises(AssertionError):
            of(ip)
        ip.extension_manager.load_extension("gpumagic")
        extension = of(ip)
        assert find(ip) is extension is ip.magics_manager.registry["GpuMagic"].extension
        assert extension.shell is ip
        assert isinstance(extension.magics, GpuMagic)
        assert not [name for name in vars(ip) if "gpumagic" in name]
        ip.extension_manager.unload_extension("gpumagic")
        assert find(ip) is None
        # Other magics of that name are not gpumagic's.
        ip.magics_manager.registry["GpuMagic"] = object()
        assert find(ip) is None
        del ip.magics_manager.registry["GpuMagic"]


def test_unloading_ends_the_modes(virtual_gpu: Any, ip: Any) -> None:
    ip.run_cell("import torch; torch.cuda.init()")
    ip.run_cell("%cudatime on -q\n%gpumem on -q\n%gpumem record on -q")
    extension = of(ip)
    timing, memory, history = (
        extension.cell_timing,
        extension.cell_memory,
        extension.memory_history,
    )
    assert timing is not None
    assert memory is not None
    assert history is not None
    assert timing.watching
    assert memory.watching
    assert len(LEDGER._scopes) == 1
    assert [*extension.hooks]
    ip.extension_manager.unload_extension("gpumagic")
    assert not timing.watching
    assert not memory.watching
    assert not history.state().own
    assert not LEDGER._scopes
    assert not [*extension.hooks]
    ip.extension_manager.load_extension("gpumagic")
    assert of(ip) is not extension
    assert of(ip).cell_timing is None
