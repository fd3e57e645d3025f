// Clock loop, registers and memory model of the RTL simulation. The memory model is that of docs/timing.md; all of its
// state is registered: what happens in a cycle is seen in the next one. With VDLA_SDRAM, the fields of a Part of chip.h,
// the memory is that chip, and its controller is part of the RTL.
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "Vvdla_core.h"
#include "Vvdla_core___024root.h"
#include "verilated.h"
#ifdef VDLA_SDRAM
#include "chip.h"
#endif
#if VM_TRACE_VCD
#include "verilated_vcd_c.h"
#endif

namespace {

constexpr int kUnits = 4;

#ifdef VDLA_SDRAM
class Memory {
public:
    void set_up(uint8_t* dram, uint64_t size, const uint64_t*) { chip_.hold(dram, size); }

    // What the controller finds at the data pins in this cycle.
    void drive(Vvdla_core* top, uint64_t) {
        top->pins_data_i_0 = chip_.late(0);
        top->pins_data_i_1 = chip_.late(1);
    }

    // What it shows in this cycle, clock by clock.
    void sample(Vvdla_core* top, uint64_t) {
#define PINS(n) \
    Pins{uint8_t(top->pins_command_##n), uint8_t(top->pins_bank_##n), uint16_t(top->pins_address_##n), \
         uint8_t(top->pins_mask_##n), uint16_t(top->pins_data_o_##n), bool(top->pins_data_oe)}
        chip_.clock(PINS(0));
        chip_.clock(PINS(1));
    }

    // What the chip was asked for that it must not be asked for; empty if nothing.
    const char* fault() const { return chip_.fault.c_str(); }
    bool waits(const Vvdla_core* top) const { return !top->ready && chip_.fault.empty(); }

private:
    Chip chip_{VDLA_SDRAM};
};
#else
constexpr uint8_t kError = 2;  // SLVERR

struct MemoryParams {
    uint64_t bus_bytes, read_latency, write_latency, outstanding, cycles_per_beat;
};

struct Burst {
    uint64_t address, beats, ready;
    uint8_t id;
};

class Memory {
public:
    // `params`: bus bytes, read latency, write latency, outstanding bursts, cycles per beat.
    void set_up(uint8_t* dram, uint64_t size, const uint64_t* params) {
        *this = {};
        dram_ = dram;
        size_ = size;
        if (params) p_ = {params[0], params[1], params[2], params[3], params[4]};
    }
    const char* fault() const { return ""; }
    bool waits(const Vvdla_core*) const { return false; }

    // Inputs of the core for cycle `now`.
    void drive(Vvdla_core* top, uint64_t now) {
        top->axi_arready = reads_.size() < p_.outstanding;
        bool data = !reads_.empty() && now >= reads_.front().ready && now >= next_read_;
        top->axi_rvalid = data;
        if (data) {
            const Burst& burst = reads_.front();
            uint64_t at = burst.address + beat_ * p_.bus_bytes;
            bool inside = at + p_.bus_bytes <= size_;
            auto* word = reinterpret_cast<uint8_t*>(&top->axi_rdata);
            if (inside) std::memcpy(word, dram_ + at, p_.bus_bytes);
            else std::memset(word, 0, p_.bus_bytes);
            top->axi_rresp = inside ? 0 : kError;
            top->axi_rid = burst.id;
            top->axi_rlast = beat_ + 1 == burst.beats;
        }
        top->axi_awready = writes_ < p_.outstanding;
        top->axi_wready = p_.bus_bytes && now >= next_write_;
        bool answer = !answers_.empty() && now >= answers_.front().ready && now >= next_answer_;
        top->axi_bvalid = answer;
        if (answer) {
            top->axi_bresp = answers_.front().id;
            top->axi_bid = 0;
        }
    }

    // Transfers of cycle `now`, after the core's outputs have settled.
    void sample(Vvdla_core* top, uint64_t now) {
        bool accepted = top->axi_arvalid && top->axi_arready;
        Burst incoming{top->axi_araddr, uint64_t(top->axi_arlen) + 1, now + p_.read_latency, uint8_t(top->axi_arid)};
        if (top->axi_rvalid && top->axi_rready) {
            next_read_ = now + p_.cycles_per_beat;
            if (++beat_ == reads_.front().beats) {
                reads_.pop_front();
                beat_ = 0;
            }
        }
        if (accepted) reads_.push_back(incoming);
        if (top->axi_bvalid && top->axi_bready) {
            answers_.pop_front();
            next_answer_ = now + 1;
            --writes_;
        }
        if (top->axi_wvalid && top->axi_wready) {
            next_write_ = now + p_.cycles_per_beat;
            Burst& burst = incoming_.front();
            uint64_t at = burst.address + write_beat_ * p_.bus_bytes;
            bool inside = at + p_.bus_bytes <= size_;
            auto* word = reinterpret_cast<const uint8_t*>(&top->axi_wdata);
            if (inside) {
                for (uint64_t i = 0; i < p_.bus_bytes; ++i)
                    if (top->axi_wstrb >> i & 1) dram_[at + i] = word[i];
            } else {
                burst.id = kError;
            }
            ++write_beat_;
            if (top->axi_wlast) {
                answers_.push_back({0, 0, now + p_.write_latency, burst.id});
                incoming_.pop_front();
                write_beat_ = 0;
            }
        }
        if (top->axi_awvalid && top->axi_awready) {
            incoming_.push_back({top->axi_awaddr, uint64_t(top->axi_awlen) + 1, 0, 0});
            ++writes_;
        }
    }

private:
    uint8_t* dram_ = nullptr;
    uint64_t size_ = 0;
    MemoryParams p_ = {};
    std::deque<Burst> reads_, incoming_, answers_;
    uint64_t beat_ = 0, write_beat_ = 0, writes_ = 0;
    uint64_t next_read_ = 0, next_write_ = 0, next_answer_ = 0;
};
#endif

// The waveform of a range of cycles, or, once each `every` cycles, of a range of these, then without what rising edges
// bring about; nothing in a library built without.
struct Waves {
#if VM_TRACE_VCD
    VerilatedVcdC file;
    uint64_t first = 1, last = 0, every = 0;

    // `half` 0: after the rising edge that begins a cycle; 1: after the falling edge, its inputs in place.
    void dump(uint64_t cycle, int half) {
        uint64_t at = every ? cycle % every : cycle;
        if (first <= at && at <= last && (half || !every)) file.dump(1000 * cycle + 500 * half);
    }
#else
    void dump(uint64_t, int) {}
#endif
};

struct Simulation {
    std::unique_ptr<VerilatedContext> context = std::make_unique<VerilatedContext>();
    std::unique_ptr<Vvdla_core> top = std::make_unique<Vvdla_core>(context.get());
    std::vector<uint64_t> starts[kUnits], ends[kUnits];
    Memory memory;
    Waves waves;

    Simulation() {
        while (memory.waits(top.get())) clock();
    }

    void clock() {
        memory.drive(top.get(), 0);
        top->clk = 0;
        top->eval();
        memory.sample(top.get(), 0);
        top->clk = 1;
        top->eval();
    }
};

}  // namespace

extern "C" {

Simulation* vdla_new() { return new Simulation; }

#if VM_TRACE_VCD
// Before anything else: write the signals of cycles first..last of the next run to a VCD file.
void vdla_waves(Simulation* sim, const char* path, uint64_t first, uint64_t last, uint64_t every) {
    sim->context->traceEverOn(true);
    sim->waves.file.set_time_unit("1ns");
    sim->waves.file.set_time_resolution("1ns");
    sim->top->trace(&sim->waves.file, 99);
    sim->waves.file.open(path);
    sim->waves.first = first;
    sim->waves.last = last;
    sim->waves.every = every;
}
#endif

void vdla_delete(Simulation* sim) { delete sim; }

void vdla_write(Simulation* sim, uint32_t address, uint32_t value) {
    sim->top->regs_addr = address;
    sim->top->regs_wdata = value;
    sim->top->regs_write = 1;
    sim->clock();
    sim->top->regs_write = 0;
    sim->clock();  // a start or reset takes effect in the cycle after the write
}

uint32_t vdla_read(Simulation* sim, uint32_t address) {
    sim->top->regs_addr = address;
    sim->top->clk = 0;
    sim->top->eval();
    return sim->top->regs_rdata;
}

// How the memory was misused; empty if it was not.
const char* vdla_fault(Simulation* sim) { return sim->memory.fault(); }

// Run until the core stops; returns the cycles simulated. `params` as of Memory::set_up.
uint64_t vdla_run(Simulation* sim, uint8_t* dram, uint64_t size, const uint64_t* params, uint64_t max_cycles) {
    Vvdla_core* top = sim->top.get();
    sim->memory.set_up(dram, size, params);
    for (uint64_t now = 0; now < max_cycles; ++now) {
        sim->memory.drive(top, now);
        top->clk = 0;
        top->eval();
        sim->waves.dump(now, 1);
        if (!top->running) {
            sim->memory.set_up(nullptr, 0, nullptr);  // what is under way moves no byte any more
            sim->clock();  // the counters are a cycle late
            return now;
        }
        if (top->started | top->ended) {
            for (int unit = 0; unit < kUnits; ++unit) {
                if (top->started >> unit & 1) sim->starts[unit].push_back(now);
                if (top->ended >> unit & 1) sim->ends[unit].push_back(now);
            }
        }
        sim->memory.sample(top, now);
        top->clk = 1;
        top->eval();
        sim->waves.dump(now + 1, 0);
    }
    return max_cycles;
}

// Cycles in which a unit's instructions started (which = 0) or ended (1): their number, and the numbers themselves.
uint64_t vdla_trace(Simulation* sim, int unit, int which, const uint64_t** values) {
    auto& trace = which ? sim->ends[unit] : sim->starts[unit];
    *values = trace.data();
    return trace.size();
}

// Bytes of a scratchpad as the model stores them, one row of whole 32-bit words per entry.
const void* vdla_memory(Simulation* sim, const char* name, uint64_t* bytes) {
#ifndef VDLA_NETLIST  // cells hold the scratchpads of a netlist, by no name
    auto* root = sim->top->rootp;
#ifdef VDLA_SDRAM
#define STORAGE(n) root->vdla_core__DOT__core__DOT__##n##__DOT__storage
#else
#define STORAGE(n) root->vdla_core__DOT__##n##__DOT__storage
#endif
#define MEMORY(n) \
    if (!std::strcmp(name, #n)) { \
        *bytes = sizeof(STORAGE(n)); \
        return &STORAGE(n); \
    }
    MEMORY(inp)
    MEMORY(wgt)
    MEMORY(uop)
    MEMORY(par)
    MEMORY(acc)
    MEMORY(tmp)
    MEMORY(out)
#endif
    *bytes = 0;
    return nullptr;
}
}
