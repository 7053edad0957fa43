/* What libcublas.so.N and libcublasLt.so.N share: nothing is multiplied; a product takes the time of its size on a stream. */
#ifndef VIRTUAL_GPU_CUBLAS_H
#define VIRTUAL_GPU_CUBLAS_H

#include "engine.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };

struct handle {
    struct vg_stream *stream;
    int math_mode, pointer_mode;
};

static const struct vg_engine *engine(void)
{
    static const struct vg_engine *found;
    if (!found) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        found = driver ? dlsym(driver, "vg_engine") : NULL;
    }
    return found;
}

/* 400 TFLOP/s, and never less than a kernel. */
static int work(struct vg_stream *stream, double operations)
{
    if (!engine())
        return NOT_INITIALIZED;
    static int done;
    if (!__atomic_exchange_n(&done, 1, __ATOMIC_RELAXED))
        vg_spend(vg_state()->profile.first_product);
    struct vg_work product = {.cost_ns = VG_KERNEL_NS + (int64_t)(operations / 400e3)};
    return engine()->submit(stream, &product) ? EXECUTION_FAILED : 0;
}

static int product(const struct handle *handle, double m, double n, double k, double batches)
{
    return work(handle->stream, 2 * m * n * k * batches);
}

#endif
