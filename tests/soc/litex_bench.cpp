// Who has the bus of the LiteX system, request by request.
#include <cstdint>

#include "Vtop.h"
#include "verilated.h"

extern "C" {

Vtop* bench_new() { return new Vtop; }
void bench_delete(Vtop* top) { delete top; }

// A read, or a write of `data` where `writes`: the word; all ones after an error and without an answer.
uint32_t bench_access(Vtop* top, uint32_t address, int writes, uint32_t data) {
    top->bus_cyc = top->bus_stb = 1;
    top->bus_we = writes;
    top->bus_adr = address >> 2;
    top->bus_dat_w = data;
    top->bus_sel = 15;
    uint32_t found = ~0u;
    for (int turn = 0, over = 0; turn < 1000 && !over; ++turn) {
        top->clk = 0;
        top->eval();
        over = top->bus_ack || top->bus_err;
        if (top->bus_ack) found = top->bus_dat_r;
        top->clk = 1;
        top->eval();
        if (over) top->bus_cyc = top->bus_stb = 0;
    }
    return found;
}

// The cycles until the interrupt, at most so many.
uint64_t bench_wait(Vtop* top, uint64_t most) {
    for (uint64_t now = 0; now < most; ++now) {
        top->clk = 0;
        top->eval();
        if (top->irq) return now;
        top->clk = 1;
        top->eval();
    }
    return most;
}
}
