/* libcudart.so.N: the runtime's API over the driver, which it loads and initializes on its first call, once and for all. */
#define _GNU_SOURCE
#include "attributes.h"
#include "engine.h"
#include "errors.h"
#include "properties.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define INSUFFICIENT_DRIVER 35

static const struct vg_engine *engine;
static int start_error;
static pthread_once_t started = PTHREAD_ONCE_INIT;
static __thread int last_error;

typedef struct { unsigned x, y, z; } dim3;

/* exec keeps the pid: what this process's earlier image used is given back here, before anyone asks. */
__attribute__((constructor)) static void on_load(void)
{
    vg_forget_process();
}

/* The answer to the first initialization stays, a failure too: a later change of the environment is not seen. */
static void start(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    engine = driver ? dlsym(driver, "vg_engine") : NULL;
    int (*initialize)(unsigned) = driver ? (int (*)(unsigned))(uintptr_t)dlsym(driver, "cuInit") : NULL;
    if (!engine || !initialize || vg_state()->cuda_version / 1000 < VG_CUDART_MAJOR)
        start_error = INSUFFICIENT_DRIVER;
    else
        start_error = initialize(0);
}

static int keep(int error)
{
    if (error)
        last_error = error;
    return error;
}

static int begin(void)
{
    pthread_once(&started, start);
    return start_error ? start_error : engine->ready();
}

/* First line of a call that needs no device. */
#define COUNTED(function)                                                                                                  \
    do {                                                                                                                   \
        static struct vg_call *slot_;                                                                                      \
        int fault_ = vg_enter(&slot_, #function);                                                                          \
        if (fault_)                                                                                                        \
            return keep(fault_);                                                                                           \
    } while (0)
/* First line of a call that initializes CUDA. */
#define CALL(function)                                                                                                     \
    COUNTED(function);                                                                                                     \
    do {                                                                                                                   \
        int error_ = begin();                                                                                              \
        if (error_)                                                                                                        \
            return keep(error_);                                                                                           \
    } while (0)
/* First line of a call that needs a context on the current device. */
#define CALL_HERE(function)                                                                                                \
    CALL(function);                                                                                                        \
    do {                                                                                                                   \
        int error_ = engine->use(here());                                                                                  \
        if (error_)                                                                                                        \
            return keep(error_);                                                                                           \
    } while (0)

static int here(void)
{
    return engine->current() >= 0 ? engine->current() : 0;
}

/* ---- errors and versions ---- */

VG_EXPORT int cudaGetLastError(void)
{
    int error = last_error;
    last_error = 0;
    return error;
}

VG_EXPORT int cudaPeekAtLastError(void)
{
    return last_error;
}

VG_EXPORT const char *cudaGetErrorName(int error)
{
    switch (error) {
#define VG_CASE(number, driver, runtime, words)                                                                            \
    case number: return runtime;
        VG_ERRORS(VG_CASE)
#undef VG_CASE
    }
    return "unrecognized error code";
}

VG_EXPORT const char *cudaGetErrorString(int error)
{
    switch (error) {
#define VG_CASE(number, driver, runtime, words)                                                                            \
    case number: return words;
        VG_ERRORS(VG_CASE)
#undef VG_CASE
    }
    return "unrecognized error code";
}

VG_EXPORT int cudaRuntimeGetVersion(int *version)
{
    COUNTED(cudaRuntimeGetVersion);
    *version = VG_CUDART_VERSION;
    return VG_OK;
}

VG_EXPORT int cudaDriverGetVersion(int *version)
{
    COUNTED(cudaDriverGetVersion);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *version = driver && dlsym(driver, "vg_engine") ? vg_state()->cuda_version : 0;
    return VG_OK;
}

static int entry_point(const char *name, void **function, int *status)
{
    *function = engine->entry_point(name);
    if (status)
        *status = *function ? 0 : 1;
    return VG_OK;
}

VG_EXPORT int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status)
{
    CALL(cudaGetDriverEntryPoint);
    (void)flags;
    return entry_point(name, function, status);
}

VG_EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                               int *status)
{
    CALL(cudaGetDriverEntryPointByVersion);
    (void)version, (void)flags;
    return entry_point(name, function, status);
}

/* ---- devices ---- */

VG_EXPORT int cudaGetDeviceCount(int *count)
{
    CALL(cudaGetDeviceCount); /* which leaves the number as it was if it fails */
    *count = engine->device_count();
    return VG_OK;
}

VG_EXPORT int cudaGetDevice(int *ordinal)
{
    CALL(cudaGetDevice);
    *ordinal = here();
    return VG_OK;
}

VG_EXPORT int cudaSetDevice(int ordinal)
{
    CALL(cudaSetDevice);
    return keep(engine->use(ordinal));
}

VG_EXPORT int cudaDeviceReset(void)
{
    CALL(cudaDeviceReset);
    return keep(engine->reset_context(here()));
}

