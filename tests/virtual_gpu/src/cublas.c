/* libcublas.so.N and libcublasLt.so.N: nothing is multiplied; a product takes the time of its size on the handle's stream. */
#define _GNU_SOURCE
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
    struct vg_work product = {.cost_ns = vg_state()->kernel_ns + (int64_t)(operations / 400e3)};
    return engine()->submit(stream, &product) ? EXECUTION_FAILED : 0;
}

static int product(const struct handle *handle, double m, double n, double k, double batches)
{
    return work(handle->stream, 2 * m * n * k * batches);
}

#ifdef VG_CUBLAS

VG_EXPORT int cublasCreate_v2(struct handle **result)
{
    FAULTS(cublasCreate_v2);
    *result = calloc(1, sizeof **result);
    return *result ? 0 : ALLOC_FAILED;
}

VG_EXPORT int cublasDestroy_v2(struct handle *handle)
{
    FAULTS(cublasDestroy_v2);
    free(handle);
    return 0;
}

VG_EXPORT int cublasSetStream_v2(struct handle *handle, struct vg_stream *stream)
{
    FAULTS(cublasSetStream_v2);
    handle->stream = stream;
    return 0;
}

VG_EXPORT int cublasGetStream_v2(struct handle *handle, struct vg_stream **stream)
{
    FAULTS(cublasGetStream_v2);
    *stream = handle->stream;
    return 0;
}

VG_EXPORT int cublasSetWorkspace_v2(struct handle *handle, void *workspace, size_t bytes)
{
    FAULTS(cublasSetWorkspace_v2);
    (void)handle, (void)workspace, (void)bytes;
    return 0;
}

VG_EXPORT int cublasSetMathMode(struct handle *handle, int mode)
{
    FAULTS(cublasSetMathMode);
    handle->math_mode = mode;
    return 0;
}

VG_EXPORT int cublasGetMathMode(struct handle *handle, int *mode)
{
    FAULTS(cublasGetMathMode);
    *mode = handle->math_mode;
    return 0;
}

VG_EXPORT int cublasSetPointerMode_v2(struct handle *handle, int mode)
{
    FAULTS(cublasSetPointerMode_v2);
    handle->pointer_mode = mode;
    return 0;
}

VG_EXPORT int cublasGetPointerMode_v2(struct handle *handle, int *mode)
{
    FAULTS(cublasGetPointerMode_v2);
    *mode = handle->pointer_mode;
    return 0;
}

VG_EXPORT int cublasSetSmCountTarget(struct handle *handle, int count)
{
    FAULTS(cublasSetSmCountTarget);
    (void)handle, (void)count;
    return 0;
}

VG_EXPORT int cublasGetVersion_v2(struct handle *handle, int *version)
{
    FAULTS(cublasGetVersion_v2);
    (void)handle;
    *version = VG_CUDART_MAJOR * 10000;
    return 0;
}

/* Products differ in what follows the sizes; m, n and k come right after the two operations. */
#define GEMM(name)                                                                                                         \
    VG_EXPORT int name(struct handle *handle, int operation_a, int operation_b, int m, int n, int k, ...)                  \
    {                                                                                                                      \
        FAULTS(name);                                                                                                      \
        (void)operation_a, (void)operation_b;                                                                              \
        return product(handle, m, n, k, 1);                                                                                \
    }
GEMM(cublasSgemm_v2) GEMM(cublasDgemm_v2) GEMM(cublasCgemm_v2) GEMM(cublasZgemm_v2) GEMM(cublasHgemm)
GEMM(cublasSgemmEx) GEMM(cublasGemmEx)
GEMM(cublasSgemmBatched) GEMM(cublasDgemmBatched) GEMM(cublasCgemmBatched) GEMM(cublasZgemmBatched)

#define GEMM_STRIDED(name, scalar)                                                                                         \
    VG_EXPORT int name(struct handle *handle, int operation_a, int operation_b, int m, int n, int k, scalar alpha,         \
                       const void *a, int lda, long long stride_a, const void *b, int ldb, long long stride_b,             \
                       scalar beta, void *c, int ldc, long long stride_c, int batches)                                     \
    {                                                                                                                      \
        FAULTS(name);                                                                                                      \
        (void)operation_a, (void)operation_b, (void)alpha, (void)a, (void)lda, (void)stride_a, (void)b, (void)ldb;         \
        (void)stride_b, (void)beta, (void)c, (void)ldc, (void)stride_c;                                                    \
        return product(handle, m, n, k, batches);                                                                          \
    }
GEMM_STRIDED(cublasSgemmStridedBatched, const void *)
GEMM_STRIDED(cublasDgemmStridedBatched, const void *)
GEMM_STRIDED(cublasCgemmStridedBatched, const void *)
GEMM_STRIDED(cublasZgemmStridedBatched, const void *)
GEMM_STRIDED(cublasHgemmStridedBatched, const void *)

VG_EXPORT int cublasGemmStridedBatchedEx(struct handle *handle, int operation_a, int operation_b, int m, int n, int k,
                                         const void *alpha, const void *a, int a_type, int lda, long long stride_a,
                                         const void *b, int b_type, int ldb, long long stride_b, const void *beta, void *c,
                                         int c_type, int ldc, long long stride_c, int batches, int compute, int algorithm)
{
    FAULTS(cublasGemmStridedBatchedEx);
    (void)operation_a, (void)operation_b, (void)alpha, (void)a, (void)a_type, (void)lda, (void)stride_a, (void)b;
    (void)b_type, (void)ldb, (void)stride_b, (void)beta, (void)c, (void)c_type, (void)ldc, (void)stride_c, (void)compute;
    (void)algorithm;
    return product(handle, m, n, k, batches);
}

