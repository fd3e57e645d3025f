// Instructions of AMX and AVX-512 as functions, after Intel's description of each (Software
// Developer's Manual, volume 2). What a processor with AMX would refuse is counted as a fault.
#include <atomic>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

constexpr int TILES = 8, ROWS = 16, ROW_BYTES = 64;

struct Tiles {
    bool configured;
    int rows[TILES], row_bytes[TILES];
    uint8_t data[TILES][ROWS][ROW_BYTES];
};

thread_local Tiles tiles;
std::atomic<int64_t> faults, products, loads, stores, configurations, releases;

// Whether an instruction may use a tile; else it is a fault.
bool usable(uint8_t tile) {
    bool fits = tiles.configured && tile < TILES && tiles.rows[tile] && tiles.row_bytes[tile];
    faults += !fits;
    return fits;
}

void clear_rows(uint8_t tile, int first) {
    for (int row = first; row < ROWS; ++row) std::memset(tiles.data[tile][row], 0, ROW_BYTES);
}

// Bits 0 and 1 say how to round, unless bit 2 says: as it is set.
struct Rounding {
    int before = std::fegetround();
    explicit Rounding(int32_t how) {
        const int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
        if (!(how & 4)) std::fesetround(modes[how & 3]);
    }
    ~Rounding() { std::fesetround(before); }
};

}  // namespace