VG_EXPORT int cudaDeviceSynchronize(void)
{
    CALL(cudaDeviceSynchronize);
    return keep(engine->device_synchronize(here()));
}

VG_EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    CALL(cudaDeviceGetAttribute);
    struct vg_device *device = engine->device(ordinal);
    if (!device)
        return keep(VG_INVALID_DEVICE);
    *value = vg_attribute(device, attribute);
    return VG_OK;
}

static int properties(struct device_properties *p, int ordinal)
{
    struct vg_device *device = engine->device(ordinal);
    if (!device)
        return VG_INVALID_DEVICE;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", device->name);
    vg_uuid_bytes(device->uuid, p->uuid);
    p->totalGlobalMem = device->memory;
    p->sharedMemPerBlock = (size_t)vg_attribute(device, 8);
    p->regsPerBlock = vg_attribute(device, 12);
    p->warpSize = 32;
    p->memPitch = (size_t)vg_attribute(device, 11);
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->major = vg_attribute(device, 75);
    p->minor = vg_attribute(device, 76);
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->multiProcessorCount = vg_attribute(device, 16);
    p->integrated = vg_attribute(device, 18);
    p->canMapHostMemory = 1;
    p->surfaceAlignment = 512;
    p->concurrentKernels = 1;
    p->ECCEnabled = vg_attribute(device, 32);
    p->pciBusID = vg_attribute(device, 33);
    p->asyncEngineCount = 3;
    p->unifiedAddressing = 1;
    p->memoryBusWidth = vg_attribute(device, 37);
    p->l2CacheSize = vg_attribute(device, 38);
    p->maxThreadsPerMultiProcessor = vg_attribute(device, 39);
    p->streamPrioritiesSupported = 1;
    p->globalL1CacheSupported = p->localL1CacheSupported = 1;
    p->sharedMemPerMultiprocessor = (size_t)vg_attribute(device, 81);
    p->regsPerMultiprocessor = 65536;
    p->managedMemory = 1;
    p->concurrentManagedAccess = 1;
    p->computePreemptionSupported = 1;
    p->canUseHostPointerForRegisteredMem = 1;
    p->cooperativeLaunch = 1;
    p->sharedMemPerBlockOptin = (size_t)vg_attribute(device, 97);
    p->maxBlocksPerMultiProcessor = 32;
    p->reservedSharedMemPerBlock = 1024;
    p->hostRegisterSupported = 1;
    p->memoryPoolsSupported = 1;
    p->memoryPoolSupportedHandleTypes = 1;
    p->ipcEventSupported = 1;
    p->clusterLaunch = vg_attribute(device, 120);
    p->unifiedFunctionPointers = 1;
#if VG_CUDART_MAJOR < 13
    p->clockRate = vg_attribute(device, 13);
    p->memoryClockRate = vg_attribute(device, 36);
    p->deviceOverlap = 1;
#endif
    return VG_OK;
}

VG_EXPORT int cudaGetDeviceProperties(struct device_properties *result, int ordinal)
{
    CALL(cudaGetDeviceProperties);
    return keep(properties(result, ordinal));
}

VG_EXPORT int cudaGetDeviceProperties_v2(struct device_properties *result, int ordinal)
{
    CALL(cudaGetDeviceProperties_v2);
    return keep(properties(result, ordinal));
}

VG_EXPORT int cudaDeviceGetPCIBusId(char *text, int length, int ordinal)
{
    CALL(cudaDeviceGetPCIBusId);
    struct vg_device *device = engine->device(ordinal);
    if (!device)
        return keep(VG_INVALID_DEVICE);
    snprintf(text, (size_t)length, "0000:%02X:00.0", device->hardware->pci_bus);
    return VG_OK;
}

VG_EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CALL_HERE(cudaDeviceGetStreamPriorityRange);
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return VG_OK;
}

VG_EXPORT int cudaDeviceCanAccessPeer(int *can, int from, int to)
{
    CALL(cudaDeviceCanAccessPeer);
    struct vg_device *one = engine->device(from), *other = engine->device(to);
    if (!one || !other)
        return keep(VG_INVALID_DEVICE);
    *can = from != to && one->mig < 0 && other->mig < 0;
    return VG_OK;
}

VG_EXPORT int cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CALL_HERE(cudaDeviceEnablePeerAccess);
    static unsigned char enabled[VG_MAX_DEVICES][VG_MAX_DEVICES];
    (void)flags;
    if (!engine->device(peer))
        return keep(VG_INVALID_DEVICE);
    if (enabled[here()][peer]++)
        return keep(704);
    return VG_OK;
}

/* ---- memory ---- */

VG_EXPORT int cudaMemGetInfo(size_t *free, size_t *total)
{
    CALL_HERE(cudaMemGetInfo);
    return keep(engine->memory_info(here(), free, total));
}

