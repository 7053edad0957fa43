/* The shared state of a scenario: a small file mapped by every process that runs on it.
 *
 * Python writes the hardware, the faults and the external processes; the C libraries write the processes and the call counters.
 * layout.py reads the constants, the fields' bits and the structs from here: one declaration a line, types of fixed size.
 */
#ifndef VIRTUAL_GPU_STATE_H
#define VIRTUAL_GPU_STATE_H

#include <stddef.h>
#include <stdint.h>

#define VG_MAGIC 0x55504756u /* "VGPU" */
#define VG_MAX_GPUS 16
#define VG_MAX_MIG 7
#define VG_PARTS 8 /* a whole GPU, and its MIG instances */
#define VG_MAX_PROCESSES 128
#define VG_MAX_EXTERNAL 64
#define VG_MAX_RULES 64
#define VG_MAX_COSTS 192
#define VG_MAX_CALLS 4096
#define VG_NAME 72

/* What every GPU has. */
#define VG_MULTIPROCESSORS 132
#define VG_MIG_MULTIPROCESSORS 16
#define VG_MEMORY_CLOCK 2619

/* Fields that NVML answers with NVML_ERROR_NOT_SUPPORTED: bits of vg_gpu.unsupported. */
enum vg_field {
    VG_UTILIZATION = 1 << 0,
    VG_TEMPERATURE = 1 << 1,
    VG_POWER = 1 << 2,
    VG_POWER_LIMIT = 1 << 3,
    VG_MEMORY = 1 << 4,
    VG_MEMORY_V2 = 1 << 5,
    VG_PROCESSES = 1 << 6,
    VG_PROCESS_MEMORY = 1 << 7, /* the list is given, the memory of each process is N/A */
    VG_CLOCKS = 1 << 8,
    VG_FAN = 1 << 9,
    VG_PERFORMANCE_STATE = 1 << 10,
    VG_UUID = 1 << 11,
    VG_DEVICE_NAME = 1 << 12,
    VG_PCI = 1 << 13,
    VG_THROTTLE_REASONS = 1 << 14,
    VG_MIG = 1 << 15,
    VG_ECC = 1 << 16,
    VG_ENERGY = 1 << 17,
};

struct vg_mig {
    char uuid[96];
    char name[96];
    uint64_t memory;
    uint32_t gpu_instance;
};

struct vg_gpu {
    char name[96];
    char uuid[96];
    uint64_t memory;   /* bytes, all of it, as NVML's total */
    uint64_t reserved; /* bytes that the driver keeps for itself */
    uint64_t unsupported;
    uint64_t denied; /* of the whole GPU: fields that need rights, NVML_ERROR_NO_PERMISSION */
    uint32_t compute_capability[2];
    uint32_t utilization; /* percent */
    uint32_t temperature; /* degrees Celsius */
    uint32_t power;       /* milliwatts */
    uint32_t power_limit;
    uint32_t pci_bus;
    uint32_t integrated;
    uint32_t lost;
    uint32_t mig_mode;
    uint32_t compute_mode; /* 0 anybody's, 2 nobody's, 3 one process's */
    uint32_t n_mig;
    int64_t ramp_from;  /* when the clock began to rise, and until when there is work */
    int64_t busy_until;
    struct vg_mig mig[VG_MAX_MIG];
};

/* A call, or all calls with a prefix ("nvml*"), that fails or is slow. */
struct vg_rule {
    char name[VG_NAME];
    int32_t active;
    int32_t fails;
    int32_t code;
    int64_t times;    /* failures before it goes well again; -1: for ever */
    int64_t delay_ns; /* added to every call that matches */
    int64_t seen;
};

/* CPU time that every call of this name takes. */
struct vg_cost {
    char name[VG_NAME];
    int64_t ns;
};

/* What a card takes beside that, in nanoseconds where nothing else is said: see profiles.py, which fills it in. */
struct vg_profile {
    int64_t initialize;      /* CPU time of the first cuInit */
    int64_t context;         /* of a process's first context, by whatever call it is made */
    int64_t further_context; /* of one on a further GPU */
    int64_t module;          /* of the first launch of any kernel of a module */
    int64_t first_launch;    /* of each kernel's first launch */
    int64_t first_product;   /* of the first product */
    int64_t latency;         /* from a launch to the kernel's beginning, on an idle device */
    int64_t seen_late;       /* from the end of work to where the host can see it */
    int64_t resolution;      /* of an event */
    int64_t event;           /* of the GPU's time, to reach one */
    int64_t attach;          /* of NVML's first handle of a GPU */
    int64_t clock_ramp;      /* from the idle clock to the full one; 0: it never moves */
    int64_t clock_fall;      /* of idleness before the clock falls */
    int64_t idle_clock;      /* MHz */
    int64_t full_clock;
    int64_t context_bytes;
    int64_t stream_bytes;
    int64_t spins;           /* whether a wait uses CPU time: 0 for its last 60 us, 1 all of it, -1 none */
};

