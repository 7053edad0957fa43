"""Operations counted by torch, and the card's dense peak."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from gpumagic.timing.flops import FlopCounter, Flops, share_of_peak, why_no_share
from gpumagic.timing.peaks import peak


def counted(run: Any) -> Flops:
    with FlopCounter() as counter:
        run()
    assert counter.found is not None
    return counter.found


def test_a_matrix_product_and_its_backward_pass(gpu_work: Any) -> None:
    torch = gpu_work.torch
    a = torch.empty(64, 128, device="cuda:0", dtype=torch.bfloat16, requires_grad=True)
    b = torch.empty(128, 32, device="cuda:0", dtype=torch.bfloat16)
    assert counted(lambda: a @ b) == Flops(2 * 64 * 128 * 32, "bfloat16")
    assert counted(lambda: (a @ b).sum().backward()).count == 2 * 2 * 64 * 128 * 32
    assert counted(lambda: a + 1) == Flops(0, None), "what the counter does not count has no dtype"


def test_what_is_not_counted_is_known(gpu_work: Any) -> None:
    torch = gpu_work.torch
    a = torch.ones(32, 32, dtype=torch.int8)
    assert counted(lambda: torch._int_mm(a, a)) == Flops(0, None, ("aten._int_mm",))
    x = torch.ones(8, 8)

    def in_a_thread() -> None:
        thread = threading.Thread(target=lambda: x @ x)
        thread.start()
        thread.join()

    before = threading.getprofile()
    assert counted(in_a_thread) == Flops(0, None, threads=1)
    assert threading.getprofile() is before
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Conv1d(8, 8, 3, padding=1))
    assert counted(lambda: torch.matmul(layer(x), x).sum().backward()).unseen == ()


@pytest.fixture(scope="module")
def custom_operator() -> Any:
    import torch

    def product(a: Any) -> Any:
        return a @ a

    return torch.library.custom_op(
        "gpumagic_tests::product", product, mutates_args=(), schema="(Tensor a) -> Tensor"
    )


def test_what_the_counter_has_no_formula_for_is_named(gpu_work: Any, custom_operator: Any) -> None:
    torch = gpu_work.torch
    a = torch.rand(8, 8)
    codes: dict[str, Callable[[], Any]] = {
        "gpumagic_tests.product": lambda: custom_operator(a),
        "aten.dot": lambda: torch.dot(a[0], a[1]),
        "aten._cdist_forward": lambda: torch.cdist(a, a),
        "aten.linalg_inv_ex": lambda: torch.linalg.inv(a + 8 * torch.eye(8)),
        "aten._fft_r2c": lambda: torch.fft.fft(a),
    }
    for name, code in codes.items():
        found = counted(code)
        assert name in found.unseen
        assert share_of_peak(found, 1.0, "NVIDIA H200") is None


def test_cheap_operators_are_not_named(gpu_work: Any) -> None:
    torch = gpu_work.torch
    functional = torch.nn.functional
    layers = torch.nn.Sequential(
        torch.nn.Embedding(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Dropout()
    )
    optimizers = [
        torch.optim.Adam(layers.parameters()),
        torch.optim.SGD(layers.parameters(), momentum=0.9, foreach=True),
    ]

    def step() -> None:
        out = layers(torch.arange(8)).relu().softmax(-1).view(2, 4, 8).transpose(1, 2)
        out = torch.cat([out, out.clone()]).flatten(1)[:, ::2].contiguous()
        out.sort().values.cumsum(0).topk(2)
        loss = functional.cross_entropy(out, torch.zeros(4, dtype=torch.long))
        (loss + out.mean() + out.std() + out.norm()).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    step()
    assert counted(step).unseen == ()


def test_inference_mode_has_a_dtype(gpu_work: Any) -> None:
    """There composite operators are not decomposed before the counter sees them."""
    torch = gpu_work.torch
    a = torch.empty(8, 8, device="cuda:0", dtype=torch.half)
    layer = torch.nn.Linear(8, 8, device="cuda:0", dtype=torch.half)
    with torch.inference_mode():
        found = counted(lambda: layer(a @ a))
    assert (found.count, found.dtype, found.unseen) == (2 * 2 * 8**3, "float16", ())


def test_a_compiled_module_gives_no_warning(gpu_work: Any) -> None:
    """The counter adds no global hooks to modules, of which torch.compile would warn."""
    torch = gpu_work.torch
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8))
    compiled = torch.compile(layer, backend="eager")
    found = counted(lambda: compiled(torch.ones(8, 8)).sum().backward())  # warnings are errors
    assert found.count == 2 * 2 * 8**3
    calls: list[str] = []
    with torch.nn.modules.module.register_module_forward_hook(lambda *_: calls.append("hook")):
        assert counted(lambda: layer(torch.ones(8, 8))).count == 2 * 8**3
    assert calls == ["hook", "hook"], "the user's own hooks act"


def test_replays_of_a_graph_are_counted(gpu_work: Any) -> None:
    torch = gpu_work.torch
    graph, a = torch.cuda.CUDAGraph(), torch.empty(8, 8, device="cuda:0")
    with torch.cuda.graph(graph):
        a.add_(1)
    before = torch.cuda.CUDAGraph.replay
    found = counted(lambda: [graph.replay() for _ in range(3)])
    assert found.replays == 3
    assert torch.cuda.CUDAGraph.replay is before


@pytest.mark.parametrize(
    ("flops", "devices", "why"),
    [
        (Flops(8, "float32", on_cpu=True), ["A"], "some of the operations ran on the CPU"),
        (Flops(8, "float32"), ["A", "B"], "the code used 2 devices"),
        (
            Flops(8, None, dtypes=("float16", "float32")),
            ["A"],
            "the operations are in float16 and float32",
        ),
        (Flops(8, "complex64"), ["A"], "that of complex64 is not known for A"),
        (Flops(0, None), ["A"], None),
        (Flops(8, "float32", ("mine.op",)), ["A"], None),
    ],
)
def test_why_there_is_no_share(flops: Flops, devices: list[str], why: str | None) -> None:
    assert why_no_share(flops, devices) == why


def test_operations_on_the_cpu_have_no_share(gpu_work: Any) -> None:
    torch = gpu_work.torch
    found = counted(lambda: torch.ones(8, 8) @ torch.ones(8, 8))
    assert found == Flops(2 * 8**3, "float32", on_cpu=True)
    assert share_of_peak(found, 1.0, "NVIDIA H200") is None


def test_several_dtypes_have_no_peak(gpu_work: Any) -> None:
    torch = gpu_work.torch
    half, single = (torch.empty(8, 8, device="cuda:0", dtype=d) for d in (torch.half, torch.float))
    found = counted(lambda: (half @ half, single @ single))
    assert found.dtype is None
    assert share_of_peak(found, 1.0, "NVIDIA H200") is None


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("NVIDIA H200", "bfloat16", 989.5e12),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
        ("NVIDIA A100-SXM4-80GB", "float8_e4m3fn", None),
        ("Tesla T4", "bfloat16", None),
        ("NVIDIA H200 of the future", "bfloat16", None),
        ("NVIDIA L4", "tf32", 60e12),
        ("NVIDIA L40S", "float32", 91.6e12),
    ],
)
def test_dense_peaks(device: str, dtype: str, expected: float | None) -> None:
    assert peak(device, dtype) == pytest.approx(expected)


def test_the_share_of_a_card() -> None:
    flops = Flops(495 * 10**12, "float32")
    assert share_of_peak(flops, 10.0, "NVIDIA H200") == pytest.approx(495 / 670)
    by_tf32 = Flops(495 * 10**12, "tf32")
    assert share_of_peak(by_tf32, 1.0, "NVIDIA H200") == pytest.approx(495 / 494.7)
    assert share_of_peak(by_tf32, 100.0, "Tesla T4") == pytest.approx(4.95 / 8.1)  # which has none
    assert share_of_peak(flops, 1.0, "a card") is None
    assert share_of_peak(flops, 0.0, "NVIDIA H200") is None


@pytest.fixture
def fp32(gpu_work: Any) -> Iterator[Any]:
    """``torch.backends``, whose settings for float32 are restored."""
    backends = gpu_work.torch.backends
    before = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
    yield backends
    if hasattr(backends, "fp32_precision"):
        backends.fp32_precision = backends.cuda.matmul.fp32_precision = "none"
        backends.cudnn.conv.fp32_precision = "none"
    backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = before


def test_float32_is_what_torch_computes_it_by(gpu_work: Any, fp32: Any) -> None:
    torch = gpu_work.torch
    a, kernel = torch.empty(8, 8, 8, device="cuda:0"), torch.empty(8, 8, 1, device="cuda:0")

    def product() -> Any:
        return a @ a

    def convolution() -> None:
        with suppress(RuntimeError):  # the virtual GPU has no cuDNN
            torch.nn.functional.conv1d(a, kernel)

    fp32.cuda.matmul.allow_tf32, fp32.cudnn.allow_tf32 = False, True  # torch's defaults
    assert counted(product).dtype == "float32"
    assert counted(convolution).dtype == "tf32"
    assert counted(lambda: (product(), convolution())).dtype is None
    fp32.cuda.matmul.allow_tf32, fp32.cudnn.allow_tf32 = True, False
    assert counted(product).dtype == "tf32"
    assert counted(convolution).dtype == "float32"
    if hasattr(fp32, "fp32_precision"):
        fp32.cuda.matmul.allow_tf32 = False
        fp32.cuda.matmul.fp32_precision = "tf32"  # the older setting raises now
        assert counted(product).dtype == "tf32"
        fp32.cuda.matmul.fp32_precision = "ieee"
        assert counted(product).dtype == "float32"
