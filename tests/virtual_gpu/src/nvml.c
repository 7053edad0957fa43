/* libnvidia-ml.so.1: what nvidia-smi, nvidia-ml-py, gpustat, nvitop and PyTorch ask. It knows nothing of CUDA_VISIBLE_DEVICES. */
#define _GNU_SOURCE
#include "pace.h"
#include "state.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};
#define NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFull
#define VERSIONED(type, number) ((unsigned)(sizeof(type) | (number) << 24))

struct handle { int gpu, mig; };

static int users;
static struct handle handles[VG_MAX_GPUS][VG_PARTS];

static struct handle *handle_of(int gpu, int mig)
{
    struct handle *handle = &handles[gpu][1 + mig];
    handle->gpu = gpu;
    handle->mig = mig;
    return handle;
}

static int valid(const struct handle *handle)
{
    const char *at = (const char *)handle, *start = (const char *)handles;
    return at >= start && at < start + sizeof handles && (size_t)(at - start) % sizeof *handle == 0;
}

#define CALL(function)                                                                                                     \
    FAULTS(function);                                                                                                      \
    if (!users)                                                                                                            \
    return UNINITIALIZED
#define DEVICE(function)                                                                                                   \
    CALL(function);                                                                                                        \
    if (!valid(handle))                                                                                                    \
        return INVALID_ARGUMENT;                                                                                           \
    struct vg_gpu *gpu = &vg_state()->gpus[handle->gpu];                                                                   \
    (void)gpu;                                                                                                             \
    if (vg_lost(gpu))                                                                                                      \
    return GPU_IS_LOST
#define FIELD(function, field)                                                                                             \
    DEVICE(function);                                                                                                      \
    if (handle->mig < 0 && gpu->denied & (field))                                                                          \
        return NO_PERMISSION;                                                                                              \
    if (gpu->unsupported & (field))                                                                                        \
    return NOT_SUPPORTED
/* Of a whole GPU only: a MIG instance does not know it. */
#define GPU_FIELD(function, field)                                                                                         \
    FIELD(function, field);                                                                                                \
    if (handle->mig >= 0)                                                                                                  \
    return NOT_SUPPORTED

/* The common shapes of a query. */
#define NUMBER(function, field, expression)                                                                                \
    VG_EXPORT int function(struct handle *handle, unsigned *result)                                                        \
    {                                                                                                                      \
        GPU_FIELD(function, field);                                                                                        \
        *result = (unsigned)(expression);                                                                                  \
        return 0;                                                                                                          \
    }
#define TEXT(function, field, expression)                                                                                  \
    VG_EXPORT int function(struct handle *handle, char *result, unsigned length)                                           \
    {                                                                                                                      \
        FIELD(function, field);                                                                                            \
        return text(result, length, expression);                                                                           \
    }
#define NEVER(function)                                                                                                    \
    VG_EXPORT int function(struct handle *handle, ...)                                                                     \
    {                                                                                                                      \
        DEVICE(function);                                                                                                  \
        return NOT_SUPPORTED;                                                                                              \
    }

