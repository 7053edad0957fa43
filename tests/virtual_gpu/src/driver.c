/* libcuda.so.1: the driver's API. Every function answers 3 until cuInit; cuInit reads the environment once. */
#define _GNU_SOURCE
#include "attributes.h"
#include "engine.h"
#include "errors.h"

#include <stdio.h>
#include <string.h>

typedef struct vg_device *context; /* a CUcontext is the device it is primary on */

#define READY(function)                                                                                                    \
    FAULTS(function);                                                                                                      \
    do {                                                                                                                   \
        int error_ = engine_ready();                                                                                       \
        if (error_)                                                                                                        \
            return error_;                                                                                                 \
    } while (0)
#define DEVICE(ordinal)                                                                                                    \
    struct vg_device *device = engine_device(ordinal);                                                                     \
    if (!device)                                                                                                           \
    return VG_INVALID_DEVICE

VG_EXPORT int cuInit(unsigned flags)
{
    FAULTS(cuInit);
    return flags ? VG_INVALID_VALUE : engine_initialize();
}

VG_EXPORT int cuDriverGetVersion(int *version)
{
    FAULTS(cuDriverGetVersion);
    *version = vg_state()->cuda_version;
    return VG_OK;
}

VG_EXPORT int cuDeviceGetCount(int *count)
{
    READY(cuDeviceGetCount);
    *count = engine_device_count();
    return VG_OK;
}

VG_EXPORT int cuDeviceGet(int *result, int ordinal)
{
    READY(cuDeviceGet);
    DEVICE(ordinal);
    *result = device->ordinal;
    return VG_OK;
}

VG_EXPORT int cuDeviceGetName(char *name, int length, int ordinal)
{
    READY(cuDeviceGetName);
    DEVICE(ordinal);
    if (length < 1)
        return VG_INVALID_VALUE;
    strncpy(name, device->name, (size_t)length - 1);
    name[length - 1] = 0;
    return VG_OK;
}

VG_EXPORT int cuDeviceGetUuid(unsigned char *bytes, int ordinal)
{
    READY(cuDeviceGetUuid);
    DEVICE(ordinal);
    vg_uuid_bytes(device->hardware->uuid, bytes);
    return VG_OK;
}

VG_EXPORT int cuDeviceGetUuid_v2(unsigned char *bytes, int ordinal)
{
    READY(cuDeviceGetUuid_v2);
    DEVICE(ordinal);
    vg_uuid_bytes(device->uuid, bytes);
    return VG_OK;
}

VG_EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int ordinal)
{
    READY(cuDeviceTotalMem_v2);
    DEVICE(ordinal);
    *bytes = device->memory;
    return VG_OK;
}

VG_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    READY(cuDeviceGetAttribute);
    DEVICE(ordinal);
    *value = vg_attribute(device, attribute);
    return VG_OK;
}

VG_EXPORT int cuDeviceGetPCIBusId(char *text, int length, int ordinal)
{
    READY(cuDeviceGetPCIBusId);
    DEVICE(ordinal);
    snprintf(text, (size_t)length, "0000:%02X:00.0", device->hardware->pci_bus);
    return VG_OK;
}

VG_EXPORT int cuDeviceGetByPCIBusId(int *ordinal, const char *text)
{
    READY(cuDeviceGetByPCIBusId);
    unsigned domain = 0, bus = 0;
    if (sscanf(text, "%x:%x:", &domain, &bus) == 2)
        for (int i = 0; i < engine_device_count(); i++)
            if (engine_device(i)->hardware->pci_bus == bus) {
                *ordinal = i;
                return VG_OK;
            }
    return VG_INVALID_DEVICE;
}

VG_EXPORT int cuDeviceComputeCapability(int *major, int *minor, int ordinal)
{
    READY(cuDeviceComputeCapability);
    DEVICE(ordinal);
    *major = (int)device->hardware->compute_capability[0];
    *minor = (int)device->hardware->compute_capability[1];
    return VG_OK;
}

