#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct vg_state *mapped;

static struct vg_state *map_state(void)
{
    const char *path = getenv("VIRTUAL_GPU_STATE");
    void *memory = MAP_FAILED;
    if (path && *path) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0) {
            struct stat info;
            if (fstat(fd, &info) == 0 && (size_t)info.st_size >= sizeof(struct vg_state))
                memory = mmap(NULL, sizeof(struct vg_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            close(fd);
        }
        if (memory != MAP_FAILED) {
            struct vg_state *state = memory;
            if (state->magic == VG_MAGIC && state->layout_size == sizeof(struct vg_state))
                return state;
            fprintf(stderr, "virtual GPU: %s was written by another version of it\n", path);
            munmap(memory, sizeof(struct vg_state));
        }
    }
    struct vg_state *empty = calloc(1, sizeof *empty);
    if (!empty)
        abort();
    return empty;
}

struct vg_state *vg_state(void)
{
    struct vg_state *state = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);
    if (!state) {
        struct vg_state *mine = map_state(), *none = NULL;
        /* Two threads may come here at once: the loser's mapping stays unused, which costs nothing. */
        __atomic_compare_exchange_n(&mapped, &none, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        state = __atomic_load_n(&mapped, __ATOMIC_ACQUIRE);
    }
    return state;
}

int64_t vg_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void vg_spend(int64_t ns)
{
    if (ns > 0)
        for (int64_t end = vg_now() + ns; vg_now() < end;)
            ;
}

