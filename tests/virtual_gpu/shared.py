"""The layout of a scenario's shared file: `struct vg_state` of src/state.h, field by field."""

from __future__ import annotations

from ctypes import Structure, c_char, c_int32, c_int64, c_uint32, c_uint64

MAGIC = 0x55504756
MAX_GPUS = 16
MAX_MIG = 7
MAX_PROCESSES = 128
MAX_EXTERNAL = 64
MAX_RULES = 64
MAX_CALLS = 4096
NAME = 72

# What GPU.unsupported may name, in the order of the bits of enum vg_field.
FIELDS = (
    "utilization",
    "temperature",
    "power",
    "power_limit",
    "memory",
    "memory_v2",
    "processes",
    "process_memory",
    "clocks",
    "fan",
    "performance_state",
    "uuid",
    "name",
    "pci",
    "throttle_reasons",
    "mig",
    "ecc",
    "energy",
)


class MigState(Structure):
    """struct vg_mig."""

    _fields_ = [
        ("uuid", c_char * 96),
        ("name", c_char * 96),
        ("memory", c_uint64),
        ("multiprocessors", c_uint32),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
        ("pad", c_uint32),
    ]


class GPUState(Structure):
    """struct vg_gpu."""

    _fields_ = [
        ("name", c_char * 96),
        ("uuid", c_char * 96),
        ("memory", c_uint64),
        ("reserved", c_uint64),
        ("unsupported", c_uint64),
        *[
            (name, c_uint32)
            for name in (
                "major",
                "minor",
                "utilization",
                "memory_utilization",
                "temperature",
                "power",
                "power_limit",
                "fan",
                "sm_clock",
                "sm_clock_max",
                "memory_clock",
                "performance_state",
                "multiprocessors",
                "throttle_reasons",
                "pci_bus",
                "integrated",
                "lost",
                "n_mig",
            )
        ],
        ("mig", MigState * MAX_MIG),
    ]


class RuleState(Structure):
    """struct vg_rule."""

    _fields_ = [
        ("name", c_char * NAME),
        ("active", c_int32),
        ("fails", c_int32),
        ("code", c_int32),
        ("pad", c_int32),
        ("after", c_int64),
        ("times", c_int64),
        ("delay_ns", c_int64),
        ("seen", c_int64),
    ]


class ProcessState(Structure):
    """struct vg_process."""

    _fields_ = [
        ("pid", c_int32),
        ("dead", c_int32),
        ("start_time", c_uint64),
        ("used", c_int64 * (1 + MAX_MIG) * MAX_GPUS),
        ("has_context", c_int32 * (1 + MAX_MIG) * MAX_GPUS),
    ]


class ExternalState(Structure):
    """struct vg_external."""

    _fields_ = [
        ("active", c_int32),
        ("gpu", c_int32),
        ("pid", c_uint32),
        ("mig", c_int32),
        ("memory", c_uint64),
        ("name", c_char * 96),
    ]


class CallState(Structure):
    """struct vg_call."""

    _fields_ = [
        ("name", c_char * NAME),
        ("count", c_uint64),
        ("total", c_uint64),
        ("unimplemented", c_uint32),
        ("pad", c_uint32),
    ]


class State(Structure):
    """struct vg_state."""

    _fields_ = [
        ("magic", c_uint32),
        ("layout_size", c_uint32),
        ("lock", c_int32),
        ("n_gpus", c_int32),
        ("n_rules", c_int32),
        ("cuda_version", c_int32),
        ("host_pids", c_int32),
        ("queue_depth", c_int32),
        ("any_dead", c_int32),
        ("driver_version", c_char * 80),
        ("cuda_order", c_int32 * MAX_GPUS),
        ("context_bytes", c_int64),
        ("launch_latency_ns", c_int64),
        ("launch_cost_ns", c_int64),
        ("kernel_ns", c_int64),
        ("cycles_per_second", c_int64),
        ("host_pid_offset", c_int64),
        ("gpus", GPUState * MAX_GPUS),
        ("rules", RuleState * MAX_RULES),
        ("external", ExternalState * MAX_EXTERNAL),
        ("processes", ProcessState * MAX_PROCESSES),
        ("calls", CallState * MAX_CALLS),
    ]
