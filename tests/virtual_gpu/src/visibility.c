/* Which GPUs CUDA sees: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, read from the process's own environment. */
#define _GNU_SOURCE
#include "engine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(struct vg_device *devices, int *count, int gpu, int mig)
{
    struct vg_gpu *hardware = &vg_state()->gpus[gpu];
    if (mig >= (int)hardware->n_mig)
        return; /* in MIG mode, without an instance: no device */
    struct vg_device *device = &devices[*count];
    memset(device, 0, sizeof *device);
    device->ordinal = (*count)++;
    device->gpu = gpu;
    device->mig = mig;
    device->hardware = hardware;
    device->uuid = mig >= 0 ? hardware->mig[mig].uuid : hardware->uuid;
    device->name = hardware->name;
    device->memory = vg_capacity(gpu, mig);
}

/* A GPU in MIG mode lends CUDA one instance, its first, unless the mask names another. */
static int whole(int gpu)
{
    return vg_state()->gpus[gpu].mig_mode ? 0 : -1;
}

static int by_uuid(const char *prefix, size_t length, int *gpu, int *mig)
{
    const struct vg_state *state = vg_state();
    int matches = 0;
    for (int i = 0; i < state->n_gpus; i++) {
        const struct vg_gpu *hardware = &state->gpus[i];
        if (strncmp(hardware->uuid, prefix, length) == 0) {
            matches++;
            *gpu = i;
            *mig = whole(i);
        }
        for (unsigned j = 0; j < hardware->n_mig; j++) {
            /* The older spelling names the GPU and both instance numbers: MIG-GPU-<uuid>/<gi>/<ci>. */
            char older[160];
            snprintf(older, sizeof older, "MIG-%s/%u/%u", hardware->uuid, hardware->mig[j].gpu_instance, 0u);
            if (strncmp(hardware->mig[j].uuid, prefix, length) == 0 ||
                (strlen(older) == length && strncmp(older, prefix, length) == 0)) {
                matches++;
                *gpu = i;
                *mig = (int)j;
            }
        }
    }
    return matches == 1;
}

/* The number an entry starts with: "1gpu" is 1; -1 where it starts with none, or is negative. */
static long number(const char *entry, size_t length)
{
    size_t start = 0;
    while (start < length && isspace((unsigned char)entry[start]))
        start++;
    size_t at = start;
    if (at < length && (entry[at] == '+' || entry[at] == '-'))
        at++;
    if (at >= length || !isdigit((unsigned char)entry[at]))
        return -1;
    long value = 0;
    for (; at < length && isdigit((unsigned char)entry[at]) && value < 1000000; at++)
        value = value * 10 + (entry[at] - '0');
    return entry[start] == '-' ? -1 : value;
}

static int taken(const struct vg_device *devices, int count, int gpu, int mig)
{
    for (int i = 0; i < count; i++)
        if (devices[i].gpu == gpu && devices[i].mig == mig)
            return 1;
    return 0;
}

/* All entries must be of the first one's kind; one that names no device, or more than one, ends the list. */
static int by_uuids(const char *mask, struct vg_device *devices)
{
    const char *kind = mask;
    int count = 0;
    while (1) {
        size_t length = strcspn(mask, ",");
        int gpu = -1, mig = -1;
        if (length < 4 || strncmp(mask, kind, 4) != 0 || !by_uuid(mask, length, &gpu, &mig))
            return count;
        if (taken(devices, count, gpu, mig))
            return VG_TWICE;
        add(devices, &count, gpu, mig);
        if (mask[length] == '\0')
            return count;
        mask += length + 1;
    }
}

/* An entry that is no number, or a negative one, ends the list; a number twice, even past the end of it, is an error. */
static int by_ordinals(const char *mask, const int *physical, struct vg_device *devices)
{
    long numbers[256];
    int given = 0, count = 0;
    while (given < 256) {
        size_t length = strcspn(mask, ",");
        long ordinal = number(mask, length);
        if (ordinal < 0)
            break;
        for (int i = 0; i < given; i++)
            if (numbers[i] == ordinal)
                return VG_TWICE;
        numbers[given++] = ordinal;
        if (mask[length] == '\0')
            break;
        mask += length + 1;
    }
    for (; count < given && numbers[count] < vg_state()->n_gpus;)
        add(devices, &count, physical[numbers[count]], whole(physical[numbers[count]]));
    return count;
}

/* CUDA shows a process a single MIG instance, and no other GPU beside it. */
static int single(struct vg_device *devices, int count)
{
    for (int i = 0; i < count; i++)
        if (devices[i].mig >= 0) {
            devices[0] = devices[i];
            devices[0].ordinal = 0;
            return 1;
        }
    return count;
}

int vg_visible_devices(struct vg_device devices[VG_MAX_DEVICES])
{
    const struct vg_state *state = vg_state();
    const char *order = getenv("CUDA_DEVICE_ORDER");
    int by_pci = order && strcmp(order, "PCI_BUS_ID") == 0;
    int count = 0, physical[VG_MAX_GPUS];
    for (int i = 0; i < state->n_gpus; i++)
        physical[i] = by_pci ? i : state->cuda_order[i];

    const char *mask = getenv("CUDA_VISIBLE_DEVICES");
    if (!mask) {
        for (int i = 0; i < state->n_gpus; i++)
            add(devices, &count, physical[i], whole(physical[i]));
        return single(devices, count);
    }
    if (strncmp(mask, "GPU-", 4) == 0 || strncmp(mask, "MIG-", 4) == 0)
        return single(devices, by_uuids(mask, devices));
    return single(devices, by_ordinals(mask, physical, devices));
}
