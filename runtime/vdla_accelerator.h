/* The C interface of a model for the accelerator: what `vdla compile MODEL --target sim -o FOLDER`
 * puts into FOLDER, whose model.h describes the steps and includes this file.
 *
 * A step is a function of the host (a shared object and its parameters, as vdla.h has it) or a
 * program of the accelerator (a file of instructions and constants):
 *
 *     vdla_load_program(program, path, dram);              dram: program->dram_bytes bytes
 *     vdla_write_input(program, 0, image, dram);           int8, channels before places
 *     uint32_t status = vdla_run_program(&core, program);  VDLA_STATUS_DONE
 *     vdla_read_output(program, 0, dram, result);
 *
 * The core sees `dram` at address 0 of its bus. Where caches lie between, flush them before the run
 * and invalidate them after it. Nothing is allocated. C11.
 */
#ifndef VDLA_ACCELERATOR_H
#define VDLA_ACCELERATOR_H

#include <string.h>

#include "vdla.h"

/* Bytes of the program's file that go to an address of DRAM. */
typedef struct {
    uint64_t address, offset, bytes;
} vdla_segment;

/* int8 [images][channels][places] in blocks of channels: [blocks][places][batch][block]. */
typedef struct {
    const char *name;
    uint64_t address;
    uint32_t images, channels, places;
} vdla_activation;

typedef struct {
    uint64_t file_bytes;
    uint64_t dram_bytes;
    uint32_t file_crc32;
    uint32_t config_hash; /* of the core that it runs on */
    uint32_t address;     /* of the first instruction */
    uint32_t instructions;
    uint32_t batch, block;
    uint32_t segment_count, input_count, output_count;
    const vdla_segment *segments;
    const vdla_activation *inputs, *outputs;
} vdla_program;

/* A step of a model: a program, or a function of the host. */
typedef struct {
    const vdla_program *program; /* NULL: of the host */
    const char *code;            /* the program's file, or the shared object */
    const char *parameters;      /* of a function of the host */
} vdla_step;

/* How the registers of the core are read and written. */
typedef struct {
    void *context;
    uint32_t (*read)(void *context, uint32_t offset);
    void (*write)(void *context, uint32_t offset, uint32_t value);
} vdla_core;

/* Put instructions and constants into DRAM, and zeros everywhere else. 0, or 1 with a line on
 * standard error unless the file is that of this program and unchanged. */
static inline int vdla_load_program(const vdla_program *program, const char *path, uint8_t *dram) {
    const char *error = NULL;
    size_t size = (size_t)program->file_bytes;
    FILE *file = fopen(path, "rb");
    uint8_t *content = file ? (uint8_t *)malloc(size ? size : 1) : NULL;
    if (!file)
        error = "cannot be opened";
    else if (!content)
        error = "out of memory";
    else if (fread(content, 1, size, file) != size || fgetc(file) != EOF)
        error = "expected the file of this program, the size is another";
    else if (vdla_crc32(content, size) != program->file_crc32)
        error = "expected the file of this program, the content is another";
    else {
        memset(dram, 0, (size_t)program->dram_bytes);
        for (uint32_t i = 0; i < program->segment_count; i++) {
            const vdla_segment *part = &program->segments[i];
            memcpy(dram + part->address, content + part->offset, (size_t)part->bytes);
        }
    }
    if (file) fclose(file);
    free(content);
    if (error) fprintf(stderr, "vdla: %s: %s\n", path, error);
    return error != NULL;
}

/* The offset of an element from the address of its tensor. */
static inline uint64_t vdla_offset(const vdla_program *program, const vdla_activation *tensor,
                                   uint32_t image, uint32_t channel, uint32_t place) {
    uint64_t entry = (uint64_t)(channel / program->block) * tensor->places + place;
    return (entry * program->batch + image) * program->block + channel % program->block;
}

/* Write an input; channels that fill up a block are zero already. */
static inline void vdla_write_input(const vdla_program *program, uint32_t index,
                                    const int8_t *values, uint8_t *dram) {
    const vdla_activation *tensor = &program->inputs[index];
    for (uint32_t image = 0; image < tensor->images; image++)
        for (uint32_t channel = 0; channel < tensor->channels; channel++)
            for (uint32_t place = 0; place < tensor->places; place++)
                dram[tensor->address + vdla_offset(program, tensor, image, channel, place)] =
                    (uint8_t)*values++;
}

/* Read an output. */
static inline void vdla_read_output(const vdla_program *program, uint32_t index,
                                    const uint8_t *dram, int8_t *values) {
    const vdla_activation *tensor = &program->outputs[index];
    for (uint32_t image = 0; image < tensor->images; image++)
        for (uint32_t channel = 0; channel < tensor->channels; channel++)
            for (uint32_t place = 0; place < tensor->places; place++)
                *values++ = (int8_t)
                    dram[tensor->address + vdla_offset(program, tensor, image, channel, place)];
}

/* Start a program whose DRAM is ready. */
static inline void vdla_start_program(const vdla_core *core, const vdla_program *program) {
    core->write(core->context, VDLA_REGISTER_PROGRAM_HASH, program->config_hash);
    core->write(core->context, VDLA_REGISTER_PROGRAM_ADDR, program->address);
    core->write(core->context, VDLA_REGISTER_INSN_COUNT, program->instructions);
    core->write(core->context, VDLA_REGISTER_CONTROL, VDLA_CONTROL_START);
}

/* The status of the core: VDLA_STATUS_RUNNING, VDLA_STATUS_DONE, or an error. */
static inline uint32_t vdla_status(const vdla_core *core) {
    return core->read(core->context, VDLA_REGISTER_STATUS);
}

/* Run a program and wait for its end: the status. */
static inline uint32_t vdla_run_program(const vdla_core *core, const vdla_program *program) {
    uint32_t status;
    vdla_start_program(core, program);
    do
        status = vdla_status(core);
    while (status == VDLA_STATUS_RUNNING);
    return status;
}

#endif
