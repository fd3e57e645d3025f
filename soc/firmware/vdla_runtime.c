#include "vdla_runtime.h"

#include "vdla_registers.h"

/* Turns between looks at the status while an interrupt is awaited. */
#define PATIENCE 4096

static uint32_t read_register(const vdla_machine *machine, uint32_t offset) {
    return machine->registers[offset / 4];
}

static void write_register(const vdla_machine *machine, uint32_t offset, uint32_t value) {
    machine->registers[offset / 4] = value;
}

static void copy(void *to, const void *from, uint32_t bytes) {
    uint8_t *target = to;
    const uint8_t *source = from;
    uint32_t at = 0;
    if ((((uintptr_t)to | (uintptr_t)from) & 3) == 0)
        for (; at + 4 <= bytes; at += 4) *(uint32_t *)(target + at) = *(const uint32_t *)(source + at);
    for (; at < bytes; at++) target[at] = source[at];
}

/* Two sums, the second of which knows the order of words. */
static uint32_t checksum(const uint32_t *word, const uint32_t *end) {
    uint32_t sum = 0, sums = 0;
    while (word < end) sums += sum += *word++;
    return sum ^ (sums << 16 | sums >> 16);
}

int vdla_open(const vdla_image *image, const vdla_machine *machine) {
    if (image->magic != VDLA_IMAGE_MAGIC) return VDLA_ERROR_IMAGE;
    if (image->version != VDLA_IMAGE_VERSION) return VDLA_ERROR_VERSION;
    const uint32_t *end = (const uint32_t *)image + image->bytes / 4;
    if (checksum(&image->checksum + 1, end) != image->checksum) return VDLA_ERROR_IMAGE;
    for (uint32_t i = 0; i < image->step_count; i++) {
        const vdla_program *program = image->steps[i].program;
        if (!program) continue;
        if (program->config_hash != read_register(machine, VDLA_REGISTER_CONFIG_HASH))
            return VDLA_ERROR_CONFIG;
        uint32_t *memory = program->memory;
        for (uint32_t word = 0; word < program->window_bytes / 4; word++) memory[word] = 0;
        for (uint32_t part = 0; part < program->segment_count; part++) {
            const vdla_copy *segment = &program->segments[part];
            copy(segment->to, segment->from, segment->bytes);
        }
    }
    for (uint32_t i = 0; i < image->state_count; i++) {
        const vdla_state *state = &image->states[i];
        copy(state->value, state->initial, state->bytes);
    }
    return VDLA_OK;
}

/* Move an activation into blocks of channels, or back. Channels that fill up a block stay zero. */
static void pack(const vdla_program *program, const vdla_activation *tensor, int back) {
    const uint32_t step = program->batch * program->block;
    int8_t *value = tensor->values;
    for (uint32_t image = 0; image < tensor->images; image++) {
        for (uint32_t channel = 0, block = 0, lane = 0; channel < tensor->channels; channel++) {
            int8_t *place = tensor->packed + block * tensor->places * step + image * program->block + lane;
            for (uint32_t n = 0; n < tensor->places; n++, place += step, value++) {
                if (back) *value = *place;
                else *place = *value;
            }
            if (++lane == program->block) lane = 0, block++;
        }
    }
}

/* Wait until the core stops: its status, or an error. */
static int wait(const vdla_machine *machine, uint32_t before) {
    uint32_t status;
    if (machine->interrupts) {
        for (uint32_t turn = 1; machine->interrupts() == before; turn++) {
            int stopped = turn % PATIENCE == 0 &&
                          read_register(machine, VDLA_REGISTER_STATUS) != VDLA_STATUS_RUNNING;
            if (stopped && machine->interrupts() == before) return VDLA_ERROR_INTERRUPT;
        }
    }
    do status = read_register(machine, VDLA_REGISTER_STATUS);
    while (status == VDLA_STATUS_RUNNING);
    return status == VDLA_STATUS_DONE ? VDLA_OK : VDLA_ERROR_STOPPED + (int)status;
}

static int run_program(const vdla_program *program, const vdla_machine *machine, uint32_t *cycles) {
    for (uint32_t i = 0; i < program->input_count; i++) pack(program, &program->inputs[i], 0);
    uint32_t before = machine->interrupts ? machine->interrupts() : 0;
    write_register(machine, VDLA_REGISTER_CONTROL, VDLA_CONTROL_RESET);
    write_register(machine, VDLA_REGISTER_WINDOW, program->window);
    write_register(machine, VDLA_REGISTER_PROGRAM_HASH, program->config_hash);
    write_register(machine, VDLA_REGISTER_PROGRAM_ADDR, program->address);
    write_register(machine, VDLA_REGISTER_INSN_COUNT, program->instructions);
    write_register(machine, VDLA_REGISTER_CONTROL, VDLA_CONTROL_START);
    int error = wait(machine, before);
    if (machine->invalidate) machine->invalidate();
    if (error) return error;
    *cycles += read_register(machine, VDLA_REGISTER_CYCLES);
    for (uint32_t i = 0; i < program->output_count; i++) pack(program, &program->outputs[i], 1);
    return VDLA_OK;
}

int vdla_run(const vdla_image *image, const vdla_machine *machine, uint32_t *cycles) {
    for (uint32_t i = 0; i < image->step_count; i++) {
        const vdla_step *step = &image->steps[i];
        if (step->program) {
            int error = run_program(step->program, machine, cycles);
            if (error) return error;
        } else {
            step->run(step->inputs, step->outputs, step->parameters, step->arena);
        }
    }
    for (uint32_t i = 0; i < image->state_count; i++) {
        const vdla_state *state = &image->states[i];
        copy(state->value, state->next, state->bytes);
    }
    return VDLA_OK;
}

const char *vdla_error_text(int error) {
    static const char *const statuses[] = VDLA_STATUS_TEXTS;
    switch (error) {
        case VDLA_OK: return "no error";
        case VDLA_ERROR_IMAGE: return "there is no image, or a damaged one";
        case VDLA_ERROR_VERSION: return "the image is for another version of this runtime";
        case VDLA_ERROR_CONFIG: return "the image has programs for a core of another configuration";
        case VDLA_ERROR_INTERRUPT: return "the core has stopped, and no interrupt came";
    }
    uint32_t status = (uint32_t)(error - VDLA_ERROR_STOPPED);
    return status < sizeof statuses / sizeof *statuses ? statuses[status] : "an unknown error";
}