static int allocate(enum vg_kind kind, void **result, size_t bytes)
{
    int error = engine->unsafe_call();
    return error ? error : engine->allocate(here(), kind, bytes, result);
}

VG_EXPORT int cudaMalloc(void **result, size_t bytes)
{
    CALL_HERE(cudaMalloc);
    return keep(allocate(VG_DEVICE_MEMORY, result, bytes));
}

VG_EXPORT int cudaMallocManaged(void **result, size_t bytes, unsigned flags)
{
    CALL_HERE(cudaMallocManaged);
    (void)flags;
    return keep(allocate(VG_MANAGED_MEMORY, result, bytes));
}

VG_EXPORT int cudaHostAlloc(void **result, size_t bytes, unsigned flags)
{
    CALL_HERE(cudaHostAlloc);
    (void)flags;
    return keep(allocate(VG_HOST_MEMORY, result, bytes));
}

VG_EXPORT int cudaMallocHost(void **result, size_t bytes)
{
    CALL_HERE(cudaMallocHost);
    return keep(allocate(VG_HOST_MEMORY, result, bytes));
}

VG_EXPORT int cudaFree(void *pointer)
{
    CALL_HERE(cudaFree);
    struct vg_allocation found;
    if (!pointer)
        return VG_OK;
    int error = engine->unsafe_call();
    if (!error)
        error = engine->find(pointer, &found);
    if (!error) { /* freeing waits for the device */
        int before = engine->current();
        error = engine->device_synchronize(found.device);
        engine->set_current(before);
    }
    if (!error)
        error = engine->release(pointer);
    return keep(error);
}

VG_EXPORT int cudaFreeHost(void *pointer)
{
    CALL(cudaFreeHost);
    return pointer ? keep(engine->release(pointer)) : VG_OK;
}

VG_EXPORT int cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    CALL_HERE(cudaHostRegister);
    (void)flags;
    return keep(engine->register_host(pointer, bytes));
}

VG_EXPORT int cudaHostUnregister(void *pointer)
{
    CALL(cudaHostUnregister);
    return keep(engine->unregister_host(pointer));
}

VG_EXPORT int cudaHostGetDevicePointer(void **result, void *pointer, unsigned flags)
{
    CALL_HERE(cudaHostGetDevicePointer);
    (void)flags;
    *result = pointer;
    return VG_OK;
}

VG_EXPORT int cudaPointerGetAttributes(struct pointer_attributes *result, const void *pointer)
{
    CALL(cudaPointerGetAttributes);
    struct vg_allocation found;
    memset(result, 0, sizeof *result);
    result->device = -1;
    if (engine->find(pointer, &found)) {
        result->hostPointer = (void *)(uintptr_t)pointer;
        return VG_OK;
    }
    int host = found.kind == VG_HOST_MEMORY || found.kind == VG_REGISTERED_MEMORY;
    result->type = host ? 1 : found.kind == VG_MANAGED_MEMORY ? 3 : 2;
    result->device = found.device;
    result->devicePointer = (void *)(uintptr_t)pointer;
    result->hostPointer = host || found.kind == VG_MANAGED_MEMORY ? (void *)(uintptr_t)pointer : NULL;
    return VG_OK;
}

static int copy(void *to, const void *from, size_t bytes, struct vg_stream *stream, int wait)
{
    struct vg_work work = {.to = to, .from = from, .bytes = bytes};
    int waits = 0;
    engine->copy_cost(to, from, bytes, &work.cost_ns, &waits);
    int error = engine->submit(stream, &work);
    return error || !(wait || waits) ? error : engine->stream_synchronize(stream);
}

VG_EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    CALL_HERE(cudaMemcpy);
    return keep(copy(to, from, bytes, NULL, kind != 3));
}

VG_EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, struct vg_stream *stream)
{
    CALL_HERE(cudaMemcpyAsync);
    (void)kind;
    return keep(copy(to, from, bytes, stream, 0));
}

VG_EXPORT int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                  struct vg_stream *stream)
{
    CALL_HERE(cudaMemcpyPeerAsync);
    (void)to_device, (void)from_device;
    return keep(copy(to, from, bytes, stream, 0));
}

VG_EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                                int kind, struct vg_stream *stream)
{
    CALL_HERE(cudaMemcpy2DAsync);
    (void)kind;
    int error = VG_OK;
    for (size_t row = 0; row < height && !error; row++)
        error = copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, stream, 0);
    return keep(error);
}

VG_EXPORT int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind)
{
    CALL_HERE(cudaMemcpyToSymbol);
    (void)symbol, (void)from, (void)bytes, (void)offset, (void)kind; /* no kernel will read it */
    return VG_OK;
}