VG_EXPORT int cuDeviceCanAccessPeer(int *can, int from, int to)
{
    READY(cuDeviceCanAccessPeer);
    *can = from != to && engine_device(from) && engine_device(to);
    return VG_OK;
}

/* ---- contexts ---- */

VG_EXPORT int cuDevicePrimaryCtxGetState(int ordinal, unsigned *flags, int *active)
{
    READY(cuDevicePrimaryCtxGetState);
    DEVICE(ordinal);
    *flags = device->flags;
    *active = device->has_context;
    return VG_OK;
}

VG_EXPORT int cuDevicePrimaryCtxRetain(context *result, int ordinal)
{
    READY(cuDevicePrimaryCtxRetain);
    DEVICE(ordinal);
    int of_runtime = device->has_context && !device->retained; /* the runtime has made it, and keeps it */
    int before = engine_current(), error = engine_use(ordinal);
    engine_set_current(before); /* retaining makes the context, and leaves the current one alone */
    if (!error)
        device->retained += 1 + of_runtime;
    *result = error ? NULL : device;
    return error;
}

VG_EXPORT int cuDevicePrimaryCtxRelease_v2(int ordinal)
{
    READY(cuDevicePrimaryCtxRelease_v2);
    DEVICE(ordinal);
    if (device->retained == 0)
        return VG_INVALID_CONTEXT;
    return --device->retained == 0 ? engine_reset_context(ordinal) : VG_OK;
}

VG_EXPORT int cuDevicePrimaryCtxReset_v2(int ordinal)
{
    READY(cuDevicePrimaryCtxReset_v2);
    return engine_reset_context(ordinal);
}

VG_EXPORT int cuDevicePrimaryCtxSetFlags_v2(int ordinal, unsigned flags)
{
    READY(cuDevicePrimaryCtxSetFlags_v2);
    DEVICE(ordinal);
    device->flags = flags;
    return VG_OK;
}

static context current(void)
{
    struct vg_device *device = engine_device(engine_current());
    return device && device->has_context ? device : NULL;
}

VG_EXPORT int cuCtxGetCurrent(context *result)
{
    READY(cuCtxGetCurrent);
    *result = current();
    return VG_OK;
}

VG_EXPORT int cuCtxSetCurrent(context wanted)
{
    READY(cuCtxSetCurrent);
    engine_set_current(wanted ? wanted->ordinal : -1);
    return VG_OK;
}

static __thread int stack[16], depth;

VG_EXPORT int cuCtxPushCurrent_v2(context wanted)
{
    READY(cuCtxPushCurrent_v2);
    if (!wanted || depth == 16)
        return VG_INVALID_VALUE;
    stack[depth++] = engine_current();
    engine_set_current(wanted->ordinal);
    return VG_OK;
}

VG_EXPORT int cuCtxPopCurrent_v2(context *old)
{
    READY(cuCtxPopCurrent_v2);
    if (old)
        *old = current();
    engine_set_current(depth > 0 ? stack[--depth] : -1);
    return VG_OK;
}

VG_EXPORT int cuCtxGetDevice(int *ordinal)
{
    READY(cuCtxGetDevice);
    if (!current())
        return VG_INVALID_CONTEXT;
    *ordinal = engine_current();
    return VG_OK;
}

VG_EXPORT int cuCtxSynchronize(void)
{
    READY(cuCtxSynchronize);
    return current() ? engine_device_synchronize(engine_current()) : VG_INVALID_CONTEXT;
}

VG_EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    READY(cuCtxGetStreamPriorityRange);
    *least = 0;
    *greatest = -5;
    return VG_OK;
}

/* ---- errors, and finding functions ---- */

VG_EXPORT int cuGetErrorName(int error, const char **text)
{
    switch (error) {
#define VG_CASE(number, driver, runtime, words)                                                                            \
    case number:                                                                                                           \
        *text = driver;                                                                                                    \
        return VG_OK;
        VG_ERRORS(VG_CASE)
#undef VG_CASE
    }
    *text = NULL;
    return VG_INVALID_VALUE;
}

