// The system in simulation: clock, the chip of its memory, and who reads its serial line.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "Vvdla_soc.h"
#include "Vvdla_soc___024root.h"
#include "chip.h"
#include "verilated.h"

namespace {

class Line {
public:
    // What the line shows in a cycle; BIT_CYCLES of a bit, eight bits from the lowest on behind one that is 0.
    void sample(bool level, std::string* text) {
        if (left_ == 0) {
            if (!level) {
                left_ = 9;
                wait_ = BIT_CYCLES + BIT_CYCLES / 2;
            }
            return;
        }
        if (--wait_ != 0) return;
        wait_ = BIT_CYCLES;
        if (--left_ != 0) byte_ = uint8_t(byte_ >> 1 | (level ? 0x80 : 0));
        else text->push_back(char(byte_));  // this bit is the last, 1
    }

private:
    int left_ = 0, wait_ = 0;
    uint8_t byte_ = 0;
};

// A flash on SPI of mode 0 that knows one command: read from an address of three bytes on. It is erased but for
// the image.
class Flash {
public:
    std::vector<uint8_t> image;
    bool data = true;

    // What its pins show in a cycle.
    void sample(bool select_n, bool clock, bool command) {
        if (select_n) bits_ = 0;
        else if (clock && !clock_) take(command);
        else if (!clock && clock_ && bits_ == 32) show();
        clock_ = clock;
    }

private:
    void take(bool bit) {
        if (bits_ == 32) return;
        request_ = request_ << 1 | bit;
        if (++bits_ == 32) place_ = uint64_t(request_ & 0xffffff) * 8;
    }

    void show() {
        const uint64_t at = place_ / 8 - FLASH_IMAGE;  // far beyond the image for places before it
        const uint8_t byte = request_ >> 24 == FLASH_READ && at < image.size() ? image[at] : 0xff;
        data = byte >> (7 - place_ % 8) & 1;
        ++place_;
    }

    bool clock_ = false;
    int bits_ = 0;
    uint32_t request_ = 0;
    uint64_t place_ = 0;
};

const uint64_t kPressed = 16;  // cycles for which the button is down

struct Simulation {
    uint64_t now = 0, button_at;
    std::vector<uint8_t> dram;
    std::string text;
    Line line;
    Flash flash;
    Chip chip{VDLA_SDRAM};

    // The chip is as after power-on, with the contents that it has.
    void power_memory() {
        chip = Chip{VDLA_SDRAM};
        chip.hold(dram.data(), dram.size());
    }
    std::unique_ptr<VerilatedContext> context{new VerilatedContext};
    std::unique_ptr<Vvdla_soc> top{new Vvdla_soc(context.get())};
};

}  // namespace

extern "C" {

// A system whose processor has the firmware, and whose flash has the image; its memory has `size` bytes. In the
// cycle `button_at` somebody presses the button.
Simulation* soc_new(const uint8_t* firmware, uint64_t firmware_bytes, const uint8_t* image, uint64_t image_bytes, uint64_t size,
                    uint64_t button_at) {
    auto* sim = new Simulation;
    sim->button_at = button_at;
    sim->dram.resize(size);
    sim->flash.image.assign(image, image + image_bytes);
    sim->power_memory();
    sim->top->eval();  // clears the processor's memory
    std::memcpy(&sim->top->rootp->vdla_soc__DOT__soc__DOT__ram__DOT__storage, firmware, firmware_bytes);
    return sim;
}

void soc_delete(Simulation* sim) { delete sim; }

// Run until a byte `end` is on the line, or so many cycles have passed, whose number is returned.
uint64_t soc_run(Simulation* sim, uint64_t cycles, char end) {
    Vvdla_soc* top = sim->top.get();
    for (uint64_t now = 0; now < cycles; ++now, ++sim->now) {
        top->button = sim->now - sim->button_at < kPressed;  // a large number before it
        top->pins_data_i_0 = sim->chip.late(0);
        top->pins_data_i_1 = sim->chip.late(1);
        top->clk = 0;
        top->eval();
#define PINS(n) \
    Pins{uint8_t(top->pins_command_##n), uint8_t(top->pins_bank_##n), uint16_t(top->pins_address_##n), \
         uint8_t(top->pins_mask_##n), uint16_t(top->pins_data_o_##n), bool(top->pins_data_oe)}
        // The controller sets the chip up again behind a reset, whatever was cut off.
        if (top->button) sim->power_memory();
        else sim->chip.clock(PINS(0)), sim->chip.clock(PINS(1));
        sim->flash.sample(top->flash_select_n, top->flash_clock, top->flash_command);
        top->flash_data = sim->flash.data;
        sim->line.sample(top->tx, &sim->text);
        if (!sim->text.empty() && sim->text.back() == end) return now;
        if (!sim->chip.fault.empty()) return now;
        top->clk = 1;
        top->eval();
    }
    return cycles;
}

// What was on the serial line so far.
const char* soc_text(Simulation* sim, uint64_t* size) {
    *size = sim->text.size();
    return sim->text.data();
}

// What the LEDs show.
uint8_t soc_leds(Simulation* sim) { return sim->top->leds; }

// How the memory was misused; empty if it was not.
const char* soc_fault(Simulation* sim) { return sim->chip.fault.c_str(); }
}