VG_EXPORT int cudaGetSymbolAddress(void **result, const void *symbol)
{
    CALL_HERE(cudaGetSymbolAddress);
    *result = (void *)(uintptr_t)symbol;
    return VG_OK;
}

static int set(void *to, int value, size_t bytes, struct vg_stream *stream)
{
    struct vg_work work = {.cost_ns = 2000 + (int64_t)((double)bytes / 2500.0), .to = to, .bytes = bytes, .value = value};
    return engine->submit(stream, &work);
}

VG_EXPORT int cudaMemset(void *to, int value, size_t bytes)
{
    CALL_HERE(cudaMemset);
    return keep(set(to, value, bytes, NULL));
}

VG_EXPORT int cudaMemsetAsync(void *to, int value, size_t bytes, struct vg_stream *stream)
{
    CALL_HERE(cudaMemsetAsync);
    return keep(set(to, value, bytes, stream));
}

/* ---- pools: one a device, its handle is the ordinal plus one ---- */

VG_EXPORT int cudaDeviceGetDefaultMemPool(void **pool, int ordinal)
{
    CALL(cudaDeviceGetDefaultMemPool);
    if (!engine->device(ordinal))
        return keep(VG_INVALID_DEVICE);
    *pool = (void *)(uintptr_t)(ordinal + 1);
    return VG_OK;
}

static int pool_attribute(void *pool, int attribute, void *value, int store)
{
    int ordinal = (int)(uintptr_t)pool - 1;
    struct vg_pool_numbers numbers;
    if (!engine->device(ordinal))
        return VG_INVALID_VALUE;
    engine->pool_numbers(ordinal, &numbers, 0);
    uint64_t *field = attribute == 4   ? &numbers.threshold
                      : attribute == 5 ? &numbers.reserved
                      : attribute == 6 ? &numbers.reserved_high
                      : attribute == 7 ? &numbers.used
                      : attribute == 8 ? &numbers.used_high
                                       : NULL;
    if (!field) { /* the reuse policies, which change nothing here */
        if (!store)
            *(int *)value = 1;
        return VG_OK;
    }
    if (!store) {
        *(uint64_t *)value = *field;
        return VG_OK;
    }
    if (attribute == 4)
        numbers.threshold = *(uint64_t *)value;
    else if (attribute == 6)
        numbers.reserved_high = numbers.reserved;
    else if (attribute == 8)
        numbers.used_high = numbers.used;
    else
        return VG_INVALID_VALUE;
    return engine->pool_numbers(ordinal, &numbers, 1);
}

VG_EXPORT int cudaMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    CALL(cudaMemPoolGetAttribute);
    return keep(pool_attribute(pool, attribute, value, 0));
}

VG_EXPORT int cudaMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    CALL(cudaMemPoolSetAttribute);
    return keep(pool_attribute(pool, attribute, value, 1));
}

VG_EXPORT int cudaMemPoolTrimTo(void *pool, size_t keep_bytes)
{
    CALL(cudaMemPoolTrimTo);
    return keep(engine->pool_trim((int)(uintptr_t)pool - 1, keep_bytes));
}

VG_EXPORT int cudaMemPoolSetAccess(void *pool, const void *descriptors, size_t count)
{
    CALL(cudaMemPoolSetAccess);
    (void)pool, (void)descriptors, (void)count;
    return VG_OK;
}

VG_EXPORT int cudaMallocAsync(void **result, size_t bytes, struct vg_stream *stream)
{
    CALL_HERE(cudaMallocAsync);
    (void)stream;
    return keep(engine->allocate(here(), VG_POOL_MEMORY, bytes, result));
}

VG_EXPORT int cudaFreeAsync(void *pointer, struct vg_stream *stream)
{
    CALL_HERE(cudaFreeAsync);
    (void)stream;
    return pointer ? keep(engine->release(pointer)) : VG_OK;
}

VG_EXPORT int cudaDeviceGetGraphMemAttribute(int ordinal, int attribute, void *value)
{
    CALL(cudaDeviceGetGraphMemAttribute);
    (void)ordinal, (void)attribute;
    *(uint64_t *)value = 0;
    return VG_OK;
}

VG_EXPORT int cudaDeviceSetGraphMemAttribute(int ordinal, int attribute, void *value)
{
    CALL(cudaDeviceSetGraphMemAttribute);
    (void)ordinal, (void)attribute, (void)value;
    return VG_OK;
}

/* ---- streams and events ---- */

VG_EXPORT int cudaStreamCreate(struct vg_stream **stream)
{
    CALL_HERE(cudaStreamCreate);
    return keep(engine->stream_create(here(), 0, 0, stream));
}

VG_EXPORT int cudaStreamCreateWithFlags(struct vg_stream **stream, unsigned flags)
{
    CALL_HERE(cudaStreamCreateWithFlags);
    return keep(engine->stream_create(here(), flags, 0, stream));
}

