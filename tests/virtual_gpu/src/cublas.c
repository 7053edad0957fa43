/* libcublas.so.N. */
#define _GNU_SOURCE
#include "cublas.h"

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
