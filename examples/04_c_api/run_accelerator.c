/* Runs a compiled model on the accelerator from C: run_accelerator FOLDER CORE INPUT OUTPUT
 *
 * FOLDER is what `vdla compile MODEL --target rtl -o FOLDER` wrote, whose model.h this program was
 * built with. CORE is a shared object that plays the core: here the simulation of the Verilog
 * (sim/rtl/harness.cpp). On a board the two functions below would access the registers instead.
 * INPUT and OUTPUT hold the bytes of the model's one input and one output.
 *
 *     gcc -I FOLDER run_accelerator.c -ldl -o run_accelerator
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "model.h"

#define MOST_TENSORS 64

/* Tensors go from step to step by name. */
typedef struct {
    const char *name;
    void *data;
    uint64_t bytes;
} named;

static named tensors[MOST_TENSORS];
static size_t tensor_count;
static uint64_t total_cycles;

static void fail(const char *what, const char *where) {
    fprintf(stderr, "run_accelerator: %s: %s\n", where, what);
    exit(1);
}

static void *must(void *found, const char *what) {
    if (!found) fail("expected it, got none", what);
    return found;
}

static named *find(const char *name) {
    for (size_t i = 0; i < tensor_count; i++)
        if (!strcmp(tensors[i].name, name)) return &tensors[i];
    return NULL;
}

static void *make(const char *name, uint64_t bytes) {
    if (tensor_count == MOST_TENSORS) fail("too many tensors", name);
    tensors[tensor_count] = (named){name, must(vdla_allocate(bytes), "memory"), bytes};
    return tensors[tensor_count++].data;
}

/* ---- the core: a simulation behind the two functions of vdla_core ---- */

typedef struct {
    void *handle;
    uint32_t (*read)(void *, uint32_t);
    void (*write)(void *, uint32_t, uint32_t);
    uint64_t (*run)(void *, uint8_t *, uint64_t, const uint64_t *, uint64_t);
    uint8_t *dram;
    uint64_t dram_bytes;
} simulation;

static uint32_t read_register(void *context, uint32_t offset) {
    simulation *core = (simulation *)context;
    return core->read(core->handle, offset);
}

static void write_register(void *context, uint32_t offset, uint32_t value) {
    /* Bytes of a beat, latencies, bursts, cycles of a beat: the memory `vta` of VDLA. */
    static const uint64_t memory[] = {8, 16, 4, 16, 1};
    simulation *core = (simulation *)context;
    core->write(core->handle, offset, value);
    /* A simulation has to be told that time passes. */
    if (offset == VDLA_REGISTER_CONTROL)
        core->run(core->handle, core->dram, core->dram_bytes, memory, 1000000000u);
}

/* ---- the steps ---- */

static void *symbol(void *library, const char *name) { return must(dlsym(library, name), name); }

static void run_on_core(const vdla_program *program, const char *path, const char *library) {
    void *code = must(dlopen(library, RTLD_NOW), library);
    uint8_t *dram = must(vdla_allocate(program->dram_bytes), "memory");
    simulation simulated = {.dram = dram, .dram_bytes = program->dram_bytes};
    void *(*begin)(void);
    void (*end)(void *);
    *(void **)&begin = symbol(code, "vdla_new");
    *(void **)&end = symbol(code, "vdla_delete");
    *(void **)&simulated.read = symbol(code, "vdla_read");
    *(void **)&simulated.write = symbol(code, "vdla_write");
    *(void **)&simulated.run = symbol(code, "vdla_run");
    simulated.handle = begin();
    vdla_core core = {&simulated, read_register, write_register};

    if (vdla_load_program(program, path, dram)) exit(1);
    for (uint32_t i = 0; i < program->input_count; i++) {
        named *input = must(find(program->inputs[i].name), program->inputs[i].name);
        vdla_write_input(program, i, input->data, dram);
    }
    uint32_t status = vdla_run_program(&core, program);
    if (status != VDLA_STATUS_DONE) fail("the core stopped with an error", path);
    total_cycles += read_register(&simulated, VDLA_REGISTER_CYCLES);
    for (uint32_t i = 0; i < program->output_count; i++) {
        const vdla_activation *output = &program->outputs[i];
        uint64_t bytes = (uint64_t)output->images * output->channels * output->places;
        vdla_read_output(program, i, dram, make(output->name, bytes));
    }
    end(simulated.handle);
    free(dram);
}

static void run_on_host(const char *path, const char *parameters_path) {
    const vdla_model_t *model = symbol(must(dlopen(path, RTLD_NOW), path), "vdla_model");
    void *parameters = must(vdla_load_parameters(model, parameters_path), parameters_path);
    void *arena = must(vdla_allocate(model->arena_bytes), "memory");
    const void *inputs[MOST_TENSORS];
    void *outputs[MOST_TENSORS];
    for (uint32_t i = 0; i < model->input_count; i++)
        inputs[i] = ((named *)must(find(model->inputs[i].name), model->inputs[i].name))->data;
    for (uint32_t i = 0; i < model->output_count; i++)
        outputs[i] = make(model->outputs[i].name, model->outputs[i].bytes);
    model->run(inputs, outputs, parameters, arena);
    free(arena);
    free(parameters);
}

int main(int argc, char **argv) {
    char code[4096], parameters[4096];
    if (argc != 5) fail("expected FOLDER CORE INPUT OUTPUT", "arguments");
    for (int i = 0; i < VDLA_STEP_COUNT; i++) {
        const vdla_step *step = &vdla_steps[i];
        snprintf(code, sizeof code, "%s/%s", argv[1], step->code);
        snprintf(parameters, sizeof parameters, "%s/%s", argv[1],
                 step->parameters ? step->parameters : "");
        if (!i) { /* the first step reads the model's input */
            const vdla_model_t *model = symbol(must(dlopen(code, RTLD_NOW), code), "vdla_model");
            FILE *file = must(fopen(argv[3], "rb"), argv[3]);
            void *data = make(model->inputs[0].name, model->inputs[0].bytes);
            if (fread(data, 1, model->inputs[0].bytes, file) != model->inputs[0].bytes)
                fail("expected a whole input, it ends before", argv[3]);
            fclose(file);
        }
        if (step->program)
            run_on_core(step->program, code, argv[2]);
        else
            run_on_host(code, parameters);
    }
    named *result = &tensors[tensor_count - 1];
    FILE *file = must(fopen(argv[4], "wb"), argv[4]);
    if (fwrite(result->data, 1, result->bytes, file) != result->bytes || fclose(file))
        fail("cannot be written", argv[4]);
    printf("%s: %llu cycles\n", result->name, (unsigned long long)total_cycles);
    return 0;
}
