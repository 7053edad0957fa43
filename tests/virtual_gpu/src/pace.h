#ifndef VIRTUAL_GPU_PACE_H
#define VIRTUAL_GPU_PACE_H

#include "state.h"

/* The clock of the SMs, MHz. */
double vg_clock(const struct vg_gpu *gpu, int64_t when);
/* When work ends that begins at `start` and would take `cost_ns` alone and at the full clock. */
int64_t vg_end_of(struct vg_gpu *gpu, int64_t start, int64_t cost_ns);

#endif
