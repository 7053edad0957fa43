/* Device attributes, which the driver and the runtime number alike. */
#ifndef VIRTUAL_GPU_ATTRIBUTES_H
#define VIRTUAL_GPU_ATTRIBUTES_H

#include "engine.h"

#include <string.h>

static inline int vg_attribute(const struct vg_device *device, int attribute)
{
    const struct vg_gpu *gpu = device->hardware;
    switch (attribute) {
    case 1: return 1024;                               /* threads per block */
    case 2: case 3: return 1024;                       /* block x, y */
    case 4: return 64;                                 /* block z */
    case 5: return 2147483647;                         /* grid x */
    case 6: case 7: return 65535;                      /* grid y, z */
    case 8: return 49152;                              /* shared memory per block */
    case 9: return 65536;                              /* constant memory */
    case 10: return 32;                                /* warp */
    case 11: return 2147483647;                        /* pitch */
    case 12: return 65536;                             /* registers per block */
    case 13: return (int)vg_state()->profile.full_clock * 1000;                /* kHz */
    case 14: return 512;                               /* texture alignment */
    case 15: return 1;                                 /* overlap */
    case 16: return device->mig >= 0 ? VG_MIG_MULTIPROCESSORS : VG_MULTIPROCESSORS;
    case 18: return (int)gpu->integrated;
    case 19: return 1;                                 /* maps host memory */
    case 31: return 1;                                 /* concurrent kernels */
    case 32: return gpu->unsupported & VG_ECC ? 0 : 1;
    case 33: return (int)gpu->pci_bus;
    case 36: return VG_MEMORY_CLOCK * 1000;            /* kHz */
    case 37: return 5120;                              /* bus width */
    case 38: return 50 << 20;                          /* L2 */
    case 39: return 2048;                              /* threads per multiprocessor */
    case 40: return 3;                                 /* copy engines */
    case 41: return 1;                                 /* unified addressing */
    case 51: return 32;                                /* pitch alignment */
    case 75: return (int)gpu->compute_capability[0];
    case 76: return (int)gpu->compute_capability[1];
    case 78: case 79: case 80: return 1;               /* priorities, L1 caches */
    case 81: return 233472;                            /* shared memory per multiprocessor */
    case 82: return 65536;                             /* registers per multiprocessor */
    case 83: case 89: case 90: case 91: return 1;      /* managed memory and its kin */
    case 88: return 0;                                 /* pageable memory access */
    case 95: return 1;                                 /* cooperative launch */
    case 97: return 232448;                            /* shared memory, opt-in */
    case 99: return 1;                                 /* host register */
    case 102: return 1;                                /* virtual memory management */
    case 106: return 32;                               /* blocks per multiprocessor */
    case 111: return 1024;                             /* reserved shared memory */
    case 115: return 1;                                /* memory pools */
    case 119: return 1;                                /* handle types of pools: file descriptors */
    case 120: return gpu->compute_capability[0] >= 9;  /* clusters */
    case 121: return 1;                                /* unified function pointers */
    default: return 0;
    }
}

/* The 16 bytes that "GPU-8a2f..." spells. */
static inline void vg_uuid_bytes(const char *text, unsigned char bytes[16])
{
    int digits = 0;
    memset(bytes, 0, 16);
    for (const char *c = strchr(text, '-'); c && *c && digits < 32; c++) {
        int value = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;
        if (value >= 0) {
            bytes[digits / 2] = (unsigned char)(bytes[digits / 2] << 4 | value);
            digits++;
        }
    }
}

#endif