/* Everything else that computes: a kernel's time. Its arguments are nobody's business. */
#define KERNEL(name)                                                                                                       \
    VG_EXPORT int name(struct handle *handle, ...)                                                                         \
    {                                                                                                                      \
        FAULTS(name);                                                                                                      \
        return work(handle->stream, 0);                                                                                    \
    }
#define KERNELS(operation)                                                                                                 \
    KERNEL(cublasS##operation) KERNEL(cublasD##operation) KERNEL(cublasC##operation) KERNEL(cublasZ##operation)
KERNELS(gemv_v2) KERNELS(axpy_v2) KERNELS(scal_v2) KERNELS(copy_v2) KERNELS(swap_v2) KERNELS(trsm_v2) KERNELS(trmm_v2)
KERNELS(trsv_v2) KERNELS(trsmBatched) KERNELS(getrfBatched) KERNELS(getrsBatched) KERNELS(geqrfBatched)
KERNELS(gelsBatched) KERNELS(syrk_v2)
KERNEL(cublasSdot_v2) KERNEL(cublasDdot_v2) KERNEL(cublasCdotu_v2) KERNEL(cublasCdotc_v2) KERNEL(cublasZdotu_v2)
KERNEL(cublasZdotc_v2) KERNEL(cublasDotEx) KERNEL(cublasSnrm2_v2) KERNEL(cublasDnrm2_v2) KERNEL(cublasScnrm2_v2)
KERNEL(cublasDznrm2_v2) KERNEL(cublasSasum_v2) KERNEL(cublasDasum_v2) KERNEL(cublasSger_v2) KERNEL(cublasDger_v2)

#else /* cuBLASLt */

struct layout { uint64_t rows, columns; int32_t batches; };

VG_EXPORT size_t cublasLtGetVersion(void)
{
    return VG_CUDART_MAJOR * 10000;
}

#define MAKES(name, type)                                                                                                  \
    VG_EXPORT int name(void **result, ...)                                                                                 \
    {                                                                                                                      \
        FAULTS(name);                                                                                                      \
        *result = calloc(1, sizeof(type));                                                                                 \
        return *result ? 0 : ALLOC_FAILED;                                                                                 \
    }
#define DROPS(name)                                                                                                        \
    VG_EXPORT int name(void *object)                                                                                       \
    {                                                                                                                      \
        FAULTS(name);                                                                                                      \
        free(object);                                                                                                      \
        return 0;                                                                                                          \
    }
#define AGREES(name)                                                                                                       \
    VG_EXPORT int name(void *object, ...)                                                                                  \
    {                                                                                                                      \
        FAULTS(name);                                                                                                      \
        (void)object;                                                                                                      \
        return 0;                                                                                                          \
    }
MAKES(cublasLtCreate, struct handle) DROPS(cublasLtDestroy)
MAKES(cublasLtMatmulDescCreate, struct handle) DROPS(cublasLtMatmulDescDestroy) AGREES(cublasLtMatmulDescSetAttribute)
MAKES(cublasLtMatmulPreferenceCreate, struct handle) DROPS(cublasLtMatmulPreferenceDestroy)
AGREES(cublasLtMatmulPreferenceSetAttribute)
DROPS(cublasLtMatrixLayoutDestroy)
AGREES(cublasLtMatmulAlgoInit) AGREES(cublasLtMatmulAlgoConfigSetAttribute)

VG_EXPORT int cublasLtMatrixLayoutCreate(struct layout **result, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
    FAULTS(cublasLtMatrixLayoutCreate);
    (void)type, (void)stride;
    struct layout *layout = malloc(sizeof *layout);
    if (!layout)
        return ALLOC_FAILED;
    *layout = (struct layout){rows, columns, 1};
    *result = layout;
    return 0;
}

VG_EXPORT int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *value, size_t bytes)
{
    FAULTS(cublasLtMatrixLayoutSetAttribute);
    if (attribute == 5 && bytes >= sizeof layout->batches)
        memcpy(&layout->batches, value, sizeof layout->batches);
    return 0;
}

struct heuristic { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

VG_EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                             int wanted, struct heuristic *results, int *count)
{
    FAULTS(cublasLtMatmulAlgoGetHeuristic);
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
    if (wanted < 1)
        return INVALID_VALUE;
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *count = 1;
    return 0;
}

VG_EXPORT int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *a, const struct layout *a_layout,
                             const void *b, const struct layout *b_layout, const void *beta, const void *c,
                             const struct layout *c_layout, void *d, const struct layout *d_layout, const void *algorithm,
                             void *workspace, size_t workspace_bytes, struct vg_stream *stream)
{
    FAULTS(cublasLtMatmul);
    (void)handle, (void)operation, (void)alpha, (void)a, (void)b, (void)b_layout, (void)beta, (void)c, (void)c_layout, (void)d;
    (void)algorithm, (void)workspace, (void)workspace_bytes;
    struct handle on = {.stream = stream};
    uint64_t inner = a_layout->rows == d_layout->rows ? a_layout->columns : a_layout->rows;
    return product(&on, (double)d_layout->rows, (double)d_layout->columns, (double)inner, d_layout->batches);
}

#endif