VG_EXPORT int cuGetErrorString(int error, const char **text)
{
    switch (error) {
#define VG_CASE(number, driver, runtime, words)                                                                            \
    case number:                                                                                                           \
        *text = words;                                                                                                     \
        return VG_OK;
        VG_ERRORS(VG_CASE)
#undef VG_CASE
    }
    *text = NULL;
    return VG_INVALID_VALUE;
}

VG_EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    FAULTS(cuGetProcAddress_v2);
    (void)version, (void)flags;
    *function = engine_entry_point(name);
    if (status)
        *status = *function ? 0 : 1;
    return *function ? VG_OK : VG_NOT_FOUND;
}

VG_EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    FAULTS(cuGetProcAddress);
    (void)version, (void)flags;
    *function = engine_entry_point(name);
    return *function ? VG_OK : VG_NOT_FOUND;
}

VG_EXPORT int cuGetExportTable(const void **table, const void *id)
{
    FAULTS(cuGetExportTable);
    (void)id;
    *table = NULL;
    return VG_NOT_FOUND;
}

/* The driver never has anything to tell. */
VG_EXPORT int cuLogsRegisterCallback(void *function, void *data, void **handle)
{
    FAULTS(cuLogsRegisterCallback);
    (void)function, (void)data;
    *handle = NULL;
    return VG_OK;
}

VG_EXPORT int cuLogsUnregisterCallback(void *handle)
{
    FAULTS(cuLogsUnregisterCallback);
    (void)handle;
    return VG_OK;
}

/* ---- memory ---- */

#define CURRENT                                                                                                            \
    int ordinal = engine_current();                                                                                        \
    if (ordinal < 0)                                                                                                       \
    return VG_INVALID_CONTEXT

VG_EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total)
{
    READY(cuMemGetInfo_v2);
    CURRENT;
    return engine_memory_info(ordinal, free, total);
}

VG_EXPORT int cuMemAlloc_v2(void **result, size_t bytes)
{
    READY(cuMemAlloc_v2);
    CURRENT;
    int error = engine_use(ordinal);
    return error ? error : engine_allocate(ordinal, VG_DEVICE_MEMORY, bytes, result);
}

VG_EXPORT int cuMemFree_v2(void *pointer)
{
    READY(cuMemFree_v2);
    return pointer ? engine_release(pointer) : VG_OK;
}

VG_EXPORT int cuMemAllocHost_v2(void **result, size_t bytes)
{
    READY(cuMemAllocHost_v2);
    return engine_allocate(0, VG_HOST_MEMORY, bytes, result);
}

VG_EXPORT int cuMemFreeHost(void *pointer)
{
    READY(cuMemFreeHost);
    return engine_release(pointer);
}

static int copy(void *to, const void *from, size_t bytes, struct vg_stream *stream, int wait)
{
    struct vg_work work = {.to = to, .from = from, .bytes = bytes};
    int waits = 0;
    engine_copy_cost(to, from, bytes, &work.cost_ns, &waits);
    int error = engine_submit(stream, &work);
    return error || !(wait || waits) ? error : engine_stream_synchronize(stream);
}

VG_EXPORT int cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes)
{
    READY(cuMemcpyHtoD_v2);
    return copy(to, from, bytes, NULL, 1);
}

VG_EXPORT int cuMemcpyDtoH_v2(void *to, const void *from, size_t bytes)
{
    READY(cuMemcpyDtoH_v2);
    return copy(to, from, bytes, NULL, 1);
}

VG_EXPORT int cuMemcpyDtoD_v2(void *to, const void *from, size_t bytes)
{
    READY(cuMemcpyDtoD_v2);
    return copy(to, from, bytes, NULL, 0);
}

