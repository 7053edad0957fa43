/* Device and pinned memory: counted against the device's capacity, backed by pages that cost nothing until they are written. */
#define _GNU_SOURCE
#include "engine.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE ((size_t)4096)

static struct vg_allocation *table; /* sorted by address */
static size_t entries, room;
static struct vg_pool_numbers pools[VG_MAX_DEVICES];

static size_t round_up(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

/* Index of the first entry that begins after `address`. */
static size_t after(uintptr_t address)
{
    size_t low = 0, high = entries;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int insert(const struct vg_allocation *allocation)
{
    if (entries == room) {
        size_t larger = room ? 2 * room : 256;
        struct vg_allocation *moved = realloc(table, larger * sizeof *table);
        if (!moved)
            return VG_OUT_OF_MEMORY;
        table = moved;
        room = larger;
    }
    size_t at = after(allocation->base);
    memmove(table + at + 1, table + at, (entries - at) * sizeof *table);
    table[at] = *allocation;
    entries++;
    return VG_OK;
}

static void erase(size_t at)
{
    memmove(table + at, table + at + 1, (entries - at - 1) * sizeof *table);
    entries--;
}

static struct vg_allocation *holding(const void *pointer)
{
    size_t at = after((uintptr_t)pointer);
    if (at == 0 || (uintptr_t)pointer - table[at - 1].base >= table[at - 1].size)
        return NULL;
    return &table[at - 1];
}

static int charge(int ordinal, int64_t bytes)
{
    const struct vg_device *device = engine_device(ordinal);
    return vg_charge(device->gpu, device->mig, bytes) == 0 ? VG_OK : VG_OUT_OF_MEMORY;
}

static void *map_lazily(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

/* A pool grows by 32 MiB, as NVIDIA's does, where the device has them. */
static int grow_pool(struct vg_pool_numbers *pool, int ordinal, size_t bytes)
{
    uint64_t needed = pool->used + bytes;
    if (needed > pool->reserved) {
        uint64_t larger = round_up(needed, 32 * MIB);
        if (charge(ordinal, (int64_t)(larger - pool->reserved)) != VG_OK) {
            larger = round_up(needed, 2 * MIB);
            if (charge(ordinal, (int64_t)(larger - pool->reserved)) != VG_OK)
                return VG_OUT_OF_MEMORY;
        }
        pool->reserved = larger;
        if (pool->reserved > pool->reserved_high)
            pool->reserved_high = pool->reserved;
    }
    pool->used = needed;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    return VG_OK;
}

void vg_trim_pool(int ordinal, uint64_t keep)
{
    struct vg_pool_numbers *pool = &pools[ordinal];
    uint64_t floor = keep > pool->used ? keep : round_up(pool->used, 2 * MIB);
    if (pool->reserved > floor) {
        charge(ordinal, -(int64_t)(pool->reserved - floor));
        pool->reserved = floor;
    }
}

int engine_pool_numbers(int ordinal, struct vg_pool_numbers *numbers, int store)
{
    vg_hold();
    if (store)
        pools[ordinal] = *numbers;
    else
        *numbers = pools[ordinal];
    vg_let_go();
    return VG_OK;
}

int engine_pool_trim(int ordinal, uint64_t keep)
{
    vg_hold();
    vg_trim_pool(ordinal, keep);
    vg_let_go();
    return VG_OK;
}

int engine_allocate(int ordinal, enum vg_kind kind, size_t bytes, void **result)
{
    *result = NULL;
    if (bytes == 0)
        return VG_OK;
    if (bytes > (size_t)1 << 46)
        return VG_OUT_OF_MEMORY;
    struct vg_allocation made = {.size = bytes, .device = ordinal, .kind = kind};
    int error = VG_OK;
    vg_hold();
    if (kind == VG_DEVICE_MEMORY) {
        made.charged = round_up(bytes, 2 * MIB);
        error = charge(ordinal, (int64_t)made.charged);
    } else if (kind == VG_POOL_MEMORY) {
        made.size = round_up(bytes, 512);
        error = grow_pool(&pools[ordinal], ordinal, made.size);
    }
    if (error == VG_OK) {
        made.base = (uintptr_t)map_lazily(round_up(bytes, PAGE));
        error = made.base ? insert(&made) : VG_OUT_OF_MEMORY;
        *result = (void *)made.base;
    }
    vg_let_go();
    return error;
}

static void give_back(size_t at)
{
    struct vg_allocation gone = table[at];
    erase(at);
    if (gone.kind == VG_POOL_MEMORY)
        pools[gone.device].used -= gone.size;
    else if (gone.charged)
        charge(gone.device, -(int64_t)gone.charged);
    if (gone.kind != VG_REGISTERED_MEMORY)
        munmap((void *)gone.base, round_up(gone.size, PAGE));
}

int engine_release(void *pointer)
{
    int error = VG_INVALID_VALUE;
    vg_hold();
    struct vg_allocation *found = holding(pointer);
    if (found && found->base == (uintptr_t)pointer && found->kind != VG_MAPPED_MEMORY && found->kind != VG_REGISTERED_MEMORY) {
        give_back((size_t)(found - table));
        error = VG_OK;
    }
    vg_let_go();
    return error;
}

void vg_forget_device_memory(int ordinal)
{
    for (size_t at = entries; at-- > 0;)
        if (table[at].device == ordinal && (table[at].kind == VG_DEVICE_MEMORY || table[at].kind == VG_POOL_MEMORY))
            give_back(at);
    vg_trim_pool(ordinal, 0);
}

int engine_register_host(void *pointer, size_t bytes)
{
    struct vg_allocation made = {.base = (uintptr_t)pointer, .size = bytes, .kind = VG_REGISTERED_MEMORY};
    if (!pointer || !bytes)
        return VG_INVALID_VALUE;
    vg_hold();
    int error = holding(pointer) ? VG_ALREADY_REGISTERED : insert(&made);
    vg_let_go();
    return error;
}

int engine_unregister_host(void *pointer)
{
    int error = VG_NOT_REGISTERED;
    vg_hold();
    struct vg_allocation *found = holding(pointer);
    if (found && found->base == (uintptr_t)pointer && found->kind == VG_REGISTERED_MEMORY) {
        erase((size_t)(found - table));
        error = VG_OK;
    }
    vg_let_go();
    return error;
}

int engine_find(const void *pointer, struct vg_allocation *result)
{
    vg_hold();
    struct vg_allocation *found = holding(pointer);
    if (found)
        *result = *found;
    vg_let_go();
    return found ? VG_OK : VG_INVALID_VALUE;
}

static int on_host(enum vg_kind kind)
{
    return kind == VG_HOST_MEMORY || kind == VG_REGISTERED_MEMORY;
}

/* Rates of an H100's order: 1.5 TB/s within a device, 50 GB/s between two, 25 GB/s from pinned memory, 10 GB/s from any other. */
int engine_copy_cost(const void *to, const void *from, size_t bytes, int64_t *cost_ns, int *host_waits)
{
    struct vg_allocation target, source;
    int to_device = engine_find(to, &target) == VG_OK && !on_host(target.kind);
    int to_pinned = !to_device && engine_find(to, &target) == VG_OK;
    int from_device = engine_find(from, &source) == VG_OK && !on_host(source.kind);
    int from_pinned = !from_device && engine_find(from, &source) == VG_OK;
    double per_byte = 0.1;
    *host_waits = 0;
    if (to_device && from_device)
        per_byte = target.device == source.device ? 1 / 1500.0 : 0.02;
    else if ((to_device && from_pinned) || (from_device && to_pinned))
        per_byte = 0.04;
    else
        *host_waits = !to_device || bytes > 64 * 1024;
    *cost_ns = 2000 + (int64_t)((double)bytes * per_byte);
    return VG_OK;
}

/* For each page from `address`, whether anything was ever written to it. */
static int written(uintptr_t address, size_t pages, uint64_t *flags)
{
    static int pagemap = -2;
    if (pagemap == -2)
        pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    size_t length = pages * sizeof *flags;
    return pagemap >= 0 && pread(pagemap, flags, length, (off_t)(address / PAGE * sizeof *flags)) == (ssize_t)length;
}

static int whole_pages(const void *pointer)
{
    struct vg_allocation found;
    return engine_find(pointer, &found) == VG_OK && found.kind != VG_REGISTERED_MEMORY;
}

/* Copies between large blocks leave pages alone that neither side ever wrote, or a clone of an empty 10 GiB would need them. */
static void copy_sparsely(char *to, const char *from, size_t bytes)
{
    enum { RUN = 512 };
    uint64_t sources[RUN], targets[RUN];
    while (bytes >= PAGE) {
        size_t pages = bytes / PAGE < RUN ? bytes / PAGE : RUN;
        int known = written((uintptr_t)from, pages, sources) && written((uintptr_t)to, pages, targets);
        const uint64_t present_or_swapped = (uint64_t)3 << 62;
        for (size_t i = 0; i < pages; i++)
            if (!known || ((sources[i] | targets[i]) & present_or_swapped))
                memcpy(to + i * PAGE, from + i * PAGE, PAGE);
        to += pages * PAGE;
        from += pages * PAGE;
        bytes -= pages * PAGE;
    }
    memcpy(to, from, bytes);
}

static void fill(char *to, int value, size_t bytes)
{
    uintptr_t first = round_up((uintptr_t)to, PAGE), last = ((uintptr_t)to + bytes) / PAGE * PAGE;
    if (value == 0 && bytes >= MIB && whole_pages(to) && last > first) {
        memset(to, 0, first - (uintptr_t)to);
        madvise((void *)first, last - first, MADV_DONTNEED); /* anonymous pages come back as zeros */
        memset((void *)last, 0, (uintptr_t)to + bytes - last);
        return;
    }
    memset(to, value, bytes);
}

void vg_perform(const struct vg_work *work)
{
    if (!work->bytes)
        return;
    if (!work->from)
        fill(work->to, work->value, work->bytes);
    else if (work->bytes >= MIB && (uintptr_t)work->to % PAGE == 0 && (uintptr_t)work->from % PAGE == 0 &&
             whole_pages(work->to) && whole_pages(work->from))
        copy_sparsely(work->to, work->from, work->bytes);
    else
        memmove(work->to, work->from, work->bytes);
}

int vg_reserve_address(size_t bytes, void **result)
{
    void *pages = mmap(NULL, bytes + 2 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return VG_OUT_OF_MEMORY;
    uintptr_t start = (uintptr_t)pages, aligned = round_up(start, 2 * MIB);
    if (aligned > start)
        munmap(pages, aligned - start);
    munmap((void *)(aligned + bytes), 2 * MIB - (aligned - start));
    *result = (void *)aligned;
    return VG_OK;
}

int vg_free_address(void *pointer, size_t bytes)
{
    return munmap(pointer, bytes) == 0 ? VG_OK : VG_INVALID_VALUE;
}

int vg_map_memory(void *pointer, size_t bytes, int ordinal)
{
    struct vg_allocation made = {.base = (uintptr_t)pointer, .size = bytes, .device = ordinal, .kind = VG_MAPPED_MEMORY};
    if (mmap(pointer, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return VG_OUT_OF_MEMORY;
    vg_hold();
    int error = insert(&made);
    vg_let_go();
    return error;
}

int vg_unmap_memory(void *pointer, size_t bytes)
{
    vg_hold();
    for (size_t at = entries; at-- > 0;)
        if (table[at].kind == VG_MAPPED_MEMORY && table[at].base >= (uintptr_t)pointer &&
            table[at].base + table[at].size <= (uintptr_t)pointer + bytes)
            erase(at);
    vg_let_go();
    void *pages = mmap(pointer, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return pages == MAP_FAILED ? VG_INVALID_VALUE : VG_OK;
}
