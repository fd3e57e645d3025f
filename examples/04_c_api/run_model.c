/* Runs a compiled model from C: run_model PARAMETERS INPUTS OUTPUTS
 *
 * INPUTS holds the bytes of all inputs, one after the other, of as many inferences as there are;
 * OUTPUTS gets those of all outputs in the same way. run.py, next to this file, builds and calls it:
 *
 *     vdla compile model.onnx --target cpu -o folder
 *     gcc -I folder run_model.c folder/model.so -Wl,-rpath,folder -o run_model
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "vdla.h"

static int fail(const char *what, const char *where) {
    fprintf(stderr, "run_model: %s: %s\n", where, what);
    return 1;
}

static void describe(const char *kind, const vdla_tensor *tensor) {
    printf("%s %s: %s[", kind, tensor->name, tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++) printf("%s%" PRIu64, i ? "," : "", tensor->shape[i]);
    printf("]\n");
}

/* A buffer for each tensor. */
static void **buffers(const vdla_tensor *tensors, uint32_t count) {
    void **memory = calloc(count + 1, sizeof *memory);
    for (uint32_t i = 0; memory && i < count; i++)
        if (!(memory[i] = vdla_allocate(tensors[i].bytes))) return NULL;
    return memory;
}

int main(int argc, char **argv) {
    const vdla_model_t *model = &vdla_model;
    if (argc != 4) return fail("expected PARAMETERS INPUTS OUTPUTS", "arguments");
    for (uint32_t i = 0; i < model->input_count; i++) describe("input", &model->inputs[i]);
    for (uint32_t i = 0; i < model->output_count; i++) describe("output", &model->outputs[i]);

    void *parameters = vdla_load_parameters(model, argv[1]);
    if (!parameters) return 1;
    void *arena = vdla_allocate(model->arena_bytes);
    void **inputs = buffers(model->inputs, model->input_count);
    void **outputs = buffers(model->outputs, model->output_count);
    if (!arena || !inputs || !outputs) return fail("out of memory", "buffers");
    FILE *source = fopen(argv[2], "rb"), *target = fopen(argv[3], "wb");
    if (!source) return fail("cannot be read", argv[2]);
    if (!target) return fail("cannot be written", argv[3]);

    size_t inferences = 0;
    for (int next; (next = fgetc(source)) != EOF; inferences++) {
        ungetc(next, source);
        for (uint32_t i = 0; i < model->input_count; i++)
            if (fread(inputs[i], 1, model->inputs[i].bytes, source) != model->inputs[i].bytes)
                return fail("expected whole inputs, it ends within one", argv[2]);
        model->run((const void *const *)inputs, outputs, parameters, arena);
        for (uint32_t i = 0; i < model->output_count; i++)
            if (fwrite(outputs[i], 1, model->outputs[i].bytes, target) != model->outputs[i].bytes)
                return fail("cannot be written", argv[3]);
    }
    if (fclose(target)) return fail("cannot be written", argv[3]);
    printf("%zu inferences\n", inferences);
    return 0;
}
