/* The C interface of a compiled model: what `vdla compile MODEL --target cpu -o FOLDER` puts into
 * FOLDER/model.so (or, with --triple, into FOLDER/model.o).
 *
 *     const vdla_model_t *model = &vdla_model;  (linked, or dlsym(library, "vdla_model"))
 *     void *parameters = vdla_load_parameters(model, "model.bin");
 *     void *arena = vdla_allocate(model->arena_bytes);
 *     model->run(inputs, outputs, parameters, arena);
 *
 * run() allocates nothing and keeps no state: threads may share the parameters, and each needs an
 * arena of its own. Inputs and outputs need the alignment of their elements, parameters and arenas
 * that of VDLA_ALIGN_BYTES; an arena needs no initial value. C11.
 */
#ifndef VDLA_H
#define VDLA_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define VDLA_API_VERSION 1
#define VDLA_ALIGN_BYTES 64

typedef struct {
    const char *name;
    const char *dtype; /* as NumPy names it: "float32", "int8", "bool" (a byte), ... */
    const uint64_t *shape;
    uint32_t rank;
    uint64_t bytes;
} vdla_tensor;

typedef struct {
    uint32_t api_version; /* VDLA_API_VERSION of the compiler; the fields below follow it */
    uint32_t parameters_crc32;
    uint64_t parameters_bytes;
    uint64_t arena_bytes;
    uint32_t input_count;
    uint32_t output_count;
    const vdla_tensor *inputs;
    const vdla_tensor *outputs;
    void (*run)(const void *const *inputs, void *const *outputs, const void *parameters,
                void *arena);
} vdla_model_t;

/* The model of the library that is linked. */
#ifdef __cplusplus
extern "C" {
#endif
extern const vdla_model_t vdla_model;
#ifdef __cplusplus
}
#endif

/* Memory at a multiple of VDLA_ALIGN_BYTES, to be freed with free(); NULL where there is none. */
static inline void *vdla_allocate(uint64_t bytes) {
    return aligned_alloc(VDLA_ALIGN_BYTES, (size_t)(bytes / VDLA_ALIGN_BYTES + 1) * VDLA_ALIGN_BYTES);
}

/* The checksum of a file's content: CRC-32, as zlib has it. */
static inline uint32_t vdla_crc32(const unsigned char *data, size_t size) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    return crc ^ 0xffffffffu;
}

/* The parameters of a model from its file, to be freed with free(). NULL, with a line on standard
 * error, unless the file is that of this model and unchanged. */
static inline void *vdla_load_parameters(const vdla_model_t *model, const char *path) {
    FILE *file = NULL;
    unsigned char *memory = NULL;
    const char *error = NULL;
    size_t size = (size_t)model->parameters_bytes;
    if (model->api_version != VDLA_API_VERSION)
        error = "expected a model of another version of vdla.h";
    else if (!(file = fopen(path, "rb")))
        error = "cannot be opened";
    else if (!(memory = (unsigned char *)vdla_allocate(size)))
        error = "out of memory";
    else if (fread(memory, 1, size, file) != size || fgetc(file) != EOF)
        error = "expected the parameters of this model, the size is another";
    else if (vdla_crc32(memory, size) != model->parameters_crc32)
        error = "expected the parameters of this model, the content is another";
    if (file) fclose(file);
    if (!error) return memory;
    fprintf(stderr, "vdla: %s: %s\n", path, error);
    free(memory);
    return NULL;
}

#endif
