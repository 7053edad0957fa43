/* Devices, contexts, and the timelines that stand for streams.
 *
 * Nothing runs in the background: submitting work moves the time at which its stream will be ready, and only those who
 * synchronize sleep until then.
 */
#define _GNU_SOURCE
#include "engine.h"
#include "pace.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STREAM_MAGIC 0x5354524du
#define EVENT_MAGIC 0x45564e54u
#define DISABLE_TIMING 2u
#define NON_BLOCKING 1u
#define QUEUE 1024                   /* launches that a stream holds before the host waits */
#define SCHEDULE 7u                  /* the flags of a context that say how its waits wait */
#define BLOCKING_SYNC 4u
#define BLOCKING_EVENT 1u

struct capture;

struct vg_stream {
    uint32_t magic;
    struct vg_device *device;
    unsigned flags;
    int priority;
    uint64_t id;
    int64_t ready;
    int64_t *queue; /* when each of the last launches ends */
    unsigned queued;
    struct capture *capture;
    int64_t captured; /* length of the captured work up to here */
    unsigned captured_steps, joined_steps;
    struct vg_stream *next;
};

struct vg_event {
    uint32_t magic;
    struct vg_device *device;
    unsigned flags;
    int recorded;
    int64_t when;
    uint64_t capture; /* the capture it was recorded in, or 0 */
    int64_t captured;
    struct vg_stream *stream;
    unsigned captured_steps;
};

struct user_object {
    void (*destroy)(void *);
    void *data;
};

struct vg_graph {
    struct vg_work *work;
    size_t steps, room;
    int64_t cost_ns;
    struct user_object *users;
    size_t n_users;
};

struct vg_exec {
    struct vg_work *work;
    size_t steps;
    int64_t cost_ns;
};

struct capture {
    uint64_t id;
    int mode; /* 0 global, 1 this thread, 2 relaxed */
    int invalid;
    pthread_t thread;
    struct vg_stream *origin;
    struct vg_graph *graph;
    struct capture *next;
};

static pthread_mutex_t lock;
static pthread_once_t lock_made = PTHREAD_ONCE_INIT;
static struct vg_device devices[VG_MAX_DEVICES];
static int n_devices, tried, initialized, forked, init_result;
static struct capture *captures;
static uint64_t last_id;
static __thread int current_device = -1;
static __thread int capture_mode;

static void make_lock(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attributes);
}

void vg_hold(void)
{
    pthread_once(&lock_made, make_lock);
    pthread_mutex_lock(&lock);
}

void vg_let_go(void)
{
    pthread_mutex_unlock(&lock);
}

/* Work that ended before this is known to the host to have ended. */
static int64_t seen(void)
{
    return vg_now() - vg_state()->profile.seen_late;
}

/* As the context's flags say, else as the profile does: by spinning; by sleeping; or by sleeping, and spinning for the last
 * 60 us, as the kernel wakes a sleeper about so late. */