VG_EXPORT int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, struct vg_stream *stream)
{
    READY(cuMemcpyHtoDAsync_v2);
    return copy(to, from, bytes, stream, 0);
}

VG_EXPORT int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, struct vg_stream *stream)
{
    READY(cuMemcpyDtoHAsync_v2);
    return copy(to, from, bytes, stream, 0);
}

VG_EXPORT int cuMemsetD8_v2(void *to, unsigned char value, size_t bytes)
{
    READY(cuMemsetD8_v2);
    struct vg_work work = {.cost_ns = 2000, .to = to, .bytes = bytes, .value = value};
    return engine_submit(NULL, &work);
}

VG_EXPORT int cuMemsetD8Async(void *to, unsigned char value, size_t bytes, struct vg_stream *stream)
{
    READY(cuMemsetD8Async);
    struct vg_work work = {.cost_ns = 2000, .to = to, .bytes = bytes, .value = value};
    return engine_submit(stream, &work);
}

VG_EXPORT int cuMemsetD32Async(void *to, uint32_t value, size_t count, struct vg_stream *stream)
{
    READY(cuMemsetD32Async);
    struct vg_work work = {.cost_ns = 2000};
    for (size_t i = 0; i < count; i++)
        ((uint32_t *)to)[i] = value;
    return engine_submit(stream, &work);
}

VG_EXPORT int cuMemGetAddressRange_v2(void **base, size_t *size, void *pointer)
{
    READY(cuMemGetAddressRange_v2);
    struct vg_allocation found;
    int error = engine_find(pointer, &found);
    if (error)
        return VG_NOT_FOUND;
    if (base)
        *base = (void *)found.base;
    if (size)
        *size = found.size;
    return VG_OK;
}

VG_EXPORT int cuPointerGetAttribute(void *value, int attribute, void *pointer)
{
    READY(cuPointerGetAttribute);
    struct vg_allocation found;
    if (engine_find(pointer, &found))
        return VG_INVALID_VALUE;
    int host = found.kind == VG_HOST_MEMORY || found.kind == VG_REGISTERED_MEMORY;
    switch (attribute) {
    case 1: *(void **)value = engine_device(found.device); return VG_OK; /* context */
    case 2: *(unsigned *)value = host ? 1 : 2; return VG_OK;             /* memory type */
    case 3: case 4: *(void **)value = pointer; return VG_OK;             /* device and host pointers */
    case 6: return VG_OK;                                                /* synchronous operations */
    case 7: *(unsigned long long *)value = found.base; return VG_OK;     /* buffer id */
    case 8: *(unsigned *)value = found.kind == VG_MANAGED_MEMORY; return VG_OK;
    case 9: *(int *)value = found.device; return VG_OK;                  /* ordinal */
    case 11: *(uintptr_t *)value = found.base; return VG_OK;             /* range */
    case 12: *(size_t *)value = found.size; return VG_OK;
    case 13: *(int *)value = 1; return VG_OK;                            /* mapped */
    default: memset(value, 0, sizeof(int)); return VG_OK;
    }
}

/* Virtual memory: PyTorch's expandable segments. A handle is a block of the device; its pages belong to the address. */
struct allocation_properties {
    int type, handle_types;
    struct { int type, id; } location;
    void *windows;
    unsigned char flags[8];
};

struct physical { int device; size_t bytes; int references; };

VG_EXPORT int cuMemGetAllocationGranularity(size_t *granularity, const struct allocation_properties *properties, int option)
{
    READY(cuMemGetAllocationGranularity);
    (void)properties, (void)option;
    *granularity = (size_t)2 << 20;
    return VG_OK;
}

VG_EXPORT int cuMemCreate(struct physical **handle, size_t bytes, const struct allocation_properties *properties, uint64_t flags)
{
    READY(cuMemCreate);
    (void)flags;
    DEVICE(properties->location.type == 1 ? properties->location.id : engine_current());
    if (vg_charge(device->gpu, device->mig, (int64_t)bytes) != 0)
        return VG_OUT_OF_MEMORY;
    struct physical *made = __builtin_malloc(sizeof *made);
    *made = (struct physical){device->ordinal, bytes, 1};
    *handle = made;
    return VG_OK;
}

