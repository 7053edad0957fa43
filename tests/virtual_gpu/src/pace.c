/* How fast a GPU works at a moment: its clock rises with the work and falls without. */
#include "pace.h"

#define STEP 50000 /* ns */

double vg_clock(const struct vg_gpu *gpu, int64_t when)
{
    const struct vg_profile *profile = &vg_state()->profile;
    if (!profile->clock_ramp)
        return (double)profile->full_clock;
    if (when > gpu->busy_until + profile->clock_fall)
        return (double)profile->idle_clock;
    double risen = (double)(when - gpu->ramp_from) / (double)profile->clock_ramp;
    risen = risen < 0 ? 0 : risen > 1 ? 1 : risen;
    return (double)profile->idle_clock + risen * (double)(profile->full_clock - profile->idle_clock);
}

/* The clock counts from the first work after a time without. */
static int64_t at_the_clock(struct vg_gpu *gpu, int64_t start, int64_t cost_ns)
{
    const struct vg_profile *profile = &vg_state()->profile;
    if (start > gpu->busy_until + profile->clock_fall)
        gpu->ramp_from = start;
    int64_t full_from = gpu->ramp_from + profile->clock_ramp;
    double left = (double)cost_ns;
    gpu->busy_until = start;
    while (left > 0 && start < full_from) {
        double speed = vg_clock(gpu, start) / (double)profile->full_clock;
        double step = left / speed < STEP ? left / speed : STEP;
        left -= step * speed;
        start += (int64_t)step;
        gpu->busy_until = start;
    }
    return gpu->busy_until = start + (int64_t)left;
}

int64_t vg_end_of(struct vg_gpu *gpu, int64_t start, int64_t cost_ns)
{
    return vg_state()->profile.clock_ramp && cost_ns > 0 ? at_the_clock(gpu, start, cost_ns) : start + cost_ns;
}
