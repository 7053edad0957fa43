/* libcublasLt.so.N. */
#define _GNU_SOURCE
#include "cublas.h"

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