VG_EXPORT int cudaStreamCreateWithPriority(struct vg_stream **stream, unsigned flags, int priority)
{
    CALL_HERE(cudaStreamCreateWithPriority);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    return keep(engine->stream_create(here(), flags, priority, stream));
}

VG_EXPORT int cudaStreamDestroy(struct vg_stream *stream)
{
    CALL(cudaStreamDestroy);
    return keep(engine->stream_destroy(stream));
}

VG_EXPORT int cudaStreamGetPriority(struct vg_stream *stream, int *priority)
{
    CALL_HERE(cudaStreamGetPriority);
    unsigned flags;
    int ordinal;
    uint64_t id;
    return keep(engine->stream_priority(stream, priority, &flags, &ordinal, &id));
}

VG_EXPORT int cudaStreamGetFlags(struct vg_stream *stream, unsigned *flags)
{
    CALL_HERE(cudaStreamGetFlags);
    int priority, ordinal;
    uint64_t id;
    return keep(engine->stream_priority(stream, &priority, flags, &ordinal, &id));
}

VG_EXPORT int cudaStreamGetId(struct vg_stream *stream, unsigned long long *id)
{
    CALL_HERE(cudaStreamGetId);
    int priority, ordinal;
    unsigned flags;
    uint64_t number = 0;
    int error = engine->stream_priority(stream, &priority, &flags, &ordinal, &number);
    *id = number;
    return keep(error);
}

VG_EXPORT int cudaStreamGetDevice(struct vg_stream *stream, int *ordinal)
{
    CALL_HERE(cudaStreamGetDevice);
    int priority;
    unsigned flags;
    uint64_t id;
    return keep(engine->stream_priority(stream, &priority, &flags, ordinal, &id));
}

VG_EXPORT int cudaStreamQuery(struct vg_stream *stream)
{
    CALL_HERE(cudaStreamQuery);
    return keep(engine->stream_query(stream));
}

VG_EXPORT int cudaStreamSynchronize(struct vg_stream *stream)
{
    CALL_HERE(cudaStreamSynchronize);
    return keep(engine->stream_synchronize(stream));
}

VG_EXPORT int cudaStreamWaitEvent(struct vg_stream *stream, struct vg_event *event, unsigned flags)
{
    CALL_HERE(cudaStreamWaitEvent);
    (void)flags;
    return keep(engine->stream_wait(stream, event));
}

/* The function is called here, once the stream is done: there is no thread to call it from. */
VG_EXPORT int cudaLaunchHostFunc(struct vg_stream *stream, void (*function)(void *), void *data)
{
    CALL_HERE(cudaLaunchHostFunc);
    int error = engine->stream_synchronize(stream);
    if (!error)
        function(data);
    return keep(error);
}

VG_EXPORT int cudaStreamAddCallback(struct vg_stream *stream, void (*function)(struct vg_stream *, int, void *), void *data,
                                    unsigned flags)
{
    CALL_HERE(cudaStreamAddCallback);
    (void)flags;
    int error = engine->stream_synchronize(stream);
    if (!error)
        function(stream, VG_OK, data);
    return keep(error);
}

VG_EXPORT int cudaEventCreateWithFlags(struct vg_event **event, unsigned flags)
{
    CALL_HERE(cudaEventCreateWithFlags);
    return keep(engine->event_create(here(), flags, event));
}

VG_EXPORT int cudaEventCreate(struct vg_event **event)
{
    CALL_HERE(cudaEventCreate);
    return keep(engine->event_create(here(), 0, event));
}

VG_EXPORT int cudaEventDestroy(struct vg_event *event)
{
    CALL(cudaEventDestroy);
    return keep(engine->event_destroy(event));
}

VG_EXPORT int cudaEventRecord(struct vg_event *event, struct vg_stream *stream)
{
    CALL_HERE(cudaEventRecord);
    return keep(engine->event_record(event, stream));
}

VG_EXPORT int cudaEventRecordWithFlags(struct vg_event *event, struct vg_stream *stream, unsigned flags)
{
    CALL_HERE(cudaEventRecordWithFlags);
    (void)flags;
    return keep(engine->event_record(event, stream));
}

/* CUDA IPC. Memory is private to its process: what another one opens has its size, and zeros for its content. */
struct ipc_handle { char content[64]; };
struct ipc_memory { uintptr_t base; size_t size; };

VG_EXPORT int cudaIpcGetMemHandle(struct ipc_handle *handle, void *pointer)
{
    CALL(cudaIpcGetMemHandle);
    struct vg_allocation found;
    if (engine->find(pointer, &found))
        return keep(VG_INVALID_VALUE);
    struct ipc_memory memory = {found.base, found.size};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &memory, sizeof memory);
    return VG_OK;
}

static struct { void *pages; size_t size; } opened[64];