struct vg_process {
    int32_t pid;  /* 0: the entry is free */
    int32_t dead; /* what every call that needs a context answers; 0: its context lives */
    uint64_t start_time;
    /* Bytes in use: [gpu][0] of the whole GPU, [gpu][1 + i] of its MIG instance i. */
    int64_t used[VG_MAX_GPUS][VG_PARTS];
    int32_t has_context[VG_MAX_GPUS][VG_PARTS];
    int32_t sessions;              /* of NVML that are open */
    int32_t attached[VG_MAX_GPUS]; /* to the GPUs that one has a handle of */
};

struct vg_external {
    int32_t active;
    int32_t gpu;
    uint32_t pid;
    int32_t mig; /* -1: the whole GPU */
    uint64_t memory;
    char name[96];
};

struct vg_call {
    char name[VG_NAME]; /* empty: free */
    uint64_t count;     /* since the last reset */
    uint64_t total;
    uint32_t unimplemented;
    int64_t cost_ns;
};

struct vg_state {
    uint32_t magic;
    uint32_t layout_size; /* sizeof(struct vg_state) */
    int32_t lock;         /* pid of the holder, or 0 */
    int32_t n_gpus;
    int32_t n_rules;
    int32_t cuda_version; /* 13000 */
    int32_t host_pids;
    int32_t any_dead; /* whether a process may have a dead context */
    char driver_version[80];
    int32_t cuda_order[VG_MAX_GPUS]; /* nvidia-smi's index of each CUDA ordinal, fastest first */
    int64_t launch_cost_ns; /* that a launch keeps the host for, at least */
    struct vg_profile profile;
    struct vg_cost costs[VG_MAX_COSTS];
    struct vg_gpu gpus[VG_MAX_GPUS];
    struct vg_rule rules[VG_MAX_RULES];
    struct vg_external external[VG_MAX_EXTERNAL];
    struct vg_process processes[VG_MAX_PROCESSES];
    struct vg_call calls[VG_MAX_CALLS];
};

#define VG_EXPORT __attribute__((visibility("default")))

/* The mapped state; an empty one (no GPUs) when the process runs under no scenario. */
struct vg_state *vg_state(void);

/* CLOCK_MONOTONIC, in nanoseconds. */
int64_t vg_now(void);
/* Keeps the processor at work, at least so long on any. */
void vg_spend(int64_t ns);

/* Counts a call of `name` (the slot is kept by the caller) and says how a rule makes it fail: 0 goes well. */
int vg_enter(struct vg_call **slot, const char *name);
/* Reports a call that nobody implemented yet, and returns `code`. */
int vg_unimplemented(struct vg_call **slot, const char *name, int code);

/* First line of every function of an API: `FAULTS(cuInit);` */
#define FAULTS(function)                                                                                                   \
    do {                                                                                                                   \
        static struct vg_call *slot_;                                                                                      \
        int fault_ = vg_enter(&slot_, #function);                                                                          \
        if (fault_)                                                                                                        \
            return fault_;                                                                                                 \
    } while (0)

int vg_lost(const struct vg_gpu *gpu);
/* Memory in use, over all processes alive and the external ones. `mig` is -1 for a whole GPU. */
uint64_t vg_used(int gpu, int mig);
/* What this GPU (or instance) can give to CUDA. */
uint64_t vg_capacity(int gpu, int mig);
/* Adds `bytes` (may be negative) to this process's use; 0, or -1 where the device has not that much left. */
int vg_charge(int gpu, int mig, int64_t bytes);
void vg_mark_context(int gpu, int mig, int present);
/* This process opens (1) or closes (-1) a session of NVML; with the last one it lets go of all GPUs. */
void vg_count_session(int change);
/* Whether another process has a context there. */
int vg_taken(int gpu);
/* NVML takes a GPU in use for this process: whether that is new. */
int vg_attach(int gpu);
/* Forgets this process's use: at exit, and when exec put a new image in place of an old one. */
void vg_forget_process(void);
void vg_lock(void);
void vg_unlock(void);
/* Frees the entries of processes that have ended. Call with the lock held. */
void vg_reap(void);

#endif