static void unreference(struct physical *handle)
{
    if (--handle->references > 0)
        return;
    struct vg_device *device = engine_device(handle->device);
    vg_charge(device->gpu, device->mig, -(int64_t)handle->bytes);
    __builtin_free(handle);
}

VG_EXPORT int cuMemRelease(struct physical *handle)
{
    READY(cuMemRelease);
    vg_hold();
    unreference(handle);
    vg_let_go();
    return VG_OK;
}

VG_EXPORT int cuMemAddressReserve(void **result, size_t bytes, size_t alignment, void *hint, uint64_t flags)
{
    READY(cuMemAddressReserve);
    (void)alignment, (void)hint, (void)flags;
    return vg_reserve_address(bytes, result);
}

VG_EXPORT int cuMemAddressFree(void *pointer, size_t bytes)
{
    READY(cuMemAddressFree);
    return vg_free_address(pointer, bytes);
}

static struct mapping { char *at; struct physical *handle; struct mapping *next; } *mappings;

VG_EXPORT int cuMemMap(char *pointer, size_t bytes, size_t offset, struct physical *handle, uint64_t flags)
{
    READY(cuMemMap);
    (void)offset, (void)flags;
    int error = vg_map_memory(pointer, bytes, handle->device);
    if (error)
        return error;
    struct mapping *made = __builtin_malloc(sizeof *made);
    vg_hold();
    handle->references++;
    *made = (struct mapping){pointer, handle, mappings};
    mappings = made;
    vg_let_go();
    return VG_OK;
}

VG_EXPORT int cuMemUnmap(char *pointer, size_t bytes)
{
    READY(cuMemUnmap);
    vg_hold();
    for (struct mapping **link = &mappings; *link;) {
        struct mapping *mapping = *link;
        if (mapping->at >= pointer && mapping->at < pointer + bytes) {
            *link = mapping->next;
            unreference(mapping->handle);
            __builtin_free(mapping);
        } else {
            link = &mapping->next;
        }
    }
    vg_let_go();
    return vg_unmap_memory(pointer, bytes);
}

VG_EXPORT int cuMemSetAccess(void *pointer, size_t bytes, const void *descriptors, size_t count)
{
    READY(cuMemSetAccess);
    (void)pointer, (void)bytes, (void)descriptors, (void)count;
    return VG_OK;
}

/* ---- streams and events ---- */

VG_EXPORT int cuStreamCreate(struct vg_stream **stream, unsigned flags)
{
    READY(cuStreamCreate);
    CURRENT;
    return engine_stream_create(ordinal, flags, 0, stream);
}

VG_EXPORT int cuStreamCreateWithPriority(struct vg_stream **stream, unsigned flags, int priority)
{
    READY(cuStreamCreateWithPriority);
    CURRENT;
    return engine_stream_create(ordinal, flags, priority, stream);
}

VG_EXPORT int cuStreamDestroy_v2(struct vg_stream *stream)
{
    READY(cuStreamDestroy_v2);
    return engine_stream_destroy(stream);
}

VG_EXPORT int cuStreamSynchronize(struct vg_stream *stream)
{
    READY(cuStreamSynchronize);
    return engine_stream_synchronize(stream);
}

VG_EXPORT int cuStreamQuery(struct vg_stream *stream)
{
    READY(cuStreamQuery);
    return engine_stream_query(stream);
}

VG_EXPORT int cuStreamWaitEvent(struct vg_stream *stream, struct vg_event *event, unsigned flags)
{
    READY(cuStreamWaitEvent);
    (void)flags;
    return engine_stream_wait(stream, event);
}

