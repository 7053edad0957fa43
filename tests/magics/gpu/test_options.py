"""``%gpu`` with what is not valid: one line that says what to type, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.kernels import Kernel, shared
from tests.virtual_gpu import GPU, Scenario


@pytest.mark.parametrize(
    "spec",
    [
        *("9", "0,0", "1-", "GPU-zz", "GPU-", "GPU-aa", "offf", "0,off", "-1,0", "0-100000"),
        *("auto 0", "auto 3", "auto,1", "0 --idel", "0 -v for"),
    ],
)
def test_bad_specs_change_nothing(shared_kernel: Kernel, spec: str) -> None:
    before = shared_kernel.value("dict(__import__('os').environ)")
    reply = shared_kernel.run(f"%gpu {spec}", raising=False)
    assert reply.status == "error"
    assert reply.stderr.startswith("UsageError: ")
    assert reply.stderr.count("\n") == 1
    assert shared_kernel.value("dict(__import__('os').environ)") == before


@pytest.fixture(scope="module")
def shared_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """One kernel for all bad specs: they change nothing."""
    uuids = [f"GPU-aa000000-0000-0000-0000-00000000000{index}" for index in range(2)]
    scenario = Scenario(devices=[GPU(uuid=uuid) for uuid in uuids])
    with shared(tmp_path_factory.mktemp("kernel"), scenario) as one:
        yield one


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%gpu -1,0", "-1 is no GPU; to hide all GPUs write: off"),
        ("%gpu 0 -v class", "'class' is not a variable name"),
        ("%gpu 1 --soft", "--soft goes with off; for other GPUs: %gpu 1 --restart"),
    ],
)
def test_a_mistake_is_named(shared_kernel: Kernel, line: str, says: str) -> None:
    assert says in shared_kernel.run(line, raising=False).stderr


def test_an_option_goes_before_a_bad_default(kernel: Callable[..., Kernel]) -> None:
    fresh_kernel = kernel()
    fresh_kernel.run("%config GpuMagic.min_free = 'abc'")
    reply = fresh_kernel.run("%gpu auto", raising=False)
    assert "%config GpuMagic.min_free: 'abc' is not a size" in reply.stderr
    fresh_kernel.run("%gpu auto --min-free 1GiB -q")
