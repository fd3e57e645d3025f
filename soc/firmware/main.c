/* The firmware: runs the image on the samples that it brings along, and prints what comes out. */
#include "vdla_registers.h"
#include "vdla_runtime.h"

#define BOARD ((volatile uint32_t *)VDLA_BOARD_BASE)
#define CLOCK BOARD[0]
#define FLASH BOARD[VDLA_BOARD_FLASH / 4]
#define LEDS BOARD[VDLA_BOARD_LEDS / 4]
#define MACHINE_EXTERNAL 11

static const vdla_image *const image = (const vdla_image *)VDLA_IMAGE_BASE;
static volatile uint32_t *const core = (volatile uint32_t *)VDLA_CORE_BASE;
static volatile uint32_t interrupts;

/* ---- the serial line ---- */

static void put(char c) { CLOCK = (uint8_t)c; }

static void print(const char *text) {
    while (*text) put(*text++);
}

static void print_number(uint32_t value) {
    char digits[14];
    int at = sizeof digits, count = 0;
    digits[--at] = 0;
    do {
        if (count && count % 3 == 0) digits[--at] = ',';
        digits[--at] = (char)('0' + value % 10);
        count++;
    } while (value /= 10);
    print(digits + at);
}

static void print_hex(uint32_t value) {
    for (int shift = 28; shift >= 0; shift -= 4) put("0123456789abcdef"[value >> shift & 15]);
}

_Noreturn static void end(void) {
    put(VDLA_END_OF_TEXT);
    for (;;) {}
}

/* ---- the processor ---- */

void on_trap(uint32_t cause, uint32_t where) {
    uint32_t pending;
    __asm__ volatile("csrr %0, 0xFC0" : "=r"(pending));
    if (pending & VDLA_FAULT_MASK) {
        print("error: the processor has asked for an address where nothing is, before ");
        print_hex(where);
        print("\n");
        end();
    }
    if (cause == (1u << 31 | MACHINE_EXTERNAL)) {
        core[VDLA_REGISTER_INTERRUPT / 4] = 1;
        interrupts++;
        return;
    }
    print("error: the processor has trapped, cause ");
    print_number(cause);
    print(" at ");
    print_hex(where);
    print("\n");
    end();
}

static uint32_t count_interrupts(void) { return interrupts; }

/* VexRiscv's own instruction: its data cache forgets all. */
static void invalidate(void) { __asm__ volatile(".word 0x500F" ::: "memory"); }

static void enable_interrupts(void) {
    __asm__ volatile("csrw 0xBC0, %0" ::"r"(VDLA_INTERRUPT_MASK));
    __asm__ volatile("csrs mie, %0" ::"r"(1u << MACHINE_EXTERNAL));
    __asm__ volatile("csrsi mstatus, 8");
}

/* ---- results ---- */

static uint32_t crc32(uint32_t crc, const uint8_t *data, uint32_t size) {
    crc = ~crc;
    while (size--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

/* A number whose order is that of the element. */
static int32_t order_of(const vdla_tensor *tensor, uint32_t index) {
    const char *dtype = tensor->dtype;
    if (dtype[0] == 'i' && dtype[3] == '8') return ((const int8_t *)tensor->data)[index];
    if (dtype[0] == 'u' && dtype[4] == '8') return ((const uint8_t *)tensor->data)[index];
    int32_t bits = ((const int32_t *)tensor->data)[index];
    return dtype[0] == 'f' && bits < 0 ? -(bits & 0x7fffffff) : bits;
}

/* The first of the largest elements of each row; the LEDs show the last one, too. */
static void print_classes(const vdla_tensor *tensor) {
    const char *last = tensor->dtype;
    while (last[1]) last++;
    const uint32_t width = *last == '8' ? 1 : *last == '2' ? 4 : 0;
    if (!width || !tensor->rows) return;
    const uint32_t columns = tensor->bytes / width / tensor->rows;
    for (uint32_t row = 0; row < tensor->rows; row++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < columns; i++)
            if (order_of(tensor, row * columns + i) > order_of(tensor, row * columns + best)) best = i;
        print(row ? " " : ", class ");
        print_number(best);
        LEDS = best;
    }
}

_Noreturn static void fail(int error) {
    print("error: ");
    print(vdla_error_text(error));
    print("\n");
    end();
}

/* Bring the image from flash to memory. */
static int load(void) {
    uint32_t *word = (uint32_t *)VDLA_IMAGE_BASE;
    FLASH = VDLA_FLASH_IMAGE;
    for (uint32_t at = 0; at < sizeof(vdla_image) / 4; at++) word[at] = FLASH;
    if (image->magic != VDLA_IMAGE_MAGIC || image->bytes > VDLA_MEMORY_BYTES) return VDLA_ERROR_IMAGE;
    for (uint32_t at = sizeof(vdla_image) / 4; at < image->bytes / 4; at++) word[at] = FLASH;
    return VDLA_OK;
}

int main(void) {
    const vdla_machine machine = {core, count_interrupts, invalidate};
    enable_interrupts();
    uint32_t begin = CLOCK;
    int error = load();
    if (error) fail(error);
    print("image of ");
    print_number(image->bytes);
    print(" bytes, loaded in ");
    print_number(CLOCK - begin);
    print(" cycles\n");
    error = vdla_open(image, &machine);
    if (error) fail(error);
    const uint8_t *sample = image->samples;
    for (uint32_t number = 0; number < image->sample_count; number++) {
        for (uint32_t i = 0; i < image->input_count; i++) {
            uint8_t *to = image->inputs[i].data;
            for (uint32_t n = image->inputs[i].bytes; n; n--) *to++ = *sample++;
        }
        uint32_t cycles = 0, began = CLOCK;
        error = vdla_run(image, &machine, &cycles);
        uint32_t passed = CLOCK - began, crc = 0;
        if (error) fail(error);
        for (uint32_t i = 0; i < image->output_count; i++)
            crc = crc32(crc, image->outputs[i].data, image->outputs[i].bytes);
        print("run ");
        print_number(number);
        print_classes(&image->outputs[0]);
        print(", ");
        print_number(cycles);
        print(" cycles of the core, ");
        print_number(passed);
        print(" in all, outputs ");
        print_hex(crc);
        print("\n");
    }
    end();
}