/* A lock over processes, which a holder killed with SIGKILL cannot keep. */
void vg_lock(void)
{
    struct vg_state *state = vg_state();
    int32_t me = getpid();
    for (int turns = 0;; turns++) {
        int32_t holder = 0;
        if (__atomic_compare_exchange_n(&state->lock, &holder, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return;
        sched_yield();
        if (turns % 1000 == 999 && holder != me && kill(holder, 0) != 0 && errno == ESRCH)
            __atomic_compare_exchange_n(&state->lock, &holder, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
}

void vg_unlock(void)
{
    __atomic_store_n(&vg_state()->lock, 0, __ATOMIC_RELEASE);
}

static int64_t cost_of(const char *name)
{
    const struct vg_cost *costs = vg_state()->costs;
    for (int i = 0; i < VG_MAX_COSTS && costs[i].name[0]; i++)
        if (strcmp(costs[i].name, name) == 0)
            return costs[i].ns;
    return 0;
}

static struct vg_call *find_call(const char *name)
{
    struct vg_state *state = vg_state();
    uint64_t hash = 1469598103934665603ull;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211ull;
    struct vg_call *found = NULL;
    vg_lock();
    for (unsigned probe = 0; probe < VG_MAX_CALLS && !found; probe++) {
        struct vg_call *call = &state->calls[(hash + probe) % VG_MAX_CALLS];
        if (!call->name[0])
            strncpy(call->name, name, VG_NAME - 1);
        if (strncmp(call->name, name, VG_NAME - 1) == 0)
            found = call;
    }
    if (found)
        found->cost_ns = cost_of(name);
    vg_unlock();
    return found;
}

static int matches(const struct vg_rule *rule, const char *name)
{
    size_t length = strnlen(rule->name, VG_NAME);
    if (length && rule->name[length - 1] == '*')
        return strncmp(rule->name, name, length - 1) == 0;
    return strncmp(rule->name, name, VG_NAME - 1) == 0;
}

static struct vg_process *own_entry(int create);

/* Whether a call of CUDA's needs no context, so that it goes well after the context's death. */
static int needs_no_context(const char *name)
{
    static const char *const prefixes[] = {
        "cuInit", "cuDriverGet", "cuGetProcAddress", "cuGetError", "cuDeviceGet", "cuDevicePrimaryCtxGetState", "cudaGetError",
        "cudaGetLastError", "cudaPeekAtLastError", "cudaRuntimeGet", "cudaDriverGet", "cudaGetDriverEntryPoint",
        "cudaGetDevice",
    };
    for (unsigned i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return 1;
    return strncmp(name, "cu", 2) != 0;
}

static int after_death(const char *name)
{
    if (needs_no_context(name))
        return 0;
    vg_lock();
    struct vg_process *process = own_entry(0);
    int code = process ? process->dead : 0;
    vg_unlock();
    return code;
}

static int apply_rules(struct vg_state *state, const char *name)
{
    for (int i = 0; i < VG_MAX_RULES; i++) {
        struct vg_rule *rule = &state->rules[i];
        if (!__atomic_load_n(&rule->active, __ATOMIC_ACQUIRE) || !matches(rule, name))
            continue;
        if (rule->delay_ns > 0) {
            struct timespec pause = {rule->delay_ns / 1000000000, rule->delay_ns % 1000000000};
            while (clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, &pause) == EINTR)
                ;
        }
        if (!rule->fails)
            continue;
        int64_t seen = __atomic_fetch_add(&rule->seen, 1, __ATOMIC_RELAXED);
        if (rule->times < 0 || seen < rule->times)
            return rule->code;
    }
    return 0;
}

int vg_enter(struct vg_call **slot, const char *name)
{
    struct vg_call *call = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (!call) {
        call = find_call(name);
        __atomic_store_n(slot, call, __ATOMIC_RELEASE);
    }
    if (call) {
        __atomic_fetch_add(&call->count, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&call->total, 1, __ATOMIC_RELAXED);
        vg_spend(call->cost_ns);
    }
    struct vg_state *state = vg_state();
    int fault = state->n_rules > 0 ? apply_rules(state, name) : 0;
    return fault || !state->any_dead ? fault : after_death(name);
}

static int enabled(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
}

int vg_unimplemented(struct vg_call **slot, const char *name, int code)
{
    int fault = vg_enter(slot, name);
    if (fault)
        return fault;
    if (*slot)
        __atomic_store_n(&(*slot)->unimplemented, 1, __ATOMIC_RELAXED);
    if (enabled("VIRTUAL_GPU_TRACE"))
        fprintf(stderr, "virtual GPU: %s is not implemented (answers %d)\n", name, code);
    return code;
}

/* When the process started, in clock ticks since boot; 0 where it has ended (a zombie has). */
static uint64_t start_time(int32_t pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    char *field = strrchr(text, ')'); /* the name before it may hold anything */
    if (!field || field[1] != ' ' || field[2] == 'Z' || field[2] == 'X')
        return 0;
    field += 2; /* the third field of proc(5); the start time is the 22nd */
    for (int i = 3; i < 22 && field; i++)
        if ((field = strchr(field, ' ')))
            field++;
    return field ? strtoull(field, NULL, 10) : 0;
}

void vg_reap(void)
{
    struct vg_state *state = vg_state();
    for (int i = 0; i < VG_MAX_PROCESSES; i++) {
        struct vg_process *process = &state->processes[i];
        if (process->pid && start_time(process->pid) != process->start_time)
            memset(process, 0, sizeof *process);
    }
}

static struct vg_process *own_entry(int create)
{
    struct vg_state *state = vg_state();
    int32_t me = getpid();
    struct vg_process *unused = NULL;
    for (int i = 0; i < VG_MAX_PROCESSES; i++) {
        if (state->processes[i].pid == me)
            return &state->processes[i];
        if (!state->processes[i].pid && !unused)
            unused = &state->processes[i];
    }
    if (!create || !unused)
        return NULL;
    memset(unused, 0, sizeof *unused);
    unused->start_time = start_time(me);
    unused->pid = me;
    return unused;
}

static uint64_t used_locked(int gpu, int mig)
{
    struct vg_state *state = vg_state();
    int64_t used = 0;
    for (int i = 0; i < VG_MAX_PROCESSES; i++) {
        if (!state->processes[i].pid)
            continue;
        if (mig >= 0)
            used += state->processes[i].used[gpu][1 + mig];
        else
            for (int part = 0; part <= VG_MAX_MIG; part++)
                used += state->processes[i].used[gpu][part];
    }
    for (int i = 0; i < VG_MAX_EXTERNAL; i++) {
        struct vg_external *other = &state->external[i];
        if (other->active && other->gpu == gpu && (mig < 0 || other->mig == mig))
            used += (int64_t)other->memory;
    }
    return used > 0 ? (uint64_t)used : 0;
}

int vg_lost(const struct vg_gpu *gpu)
{
    return gpu->lost;
}

uint64_t vg_used(int gpu, int mig)
{
    vg_lock();
    vg_reap();
    uint64_t used = used_locked(gpu, mig);
    vg_unlock();
    return used;
}

uint64_t vg_capacity(int gpu, int mig)
{
    struct vg_gpu *device = &vg_state()->gpus[gpu];
    if (mig >= 0)
        return device->mig[mig].memory;
    return device->memory > device->reserved ? device->memory - device->reserved : 0;
}

int vg_charge(int gpu, int mig, int64_t bytes)
{
    int result = 0;
    vg_lock();
    if (bytes > 0) {
        uint64_t capacity = vg_capacity(gpu, mig);
        if (used_locked(gpu, mig) + (uint64_t)bytes > capacity) {
            vg_reap();
            if (used_locked(gpu, mig) + (uint64_t)bytes > capacity)
                result = -1;
        }
    }
    struct vg_process *process = result == 0 ? own_entry(bytes > 0) : NULL;
    if (process)
        process->used[gpu][1 + mig] += bytes;
    vg_unlock();
    return result;
}

void vg_mark_context(int gpu, int mig, int present)
{
    vg_lock();
    struct vg_process *process = own_entry(present);
    if (process)
        process->has_context[gpu][1 + mig] = present;
    vg_unlock();
}

void vg_count_session(int change)
{
    vg_lock();
    struct vg_process *process = own_entry(1);
    if (process && (process->sessions += change) <= 0) {
        process->sessions = 0;
        memset(process->attached, 0, sizeof process->attached);
    }
    vg_unlock();
}

static int has_context(const struct vg_process *process, int gpu)
{
    for (int part = 0; part < VG_PARTS; part++)
        if (process->pid && process->has_context[gpu][part])
            return 1;
    return 0;
}

int vg_taken(int gpu)
{
    const struct vg_state *state = vg_state();
    int taken = 0;
    vg_lock();
    vg_reap();
    for (int i = 0; i < VG_MAX_PROCESSES; i++)
        taken |= state->processes[i].pid != getpid() && has_context(&state->processes[i], gpu);
    for (int i = 0; i < VG_MAX_EXTERNAL; i++)
        taken |= state->external[i].active && state->external[i].gpu == gpu;
    vg_unlock();
    return taken;
}

int vg_attach(int gpu)
{
    vg_lock();
    struct vg_process *process = own_entry(1);
    int first = process && !process->attached[gpu];
    if (process)
        process->attached[gpu] = 1;
    vg_unlock();
    return first;
}

void vg_forget_process(void)
{
    vg_lock();
    struct vg_process *process = own_entry(0);
    if (process)
        memset(process, 0, sizeof *process);
    vg_unlock();
}
