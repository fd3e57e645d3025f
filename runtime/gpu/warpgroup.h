// What compute capability 9.0a adds, on the host's processor: products of warpgroups by PTX's descriptors of matrices, fences
// between the two views of shared memory, and the copy engine with its signals. Included by emulated texts that use it.
#pragma once
#include "fibres.h"

namespace vdla {

// ---- products of warpgroups ----

// Eight registers of 16 bytes twice: the 32 bytes of a row that a descriptor's matrix has. PTX, "Matrix descriptor format",
// "Strides" and "Swizzling modes": groups of 8 rows are so many bytes apart; bits of the address itself are exchanged.
static void read_row(uint64_t descriptor, unsigned row, uint32_t* registers) {
  static const unsigned row_bytes[] = {0, 128, 64, 32};
  unsigned width = row_bytes[descriptor >> 62];
  if (!width || (descriptor >> 49 & 7)) return fail("a matrix without swizzled rows, or with a base offset");
  size_t start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  for (unsigned piece = 0; piece < 2; ++piece) {
    size_t at = start + row / 8 * stride + row % 8 * width + piece * 16;
    at ^= at >> 3 & (width - 16);
    if (at + 16 > block.seen.size()) return fail("a matrix that ends beyond shared memory");
    const char* memory = block.order == FORWARDS ? block.shared : block.seen.data();
    memcpy(registers + 4 * piece, memory + at, 16);
  }
}

template <class T, unsigned N>
static void multiply_rows(float* const* lanes, uint64_t a_matrix, uint64_t b_matrix, unsigned warp) {
  constexpr unsigned K = 8 * T::PER;
  using Sum = typename T::Sum;
  static Sum a[16][K], b[K][N];
  uint32_t registers[8];
  for (unsigned row = 0; row < 16; ++row) {
    read_row(a_matrix, 16 * warp + row, registers);
    for (unsigned k = 0; k < K; ++k) a[row][k] = T::value(registers, k);
  }
  for (unsigned column = 0; column < N; ++column) {
    read_row(b_matrix, column, registers);
    for (unsigned k = 0; k < K; ++k) b[k][column] = T::value(registers, k);
  }
  for (unsigned lane = 0; lane < WARP; ++lane) {
    Sum* d = reinterpret_cast<Sum*>(lanes[lane]);
    for (unsigned i = 0; i < N / 2; ++i) {
      Position p = place_d(lane, i % 4);
      for (unsigned k = 0; k < K; ++k) d[i] += a[p.row][k] * b[k][i / 4 * 8 + p.column];
    }
  }
}

// Products end as soon as they begin, or when their warp waits for them. The operands of a lane: sums, two matrices.
template <class T, unsigned N>
static void multiply_group(Fibre* const* lanes) {
  for (unsigned warp = 0; warp < GROUP / WARP; ++warp) {
    float* sums[WARP];
    for (unsigned lane = 0; lane < WARP; ++lane) {
      Fibre& fibre = *lanes[warp * WARP + lane];
      if (!fibre.may_multiply) return fail("a product on sums that its threads may still change");
      uint64_t a = (uint64_t)fibre.operands[1], b = (uint64_t)fibre.operands[2];
      sums[lane] = static_cast<float*>(fibre.operands[0]);
      if (block.order == BACKWARDS || (block.order == SHUFFLED && a / 2 % 2))
        fibre.products.push_back({multiply_rows<T, N>, sums[lane], a, b, fibre.product_groups, warp});
      else if (lane == WARP - 1)
        multiply_rows<T, N>(sums, a, b, warp);
    }
  }
}

// The operands of a lane: how many groups may still be under way.
static void end_products(Fibre* const* lanes) {
  uint64_t but = (uint64_t)lanes[0]->operands[1];
  std::vector<Product>& known = lanes[0]->products;
  size_t count = 0;
  while (count < known.size() && known[count].group + but < lanes[0]->product_groups) ++count;
  for (size_t i = 0; i < count; ++i) {
    float* sums[WARP];
    for (unsigned lane = 0; lane < WARP; ++lane) sums[lane] = lanes[lane]->products[i].d;
    known[i].multiply(sums, known[i].a, known[i].b, known[i].warp);
  }
  for (unsigned lane = 0; lane < WARP; ++lane) {
    std::vector<Product>& products = lanes[lane]->products;
    products.erase(products.begin(), products.begin() + count);
    lanes[lane]->may_multiply = false;
  }
}

// ---- copy engine ----

}  // namespace vdla

// A tensor of which boxes are brought. Dimensions begin with that of elements side by side. (What a driver makes of one is its own
// business; this is what runtime/gpu/emulated.py, and the tests' driver, make of it.)
struct TensorMap {
  uint64_t address, rank, element_bytes, row_bytes, shape[5], box[5], unused[2];
};