static int text(char *result, unsigned length, const char *value)
{
    if (strlen(value) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(result, value);
    return 0;
}

/* ---- the library and the system ---- */

#define INIT(function, parameters)                                                                                         \
    VG_EXPORT int function parameters                                                                                      \
    {                                                                                                                      \
        FAULTS(function);                                                                                                  \
        __atomic_fetch_add(&users, 1, __ATOMIC_RELAXED);                                                                   \
        vg_count_session(1);                                                                                               \
        return 0;                                                                                                          \
    }
INIT(nvmlInit_v2, (void))
INIT(nvmlInitWithFlags, (unsigned flags __attribute__((unused))))

/* Once too often is no error (NVIDIA's own, asked with no device behind it). */
VG_EXPORT int nvmlShutdown(void)
{
    FAULTS(nvmlShutdown);
    int before = __atomic_load_n(&users, __ATOMIC_RELAXED);
    while (before && !__atomic_compare_exchange_n(&users, &before, before - 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    if (before)
        vg_count_session(-1);
    return 0;
}

/* The first question about a GPU attaches the driver to it: at once where it is attached already. */
static void attach(int gpu)
{
    int64_t cost = vg_attach(gpu) ? vg_state()->profile.attach : 0;
    struct timespec pause = {cost / 1000000000, cost % 1000000000};
    while (cost && clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, &pause))
        ;
}

/* The old way attaches all of them. */
VG_EXPORT int nvmlInit(void)
{
    FAULTS(nvmlInit);
    int error = nvmlInit_v2();
    for (int gpu = 0; gpu < vg_state()->n_gpus && !error; gpu++)
        attach(gpu);
    return error;
}

VG_EXPORT const char *nvmlErrorString(int error)
{
    switch (error) {
    case 0: return "The operation was successful";
    case 1: return "Uninitialized";
    case 2: return "Invalid Argument";
    case 3: return "Not Supported";
    case 4: return "Insufficient Permissions";
    case 6: return "Not Found";
    case 7: return "Insufficient Size";
    case 9: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 17: return "The operating system has blocked the request";
    case 18: return "RM has detected an NVML/RM version mismatch";
    case 20: return "Insufficient Memory";
    case 25: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

VG_EXPORT int nvmlSystemGetDriverVersion(char *result, unsigned length)
{
    CALL(nvmlSystemGetDriverVersion);
    return text(result, length, vg_state()->driver_version);
}

VG_EXPORT int nvmlSystemGetNVMLVersion(char *result, unsigned length)
{
    FAULTS(nvmlSystemGetNVMLVersion); /* needs no nvmlInit */
    char version[128];
    snprintf(version, sizeof version, "%d.%s", vg_state()->cuda_version / 1000, vg_state()->driver_version);
    return text(result, length, version);
}

#define CUDA_VERSION(function)                                                                                             \
    VG_EXPORT int function(int *version)                                                                                   \
    {                                                                                                                      \
        CALL(function);                                                                                                    \
        *version = vg_state()->cuda_version;                                                                               \
        return 0;                                                                                                          \
    }
CUDA_VERSION(nvmlSystemGetCudaDriverVersion)
CUDA_VERSION(nvmlSystemGetCudaDriverVersion_v2)

VG_EXPORT int nvmlSystemGetProcessName(unsigned pid, char *result, unsigned length)
{
    CALL(nvmlSystemGetProcessName);
    struct vg_state *state = vg_state();
    char path[64], name[256];
    for (int i = 0; i < VG_MAX_EXTERNAL; i++)
        if (state->external[i].active && state->external[i].pid == pid) {
            snprintf(result, length, "%s", state->external[i].name);
            return 0;
        }
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t size = state->host_pids ? -1 : readlink(path, name, sizeof name - 1);
    if (size < 0)
        return NOT_FOUND;
    name[size] = 0;
    snprintf(result, length, "%s", name);
    return 0;
}

/* ---- handles ---- */

#define COUNT(function)                                                                                                    \
    VG_EXPORT int function(unsigned *count)                                                                                \
    {                                                                                                                      \
        CALL(function);                                                                                                    \
        *count = (unsigned)vg_state()->n_gpus;                                                                             \
        return 0;                                                                                                          \
    }
COUNT(nvmlDeviceGetCount)
COUNT(nvmlDeviceGetCount_v2)

#define BY_INDEX(function)                                                                                                 \
    VG_EXPORT int function(unsigned index, struct handle **result)                                                         \
    {                                                                                                                      \
        CALL(function);                                                                                                    \
        if (index >= (unsigned)vg_state()->n_gpus)                                                                         \
            return INVALID_ARGUMENT;                                                                                       \
        if (vg_lost(&vg_state()->gpus[index]))                                                                                  \
            return GPU_IS_LOST;                                                                                            \
        attach((int)index);                                                                                                \
        *result = handle_of((int)index, -1);                                                                               \
        return 0;                                                                                                          \
    }
BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

VG_EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct handle **result)
{
    CALL(nvmlDeviceGetHandleByUUID);
    struct vg_state *state = vg_state();
    for (int i = 0; i < state->n_gpus; i++) {
        int mig = -2;
        if (strcmp(state->gpus[i].uuid, uuid) == 0)
            mig = -1;
        for (unsigned j = 0; j < state->gpus[i].n_mig; j++)
            if (strcmp(state->gpus[i].mig[j].uuid, uuid) == 0)
                mig = (int)j;
        if (mig == -2)
            continue;
        if (vg_lost(&state->gpus[i]))
            return GPU_IS_LOST;
        attach(i);
        *result = handle_of(i, mig);
        return 0;
    }
    return NOT_FOUND;
}

#define BY_PCI(function)                                                                                                   \
    VG_EXPORT int function(const char *text, struct handle **result)                                                       \
    {                                                                                                                      \
        CALL(function);                                                                                                    \
        unsigned domain, bus;                                                                                              \
        if (sscanf(text, "%x:%x:", &domain, &bus) != 2)                                                                    \
            return INVALID_ARGUMENT;                                                                                       \
        for (int i = 0; i < vg_state()->n_gpus; i++)                                                                       \
            if (vg_state()->gpus[i].pci_bus == bus) {                                                                      \
                if (vg_lost(&vg_state()->gpus[i]))                                                                              \
                    return GPU_IS_LOST;                                                                                    \
                attach(i);                                                                                                 \
                *result = handle_of(i, -1);                                                                                \
                return 0;                                                                                                  \
            }                                                                                                              \
        return NOT_FOUND;                                                                                                  \
    }
BY_PCI(nvmlDeviceGetHandleByPciBusId)
BY_PCI(nvmlDeviceGetHandleByPciBusId_v2)

/* ---- what a device is ---- */

VG_EXPORT int nvmlDeviceGetName(struct handle *handle, char *result, unsigned length)
{
    FIELD(nvmlDeviceGetName, VG_DEVICE_NAME);
    char name[224];
    if (handle->mig >= 0)
        snprintf(name, sizeof name, "%s MIG %s", gpu->name, gpu->mig[handle->mig].name);
    else
        snprintf(name, sizeof name, "%s", gpu->name);
    return text(result, length, name);
}

TEXT(nvmlDeviceGetUUID, VG_UUID, handle->mig >= 0 ? gpu->mig[handle->mig].uuid : gpu->uuid)
NUMBER(nvmlDeviceGetIndex, 0, handle->gpu)
NUMBER(nvmlDeviceGetMinorNumber, 0, handle->gpu)
NUMBER(nvmlDeviceGetBoardId, 0, gpu->pci_bus << 8)
NUMBER(nvmlDeviceGetMultiGpuBoard, 0, 0)
NUMBER(nvmlDeviceGetBrand, 0, 14) /* NVIDIA */
static unsigned architecture(const uint32_t capability[2])
{
    if (capability[0] >= 9)
        return capability[0] > 9 ? 10 : 9;
    return capability[0] < 8 ? 6 : capability[1] == 9 ? 8 : 7;
}
NUMBER(nvmlDeviceGetArchitecture, 0, architecture(gpu->compute_capability))
NUMBER(nvmlDeviceGetNumGpuCores, 0, VG_MULTIPROCESSORS * 128)
NUMBER(nvmlDeviceGetMemoryBusWidth, 0, 5120)
NUMBER(nvmlDeviceGetComputeMode, 0, gpu->compute_mode)
NUMBER(nvmlDeviceGetPersistenceMode, 0, 1)
NUMBER(nvmlDeviceGetDisplayMode, 0, 0)
NUMBER(nvmlDeviceGetDisplayActive, 0, 0)
NUMBER(nvmlDeviceGetAccountingMode, 0, 0)
NEVER(nvmlDeviceGetDriverModel)
NEVER(nvmlDeviceGetDriverModel_v2)
NEVER(nvmlDeviceGetSerial)
NEVER(nvmlDeviceGetVbiosVersion)
NEVER(nvmlDeviceGetBoardPartNumber)
NEVER(nvmlDeviceGetGpuFabricInfo)
NEVER(nvmlDeviceGetNvLinkState)
NEVER(nvmlDeviceGetNvLinkRemoteDeviceType)
NEVER(nvmlDeviceGetNvLinkRemotePciInfo)
NEVER(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NEVER(nvmlDeviceGetSamples)
NEVER(nvmlDeviceGetProcessUtilization)
NEVER(nvmlDeviceGetAccountingStats)

VG_EXPORT int nvmlDeviceGetCudaComputeCapability(struct handle *handle, int *major, int *minor)
{
    DEVICE(nvmlDeviceGetCudaComputeCapability);
    *major = (int)gpu->compute_capability[0];
    *minor = (int)gpu->compute_capability[1];
    return 0;
}

struct pci {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

static int pci(struct vg_gpu *gpu, struct pci *result)
{
    memset(result, 0, sizeof *result);
    snprintf(result->bus_id_legacy, sizeof result->bus_id_legacy, "0000:%02X:00.0", gpu->pci_bus & 0xFF);
    snprintf(result->bus_id, sizeof result->bus_id, "00000000:%02X:00.0", gpu->pci_bus & 0xFF);
    result->bus = gpu->pci_bus;
    result->device_id = 0x233010DE;
    result->subsystem_id = 0x16C110DE;
    return 0;
}

#define PCI(function)                                                                                                      \
    VG_EXPORT int function(struct handle *handle, struct pci *result)                                                      \
    {                                                                                                                      \
        GPU_FIELD(function, VG_PCI);                                                                                       \
        return pci(gpu, result);                                                                                           \
    }
PCI(nvmlDeviceGetPciInfo_v3)

#define OLD_PCI(function)                                                                                                  \
    VG_EXPORT int function(struct handle *handle, void *result)                                                            \
    {                                                                                                                      \
        GPU_FIELD(function, VG_PCI);                                                                                       \
        struct pci whole;                                                                                                  \
        pci(gpu, &whole);                                                                                                  \
        memcpy(result, &whole, offsetof(struct pci, bus_id));                                                              \
        return 0;                                                                                                          \
    }
OLD_PCI(nvmlDeviceGetPciInfo)
OLD_PCI(nvmlDeviceGetPciInfo_v2)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, VG_PCI, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, VG_PCI, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, VG_PCI, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, VG_PCI, 16)

VG_EXPORT int nvmlDeviceGetPcieThroughput(struct handle *handle, unsigned counter, unsigned *result)
{
    GPU_FIELD(nvmlDeviceGetPcieThroughput, VG_PCI);
    (void)counter;
    *result = 0;
    return 0;
}

VG_EXPORT int nvmlDeviceGetP2PStatus(struct handle *handle, struct handle *other, unsigned capability, unsigned *result)
{
    DEVICE(nvmlDeviceGetP2PStatus);
    (void)other, (void)capability;
    *result = 0;
    return 0;
}

VG_EXPORT int nvmlDeviceGetTopologyCommonAncestor(struct handle *handle, struct handle *other, unsigned *result)
{
    DEVICE(nvmlDeviceGetTopologyCommonAncestor);
    *result = other == handle ? 0 : 50; /* the same board; the same system */
    return 0;
}

VG_EXPORT int nvmlDeviceGetFieldValues(struct handle *handle, int count, void *values)
{
    DEVICE(nvmlDeviceGetFieldValues);
    struct field { unsigned id, scope; long long time, latency; unsigned type; int error; long long value; } *fields = values;
    for (int i = 0; i < count; i++)
        fields[i].error = NOT_SUPPORTED;
    return 0;
}

/* The GPU is on no NVLink fabric: state 0. The version's low bits are the structure's size. */
VG_EXPORT int nvmlDeviceGetGpuFabricInfoV(struct handle *handle, unsigned *result)
{
    DEVICE(nvmlDeviceGetGpuFabricInfoV);
    unsigned size = *result & 0xFFFFFF;
    if (size < sizeof *result || size > 256)
        return VERSION_MISMATCH;
    memset(result + 1, 0, size - sizeof *result);
    return 0;
}

/* ---- memory ---- */

struct memory { unsigned long long total, free, used; };

VG_EXPORT int nvmlDeviceGetMemoryInfo(struct handle *handle, struct memory *result)
{
    FIELD(nvmlDeviceGetMemoryInfo, VG_MEMORY);
    uint64_t used = vg_used(handle->gpu, handle->mig);
    result->total = handle->mig >= 0 ? gpu->mig[handle->mig].memory : gpu->memory;
    if (handle->mig < 0)
        used += gpu->reserved; /* this version counts what the driver keeps as used */
    result->used = used < result->total ? used : result->total;
    result->free = result->total - result->used;
    return 0;
}

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

VG_EXPORT int nvmlDeviceGetMemoryInfo_v2(struct handle *handle, struct memory_v2 *result)
{
    FIELD(nvmlDeviceGetMemoryInfo_v2, VG_MEMORY | VG_MEMORY_V2);
    if (result->version != VERSIONED(struct memory_v2, 2))
        return VERSION_MISMATCH;
    result->total = handle->mig >= 0 ? gpu->mig[handle->mig].memory : gpu->memory;
    result->reserved = handle->mig >= 0 ? 0 : gpu->reserved;
    uint64_t used = vg_used(handle->gpu, handle->mig), room = result->total - result->reserved;
    result->used = used < room ? used : room;
    result->free = room - result->used;
    return 0;
}

VG_EXPORT int nvmlDeviceGetBAR1MemoryInfo(struct handle *handle, struct memory *result)
{
    GPU_FIELD(nvmlDeviceGetBAR1MemoryInfo, VG_MEMORY);
    result->total = (unsigned long long)128 << 30;
    result->used = 1 << 20;
    result->free = result->total - result->used;
    return 0;
}

/* ---- what a device does ---- */

VG_EXPORT int nvmlDeviceGetUtilizationRates(struct handle *handle, unsigned rates[2])
{
    GPU_FIELD(nvmlDeviceGetUtilizationRates, VG_UTILIZATION);
    if (gpu->mig_mode)
        return NOT_SUPPORTED;
    rates[0] = gpu->utilization;
    rates[1] = 0;
    return 0;
}

#define CODEC(function)                                                                                                    \
    VG_EXPORT int function(struct handle *handle, unsigned *percent, unsigned *period)                                     \
    {                                                                                                                      \
        GPU_FIELD(function, VG_UTILIZATION);                                                                               \
        *percent = 0;                                                                                                      \
        *period = 167000;                                                                                                  \
        return 0;                                                                                                          \
    }
CODEC(nvmlDeviceGetEncoderUtilization)
CODEC(nvmlDeviceGetDecoderUtilization)
CODEC(nvmlDeviceGetJpgUtilization)
CODEC(nvmlDeviceGetOfaUtilization)

VG_EXPORT int nvmlDeviceGetTemperature(struct handle *handle, unsigned sensor, unsigned *result)
{
    GPU_FIELD(nvmlDeviceGetTemperature, VG_TEMPERATURE);
    (void)sensor;
    *result = gpu->temperature;
    return 0;
}

struct temperature { unsigned version, sensor; int temperature; };

VG_EXPORT int nvmlDeviceGetTemperatureV(struct handle *handle, struct temperature *result)
{
    GPU_FIELD(nvmlDeviceGetTemperatureV, VG_TEMPERATURE);
    if (result->version != VERSIONED(struct temperature, 1))
        return VERSION_MISMATCH;
    result->temperature = (int)gpu->temperature;
    return 0;
}

VG_EXPORT int nvmlDeviceGetTemperatureThreshold(struct handle *handle, unsigned threshold, unsigned *result)
{
    GPU_FIELD(nvmlDeviceGetTemperatureThreshold, VG_TEMPERATURE);
    *result = threshold == 0 ? 95 : 87;
    return 0;
}

NUMBER(nvmlDeviceGetPowerUsage, VG_POWER, gpu->power)

/* Millijoules, as on real hardware in steps: the power that the scenario says, for as long as the clock has gone on. */
#define ENERGY_STEP 20000000 /* ns */
VG_EXPORT int nvmlDeviceGetTotalEnergyConsumption(struct handle *handle, unsigned long long *result)
{
    struct timespec now;
    GPU_FIELD(nvmlDeviceGetTotalEnergyConsumption, VG_ENERGY);
    clock_gettime(CLOCK_MONOTONIC, &now);
    unsigned long long steps = (now.tv_sec * 1000000000ull + now.tv_nsec) / ENERGY_STEP;
    *result = steps * (gpu->power / (1000000000 / ENERGY_STEP));
    return 0;
}

NUMBER(nvmlDeviceGetPowerManagementMode, VG_POWER_LIMIT, 1)
NUMBER(nvmlDeviceGetPowerManagementLimit, VG_POWER_LIMIT, gpu->power_limit)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, VG_POWER_LIMIT, gpu->power_limit)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, VG_POWER_LIMIT, gpu->power_limit)
NUMBER(nvmlDeviceGetPerformanceState, VG_PERFORMANCE_STATE, 0)
NUMBER(nvmlDeviceGetPowerState, VG_PERFORMANCE_STATE, 0)
#define FAN 30 /* percent */
NUMBER(nvmlDeviceGetNumFans, VG_FAN, 1)
NUMBER(nvmlDeviceGetFanSpeed, VG_FAN, FAN)

VG_EXPORT int nvmlDeviceGetFanSpeed_v2(struct handle *handle, unsigned fan, unsigned *result)
{
    GPU_FIELD(nvmlDeviceGetFanSpeed_v2, VG_FAN);
    (void)fan;
    *result = FAN;
    return 0;
}

VG_EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(struct handle *handle, unsigned *least, unsigned *most)
{
    GPU_FIELD(nvmlDeviceGetPowerManagementLimitConstraints, VG_POWER_LIMIT);
    *least = 100000;
    *most = gpu->power_limit;
    return 0;
}

#define CLOCK(function, sm)                                                                                                \
    VG_EXPORT int function(struct handle *handle, unsigned domain, unsigned *result)                                       \
    {                                                                                                                      \
        GPU_FIELD(function, VG_CLOCKS);                                                                                    \
        *result = domain == 2 ? VG_MEMORY_CLOCK : (unsigned)(sm); /* 0 graphics, 1 SM, 2 memory, 3 video */               \
        return 0;                                                                                                          \
    }
CLOCK(nvmlDeviceGetClockInfo, vg_clock(gpu, vg_now()))
CLOCK(nvmlDeviceGetMaxClockInfo, vg_state()->profile.full_clock)
CLOCK(nvmlDeviceGetApplicationsClock, vg_state()->profile.full_clock)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, vg_state()->profile.full_clock)

VG_EXPORT int nvmlDeviceGetClock(struct handle *handle, unsigned domain, unsigned kind, unsigned *result)
{
    GPU_FIELD(nvmlDeviceGetClock, VG_CLOCKS);
    (void)kind;
    *result = domain == 2 ? VG_MEMORY_CLOCK : (unsigned)vg_clock(gpu, vg_now());
    return 0;
}

#define REASONS(function, expression)                                                                                      \
    VG_EXPORT int function(struct handle *handle, unsigned long long *result)                                              \
    {                                                                                                                      \
        GPU_FIELD(function, VG_THROTTLE_REASONS);                                                                                  \
        *result = (expression);                                                                                            \
        return 0;                                                                                                          \
    }
#define IDLE (vg_clock(gpu, vg_now()) < (double)vg_state()->profile.full_clock / 2)
REASONS(nvmlDeviceGetCurrentClocksThrottleReasons, IDLE)
REASONS(nvmlDeviceGetCurrentClocksEventReasons, IDLE)
REASONS(nvmlDeviceGetSupportedClocksThrottleReasons, 0x1FF)
REASONS(nvmlDeviceGetSupportedClocksEventReasons, 0x1FF)

VG_EXPORT int nvmlDeviceGetEccMode(struct handle *handle, unsigned *now, unsigned *pending)
{
    GPU_FIELD(nvmlDeviceGetEccMode, VG_ECC);
    *now = *pending = 1;
    return 0;
}

VG_EXPORT int nvmlDeviceGetTotalEccErrors(struct handle *handle, unsigned kind, unsigned counter, unsigned long long *result)
{
    GPU_FIELD(nvmlDeviceGetTotalEccErrors, VG_ECC);
    (void)kind, (void)counter;
    *result = 0;
    return 0;
}

VG_EXPORT int nvmlDeviceGetMemoryErrorCounter(struct handle *handle, unsigned kind, unsigned counter, unsigned where,
                                              unsigned long long *result)
{
    GPU_FIELD(nvmlDeviceGetMemoryErrorCounter, VG_ECC);
    (void)kind, (void)counter, (void)where;
    *result = 0;
    return 0;
}

/* ---- processes ---- */

struct process_v1 { unsigned pid; unsigned long long used; };
struct process_v3 { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };
/* What drivers 535 before 535.98 fill in for the third version. */
struct process_32 { struct process_v3 as_later; unsigned long long protected_memory; };

static void add_process(struct process_v3 *all, unsigned *count, const struct vg_gpu *gpu, unsigned pid, uint64_t used, int mig)
{
    all[*count].pid = pid;
    all[*count].used = gpu->unsupported & VG_PROCESS_MEMORY ? NOT_AVAILABLE : used;
    all[*count].gpu_instance = mig >= 0 ? gpu->mig[mig].gpu_instance : 0xFFFFFFFFu;
    all[*count].compute_instance = mig >= 0 ? 0 : 0xFFFFFFFFu;
    ++*count;
}

static unsigned list_processes(const struct handle *handle, struct process_v3 *all)
{
    struct vg_state *state = vg_state();
    const struct vg_gpu *gpu = &state->gpus[handle->gpu];
    unsigned count = 0;
    vg_lock();
    vg_reap();
    for (int i = 0; i < VG_MAX_PROCESSES; i++)
        for (int part = 0; part <= VG_MAX_MIG && state->processes[i].pid; part++) {
            const struct vg_process *process = &state->processes[i];
            if (process->has_context[handle->gpu][part] && (handle->mig < 0 || handle->mig == part - 1))
                add_process(all, &count, gpu, (unsigned)(process->pid + (state->host_pids ? 1000000 : 0)),
                            (uint64_t)process->used[handle->gpu][part], part - 1);
        }
    vg_unlock();
    for (int i = 0; i < VG_MAX_EXTERNAL; i++) {
        const struct vg_external *other = &state->external[i];
        if (other->active && other->gpu == handle->gpu && (handle->mig < 0 || handle->mig == other->mig))
            add_process(all, &count, gpu, other->pid, other->memory, other->mig);
    }
    return count;
}

static int give_processes(const struct handle *handle, unsigned *room, void *result, size_t each)
{
    static __thread struct process_v3 all[VG_MAX_PROCESSES * VG_PARTS + VG_MAX_EXTERNAL];
    unsigned count = list_processes(handle, all), given = *room;
    *room = count;
    if (count > given || (count && !result))
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < count; i++) {
        struct process_32 longest = {all[i], NOT_AVAILABLE};
        memcpy((char *)result + i * each, &longest, each); /* each version begins as the older one */
    }
    return 0;
}