VG_EXPORT int cudaIpcOpenMemHandle(void **result, struct ipc_handle handle, unsigned flags)
{
    CALL_HERE(cudaIpcOpenMemHandle);
    (void)flags;
    struct ipc_memory memory;
    memcpy(&memory, &handle, sizeof memory);
    for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) {
        if (opened[i].pages)
            continue;
        void *pages = mmap(NULL, memory.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pages == MAP_FAILED)
            break;
        opened[i].pages = pages;
        opened[i].size = memory.size;
        *result = pages;
        return VG_OK;
    }
    return keep(VG_OUT_OF_MEMORY);
}

VG_EXPORT int cudaIpcCloseMemHandle(void *pointer)
{
    CALL(cudaIpcCloseMemHandle);
    for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) {
        if (opened[i].pages != pointer)
            continue;
        munmap(pointer, opened[i].size);
        opened[i].pages = NULL;
        return VG_OK;
    }
    return keep(VG_INVALID_VALUE);
}

VG_EXPORT int cudaIpcOpenEventHandle(struct vg_event **event, struct ipc_handle handle)
{
    CALL_HERE(cudaIpcOpenEventHandle);
    (void)handle;
    return keep(engine->event_create(here(), 0, event));
}

VG_EXPORT int cudaIpcGetEventHandle(struct ipc_handle *handle, struct vg_event *event)
{
    CALL(cudaIpcGetEventHandle);
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &event, sizeof event);
    return VG_OK;
}

VG_EXPORT int cudaEventQuery(struct vg_event *event)
{
    CALL(cudaEventQuery);
    return keep(engine->event_query(event));
}

VG_EXPORT int cudaEventSynchronize(struct vg_event *event)
{
    CALL(cudaEventSynchronize);
    return keep(engine->event_synchronize(event));
}

VG_EXPORT int cudaEventElapsedTime(float *milliseconds, struct vg_event *start, struct vg_event *end)
{
    CALL(cudaEventElapsedTime);
    return keep(engine->event_elapsed(milliseconds, start, end));
}

/* ---- kernels: none computes; each takes its time ---- */

static void *spin_kernels[16];
static int n_spin_kernels;

/* Every kernel of the program, and the number of its module. */
static struct kernel { const void *function; uint32_t module; } *kernels;
static size_t n_kernels, room;
static uint32_t n_modules;
static pthread_mutex_t first_uses = PTHREAD_MUTEX_INITIALIZER;

static void add_kernel(const void *function, uint32_t module)
{
    if (n_kernels == room) {
        room = room ? 2 * room : 4096;
        kernels = realloc(kernels, room * sizeof *kernels);
        if (!kernels)
            abort();
    }
    kernels[n_kernels++] = (struct kernel){function, module};
}

/* A kernel's first launch finds its code, and loads its module's where none of that was launched before. */
static void first_launch(const void *function)
{
    static const void *known[4096]; /* by address: those that were launched */
    static unsigned char loaded[1 << 16];
    const struct vg_profile *profile = &vg_state()->profile;
    int64_t cost = 0;
    if (!profile->first_launch && !profile->module)
        return;
    size_t at = (uintptr_t)function / 16 % 4096, end = at;
    pthread_mutex_lock(&first_uses);
    while (known[at] && known[at] != function && (at = (at + 1) % 4096) != end)
        ;
    if (!known[at]) {
        known[at] = function;
        cost = profile->first_launch;
        for (size_t i = 0; i < n_kernels; i++)
            if (kernels[i].function == function && !loaded[kernels[i].module % sizeof loaded]) {
                loaded[kernels[i].module % sizeof loaded] = 1;
                cost += profile->module;
            }
    }
    pthread_mutex_unlock(&first_uses);
    vg_spend(cost);
}

VG_EXPORT void **__cudaRegisterFatBinary(void *binary)
{
    (void)binary;
    return (void **)(uintptr_t)++n_modules;
}

VG_EXPORT void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

VG_EXPORT void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

VG_EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread,
                                      void *block, void *block_dim, void *grid_dim, int *warp)
{
    (void)device, (void)limit, (void)thread, (void)block, (void)block_dim, (void)grid_dim, (void)warp;
    add_kernel(host, (uint32_t)(uintptr_t)handle);
    if (strstr(name, "spin_kernel") && n_spin_kernels < 16)
        spin_kernels[n_spin_kernels++] = (void *)(uintptr_t)host;
}

VG_EXPORT void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size,
                                 int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

static __thread struct { dim3 grid, block; size_t shared; struct vg_stream *stream; } configurations[8];
static __thread int n_configurations;

VG_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct vg_stream *stream)
{
    if (n_configurations == 8)
        return 1;
    configurations[n_configurations].grid = grid;
    configurations[n_configurations].block = block;
    configurations[n_configurations].shared = shared;
    configurations[n_configurations++].stream = stream;
    return 0;
}

