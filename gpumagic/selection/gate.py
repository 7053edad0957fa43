"""A gate inside the process: device-agnostic code uses the CPU, new CUDA tensors are refused.

For when it is too late to hide the GPUs and the state of the process must be kept. A best effort,
and documented as one: existing CUDA tensors can be used, other threads are gated only by the
replaced functions, and a name that was copied earlier (``from torch.cuda import is_available``)
still refers to the original. `lift` restores every object that `close` replaces, identical by
``is``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from gpumagic.cuda import devices, driver, torch_cuda
from gpumagic.cuda.process_state import STATE
from gpumagic.errors import GpuMagicError, SpecError
from gpumagic.results import Device, Selection, Status
from gpumagic.selection import environment
from gpumagic.selection.spec import NO_WANTS, Spec, Wants, pick, resolve


class GateError(GpuMagicError, RuntimeError):
    """New work was refused for a GPU that the gate excludes."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows, without the gate's own frames."""
        from gpumagic.cells import tracebacks

        return tracebacks.rendered(self)


LIMITS = (
    "What the gate cannot stop: work on existing CUDA tensors, other libraries, and names "
    "copied earlier (from torch.cuda import is_available); only a restart is complete"
)
#: Below a gate that has just been closed.
_NOTES = (LIMITS, "lift it with: %gpu on")


