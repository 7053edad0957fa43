/* What the driver (libcuda.so.1) lends to the runtime and to cuBLAS: devices, contexts, streams, events, memory and graphs.
 *
 * Times are CLOCK_MONOTONIC nanoseconds. Errors are the driver's numbers, which the runtime shares (2 out of memory, 600 not
 * ready, 900 capturing, ...).
 */
#ifndef VIRTUAL_GPU_ENGINE_H
#define VIRTUAL_GPU_ENGINE_H

#include "state.h"

enum {
    VG_OK = 0,
    VG_INVALID_VALUE = 1,
    VG_OUT_OF_MEMORY = 2,
    VG_NOT_INITIALIZED = 3,
    VG_UNAVAILABLE = 46,
    VG_NO_DEVICE = 100,
    VG_INVALID_DEVICE = 101,
    VG_INVALID_CONTEXT = 201,
    VG_INVALID_HANDLE = 400,
    VG_NOT_FOUND = 500,
    VG_NOT_READY = 600,
    VG_ALREADY_REGISTERED = 712,
    VG_NOT_REGISTERED = 713,
    VG_NOT_SUPPORTED = 801,
    VG_CAPTURE_UNSUPPORTED = 900,
    VG_CAPTURE_INVALIDATED = 901,
    VG_CAPTURE_MERGE = 902,
    VG_CAPTURE_UNMATCHED = 903,
    VG_CAPTURE_UNJOINED = 904,
    VG_CAPTURE_IMPLICIT = 906,
    VG_CAPTURED_EVENT = 907,
    VG_CAPTURE_WRONG_THREAD = 908,
    VG_UNKNOWN = 999,
};

struct vg_stream;
struct vg_event;
struct vg_graph;
struct vg_exec;

struct vg_device {
    int ordinal;
    int gpu; /* nvidia-smi's index */
    int mig; /* instance, or -1 */
    struct vg_gpu *hardware;
    const char *uuid;
    const char *name;
    uint64_t memory;
    /* The rest belongs to the engine. */
    int has_context;
    int retained;
    unsigned flags;
    int64_t waits_until; /* new streams too */
    struct vg_stream *streams; /* the legacy default stream first */
};

#define VG_KERNEL_NS 3000 /* of a kernel that is neither a sleep, a copy nor a product */

enum vg_kind { VG_DEVICE_MEMORY, VG_POOL_MEMORY, VG_MANAGED_MEMORY, VG_MAPPED_MEMORY, VG_HOST_MEMORY, VG_REGISTERED_MEMORY };

struct vg_allocation {
    uintptr_t base;
    size_t size;
    size_t charged; /* bytes taken from the device */
    int device;
    enum vg_kind kind;
};