namespace vdla {

// A signal in shared memory: bytes that are expected and have not arrived, which may be negative for a while; phases that ended; a
// mark that it is ready, and whether a phase has begun.
struct Signal {
  int32_t expected;
  uint16_t phases;
  uint8_t mark, begun;
};
constexpr uint8_t READY_MARK = 0x5a;
static Signal& signal_at(void* address) {
  Signal& signal = *static_cast<Signal*>(address);
  if (signal.mark != READY_MARK) fail("a signal that is not ready");
  return signal;
}
static void end_phase(Signal& signal) {
  ++block.changes;
  if (!signal.begun || signal.expected) return;
  ++signal.phases;
  signal.begun = 0;
}

// Bring a box. What lies beyond the tensor is zero. Both views of shared memory see it.
static void bring(const Bulk& copy) {
  const TensorMap& map = *static_cast<const TensorMap*>(copy.map);
  uint64_t count = 1, start = static_cast<char*>(copy.to) - block.shared;
  for (unsigned d = 0; d < map.rank; ++d) count *= map.box[d];
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t rest = i, place = 0, stride = 1;
    bool inside = true;
    for (unsigned d = 0; d < map.rank; ++d) {
      int64_t at = copy.at[d] + int64_t(rest % map.box[d]);
      inside &= at >= 0 && uint64_t(at) < map.shape[d];
      place += at * stride;
      rest /= map.box[d];
      stride *= map.shape[d];
    }
    uint64_t to = start + i * map.element_bytes;
    to ^= to >> 3 & (map.row_bytes - 16);
    char zeros[8] = {};
    const char* from = inside ? reinterpret_cast<const char*>(map.address) + place * map.element_bytes : zeros;
    memcpy(block.shared + to, from, map.element_bytes);
    memcpy(&block.seen[to], from, map.element_bytes);
    block.bytes_read += inside ? map.element_bytes : 0;
  }
  Signal& signal = signal_at(copy.signal);
  signal.expected -= count * map.element_bytes;
  end_phase(signal);
}

static void bulk_copy(void* to, const TensorMap* map, unsigned long long* signal, std::initializer_list<int> at) {
  check_aligned(to, 8 * map->row_bytes);
  check_aligned(reinterpret_cast<const void*>(map->address), 16);
  if (map->box[0] * map->element_bytes != map->row_bytes || map->shape[0] * map->element_bytes % 16 || at.size() != map->rank)
    fail("a box that the copy engine cannot bring");
  signal_at(signal);
  Bulk copy{to, map, signal, {}};
  std::copy(at.begin(), at.end(), copy.at);
  ++block.changes;
  if (block.order == FORWARDS || (block.order == SHUFFLED && (uintptr_t)to / 1024 % 2))
    bring(copy);
  else
    block.bulk.push_back(copy);
}

// Boxes arrive when they are asked for, or when a thread waits for them, whose phase has begun by then.
static void wait_for_signal(unsigned long long* address, unsigned parity) {
  for (;;) {
    Signal& signal = signal_at(address);
    if (signal.begun)
      for (size_t i = 0; i < block.bulk.size();)
        if (block.bulk[i].signal == address) {
          bring(block.bulk[i]);
          block.bulk.erase(block.bulk.begin() + i);
        } else {
          ++i;
        }
    if (signal.phases % 2 != parity) return;  // the phase of this parity has ended
    leave(SPINNING);
  }
}

}  // namespace vdla

static inline uint64_t __cvta_generic_to_shared(const void* address) {
  return static_cast<const char*>(address) - vdla::block.shared;
}
static inline void stores_seen() { vdla::block.running->fenced = true; }
static inline void products_begin() { vdla::block.running->may_multiply = true; }
static inline void products_started() { ++vdla::block.running->product_groups; }
#define VDLA_PRODUCTS_ARRIVED(but) \
  static inline void products_arrived_but_##but() { vdla::together(vdla::end_products, nullptr, (void*)but); }
VDLA_PRODUCTS_ARRIVED(0)
VDLA_PRODUCTS_ARRIVED(1)
VDLA_PRODUCTS_ARRIVED(2)
#define VDLA_WGMMA(N)                                                                                 \
  static inline void wgmma_m64n##N##k16_f16(float* d, uint64_t a, uint64_t b) {                       \
    vdla::together(vdla::multiply_group<vdla::F16, N>, d, (void*)a, (void*)b, vdla::IN_GROUP);        \
  }                                                                                                   \
  static inline void wgmma_m64n##N##k16_bf16(float* d, uint64_t a, uint64_t b) {                      \
    vdla::together(vdla::multiply_group<vdla::BF16, N>, d, (void*)a, (void*)b, vdla::IN_GROUP);       \
  }                                                                                                   \
  static inline void wgmma_m64n##N##k8_tf32(float* d, uint64_t a, uint64_t b) {                       \
    vdla::together(vdla::multiply_group<vdla::TF32, N>, d, (void*)a, (void*)b, vdla::IN_GROUP);       \
  }                                                                                                   \
  static inline void wgmma_m64n##N##k32_s8(int32_t* d, uint64_t a, uint64_t b) {                      \
    vdla::together(vdla::multiply_group<vdla::S8, N>, d, (void*)a, (void*)b, vdla::IN_GROUP);         \
  }
VDLA_WGMMA(16)
VDLA_WGMMA(32)
VDLA_WGMMA(64)
VDLA_WGMMA(128)
VDLA_WGMMA(256)
static inline void signals_ready(unsigned long long* signals, int count) {
  for (int i = 0; i < count; ++i) *reinterpret_cast<vdla::Signal*>(signals + i) = {0, 0, vdla::READY_MARK, 0};
  ++vdla::block.changes;
}
static inline void signal_expects(unsigned long long* address, unsigned bytes) {
  vdla::Signal& signal = vdla::signal_at(address);
  if (signal.begun) vdla::fail("a phase of a signal that begins before the last one ended");
  signal.expected += bytes;
  signal.begun = 1;
  vdla::end_phase(signal);
}
static inline void signal_arrived(unsigned long long* signal, unsigned parity) { vdla::wait_for_signal(signal, parity); }
static inline void bulk_copy_2d(void* to, const TensorMap* map, unsigned long long* signal, int a, int b) {
  vdla::bulk_copy(to, map, signal, {a, b});
}
static inline void bulk_copy_3d(void* to, const TensorMap* map, unsigned long long* signal, int a, int b, int c) {
  vdla::bulk_copy(to, map, signal, {a, b, c});
}