class Gate:
    """A gate for all devices but the CUDA ordinals ``allowed``, which may be none.

    ``spec`` is the text that the user has typed for it.
    """

    def __init__(self, allowed: Iterable[int], spec: str) -> None:
        self.allowed = tuple(allowed)
        self.spec = spec
        self._torch: Any = torch_cuda.require()
        #: Owner, attribute, and its value in the owner's own ``__dict__`` before.
        self._replaced: list[tuple[Any, str, Any]] = []
        self._mode: Any = None
        self._device_before: int | None = None

    def close(self) -> None:
        """Replace torch's functions and enter a function mode, to refuse the other devices."""
        cuda = self._torch.cuda
        if not self.allowed:
            self._replace(cuda, "is_available", _answering(cuda.is_available, False))
            self._replace(cuda, "device_count", _answering(cuda.device_count, 0))
            # From torch 2.7 on these call torch.cuda; before, they call C++.
            accelerator = self._torch.accelerator
            self._replace(accelerator, "is_available", _answering(accelerator.is_available, False))
            self._replace(accelerator, "device_count", _answering(accelerator.device_count, 0))
            self._replace(cuda, "_lazy_init", self._refuse)
        else:
            self._replace(cuda, "set_device", self._choosing(cuda.set_device))
            accelerator = self._torch.accelerator
            # Two names of one function, and in newer versions of torch two functions.
            for name in ("set_device_index", "set_device_idx"):
                original = vars(accelerator).get(name)
                if original is not None:
                    self._replace(accelerator, name, self._choosing(original))
            self._make_current(self.allowed[0])
        self._replace(cuda.Stream, "__new__", self._streams(cuda.Stream.__new__))
        self._mode = _refusing_mode(self)
        self._mode.__enter__()

    def lift(self) -> None:
        """Undo `close`."""
        while self._replaced:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)
        if self._mode is not None:
            _remove_mode(self._torch, self._mode)
            self._mode = None
        if self._device_before is not None:
            self._torch.cuda.set_device(self._device_before)
            self._device_before = None

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        self._replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, new)

    def _make_current(self, ordinal: int) -> None:
        cuda = self._torch.cuda
        if cuda.is_initialized():
            self._device_before = cuda.current_device()
            self._torch._C._cuda_setDevice(ordinal)
        else:
            # At the user's first use of CUDA: selecting a device now would create a context.
            def first(gate: Gate = self) -> None:
                # Queued again by each `close`.
                if gate is STATE.choice.gate and gate._device_before is None:
                    gate._device_before = gate._torch._C._cuda_getDevice()
                    gate._torch._C._cuda_setDevice(ordinal)

            cuda._lazy_call(first)

    # --- what is refused -----------------------------------------------------------------------

    def refuses(self, index: int | None) -> bool:
        """Return whether a CUDA device may not be used; None is the current one."""
        if index is None:
            return not self.allowed
        return index not in self.allowed

    def error(self, what: str) -> GateError:
        """Return the exception for a refusal, with the command that lifts the gate."""
        names = ", ".join(f"cuda:{ordinal}" for ordinal in self.allowed)
        allowed = f" ({names} {'is' if len(self.allowed) == 1 else 'are'} allowed)" if names else ""
        return GateError(
            f"{what} is refused: this kernel is gated by '%gpu {self.spec} --soft'{allowed}; "
            "to lift that: %gpu on"
        )

    def _refuse(self) -> None:
        raise self.error("CUDA")

    def _choosing(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def set_device(device: Any) -> None:
            index = self._torch.cuda._utils._get_device_index(device)
            if index >= 0 and self.refuses(index):  # below 0 torch changes nothing
                raise self.error(f"cuda:{index}")
            original(device)

        return set_device

    def _streams(self, original: Callable[..., Any]) -> Any:
        def new(cls: Any, device: Any = None, *arguments: Any, **options: Any) -> Any:
            if "stream_id" not in options:  # with it, an existing stream is wrapped
                index = None if device is None else self._torch.device(device).index
                if self.refuses(index):
                    raise self.error("A new CUDA stream")
            return original(cls, device, *arguments, **options)

        return staticmethod(new)


def _answering(original: Callable[..., Any], answer: Any) -> Callable[..., Any]:
    def gated(*arguments: Any, **options: Any) -> Any:
        return answer

    gated.__name__ = original.__name__
    gated.__doc__ = original.__doc__
    return gated


def _refusing_mode(gate: Gate) -> Any:
    """Return a function mode of torch that refuses new tensors on a gated device.

    Once CUDA is initialised torch's C++ code calls no Python function for it, so the mode checks
    the arguments of functions, and the tensors that they return.
    """
    torch = gate._torch
    tensor, device_type = torch.Tensor, torch.device

    def on_gated(value: Any) -> bool:
        if isinstance(value, device_type):
            return bool(value.type == "cuda" and gate.refuses(value.index))
        if isinstance(value, str) and value.startswith("cuda"):
            return gate.refuses(device_type(value).index)
        return False

    def gated_tensor(value: Any) -> bool:
        return isinstance(value, tensor) and value.is_cuda and gate.refuses(value.get_device())

    class RefuseNewCuda(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(
            self,
            function: Any,
            types: Any,
            args: tuple[Any, ...] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            kwargs = kwargs or {}
            # Existing tensors on a gated device can be used: only new ones are refused.
            if not any(map(gated_tensor, args[:1])):
                name = getattr(function, "__name__", "")
                moves = name in ("cuda", "pin_memory") and gate.refuses(
                    args[1] if len(args) > 1 and isinstance(args[1], int) else None
                )
                if moves or on_gated(kwargs.get("device")) or any(map(on_gated, args[1:])):
                    raise gate.error("A new CUDA tensor")
                if name == "to" and any(map(gated_tensor, args[1:])):
                    raise gate.error("A new CUDA tensor")
            result = function(*args, **kwargs)
            if gated_tensor(result) and not any(map(gated_tensor, _flat(args, kwargs))):
                raise gate.error("A new CUDA tensor")
            return result

    return RefuseNewCuda()


def _flat(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterable[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value


def _remove_mode(torch: Any, mode: Any) -> None:
    """Remove the mode from torch's stack, also if the user has entered other modes since."""
    overrides = torch.overrides
    above = []
    while overrides._len_torch_function_stack():
        top = overrides._pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        overrides._push_mode(other)


# --- the process's gate --------------------------------------------------------------------------


def current() -> Gate | None:
    """Return the gate that is closed; None if none is."""
    gate = STATE.choice.gate
    return gate if isinstance(gate, Gate) else None


def close(allowed: Iterable[int], spec: str) -> None:
    """Close a gate for all but the CUDA ordinals ``allowed``, in place of an earlier gate.

    Imports torch.

    Raises:
        DeviceError: torch cannot be imported.
    """
    lift()
    gate = Gate(allowed, spec)
    STATE.choice.gate = gate
    try:
        gate.close()
    except BaseException:
        lift()
        raise


def lift() -> bool:
    """Lift the gate; return whether there was one."""
    gate, STATE.choice.gate = STATE.choice.gate, None
    if gate is None:
        return False
    gate.lift()
    return True


def choose(spec: Spec, wants: Wants = NO_WANTS) -> Selection:
    """Close the gate for all devices but those of ``spec``, or lift it (``on``, ``reset``).

    The environment is not changed. ``wants`` is for ``auto``.

    Raises:
        SpecError: the spec is not valid here, or names a device that this process does not see.
        DeviceError: torch cannot be imported, or not enough devices fit.
    """
    table = devices.devices(processes=False)
    visible = table.visible
    if spec.kind in ("on", "reset"):
        lifted = lift()
        text = "the gate is lifted" if lifted else "there was no gate"
        return _selection(spec, "applied" if lifted else "unchanged", visible, (text,))
    if spec.kind == "off":
        close((), spec.text)
        return _selection(spec, "gated", (), _NOTES)
    devices.check(table)
    if spec.kind == "auto" and table.devices and not visible:
        raise SpecError("this kernel sees no GPU, or which ones is not known: name one to allow")
    uuids = pick(visible, spec.count, wants) if spec.kind == "auto" else resolve(spec, table)
    chosen = [d for uuid in uuids for d in table if uuid in (d.uuid, d.instance)]
    hidden = [device for device in chosen if device.ordinal is None]
    if hidden or len(chosen) < len(uuids):
        named = f"GPU {hidden[0].index}" if hidden else uuids[0]
        raise SpecError(f"{named} is hidden from this kernel, so a gate cannot allow it")
    close((device.ordinal for device in chosen if device.ordinal is not None), spec.text)
    return _selection(spec, "gated", chosen, _NOTES)


def note() -> str | None:
    """Return one line on the gate that is closed; None if none is."""
    gate = current()
    if gate is None:
        return None
    names = ", ".join(f"cuda:{ordinal}" for ordinal in gate.allowed)
    may = f"only {names}" if names else "no GPU"
    return (
        f"a gate is closed ('%gpu {gate.spec} --soft'): {may} may be used for new work; "
        "lift it with: %gpu on"
    )


def under_gate(chosen: Selection) -> Selection:
    """Return a selection without the devices that the closed gate excludes, with a note."""
    line, gate = note(), current()
    if line is None or gate is None:
        return chosen
    chosen = replace(chosen, notes=(line, *chosen.notes))
    usable = tuple(device for device in chosen.devices if not gate.refuses(device.ordinal))
    if chosen.status == "too-late" or usable == chosen.devices:
        return chosen
    return replace(chosen, status="gated", devices=usable)


def _selection(
    spec: Spec, status: Status, usable: Iterable[Device], notes: tuple[str, ...]
) -> Selection:
    return Selection(
        requested=spec.text,
        environment=environment.now(),
        status=status,
        devices=tuple(usable),
        cuda_initialized=driver.state().initialized,
        notes=notes,
    )