VG_EXPORT int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, struct vg_stream **stream)
{
    if (n_configurations == 0)
        return keep(52);
    n_configurations--;
    *grid = configurations[n_configurations].grid;
    *block = configurations[n_configurations].block;
    *shared = configurations[n_configurations].shared;
    *stream = configurations[n_configurations].stream;
    return VG_OK;
}

/* The kernel behind torch.cuda._sleep is known by its name; its first argument is a number of clock cycles. */
static int launch(const void *function, void **arguments, struct vg_stream *stream)
{
    struct vg_work work = {.cost_ns = VG_KERNEL_NS};
    first_launch(function);
    for (int i = 0; i < n_spin_kernels; i++)
        if (spin_kernels[i] == function) {
            int64_t cycles = *(int64_t *)arguments[0]; /* each a nanosecond */
            work.cost_ns = cycles > 0 ? cycles : 0;
        }
    return engine->submit(stream, &work);
}

VG_EXPORT int cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                               struct vg_stream *stream)
{
    CALL_HERE(cudaLaunchKernel);
    (void)grid, (void)block, (void)shared;
    return keep(launch(function, arguments, stream));
}

VG_EXPORT int __cudaGetKernel(const void **kernel, const void *function)
{
    *kernel = function;
    return VG_OK;
}

VG_EXPORT int __cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                 struct vg_stream *stream)
{
    CALL_HERE(__cudaLaunchKernel);
    (void)grid, (void)block, (void)shared;
    return keep(launch(kernel, arguments, stream));
}

VG_EXPORT int cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                                          struct vg_stream *stream)
{
    CALL_HERE(cudaLaunchCooperativeKernel);
    (void)grid, (void)block, (void)shared;
    return keep(launch(function, arguments, stream));
}

struct launch_configuration { dim3 grid, block; size_t shared; struct vg_stream *stream; void *attributes; unsigned count; };

VG_EXPORT int cudaLaunchKernelExC(const struct launch_configuration *how, const void *function, void **arguments)
{
    CALL_HERE(cudaLaunchKernelExC);
    return keep(launch(function, arguments, how->stream));
}

VG_EXPORT int cudaFuncGetAttributes(struct function_attributes *result, const void *function)
{
    CALL_HERE(cudaFuncGetAttributes);
    (void)function;
    memset(result, 0, sizeof *result);
    result->maxThreadsPerBlock = 1024;
    result->numRegs = 32;
    struct vg_device *device = engine->device(here());
    result->ptxVersion = result->binaryVersion = vg_attribute(device, 75) * 10 + vg_attribute(device, 76);
    return VG_OK;
}

VG_EXPORT int cudaFuncSetAttribute(const void *function, int attribute, int value)
{
    CALL_HERE(cudaFuncSetAttribute);
    (void)function, (void)attribute, (void)value;
    return VG_OK;
}

VG_EXPORT int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int ordinal)
{
    CALL_HERE(cudaKernelSetAttributeForDevice);
    (void)kernel, (void)attribute, (void)value, (void)ordinal;
    return VG_OK;
}

VG_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared)
{
    CALL_HERE(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
    (void)function, (void)threads, (void)shared;
    *blocks = 2;
    return VG_OK;
}

VG_EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                     size_t shared, unsigned flags)
{
    CALL_HERE(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
    (void)function, (void)threads, (void)shared, (void)flags;
    *blocks = 2;
    return VG_OK;
}

VG_EXPORT int cudaProfilerStart(void)
{
    CALL(cudaProfilerStart);
    return VG_OK;
}

VG_EXPORT int cudaProfilerStop(void)
{
    CALL(cudaProfilerStop);
    return VG_OK;
}

/* ---- graphs ---- */

VG_EXPORT int cudaStreamBeginCapture(struct vg_stream *stream, int mode)
{
    CALL_HERE(cudaStreamBeginCapture);
    return keep(engine->capture_begin(stream, mode));
}

VG_EXPORT int cudaStreamEndCapture(struct vg_stream *stream, struct vg_graph **graph)
{
    CALL_HERE(cudaStreamEndCapture);
    return keep(engine->capture_end(stream, graph));
}

VG_EXPORT int cudaStreamIsCapturing(struct vg_stream *stream, int *status)
{
    CALL_HERE(cudaStreamIsCapturing);
    unsigned long long id;
    struct vg_graph *graph;
    return keep(engine->capture_info(stream, status, &id, &graph));
}

static int capture_info(struct vg_stream *stream, int *status, unsigned long long *id, struct vg_graph **graph)
{
    unsigned long long number = 0;
    struct vg_graph *captured = NULL;
    int error = engine->capture_info(stream, status, &number, &captured);
    if (id)
        *id = number;
    if (graph)
        *graph = captured;
    return keep(error);
}

#if VG_CUDART_MAJOR >= 13
VG_EXPORT int cudaStreamGetCaptureInfo(struct vg_stream *stream, int *status, unsigned long long *id, struct vg_graph **graph,
                                       const void **dependencies, const void **edges, size_t *count)
{
    CALL_HERE(cudaStreamGetCaptureInfo);
    if (dependencies)
        *dependencies = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    return capture_info(stream, status, id, graph);
}
#else
VG_EXPORT int cudaStreamGetCaptureInfo(struct vg_stream *stream, int *status, unsigned long long *id)
{
    CALL_HERE(cudaStreamGetCaptureInfo);
    return capture_info(stream, status, id, NULL);
}

VG_EXPORT int cudaStreamGetCaptureInfo_v2(struct vg_stream *stream, int *status, unsigned long long *id,
                                          struct vg_graph **graph, const void **dependencies, size_t *count)
{
    CALL_HERE(cudaStreamGetCaptureInfo_v2);
    if (dependencies)
        *dependencies = NULL;
    if (count)
        *count = 0;
    return capture_info(stream, status, id, graph);
}

VG_EXPORT int cudaStreamGetCaptureInfo_v3(struct vg_stream *stream, int *status, unsigned long long *id,
                                          struct vg_graph **graph, const void **dependencies, const void **edges, size_t *count)
{
    CALL_HERE(cudaStreamGetCaptureInfo_v3);
    if (edges)
        *edges = NULL;
    if (dependencies)
        *dependencies = NULL;
    if (count)
        *count = 0;
    return capture_info(stream, status, id, graph);
}
#endif

VG_EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    CALL_HERE(cudaThreadExchangeStreamCaptureMode); /* makes a context; the driver's own does not */
    return keep(engine->capture_mode(mode));
}