#define PROCESSES(function, type)                                                                                          \
    VG_EXPORT int function(struct handle *handle, unsigned *count, void *result)                                           \
    {                                                                                                                      \
        FIELD(function, VG_PROCESSES);                                                                                     \
        return give_processes(handle, count, result, sizeof(type));                                                        \
    }
#define NO_PROCESSES(function)                                                                                             \
    VG_EXPORT int function(struct handle *handle, unsigned *count, void *result)                                           \
    {                                                                                                                      \
        FIELD(function, VG_PROCESSES);                                                                                     \
        (void)result;                                                                                                      \
        *count = 0;                                                                                                        \
        return 0;                                                                                                          \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, struct process_v1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, struct process_v3)
#if VG_PROCESS_BYTES == 32
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, struct process_32)
#elif VG_PROCESS_BYTES == 24
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, struct process_v3)
#endif
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
#if VG_PROCESS_BYTES
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
#endif
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
#if VG_PROCESS_BYTES
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
#endif

/* ---- MIG ---- */

VG_EXPORT int nvmlDeviceGetMigMode(struct handle *handle, unsigned *now, unsigned *pending)
{
    GPU_FIELD(nvmlDeviceGetMigMode, VG_MIG);
    *now = *pending = gpu->mig_mode;
    return 0;
}

