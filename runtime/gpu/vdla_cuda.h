/* Runs a compiled model on an NVIDIA GPU, by its driver alone (-lcuda): what `vdla compile MODEL --target cuda -o FOLDER` puts
 * into FOLDER/model.c says what the model is.
 *
 *     vdla_cuda *session;
 *     size_t size;
 *     void *code = vdla_cuda_read("model.sm_90a.cubin", &size), *parameters = vdla_cuda_read("model.bin", &size);
 *     int status = vdla_cuda_open(&vdla_model, code, parameters, &session);   (0, or the driver's number of an error)
 *     status = vdla_cuda_run(session, inputs, outputs);                       (in the order of vdla_model.inputs and .outputs)
 *     vdla_cuda_close(session);
 *
 * The code may also be PTX text. Launches are captured once as one graph, which each run replays. C11.
 */
#ifndef VDLA_CUDA_H
#define VDLA_CUDA_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { VDLA_ARENA, VDLA_PARAMETERS };

/* A place in the arena or among the parameters; where `rank` is not 0, a tensor there of which the copy engine brings boxes.
 * Dimensions begin with that of elements side by side. */
typedef struct {
    int memory;
    uint64_t offset;
    uint32_t rank, element_bytes;
    uint64_t shape[5];
    uint32_t box[5];
} vdla_argument;

typedef struct {
    const char *kernel;
    unsigned grid[3], block[3], shared_bytes, argument_count;
    const vdla_argument *arguments;
} vdla_launch;

typedef struct {
    const char *name, *dtype; /* as NumPy names it */
    int memory;
    uint64_t offset, bytes;
} vdla_cuda_tensor;

typedef struct {
    uint64_t arena_bytes, parameters_bytes;
    unsigned launch_count, input_count, output_count;
    const vdla_launch *launches;
    const vdla_cuda_tensor *inputs, *outputs;
} vdla_cuda_model;

typedef struct {
    const vdla_cuda_model *model;
    void *module, *stream, *graph, *ready;
    uint64_t memory[2];
} vdla_cuda;

/* The driver's functions, as they are in its library. */
extern int cuInit(unsigned);
extern int cuDeviceGet(int *, int);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuModuleLoadData(void **, const void *);
extern int cuModuleGetFunction(void **, void *, const char *);
extern int cuFuncSetAttribute(void *, int, int);
extern int cuStreamCreate(void **, unsigned);
extern int cuMemAlloc_v2(uint64_t *, size_t);
extern int cuMemFree_v2(uint64_t);
extern int cuMemcpyHtoD_v2(uint64_t, const void *, size_t);
extern int cuMemcpyDtoH_v2(void *, uint64_t, size_t);
extern int cuTensorMapEncodeTiled(void *, int, unsigned, uint64_t, const uint64_t *, const uint64_t *, const unsigned *,
                                  const unsigned *, int, int, int, int);
extern int cuStreamBeginCapture_v2(void *, int);
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
extern int cuStreamEndCapture(void *, void **);
extern int cuGraphInstantiateWithFlags(void **, void *, uint64_t);
extern int cuGraphLaunch(void *, void *);
extern int cuStreamSynchronize(void *);

#define VDLA_MOST_ARGUMENTS 64
#define VDLA_TRY(call)             \
    do {                           \
        int status = (call);       \
        if (status) return status; \
    } while (0)

/* A whole file, or NULL; free() it. */
static void *vdla_cuda_read(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size + 1);
    if (data && fread(data, 1, *size, file) != *size) {
        free(data);
        data = NULL;
    }
    if (data) data[*size] = 0;
    fclose(file);
    return data;
}

/* CUtensorMap: unsigned integers of a size, rows that are swizzled as they are long (32, 64 or 128 bytes), 128 bytes for the
 * second cache, zeros outside. */
static int vdla_cuda_map(const vdla_argument *at, uint64_t address, void *map) {
    uint64_t strides[4] = {0};
    unsigned steps[5] = {1, 1, 1, 1, 1};
    unsigned row_bytes = at->box[0] * at->element_bytes;
    uint64_t stride = at->element_bytes;
    for (unsigned d = 0; d + 1 < at->rank; ++d) strides[d] = stride *= at->shape[d];
    return cuTensorMapEncodeTiled(map, at->element_bytes == 1 ? 0 : at->element_bytes == 2 ? 1 : 2, at->rank, address, at->shape,
                                  strides, at->box, steps, 0, row_bytes == 32 ? 1 : row_bytes == 64 ? 2 : 3, 2, 0);
}

