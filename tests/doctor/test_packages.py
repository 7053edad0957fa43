"""The packages that provide the module ``pynvml``."""

from __future__ import annotations

from gpumagic.doctor.facts import Package
from tests.doctor.healthy import finding


def test_the_wrong_pynvml() -> None:
    both = (Package("nvidia-ml-py", "13.0", True), Package("pynvml", "11.5", True))
    found = finding("pynvml", packages=both)
    assert found.status == "warn"
    assert "belongs to nvidia-ml-py and pynvml" in found.evidence
    assert str(found.remedy).startswith("%pip uninstall -y pynvml, then")
    stray = finding("pynvml", packages=(), module_file="/home/me/pynvml.py")
    assert "/home/me/pynvml.py" in stray.evidence
    assert finding("pynvml", packages=()).remedy == "%pip install nvidia-ml-py"