static void wait_until(int64_t when, const struct vg_device *device, int blocking)
{
    unsigned schedule = device->flags & SCHEDULE;
    int64_t spins = blocking || schedule == BLOCKING_SYNC ? -1 : schedule ? 1 : vg_state()->profile.spins;
    int64_t now, early = spins < 0 ? 0 : 60000;
    when += vg_state()->profile.seen_late;
    while ((now = vg_now()) < when) {
        if (spins > 0 || when - now < early + early / 3)
            continue;
        int64_t wake = when - early;
        struct timespec until = {wake / 1000000000, wake % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

/* ---- devices and contexts ---- */

static void in_forked_child(void)
{
    forked = 1; /* what the parent initialized cannot be used here, and a lock that it held stays locked */
}

int engine_initialize(void)
{
    if (forked)
        return VG_NOT_INITIALIZED;
    vg_hold();
    if (!tried) {
        tried = 1;
        vg_spend(vg_state()->profile.initialize);
        n_devices = vg_visible_devices(devices);
        init_result = n_devices > 0 ? VG_OK : n_devices == VG_TWICE ? VG_INVALID_DEVICE : VG_NO_DEVICE;
        initialized = init_result == VG_OK;
        if (initialized) {
            pthread_atfork(NULL, NULL, in_forked_child);
            atexit(vg_forget_process);
        }
    }
    int result = init_result;
    vg_let_go();
    return result;
}

int engine_ready(void)
{
    return initialized && !forked ? VG_OK : VG_NOT_INITIALIZED;
}

int engine_device_count(void)
{
    return n_devices;
}

struct vg_device *engine_device(int ordinal)
{
    return ordinal >= 0 && ordinal < n_devices ? &devices[ordinal] : NULL;
}

int engine_current(void)
{
    return current_device;
}

void engine_set_current(int ordinal)
{
    current_device = ordinal;
}

/* A lost GPU: what the driver says for the rest of the process's life is "unknown error". */
static int alive(const struct vg_device *device)
{
    return vg_lost(device->hardware) ? VG_UNKNOWN : VG_OK;
}

static struct vg_stream *add_stream(struct vg_device *device, unsigned flags, int priority)
{
    struct vg_stream *stream = calloc(1, sizeof *stream);
    int64_t *queue = calloc(QUEUE, sizeof *queue);
    if (!stream || !queue)
        abort();
    stream->magic = STREAM_MAGIC;
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    stream->id = ++last_id;
    stream->queue = queue;
    stream->ready = device->waits_until;
    struct vg_stream **end = &device->streams;
    while (*end)
        end = &(*end)->next;
    *end = stream;
    return stream;
}

static int make_context(struct vg_device *device)
{
    static int further;
    const struct vg_profile *profile = &vg_state()->profile;
    int error = engine_ready();
    if (error)
        return error;
    vg_hold();
    error = alive(device);
    if (!error && !device->has_context) {
        unsigned mode = device->hardware->compute_mode;
        if (mode == 2 || (mode == 3 && vg_taken(device->gpu)))
            error = VG_UNAVAILABLE;
        else if (vg_charge(device->gpu, device->mig, profile->context_bytes) != 0)
            error = VG_OUT_OF_MEMORY;
        if (!error) {
            vg_spend(further++ ? profile->further_context : profile->context);
            vg_mark_context(device->gpu, device->mig, 1);
            device->has_context = 1;
            if (!device->streams)
                add_stream(device, 0, 0);
        }
    }
    vg_let_go();
    return error;
}

int engine_use(int ordinal)
{
    int error = engine_ready();
    struct vg_device *device = engine_device(ordinal);
    if (!error && !device)
        error = VG_INVALID_DEVICE;
    if (!error)
        error = make_context(device);
    if (!error)
        current_device = ordinal;
    return error;
}

int engine_reset_context(int ordinal)
{
    struct vg_device *device = engine_device(ordinal);
    if (!device)
        return VG_INVALID_DEVICE;
    vg_hold();
    if (device->has_context) {
        vg_forget_device_memory(ordinal);
        vg_charge(device->gpu, device->mig, -vg_state()->profile.context_bytes);
        vg_mark_context(device->gpu, device->mig, 0);
        device->has_context = 0;
        device->retained = 0;
    }
    vg_let_go();
    return VG_OK;
}

int engine_memory_info(int ordinal, size_t *free, size_t *total)
{
    struct vg_device *device = engine_device(ordinal);
    if (!device)
        return VG_INVALID_DEVICE;
    int error = alive(device);
    uint64_t used = vg_used(device->gpu, device->mig);
    *total = device->memory;
    *free = device->memory > used ? device->memory - used : 0;
    return error;
}

/* ---- captures ---- */

static struct capture *active_capture(uint64_t id)
{
    for (struct capture *capture = captures; capture; capture = capture->next)
        if (capture->id == id)
            return capture;
    return NULL;
}

/* Calls that could deadlock or break a capture under way fail, and take the capture with them. */
int engine_unsafe_call(void)
{
    int error = VG_OK;
    if (!__atomic_load_n(&captures, __ATOMIC_ACQUIRE) || capture_mode == 2)
        return VG_OK;
    vg_hold();
    for (struct capture *capture = captures; capture; capture = capture->next) {
        int mine = pthread_equal(capture->thread, pthread_self());
        if ((mine && capture->mode != 2) || (!mine && capture_mode == 0 && capture->mode == 0)) {
            capture->invalid = 1;
            error = VG_CAPTURE_UNSUPPORTED;
        }
    }
    vg_let_go();
    return error;
}

static int add_step(struct vg_stream *stream, const struct vg_work *work)
{
    if (stream->capture->invalid)
        return VG_CAPTURE_INVALIDATED;
    struct vg_graph *graph = stream->capture->graph;
    if (graph->steps == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->work = realloc(graph->work, graph->room * sizeof *graph->work);
        if (!graph->work)
            abort();
    }
    graph->work[graph->steps++] = *work;
    stream->captured += work->cost_ns;
    stream->captured_steps++;
    return VG_OK;
}

/* ---- streams ---- */

/* Handles 0 and 1 are the legacy default stream of the current device; 2, the per-thread one, is taken for it. */
static int resolve(struct vg_stream *handle, struct vg_stream **result)
{
    int error = engine_ready();
    if (error)
        return error;
    if ((uintptr_t)handle <= 2) {
        struct vg_device *device = engine_device(current_device >= 0 ? current_device : 0);
        error = make_context(device);
        *result = device->streams;
        return error;
    }
    if (handle->magic != STREAM_MAGIC)
        return VG_INVALID_HANDLE;
    *result = handle;
    return alive(handle->device);
}

static int is_legacy(const struct vg_stream *stream)
{
    return stream == stream->device->streams;
}

/* When work submitted now can begin: after the stream's own, and the legacy stream and the blocking ones wait for each other. */
static int64_t earliest(const struct vg_stream *stream)
{
    int64_t start = vg_now() + vg_state()->profile.latency;
    if (stream->ready > start)
        start = stream->ready;
    if (is_legacy(stream)) {
        for (const struct vg_stream *other = stream->next; other; other = other->next)
            if (!(other->flags & NON_BLOCKING) && other->ready > start)
                start = other->ready;
    } else if (!(stream->flags & NON_BLOCKING) && stream->device->streams->ready > start) {
        start = stream->device->streams->ready;
    }
    return start;
}

static int blocked_by_capture(const struct vg_stream *stream)
{
    if (!captures || !is_legacy(stream))
        return VG_OK;
    int error = VG_OK;
    for (struct vg_stream *other = stream->next; other; other = other->next)
        if (other->capture && !(other->flags & NON_BLOCKING)) {
            other->capture->invalid = 1;
            error = VG_CAPTURE_IMPLICIT;
        }
    return error;
}

int engine_submit(struct vg_stream *handle, const struct vg_work *work)
{
    struct vg_stream *stream;
    int error = resolve(handle, &stream);
    if (error)
        return error;
    int64_t room_at = 0;
    vg_spend(vg_state()->launch_cost_ns);
    vg_hold();
    if (stream->capture) {
        error = add_step(stream, work);
        vg_let_go();
        return error;
    }
    error = blocked_by_capture(stream);
    if (!error) {
        stream->ready = vg_end_of(stream->device->hardware, earliest(stream), work->cost_ns);
        unsigned at = stream->queued++ % QUEUE;
        room_at = stream->queue[at];
        stream->queue[at] = stream->ready;
    }
    vg_let_go();
    if (!error) {
        vg_perform(work);
        wait_until(room_at, stream->device, 0); /* the queue is full: the host waits, as it does on hardware */
    }
    return error;
}

int engine_stream_create(int ordinal, unsigned flags, int priority, struct vg_stream **result)
{
    int error = engine_use(ordinal);
    if (error)
        return error;
    struct vg_device *device = engine_device(ordinal);
    if (vg_charge(device->gpu, device->mig, vg_state()->profile.stream_bytes) != 0)
        return VG_OUT_OF_MEMORY;
    vg_hold();
    *result = add_stream(device, flags, priority);
    vg_let_go();
    return VG_OK;
}

int engine_stream_destroy(struct vg_stream *stream)
{
    int error = engine_ready();
    if (error)
        return error;
    if ((uintptr_t)stream <= 2 || stream->magic != STREAM_MAGIC)
        return VG_INVALID_HANDLE;
    vg_hold();
    struct vg_stream *legacy = stream->device->streams;
    for (struct vg_stream *before = legacy; before; before = before->next)
        if (before->next == stream) {
            before->next = stream->next;
            break;
        }
    if (stream->capture)
        stream->capture->invalid = 1;
    vg_charge(stream->device->gpu, stream->device->mig, -vg_state()->profile.stream_bytes);
    stream->magic = 0;
    free(stream->queue);
    free(stream);
    vg_let_go();
    return VG_OK;
}

int engine_stream_priority(struct vg_stream *handle, int *priority, unsigned *flags, int *ordinal, uint64_t *id)
{
    struct vg_stream *stream;
    int error = resolve(handle, &stream);
    if (error)
        return error;
    *priority = stream->priority;
    *flags = stream->flags;
    *ordinal = stream->device->ordinal;
    *id = stream->id;
    return VG_OK;
}

int engine_stream_wait(struct vg_stream *handle, struct vg_event *event)
{
    struct vg_stream *stream;
    int error = resolve(handle, &stream);
    if (error)
        return error;
    if (!event || event->magic != EVENT_MAGIC)
        return VG_INVALID_HANDLE;
    vg_hold();
    struct capture *capture = event->capture ? active_capture(event->capture) : NULL;
    if (event->capture && !capture) {
        error = VG_CAPTURED_EVENT;
    } else if (capture) {
        if (stream->capture && stream->capture != capture) {
            stream->capture->invalid = capture->invalid = 1;
            error = VG_CAPTURE_MERGE;
        } else if (is_legacy(stream)) {
            capture->invalid = 1;
            error = VG_CAPTURE_IMPLICIT;
        } else {
            if (!stream->capture) { /* the stream joins the capture */
                stream->capture = capture;
                stream->captured = 0;
                stream->captured_steps = stream->joined_steps = 0;
            }
            if (event->captured > stream->captured)
                stream->captured = event->captured;
            if (stream != event->stream) {
                stream->captured_steps++;
                event->stream->joined_steps = event->captured_steps;
            }
        }
    } else if (stream->capture && event->recorded) {
        stream->capture->invalid = 1;
        error = 905; /* work outside the capture cannot be waited for in it */
    } else if (event->recorded && event->when > stream->ready) {
        stream->ready = event->when;
    }
    vg_let_go();
    return error;
}

int engine_stream_query(struct vg_stream *handle)
{
    struct vg_stream *stream;
    int error = resolve(handle, &stream);
    if (error)
        return error;
    vg_hold();
    if (stream->capture) {
        stream->capture->invalid = 1;
        error = VG_CAPTURE_UNSUPPORTED;
    }
    int64_t ready = stream->ready;
    if (is_legacy(stream) && !error)
        error = blocked_by_capture(stream);
    if (is_legacy(stream))
        for (struct vg_stream *other = stream->next; other; other = other->next)
            if (!(other->flags & NON_BLOCKING) && other->ready > ready)
                ready = other->ready;
    vg_let_go();
    if (!error)
        error = engine_unsafe_call();
    return error ? error : ready > seen() ? VG_NOT_READY : VG_OK;
}

int engine_stream_synchronize(struct vg_stream *handle)
{
    struct vg_stream *stream;
    int error = resolve(handle, &stream);
    if (error)
        return error;
    vg_hold();
    if (stream->capture) {
        stream->capture->invalid = 1;
        error = VG_CAPTURE_UNSUPPORTED;
    }
    int64_t ready = stream->ready;
    if (is_legacy(stream) && !error)
        error = blocked_by_capture(stream);
    if (is_legacy(stream))
        for (struct vg_stream *other = stream->next; other; other = other->next)
            if (!(other->flags & NON_BLOCKING) && other->ready > ready)
                ready = other->ready;
    int ordinal = stream->device->ordinal;
    vg_let_go();
    if (!error)
        error = engine_unsafe_call();
    if (error)
        return error;
    wait_until(ready, stream->device, 0);
    struct vg_pool_numbers pool;
    engine_pool_numbers(ordinal, &pool, 0);
    if (pool.reserved > pool.used && pool.reserved > pool.threshold) {
        vg_hold();
        vg_trim_pool(ordinal, pool.threshold);
        vg_let_go();
    }
    return alive(engine_device(ordinal));
}

int engine_device_synchronize(int ordinal)
{
    int error = engine_use(ordinal);
    if (error)
        return error;
    struct vg_device *device = engine_device(ordinal);
    int64_t ready = 0;
    vg_hold();
    for (struct vg_stream *stream = device->streams; stream; stream = stream->next) {
        if (stream->capture) { /* whoever's, in whichever mode */
            stream->capture->invalid = 1;
            error = VG_CAPTURE_UNSUPPORTED;
        }
        if (stream->ready > ready)
            ready = stream->ready;
    }
    vg_let_go();
    if (!error)
        error = engine_unsafe_call();
    if (error)
        return error;
    wait_until(ready, device, 0);
    return engine_stream_synchronize(NULL);
}

/* ---- events ---- */

int engine_event_create(int ordinal, unsigned flags, struct vg_event **result)
{
    int error = engine_use(ordinal);
    if (error)
        return error;
    struct vg_event *event = calloc(1, sizeof *event);
    if (!event)
        abort();
    event->magic = EVENT_MAGIC;
    event->device = engine_device(ordinal);
    event->flags = flags;
    *result = event;
    return VG_OK;
}

static int valid_event(const struct vg_event *event)
{
    int error = engine_ready();
    if (error)
        return error;
    return event && event->magic == EVENT_MAGIC ? VG_OK : VG_INVALID_HANDLE;
}

int engine_event_destroy(struct vg_event *event)
{
    int error = valid_event(event);
    if (error)
        return error;
    event->magic = 0;
    free(event);
    return VG_OK;
}

int engine_event_record(struct vg_event *event, struct vg_stream *handle)
{
    struct vg_stream *stream;
    int error = valid_event(event);
    if (!error)
        error = resolve(handle, &stream);
    if (error)
        return error;
    if (stream->device != event->device)
        return VG_INVALID_HANDLE;
    vg_hold();
    if (stream->capture) {
        error = stream->capture->invalid ? VG_CAPTURE_INVALIDATED : VG_OK;
        event->capture = stream->capture->id;
        event->captured = stream->captured;
        event->captured_steps = stream->captured_steps;
        event->stream = stream;
    } else if (!(error = blocked_by_capture(stream))) {
        event->capture = 0;
        event->when = stream->ready = vg_end_of(stream->device->hardware, earliest(stream), 0) + vg_state()->profile.event;
        event->recorded = 1;
    }
    vg_let_go();
    return error;
}

/* Behind all work of the context, in whichever streams. */
int engine_event_record_context(struct vg_event *event, int ordinal)
{
    int error = valid_event(event);
    if (error)
        return error;
    struct vg_device *device = engine_device(ordinal);
    if (!device || !device->has_context || device != event->device)
        return VG_INVALID_HANDLE;
    vg_hold();
    int64_t when = vg_now() + vg_state()->profile.latency;
    for (struct vg_stream *stream = device->streams; stream; stream = stream->next) {
        if (stream->capture) {
            stream->capture->invalid = 1;
            error = VG_CAPTURE_UNSUPPORTED;
        }
        if (stream->ready > when)
            when = stream->ready;
    }
    if (!error) {
        event->capture = 0;
        event->when = when;
        event->recorded = 1;
    }
    vg_let_go();
    return error;
}

/* Whatever is submitted from now on waits, in whichever stream. */
int engine_context_wait(int ordinal, struct vg_event *event)
{
    int error = valid_event(event);
    if (error)
        return error;
    struct vg_device *device = engine_device(ordinal);
    if (!device || !device->has_context || device != event->device)
        return VG_INVALID_HANDLE;
    vg_hold();
    for (struct vg_stream *stream = device->streams; stream; stream = stream->next)
        if (stream->capture) {
            stream->capture->invalid = 1;
            error = VG_CAPTURE_UNSUPPORTED;
        }
    if (!error && event->recorded) {
        if (event->when > device->waits_until)
            device->waits_until = event->when;
        for (struct vg_stream *stream = device->streams; stream; stream = stream->next)
            if (event->when > stream->ready)
                stream->ready = event->when;
    }
    vg_let_go();
    return error;
}

int engine_event_query(struct vg_event *event)
{
    int error = valid_event(event);
    if (!error)
        error = alive(event->device);
    if (!error && event->capture)
        error = VG_CAPTURED_EVENT;
    if (!error)
        error = engine_unsafe_call();
    if (error)
        return error;
    return event->recorded && event->when > seen() ? VG_NOT_READY : VG_OK;
}

int engine_event_synchronize(struct vg_event *event)
{
    int error = valid_event(event);
    if (!error)
        error = alive(event->device);
    if (!error && event->capture)
        error = VG_CAPTURED_EVENT;
    if (!error)
        error = engine_unsafe_call();
    if (error)
        return error;
    if (event->recorded)
        wait_until(event->when, event->device, event->flags & BLOCKING_EVENT);
    return alive(event->device);
}

int engine_event_elapsed(float *milliseconds, struct vg_event *start, struct vg_event *end)
{
    int error = valid_event(start);
    if (!error)
        error = valid_event(end);
    if (error)
        return error;
    if (((start->flags | end->flags) & DISABLE_TIMING) || !start->recorded || !end->recorded || start->device != end->device)
        return VG_INVALID_HANDLE;
    if (start->capture || end->capture)
        return VG_CAPTURED_EVENT;
    int64_t now = seen(), step = vg_state()->profile.resolution;
    if (start->when > now || end->when > now)
        return VG_NOT_READY;
    int64_t from = start->when, to = end->when;
    if (step > 0)
        from -= from % step, to -= to % step;
    *milliseconds = (float)((double)(to - from) / 1e6);
    return alive(start->device);
}

/* ---- graphs ---- */

int engine_capture_begin(struct vg_stream *handle, int mode)
{
    struct vg_stream *stream;
    int error = resolve(handle, &stream);
    if (error)
        return error;
    if (is_legacy(stream))
        return VG_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return 401;
    struct capture *capture = calloc(1, sizeof *capture);
    struct vg_graph *graph = calloc(1, sizeof *graph);
    if (!capture || !graph)
        abort();
    vg_hold();
    capture->id = ++last_id;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->origin = stream;
    capture->graph = graph;
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
    stream->captured = 0;
    stream->captured_steps = stream->joined_steps = 0;
    vg_let_go();
    return VG_OK;
}

int engine_capture_end(struct vg_stream *handle, struct vg_graph **graph)
{
    struct vg_stream *stream;
    *graph = NULL;
    int error = resolve(handle, &stream);
    if (error)
        return error;
    if (!stream->capture)
        return 401;
    struct capture *capture = stream->capture;
    if (capture->origin != stream)
        return VG_CAPTURE_UNMATCHED;
    if (capture->mode != 2 && !pthread_equal(capture->thread, pthread_self()))
        return VG_CAPTURE_WRONG_THREAD;
    vg_hold();
    for (int i = 0; i < n_devices; i++)
        for (struct vg_stream *other = devices[i].streams; other; other = other->next)
            if (other->capture == capture) {
                if (other != stream && other->joined_steps < other->captured_steps)
                    error = VG_CAPTURE_UNJOINED;
                other->capture = NULL;
            }
    if (capture->invalid)
        error = VG_CAPTURE_INVALIDATED;
    for (struct capture **link = &captures; *link; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    capture->graph->cost_ns = stream->captured;
    if (error)
        engine_graph_destroy(capture->graph);
    else
        *graph = capture->graph;
    free(capture);
    vg_let_go();
    return error;
}

int engine_capture_info(struct vg_stream *handle, int *status, unsigned long long *id, struct vg_graph **graph)
{
    *status = 0;
    struct vg_stream *stream;
    int error = resolve(handle, &stream);
    if (error)
        return error;
    vg_hold();
    if (is_legacy(stream))
        error = blocked_by_capture(stream);
    if (stream->capture) {
        *status = stream->capture->invalid ? 2 : 1;
        *id = stream->capture->id;
        *graph = stream->capture->graph;
    }
    vg_let_go();
    return error;
}

int engine_capture_mode(int *mode)
{
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    return VG_OK;
}

int engine_graph_size(struct vg_graph *graph, size_t *nodes)
{
    *nodes = graph->steps;
    return VG_OK;
}

int engine_graph_retain(struct vg_graph *graph, void (*destroy)(void *), void *data)
{
    struct user_object *users = realloc(graph->users, (graph->n_users + 1) * sizeof *users);
    if (!users)
        abort();
    users[graph->n_users++] = (struct user_object){destroy, data};
    graph->users = users;
    return VG_OK;
}

int engine_graph_destroy(struct vg_graph *graph)
{
    if (!graph)
        return VG_INVALID_VALUE;
    for (size_t i = 0; i < graph->n_users; i++)
        if (graph->users[i].destroy)
            graph->users[i].destroy(graph->users[i].data);
    free(graph->users);
    free(graph->work);
    free(graph);
    return VG_OK;
}

int engine_graph_instantiate(struct vg_graph *graph, struct vg_exec **result)
{
    struct vg_exec *exec = calloc(1, sizeof *exec);
    if (!exec)
        abort();
    exec->cost_ns = graph->cost_ns;
    for (size_t i = 0; i < graph->steps; i++) /* kernels leave no trace but their time */
        exec->steps += graph->work[i].bytes > 0;
    exec->work = calloc(exec->steps ? exec->steps : 1, sizeof *exec->work);
    if (!exec->work)
        abort();
    size_t at = 0;
    for (size_t i = 0; i < graph->steps; i++)
        if (graph->work[i].bytes > 0)
            exec->work[at++] = graph->work[i];
    *result = exec;
    return VG_OK;
}

int engine_exec_destroy(struct vg_exec *exec)
{
    free(exec->work);
    free(exec);
    return VG_OK;
}

int engine_exec_launch(struct vg_exec *exec, struct vg_stream *stream)
{
    struct vg_work whole = {.cost_ns = exec->cost_ns};
    int error = engine_submit(stream, &whole);
    for (size_t i = 0; i < exec->steps && !error; i++)
        vg_perform(&exec->work[i]);
    return error;
}

void *engine_entry_point(const char *name)
{
    static void *self;
    if (!self)
        self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    char versioned[160];
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    void *found = self ? dlsym(self, versioned) : NULL;
    return found ? found : self ? dlsym(self, name) : NULL;
}

const struct vg_engine vg_engine = {
#define VG_FILL(type, name, arguments) .name = engine_##name,
    VG_ENGINE(VG_FILL)
#undef VG_FILL
};