extern "C" {

void vdla_ldtilecfg(const uint8_t* memory) {
    std::memset(&tiles, 0, sizeof tiles);
    ++configurations;
    bool legal = memory[0] == 1;  // the one palette with tiles
    for (int byte = 1; byte < 16; ++byte) legal &= memory[byte] == 0;
    for (int tile = 0; tile < 16; ++tile) {
        int row_bytes = memory[16 + 2 * tile] | memory[17 + 2 * tile] << 8, rows = memory[48 + tile];
        legal &= tile < TILES ? row_bytes <= ROW_BYTES && rows <= ROWS && !rows == !row_bytes
                              : !row_bytes && !rows;
        if (tile < TILES) tiles.rows[tile] = rows, tiles.row_bytes[tile] = row_bytes;
    }
    faults += !legal;
    tiles.configured = legal;
}

void vdla_tilerelease() {
    ++releases;
    std::memset(&tiles, 0, sizeof tiles);
}

void vdla_tilezero(uint8_t tile) {
    if (usable(tile)) clear_rows(tile, 0);
}

void vdla_tileloadd64(uint8_t tile, const uint8_t* memory, int64_t stride) {
    if (!usable(tile)) return;
    ++loads;
    for (int row = 0; row < tiles.rows[tile]; ++row) {
        uint8_t* to = tiles.data[tile][row];
        std::memcpy(to, memory + row * stride, tiles.row_bytes[tile]);
        std::memset(to + tiles.row_bytes[tile], 0, ROW_BYTES - tiles.row_bytes[tile]);
    }
    clear_rows(tile, tiles.rows[tile]);
}

void vdla_tilestored64(uint8_t tile, uint8_t* memory, int64_t stride) {
    if (!usable(tile)) return;
    ++stores;
    for (int row = 0; row < tiles.rows[tile]; ++row)
        std::memcpy(memory + row * stride, tiles.data[tile][row], tiles.row_bytes[tile]);
}

// sums[m][n] += a[m][4 k .. 4 k + 3] (uint8) times b[k][4 n .. 4 n + 3] (int8)
void vdla_tdpbusd(uint8_t sums, uint8_t a, uint8_t b) {
    if (!usable(sums) || !usable(a) || !usable(b)) return;
    bool fits = sums != a && sums != b && a != b && tiles.row_bytes[sums] % 4 == 0;
    fits &= tiles.row_bytes[a] % 4 == 0 && tiles.row_bytes[b] % 4 == 0;
    fits &= tiles.rows[sums] == tiles.rows[a] && tiles.row_bytes[sums] == tiles.row_bytes[b];
    fits &= tiles.row_bytes[a] / 4 == tiles.rows[b];
    faults += !fits;
    if (!fits) return;
    ++products;
    for (int m = 0; m < tiles.rows[sums]; ++m) {
        uint32_t row[ROW_BYTES / 4];
        std::memcpy(row, tiles.data[sums][m], ROW_BYTES);
        for (int k = 0; k < tiles.rows[b]; ++k) {
            const uint8_t* four = tiles.data[a][m] + 4 * k;
            const int8_t* weights = reinterpret_cast<int8_t*>(tiles.data[b][k]);
            for (int n = 0; n < tiles.row_bytes[sums] / 4; ++n)
                for (int i = 0; i < 4; ++i) row[n] += int32_t(four[i]) * weights[4 * n + i];
        }
        std::memset(tiles.data[sums][m], 0, ROW_BYTES);
        std::memcpy(tiles.data[sums][m], row, tiles.row_bytes[sums]);
    }
    for (int m = tiles.rows[sums]; m < ROWS; ++m) std::memset(tiles.data[sums][m], 0, ROW_BYTES);
}

// Operands of vectors by address, result first.

// Four products of uint8 and int8 are added to each int32.
void vdla_avx512_vpdpbusd_512(uint32_t* y, const uint32_t* sums, const uint8_t* a, const int8_t* b) {
    for (int lane = 0; lane < 16; ++lane) {
        y[lane] = sums[lane];
        for (int i = 4 * lane; i < 4 * lane + 4; ++i) y[lane] += int32_t(a[i]) * b[i];
    }
}

// Two products of int16 are added to each int32.
void vdla_avx512_vpdpwssd_512(uint32_t* y, const uint32_t* sums, const int16_t* a,
                              const int16_t* b) {
    for (int lane = 0; lane < 16; ++lane) {
        y[lane] = sums[lane];
        for (int i = 2 * lane; i < 2 * lane + 2; ++i) y[lane] += int32_t(a[i]) * b[i];
    }
}

// All lanes are wanted.
void vdla_avx512_mask_cvtps2dq_512(int32_t* y, const float* x, const int32_t*, const uint16_t*,
                                   const int32_t* rounding) {
    Rounding set(*rounding);
    for (int lane = 0; lane < 16; ++lane) {
        double whole = std::nearbyint(double(x[lane]));
        y[lane] = whole >= -2147483648.0 && whole <= 2147483647.0 ? int32_t(whole) : INT32_MIN;
    }
}

void vdla_avx512_vfmadd_ps_512(float* y, const float* a, const float* b, const float* c,
                               const int32_t* rounding) {
    Rounding set(*rounding);
    for (int lane = 0; lane < 16; ++lane) y[lane] = std::fma(a[lane], b[lane], c[lane]);
}

}  // extern "C"

namespace {

// Each 128 bits by themselves: elements of a, then of b, limited to the range of a narrower type.
template <typename Narrow, typename Wide>
void pack(Narrow* y, const Wide* a, const Wide* b, Wide low, Wide high) {
    const int some = 16 / sizeof(Wide);
    for (int part = 0; part < 4; ++part)
        for (const Wide* source : {a, b})
            for (int i = part * some; i < part * some + some; ++i)
                *y++ = Narrow(source[i] < low ? low : source[i] > high ? high : source[i]);
}

}  // namespace

extern "C" {

void vdla_avx512_packssdw_512(int16_t* y, const int32_t* a, const int32_t* b) {
    pack<int16_t, int32_t>(y, a, b, INT16_MIN, INT16_MAX);
}

void vdla_avx512_packsswb_512(int8_t* y, const int16_t* a, const int16_t* b) {
    pack<int8_t, int16_t>(y, a, b, INT8_MIN, INT8_MAX);
}

// How often what was executed since the last call: faults first.
void vdla_counts(int64_t* found) {
    for (auto* count : {&faults, &products, &loads, &stores, &configurations, &releases})
        *found++ = count->exchange(0);
}

}  // extern "C"