NUMBER(nvmlDeviceGetMaxMigDeviceCount, 0, gpu->unsupported & VG_MIG ? 0 : VG_MAX_MIG)

VG_EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct handle *handle, unsigned index, struct handle **result)
{
    GPU_FIELD(nvmlDeviceGetMigDeviceHandleByIndex, VG_MIG);
    if (index >= gpu->n_mig)
        return NOT_FOUND;
    *result = handle_of(handle->gpu, (int)index);
    return 0;
}

VG_EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct handle *handle, struct handle **result)
{
    DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    if (handle->mig < 0)
        return INVALID_ARGUMENT;
    *result = handle_of(handle->gpu, -1);
    return 0;
}

VG_EXPORT int nvmlDeviceIsMigDeviceHandle(struct handle *handle, unsigned *result)
{
    DEVICE(nvmlDeviceIsMigDeviceHandle);
    *result = handle->mig >= 0;
    return 0;
}

#define INSTANCE(function, number)                                                                                         \
    VG_EXPORT int function(struct handle *handle, unsigned *result)                                                        \
    {                                                                                                                      \
        DEVICE(function);                                                                                                  \
        if (handle->mig < 0)                                                                                               \
            return NOT_SUPPORTED;                                                                                          \
        *result = number;                                                                            \
        return 0;                                                                                                          \
    }
INSTANCE(nvmlDeviceGetGpuInstanceId, gpu->mig[handle->mig].gpu_instance)
INSTANCE(nvmlDeviceGetComputeInstanceId, 0)

VG_EXPORT int nvmlDeviceGetAttributes_v2(struct handle *handle, void *result)
{
    DEVICE(nvmlDeviceGetAttributes_v2);
    if (handle->mig < 0)
        return NOT_SUPPORTED;
    struct attributes {
        unsigned multiprocessors, copies, decoders, encoders, jpg, ofa, gpu_slices, compute_slices;
        unsigned long long memory_mib;
    } *attributes = result;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessors = VG_MIG_MULTIPROCESSORS;
    attributes->gpu_slices = attributes->compute_slices = 1;
    attributes->memory_mib = gpu->mig[handle->mig].memory >> 20;
    return 0;
}
