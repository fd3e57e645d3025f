/* A model's image, one binary for one address, which `vdla soc` writes (soc/image.py): tensors,
 * steps, constants, and the code of the steps that run on the processor. Pointers are of 32 bits.
 */
#ifndef VDLA_IMAGE_H
#define VDLA_IMAGE_H

#include <stdint.h>

#define VDLA_IMAGE_MAGIC 0x414c4456u /* "VDLA" */
#define VDLA_IMAGE_VERSION 1u

typedef struct {
    const char *name;
    const char *dtype; /* as NumPy names it */
    void *data;
    uint32_t bytes, rows; /* rows: its first dimension */
} vdla_tensor;

/* Bytes of the image that go to an address. */
typedef struct {
    void *to;
    const void *from;
    uint32_t bytes;
} vdla_copy;

/* int8 [images][channels][places] at `values`; at `packed` in blocks of channels:
 * [blocks][places][batch][block]. */
typedef struct {
    int8_t *values, *packed;
    uint32_t images, channels, places;
} vdla_activation;

typedef struct {
    uint32_t window, window_bytes; /* where the core sees its address 0, in the core's memory */
    void *memory;                  /* the same for the processor */
    uint32_t config_hash, address, instructions;
    uint32_t batch, block;
    uint32_t segment_count, input_count, output_count;
    const vdla_copy *segments;
    const vdla_activation *inputs, *outputs;
} vdla_program;

/* A program of the core, or a function of the processor, where `program` is NULL. */
typedef struct {
    const vdla_program *program;
    void (*run)(const void *const *inputs, void *const *outputs, const void *parameters,
                void *arena);
    const void *const *inputs;
    void *const *outputs;
    const void *parameters;
    void *arena;
} vdla_step;

/* A tensor that the next run reads: it begins with the one value and goes on with the other. */
typedef struct {
    void *value;
    const void *initial, *next;
    uint32_t bytes;
} vdla_state;

typedef struct {
    uint32_t magic, version;
    uint32_t bytes;    /* of the whole image, a multiple of 4 */
    uint32_t checksum; /* of the words behind this one (vdla_open) */
    uint32_t step_count, input_count, output_count, state_count;
    const vdla_step *steps;
    const vdla_tensor *inputs, *outputs;
    const vdla_state *states;
    uint32_t sample_count; /* inputs that the image brings along, all of a sample together */
    const uint8_t *samples;
} vdla_image;

#endif