VG_EXPORT int cuStreamGetCtx(struct vg_stream *stream, context *result)
{
    READY(cuStreamGetCtx);
    int priority, ordinal;
    unsigned flags;
    uint64_t id;
    int error = engine_stream_priority(stream, &priority, &flags, &ordinal, &id);
    *result = error ? NULL : engine_device(ordinal);
    return error;
}

VG_EXPORT int cuStreamIsCapturing(struct vg_stream *stream, int *status)
{
    READY(cuStreamIsCapturing);
    unsigned long long id;
    struct vg_graph *graph;
    return engine_capture_info(stream, status, &id, &graph);
}

VG_EXPORT int cuThreadExchangeStreamCaptureMode(int *mode)
{
    READY(cuThreadExchangeStreamCaptureMode);
    return engine_capture_mode(mode);
}

VG_EXPORT int cuEventCreate(struct vg_event **event, unsigned flags)
{
    READY(cuEventCreate);
    CURRENT;
    return engine_event_create(ordinal, flags, event);
}

VG_EXPORT int cuEventDestroy_v2(struct vg_event *event)
{
    READY(cuEventDestroy_v2);
    return engine_event_destroy(event);
}

VG_EXPORT int cuEventRecord(struct vg_event *event, struct vg_stream *stream)
{
    READY(cuEventRecord);
    return engine_event_record(event, stream);
}

VG_EXPORT int cuCtxRecordEvent(context where, struct vg_event *event)
{
    READY(cuCtxRecordEvent);
    return where ? engine_event_record_context(event, where->ordinal) : VG_INVALID_CONTEXT;
}

VG_EXPORT int cuCtxWaitEvent(context where, struct vg_event *event)
{
    READY(cuCtxWaitEvent);
    return where ? engine_context_wait(where->ordinal, event) : VG_INVALID_CONTEXT;
}

VG_EXPORT int cuEventQuery(struct vg_event *event)
{
    READY(cuEventQuery);
    return engine_event_query(event);
}

VG_EXPORT int cuEventSynchronize(struct vg_event *event)
{
    READY(cuEventSynchronize);
    return engine_event_synchronize(event);
}

VG_EXPORT int cuEventElapsedTime(float *milliseconds, struct vg_event *start, struct vg_event *end)
{
    READY(cuEventElapsedTime);
    return engine_event_elapsed(milliseconds, start, end);
}

/* ---- modules and kernels: any image loads, any kernel takes its fixed time ---- */

static char a_module, a_function;

VG_EXPORT int cuModuleLoadData(void **module, const void *image)
{
    READY(cuModuleLoadData);
    (void)image;
    *module = &a_module;
    return VG_OK;
}

VG_EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values)
{
    READY(cuModuleLoadDataEx);
    (void)image, (void)count, (void)options, (void)values;
    *module = &a_module;
    return VG_OK;
}

VG_EXPORT int cuModuleUnload(void *module)
{
    READY(cuModuleUnload);
    (void)module;
    return VG_OK;
}

VG_EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    READY(cuModuleGetFunction);
    (void)module, (void)name;
    *function = &a_function;
    return VG_OK;
}

VG_EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    READY(cuFuncGetAttribute);
    (void)function;
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return VG_OK;
}

VG_EXPORT int cuFuncSetAttribute(void *function, int attribute, int value)
{
    READY(cuFuncSetAttribute);
    (void)function, (void)attribute, (void)value;
    return VG_OK;
}

VG_EXPORT int cuFuncSetCacheConfig(void *function, int config)
{
    READY(cuFuncSetCacheConfig);
    (void)function, (void)config;
    return VG_OK;
}

VG_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared)
{
    READY(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    (void)function, (void)threads, (void)shared;
    *blocks = 2;
    return VG_OK;
}

VG_EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, struct vg_stream *stream, void **arguments, void **extra)
{
    READY(cuLaunchKernel);
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)arguments, (void)extra;
    struct vg_work work = {.cost_ns = VG_KERNEL_NS};
    return engine_submit(stream, &work);
}