static int vdla_cuda_launch(vdla_cuda *session, const vdla_launch *launch) {
    static const int most_shared = 8; /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    struct {
        _Alignas(64) uint64_t words[16];
    } values[VDLA_MOST_ARGUMENTS];
    void *pointers[VDLA_MOST_ARGUMENTS], *function;
    if (launch->argument_count > VDLA_MOST_ARGUMENTS) return 1; /* CUDA_ERROR_INVALID_VALUE */
    VDLA_TRY(cuModuleGetFunction(&function, session->module, launch->kernel));
    if (launch->shared_bytes) VDLA_TRY(cuFuncSetAttribute(function, most_shared, (int)launch->shared_bytes));
    for (unsigned i = 0; i < launch->argument_count; ++i) {
        const vdla_argument *at = &launch->arguments[i];
        pointers[i] = values[i].words;
        values[i].words[0] = session->memory[at->memory] + at->offset;
        if (at->rank) VDLA_TRY(vdla_cuda_map(at, values[i].words[0], values[i].words));
    }
    const unsigned *grid = launch->grid, *block = launch->block;
    return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], launch->shared_bytes,
                          session->stream, pointers, NULL);
}

/* Open a model on the first GPU; its machine code, and its parameters, may be freed afterwards. */
static int vdla_cuda_open(const vdla_cuda_model *model, const void *code, const void *parameters, vdla_cuda **opened) {
    vdla_cuda *session = calloc(1, sizeof *session);
    int device;
    void *context;
    *opened = session;
    if (!session) return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
    session->model = model;
    VDLA_TRY(cuInit(0));
    VDLA_TRY(cuDeviceGet(&device, 0));
    VDLA_TRY(cuDevicePrimaryCtxRetain(&context, device));
    VDLA_TRY(cuCtxSetCurrent(context));
    VDLA_TRY(cuModuleLoadData(&session->module, code));
    VDLA_TRY(cuStreamCreate(&session->stream, 1)); /* CU_STREAM_NON_BLOCKING */
    VDLA_TRY(cuMemAlloc_v2(&session->memory[VDLA_ARENA], model->arena_bytes + 1));
    VDLA_TRY(cuMemAlloc_v2(&session->memory[VDLA_PARAMETERS], model->parameters_bytes + 1));
    if (model->parameters_bytes)
        VDLA_TRY(cuMemcpyHtoD_v2(session->memory[VDLA_PARAMETERS], parameters, model->parameters_bytes));
    VDLA_TRY(cuStreamBeginCapture_v2(session->stream, 1)); /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
    for (unsigned i = 0; i < model->launch_count; ++i) VDLA_TRY(vdla_cuda_launch(session, &model->launches[i]));
    VDLA_TRY(cuStreamEndCapture(session->stream, &session->graph));
    return cuGraphInstantiateWithFlags(&session->ready, session->graph, 0);
}

/* The outputs for the inputs. */
static int vdla_cuda_run(vdla_cuda *session, const void *const *inputs, void *const *outputs) {
    const vdla_cuda_model *model = session->model;
    for (unsigned i = 0; i < model->input_count; ++i) {
        const vdla_cuda_tensor *at = &model->inputs[i];
        if (at->bytes) VDLA_TRY(cuMemcpyHtoD_v2(session->memory[at->memory] + at->offset, inputs[i], at->bytes));
    }
    VDLA_TRY(cuGraphLaunch(session->ready, session->stream));
    VDLA_TRY(cuStreamSynchronize(session->stream));
    for (unsigned i = 0; i < model->output_count; ++i) {
        const vdla_cuda_tensor *at = &model->outputs[i];
        if (at->bytes) VDLA_TRY(cuMemcpyDtoH_v2(outputs[i], session->memory[at->memory] + at->offset, at->bytes));
    }
    return 0;
}

/* Free a session, which may have been opened in vain. */
static void vdla_cuda_close(vdla_cuda *session) {
    for (int i = 0; session && i < 2; ++i)
        if (session->memory[i]) cuMemFree_v2(session->memory[i]);
    free(session);
}

#endif
