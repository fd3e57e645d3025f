// A board in Verilator behind a pseudo-terminal: the serial line of the design, bit by bit, becomes bytes of a file.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "Vboard.h"
#include "verilated.h"

namespace {

// Errors of the line, counted in bytes towards the board and from it: the byte of that number is changed or dropped.
struct Errors {
    int64_t corrupt_to, drop_to, corrupt_from, drop_from;
};

class Line {
public:
    Line(int file, int divisor, const Errors& errors) : file_(file), divisor_(divisor), errors_(errors) {}

    // The level of rx in this cycle.
    int send() {
        if (send_left_ == 0) {
            uint8_t byte;
            if (--pause_ > 0) return 1;
            pause_ = divisor_;
            if (read(file_, &byte, 1) != 1) return 1;
            int64_t number = sent_++;
            if (number == errors_.drop_to) return 1;
            if (number == errors_.corrupt_to) byte ^= 0x10;
            send_bits_ = (uint32_t(byte) << 1) | 0x600;  // start, data, two stop bits
            send_left_ = 11 * divisor_;
        }
        int level = send_bits_ >> ((11 * divisor_ - send_left_) / divisor_) & 1;
        --send_left_;
        return level;
    }

    // tx in this cycle.
    void receive(int level) {
        if (receive_left_ == 0) {
            if (level == 0) receive_left_ = 10 * divisor_ - 1, received_ = 0;
            return;
        }
        int at = 10 * divisor_ - receive_left_--;
        if (at % divisor_ != divisor_ / 2) return;
        int bit = at / divisor_;
        if (bit >= 1 && bit <= 8) received_ |= level << (bit - 1);
        if (bit != 9) return;
        receive_left_ = 0;
        int64_t number = got_++;
        if (number == errors_.drop_from) return;
        uint8_t byte = number == errors_.corrupt_from ? received_ ^ 0x04 : received_;
        if (write(file_, &byte, 1) != 1) return;
    }

private:
    int file_, divisor_;
    const Errors& errors_;
    int send_left_ = 0, receive_left_ = 0, pause_ = 0, received_ = 0;
    uint32_t send_bits_ = 0;
    int64_t sent_ = 0, got_ = 0;
};

}  // namespace

extern "C" {

// Serve a file until `stop`; returns the cycles that passed.
uint64_t board_serve(int file, int divisor, const Errors* errors, const volatile int* stop) {
    VerilatedContext context;
    Vboard top{&context};
    Line line(file, divisor, *errors);
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
    uint64_t cycles = 0;
    top.rst = top.reset = 0;
    for (; !*stop; ++cycles) {
        top.rx = line.send();
        top.clk = 0;
        top.eval();
        line.receive(top.tx);
        top.clk = 1;
        top.eval();
    }
    return cycles;
}
}