VG_EXPORT int cudaGraphGetNodes(struct vg_graph *graph, void **nodes, size_t *count)
{
    CALL(cudaGraphGetNodes);
    size_t all = 0;
    int error = engine->graph_size(graph, &all);
    for (size_t i = 0; nodes && i < *count && i < all; i++)
        nodes[i] = (char *)graph + i + 1;
    if (!nodes || *count > all)
        *count = all;
    return keep(error);
}

VG_EXPORT int cudaGraphDestroy(struct vg_graph *graph)
{
    CALL(cudaGraphDestroy);
    return keep(engine->graph_destroy(graph));
}

VG_EXPORT int cudaGraphInstantiate(struct vg_exec **exec, struct vg_graph *graph, unsigned long long flags)
{
    CALL_HERE(cudaGraphInstantiate);
    (void)flags;
    return keep(engine->graph_instantiate(graph, exec));
}

VG_EXPORT int cudaGraphInstantiateWithFlags(struct vg_exec **exec, struct vg_graph *graph, unsigned long long flags)
{
    CALL_HERE(cudaGraphInstantiateWithFlags);
    (void)flags;
    return keep(engine->graph_instantiate(graph, exec));
}

VG_EXPORT int cudaGraphUpload(struct vg_exec *exec, struct vg_stream *stream)
{
    CALL_HERE(cudaGraphUpload);
    (void)exec, (void)stream;
    return VG_OK;
}

VG_EXPORT int cudaGraphExecDestroy(struct vg_exec *exec)
{
    CALL(cudaGraphExecDestroy);
    return keep(engine->exec_destroy(exec));
}

VG_EXPORT int cudaGraphLaunch(struct vg_exec *exec, struct vg_stream *stream)
{
    CALL_HERE(cudaGraphLaunch);
    return keep(engine->exec_launch(exec, stream));
}

struct user_object { void (*destroy)(void *); void *data; unsigned references; };

static void release_user_object(void *pointer)
{
    struct user_object *object = pointer;
    if (--object->references == 0) {
        object->destroy(object->data);
        free(object);
    }
}

VG_EXPORT int cudaUserObjectCreate(struct user_object **result, void *data, void (*destroy)(void *), unsigned references,
                                   unsigned flags)
{
    CALL(cudaUserObjectCreate);
    (void)flags;
    struct user_object *object = malloc(sizeof *object);
    if (!object)
        return keep(VG_OUT_OF_MEMORY);
    *object = (struct user_object){destroy, data, references};
    *result = object;
    return VG_OK;
}

VG_EXPORT int cudaUserObjectRelease(struct user_object *object, unsigned count)
{
    CALL(cudaUserObjectRelease);
    while (count-- > 0)
        release_user_object(object);
    return VG_OK;
}

VG_EXPORT int cudaGraphRetainUserObject(struct vg_graph *graph, struct user_object *object, unsigned count, unsigned flags)
{
    CALL(cudaGraphRetainUserObject);
    if (!(flags & 1)) /* not moved: the caller keeps its own references */
        object->references += count;
    for (; count > 0; count--)
        engine->graph_retain(graph, release_user_object, object);
    return VG_OK;
}
