// An SDR SDRAM chip, clock by clock: what it does with its pins, and what it must not be asked for (isa/sdram.py has the
// numbers of a part). It knows no simulator.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

struct Part {
    uint64_t column_bits, bank_bits, cas_clocks, pin_cycles, clocks;  // clocks: of the chip in a cycle
    // Clocks: from power to the first command, between refreshes, tRP, tRCD, tRC, tWR, tRAS.
    uint64_t init, refresh, close, open, cycle, write, active;
};

struct Pins {
    uint8_t command, bank;  // command: ras_n, cas_n, we_n from the highest bit down
    uint16_t address;
    uint8_t mask;
    uint16_t data;
    bool driven;
};

class Chip {
public:
    std::string fault;
    uint64_t refreshes = 0;

    explicit Chip(Part part) : p_(part), banks_(1u << part.bank_bits) {}

    // The contents are these bytes; beyond them the chip reads 0 and forgets what is written.
    void hold(uint8_t* bytes, uint64_t size) {
        bytes_ = bytes;
        size_ = size;
    }

    // The word that reaches the controller in clock `n` of the next cycle: of the READ `pin_cycles` cycles before.
    uint16_t late(uint64_t n) const {
        for (const Word& word : late_)
            if (word.clock == now_ + n) return word.data;
        return 0xDEAD;
    }

    void clock(const Pins& pins) {
        switch (pins.command) {
            case kNop: break;
            case kOpen: open(pins); break;
            case kRead:
            case kWrite: move(pins, pins.command == kWrite); break;
            case kClose: close(pins); break;
            case kRefresh: refresh(); break;
            case kMode: mode(pins); break;
            default: refuse("an unknown command");
        }
        if (left_ != 0) {
            check(pins.driven, "WRITE: the data pins are not driven");
            put(place_, pins.data, pins.mask);
            ++place_;
            --left_;
        } else if (pins.driven) {
            check(now_ > reads_until_, "the data pins are driven while a READ uses them");
        }
        while (!late_.empty() && late_.front().clock < now_) late_.pop_front();
        ++now_;
        check(now_ < p_.init || refreshes >= (now_ - p_.init) / p_.refresh, "too few refreshes");
    }

private:
    enum { kMode, kRefresh, kClose, kOpen, kWrite, kRead, kStop, kNop };
    static constexpr uint64_t kWords = 4;
    static constexpr uint64_t kNever = 0;
    struct Bank {
        bool is_open = false;
        uint64_t row = 0, opened = kNever, closed = kNever, free = kNever;  // free: may be closed from here on
    };
    struct Word {
        uint64_t clock;
        uint16_t data;
    };

    void refuse(const char* what) {
        if (fault.empty()) fault = "clock " + std::to_string(now_) + ": " + what;
    }
    void check(bool holds, const char* what) {
        if (!holds) refuse(what);
    }

    void open(const Pins& pins) {
        Bank& bank = banks_[pins.bank];
        check(mode_, "OPEN before the mode was set");
        check(!bank.is_open, "OPEN of a bank that is open");
        check(now_ >= bank.closed + p_.close, "OPEN too early after CLOSE");
        check(bank.opened == kNever || now_ >= bank.opened + p_.cycle, "OPEN too early after OPEN");
        check(refreshes == 0 || now_ >= refreshed_ + p_.cycle, "OPEN too early after REFRESH");
        bank.is_open = true;
        bank.row = pins.address;
        bank.opened = now_;
        bank.free = now_ + p_.active;
    }

    void move(const Pins& pins, bool writes) {
        Bank& bank = banks_[pins.bank];
        check(bank.is_open, "READ or WRITE in a bank that is not open");
        check(now_ >= bank.opened + p_.open, "READ or WRITE too early after OPEN");
        check(moved_ == kNever || now_ >= moved_ + kWords, "READ or WRITE while one is under way");
        check(!(pins.address >> 10 & 1), "READ or WRITE that closes its row");
        moved_ = now_;
        const uint64_t column = pins.address & ((1u << p_.column_bits) - 1);
        check(column % kWords == 0, "READ or WRITE that is not aligned");
        const uint64_t place = ((bank.row << p_.bank_bits | pins.bank) << p_.column_bits) | column;
        uint64_t free = now_ + kWords;
        if (writes) {
            check(now_ > reads_until_, "WRITE while a READ uses the data pins");
            place_ = place;
            left_ = kWords;
            free = now_ + kWords - 1 + p_.write;
        } else {
            check(left_ == 0, "READ while words are written");
            check(pins.mask == 0, "READ with a mask");
            reads_until_ = now_ + p_.cas_clocks + kWords;  // one clock is left between drivers
            for (uint64_t n = 0; n < kWords; ++n) late_.push_back({now_ + p_.pin_cycles * p_.clocks + n, get(place + n)});
        }
        if (free > bank.free) bank.free = free;
    }

    void close(const Pins& pins) {
        const bool all = pins.address >> 10 & 1;
        for (uint64_t n = 0; n < banks_.size(); ++n) {
            Bank& bank = banks_[n];
            if (!all && n != pins.bank) continue;
            check(!bank.is_open || now_ >= bank.free, "CLOSE too early");
            bank.is_open = false;
            bank.closed = now_;
        }
        check(now_ >= p_.init, "a command before the chip is ready");
        check(refreshes == 0 || now_ >= refreshed_ + p_.cycle, "CLOSE too early after REFRESH");
    }

    void refresh() {
        for (const Bank& bank : banks_) {
            check(!bank.is_open, "REFRESH while a row is open");
            check(now_ >= bank.closed + p_.close, "REFRESH too early after CLOSE");
        }
        check(refreshes == 0 || now_ >= refreshed_ + p_.cycle, "REFRESH too early after REFRESH");
        refreshed_ = now_;
        ++refreshes;
    }

    void mode(const Pins& pins) {
        check(refreshes >= 8, "SET_MODE before eight refreshes");
        check(now_ >= refreshed_ + p_.cycle, "SET_MODE too early after REFRESH");
        check(pins.address == (p_.cas_clocks << 4 | 2) && pins.bank == 0, "SET_MODE with another mode");
        mode_ = true;
    }

    uint16_t get(uint64_t place) const {
        return 2 * place + 1 < size_ ? uint16_t(bytes_[2 * place] | bytes_[2 * place + 1] << 8) : 0;
    }
    void put(uint64_t place, uint16_t data, uint8_t mask) {
        if (2 * place + 1 >= size_) return;
        if (!(mask & 1)) bytes_[2 * place] = uint8_t(data);
        if (!(mask & 2)) bytes_[2 * place + 1] = uint8_t(data >> 8);
    }

    Part p_;
    std::vector<Bank> banks_;
    std::deque<Word> late_;
    uint8_t* bytes_ = nullptr;
    uint64_t size_ = 0, now_ = 0, moved_ = kNever, reads_until_ = 0, refreshed_ = 0, place_ = 0, left_ = 0;
    bool mode_ = false;
};
