"""Process-wide settings of libraries: captured, changed, restored."""

from __future__ import annotations

import warnings

import pytest

from gpumagic.restart.variables import library_settings


def test_settings_of_numpy_and_warnings() -> None:
    np = pytest.importorskip("numpy")
    before, errors = np.get_printoptions(), np.geterr()
    with warnings.catch_warnings(record=True) as seen:
        np.set_printoptions(precision=3)
        np.seterr(divide="ignore")
        warnings.filterwarnings("ignore", "only mine", UserWarning)
        captured = library_settings.capture()
        np.set_printoptions(**before)
        np.seterr(**errors)
        del warnings.filters[0]
        assert library_settings.restore(captured, lambda ordinal: "cpu") == []
        assert np.get_printoptions()["precision"] == 3
        assert np.geterr()["divide"] == "ignore"
        warnings.warn("only mine", UserWarning, stacklevel=1)
        assert not seen
        np.set_printoptions(**before)
        np.seterr(**errors)


def test_settings_that_are_functions() -> None:
    np = pytest.importorskip("numpy")
    before = np.get_printoptions()
    try:
        assert "numpy's formatter" not in library_settings.function_settings()
        np.set_printoptions(formatter={"float": hex})
        (formatter,) = library_settings.function_settings().values()
        np.set_printoptions(**before)
        library_settings.set_function_setting("numpy's formatter", formatter)
        assert np.get_printoptions()["formatter"] == {"float": hex}
    finally:
        np.set_printoptions(**before)


def test_settings_of_torch() -> None:
    torch = pytest.importorskip("torch")
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("cuda:1")
        captured = library_settings.capture()
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        refused = library_settings.restore(captured, lambda ordinal: "cpu")
        assert refused == ["torch's default device (cuda:1 is hidden)"]
        assert torch.get_default_dtype() is torch.float64
        assert library_settings.restore(captured, lambda ordinal: f"cuda:{ordinal}") == []
        assert torch._GLOBAL_DEVICE_CONTEXT.device_context.device == torch.device("cuda:1")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