/* A piece of work. `bytes` > 0 with a source is a copy; without one it sets `bytes` bytes at `to` to `value`. */
struct vg_work {
    int64_t cost_ns;
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

struct vg_pool_numbers {
    uint64_t threshold, reserved, reserved_high, used, used_high;
};

#define VG_ENGINE(X)                                                                                                       \
    X(int, initialize, (void))                                                                                             \
    X(int, ready, (void))                                                                                                  \
    X(int, device_count, (void))                                                                                           \
    X(struct vg_device *, device, (int ordinal))                                                                           \
    X(int, current, (void))                                                                                                \
    X(void, set_current, (int ordinal))                                                                                    \
    X(int, use, (int ordinal))                                                                                             \
    X(int, reset_context, (int ordinal))                                                                                   \
    X(int, memory_info, (int ordinal, size_t *free, size_t *total))                                                        \
    X(int, allocate, (int ordinal, enum vg_kind kind, size_t bytes, void **result))                                        \
    X(int, release, (void *pointer))                                                                                       \
    X(int, register_host, (void *pointer, size_t bytes))                                                                   \
    X(int, unregister_host, (void *pointer))                                                                               \
    X(int, find, (const void *pointer, struct vg_allocation *result))                                                      \
    X(int, copy_cost, (const void *to, const void *from, size_t bytes, int64_t *cost_ns, int *host_waits))                 \
    X(int, pool_numbers, (int ordinal, struct vg_pool_numbers *numbers, int store))                                        \
    X(int, pool_trim, (int ordinal, uint64_t keep))                                                                        \
    X(int, stream_create, (int ordinal, unsigned flags, int priority, struct vg_stream **result))                          \
    X(int, stream_destroy, (struct vg_stream * stream))                                                                    \
    X(int, stream_priority, (struct vg_stream * stream, int *priority, unsigned *flags, int *ordinal, uint64_t *id))       \
    X(int, stream_wait, (struct vg_stream * stream, struct vg_event *event))                                               \
    X(int, stream_query, (struct vg_stream * stream))                                                                      \
    X(int, stream_synchronize, (struct vg_stream * stream))                                                                \
    X(int, device_synchronize, (int ordinal))                                                                              \
    X(int, submit, (struct vg_stream * stream, const struct vg_work *work))                                                \
    X(int, event_create, (int ordinal, unsigned flags, struct vg_event **result))                                          \
    X(int, event_destroy, (struct vg_event * event))                                                                       \
    X(int, event_record, (struct vg_event * event, struct vg_stream *stream))                                              \
    X(int, event_record_context, (struct vg_event * event, int ordinal))                                                    \
    X(int, context_wait, (int ordinal, struct vg_event * event))                                                            \
    X(int, event_query, (struct vg_event * event))                                                                         \
    X(int, event_synchronize, (struct vg_event * event))                                                                   \
    X(int, event_elapsed, (float *milliseconds, struct vg_event *start, struct vg_event *end))                             \
    X(int, unsafe_call, (void))                                                                                            \
    X(int, capture_begin, (struct vg_stream * stream, int mode))                                                           \
    X(int, capture_end, (struct vg_stream * stream, struct vg_graph **graph))                                              \
    X(int, capture_info, (struct vg_stream * stream, int *status, unsigned long long *id, struct vg_graph **graph))        \
    X(int, capture_mode, (int *mode))                                                                                      \
    X(int, graph_size, (struct vg_graph * graph, size_t *nodes))                                                           \
    X(int, graph_retain, (struct vg_graph * graph, void (*destroy)(void *), void *data))                                   \
    X(int, graph_destroy, (struct vg_graph * graph))                                                                       \
    X(int, graph_instantiate, (struct vg_graph * graph, struct vg_exec **exec))                                            \
    X(int, exec_destroy, (struct vg_exec * exec))                                                                          \
    X(int, exec_launch, (struct vg_exec * exec, struct vg_stream *stream))                                                 \
    X(void *, entry_point, (const char *name))

struct vg_engine {
#define VG_MEMBER(type, name, arguments) type(*name) arguments;
    VG_ENGINE(VG_MEMBER)
#undef VG_MEMBER
};

/* Exported by libcuda.so.1 under this name. */
VG_EXPORT extern const struct vg_engine vg_engine;

/* Inside libcuda.so.1 only. */
#define VG_DECLARE(type, name, arguments) type engine_##name arguments;
VG_ENGINE(VG_DECLARE)
#undef VG_DECLARE

#define VG_TWICE -1
/* visibility.c: the devices that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave, as the environment is now; VG_TWICE where
 * one is named twice. */
int vg_visible_devices(struct vg_device devices[VG_MAX_GPUS * (VG_MAX_MIG + 1)]);
#define VG_MAX_DEVICES (VG_MAX_GPUS * (VG_MAX_MIG + 1))

/* engine.c: one lock for all of the engine's tables. */
void vg_hold(void);
void vg_let_go(void);

/* memory.c */
int vg_reserve_address(size_t bytes, void **result);
int vg_free_address(void *pointer, size_t bytes);
int vg_map_memory(void *pointer, size_t bytes, int ordinal);
int vg_unmap_memory(void *pointer, size_t bytes);
void vg_forget_device_memory(int ordinal);
void vg_trim_pool(int ordinal, uint64_t keep);
void vg_perform(const struct vg_work *work);

#endif
