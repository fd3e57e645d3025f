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

struct Simulation {
    std::vector<uint8_t> dram;
    std::string text;
    Line line;
    Chip chip{VDLA_SDRAM};
    std::unique_ptr<VerilatedContext> context{new VerilatedContext};
    std::unique_ptr<Vvdla_soc> top{new Vvdla_soc(context.get())};
};

}  // namespace

extern "C" {

// A system whose processor has the firmware, and whose memory of `size` bytes begins with the image.
Simulation* soc_new(const uint8_t* firmware, uint64_t firmware_bytes, const uint8_t* image, uint64_t image_bytes, uint64_t size) {
    auto* sim = new Simulation;
    sim->dram.resize(size);
    std::memcpy(sim->dram.data(), image, image_bytes);
    sim->chip.hold(sim->dram.data(), size);
    sim->top->eval();  // clears the processor's memory
    std::memcpy(&sim->top->rootp->vdla_soc__DOT__soc__DOT__ram__DOT__storage, firmware, firmware_bytes);
    return sim;
}

void soc_delete(Simulation* sim) { delete sim; }

// Run until a byte `end` is on the line, or so many cycles have passed, whose number is returned.
uint64_t soc_run(Simulation* sim, uint64_t cycles, char end) {
    Vvdla_soc* top = sim->top.get();
    for (uint64_t now = 0; now < cycles; ++now) {
        top->pins_data_i_0 = sim->chip.late(0);
        top->pins_data_i_1 = sim->chip.late(1);
        top->clk = 0;
        top->eval();
#define PINS(n) \
    Pins{uint8_t(top->pins_command_##n), uint8_t(top->pins_bank_##n), uint16_t(top->pins_address_##n), \
         uint8_t(top->pins_mask_##n), uint16_t(top->pins_data_o_##n), bool(top->pins_data_oe)}
        sim->chip.clock(PINS(0));
        sim->chip.clock(PINS(1));
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

// How the memory was misused; empty if it was not.
const char* soc_fault(Simulation* sim) { return sim->chip.fault.c_str(); }
}
