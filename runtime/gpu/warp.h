// What single instructions of a GPU do, on the host's processor: the tensor cores' by PTX's tables of fragments, asynchronous
// copies, and accesses of several bytes. Included by fibres.h.
#pragma once

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

namespace vdla {

// ---- bytes of main memory, counted ----

// An element of main memory whose address is taken, or which is read or stored to.
template <class T>
struct Place {
  T* address;
  Place operator+(int64_t count) const { return {address + count}; }
};
template <class T>
struct Element {
  T* address;
  operator T() const {
    block.bytes_read += sizeof(T);
    return *address;
  }
  template <class V>
  void operator=(V value) const {
    block.bytes_written += sizeof(T);
    *address = value;
  }
  Place<T> operator&() const { return {address}; }
};
// A parameter of a kernel.
template <class T>
struct Counted {
  T* first;
  explicit Counted(void* address) : first(static_cast<T*>(address)) {}
  Element<T> operator[](int64_t index) const { return {first + index}; }
};

// ---- asynchronous copies ----

// The earliest moment that a copy may arrive at is when it starts; the latest is when its thread has waited for it.
static void arrive(const Pending& copy) {
  if (copy.exists)
    memcpy(copy.to, copy.from, copy.size);
  else
    memset(copy.to, 0, copy.size);
}

static void copy_async(void* to, const void* from, unsigned size, bool exists) {
  check_aligned(to, size);
  if (exists) check_aligned(from, size);
  Pending copy{to, from, size, exists, block.running->groups};
  bool early = block.order == FORWARDS || (block.order == SHUFFLED && (uintptr_t)to / size % 2);
  if (early)
    arrive(copy);
  else
    block.running->pending.push_back(copy);
}

static void wait_for_copies(unsigned but) {
  Fibre& fibre = *block.running;
  size_t kept = 0;
  for (const Pending& copy : fibre.pending) {
    if (copy.group + but < fibre.groups)
      arrive(copy);
    else
      fibre.pending[kept++] = copy;
  }
  fibre.pending.resize(kept);
}

static void access(void* to, const void* from, unsigned size) {
  check_aligned(to, size);
  check_aligned(from, size);
  memcpy(to, from, size);
}

// ---- tensor cores ----

// Element i of a thread's part of a fragment: its row and its column. The tables are those of PTX, "Matrix Fragments for
// mma.m16n8k16" and "mma.m16n8k32"; `group` is lane / 4, `within` is lane % 4, `per` the elements of a register.
struct Position {
  unsigned row, column;
};
static Position place_a(unsigned lane, unsigned i, unsigned per) {
  unsigned group = lane / 4, within = lane % 4, part = i / per;
  return {part % 2 ? group + 8 : group, within * per + i % per + (part >= 2 ? 4 * per : 0)};
}
static Position place_b(unsigned lane, unsigned i, unsigned per) {
  return {lane % 4 * per + i % per + (i >= per ? 4 * per : 0), lane / 4};
}
static Position place_d(unsigned lane, unsigned i) { return {lane / 4 + (i < 2 ? 0 : 8), lane % 4 * 2 + i % 2}; }

static float float_of_bits(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}
struct F16 {
  using Sum = float;
  static constexpr unsigned PER = 2;
  static float value(const uint32_t* registers, unsigned i) {
    uint32_t bits = registers[i / 2] >> (i % 2 * 16) & 0xffff, m = bits & 0x7fff, sign = (bits & 0x8000) << 16;
    if (m < 0x400) return (sign ? -1.0f : 1.0f) * m * 5.9604644775390625e-08f;
    return float_of_bits(sign | (m >= 0x7c00 ? 0x7f800000 | m << 13 : (m << 13) + 0x38000000));
  }
};
struct BF16 {
  using Sum = float;
  static constexpr unsigned PER = 2;
  static float value(const uint32_t* registers, unsigned i) {
    return float_of_bits((registers[i / 2] >> (i % 2 * 16) & 0xffff) << 16);
  }
};
// Of a float32 the tensor cores read the sign, the exponent and the first ten bits behind the point.
struct TF32 {
  using Sum = float;
  static constexpr unsigned PER = 1;
  static float value(const uint32_t* registers, unsigned i) { return float_of_bits(registers[i] & 0xffffe000u); }
};
struct S8 {
  using Sum = int32_t;
  static constexpr unsigned PER = 4;
  static int32_t value(const uint32_t* registers, unsigned i) { return (int8_t)(registers[i / 4] >> (i % 4 * 8)); }
};

// The operands of a lane: d, a, b.
template <class T>
static void multiply(Fibre* const* lanes) {
  constexpr unsigned K = 8 * T::PER;
  using Sum = typename T::Sum;
  Sum a[16][K], b[K][8], d[16][8];
  for (unsigned lane = 0; lane < WARP; ++lane) {
    void* const* operands = lanes[lane]->operands;
    for (unsigned i = 0; i < 4 * T::PER; ++i) {
      Position p = place_a(lane, i, T::PER);
      a[p.row][p.column] = T::value(static_cast<const uint32_t*>(operands[1]), i);
    }
    for (unsigned i = 0; i < 2 * T::PER; ++i) {
      Position p = place_b(lane, i, T::PER);
      b[p.row][p.column] = T::value(static_cast<const uint32_t*>(operands[2]), i);
    }
    for (unsigned i = 0; i < 4; ++i) {
      Position p = place_d(lane, i);
      d[p.row][p.column] = static_cast<const Sum*>(operands[0])[i];
    }
  }
  for (unsigned i = 0; i < 16; ++i)
    for (unsigned j = 0; j < 8; ++j)
      for (unsigned k = 0; k < K; ++k) d[i][j] += a[i][k] * b[k][j];
  for (unsigned lane = 0; lane < WARP; ++lane)
    for (unsigned i = 0; i < 4; ++i) {
      Position p = place_d(lane, i);
      static_cast<Sum*>(lanes[lane]->operands[0])[i] = d[p.row][p.column];
    }
}

// The operands of a lane: registers, the address of a row of 16 bytes. Lanes 8m to 8m + 7 have the rows of matrix m; each lane
// gets four bytes of row lane / 4 of each matrix.
template <unsigned COUNT>
static void load_matrices(Fibre* const* lanes) {
  for (unsigned m = 0; m < COUNT; ++m)
    for (unsigned lane = 0; lane < WARP; ++lane) {
      const char* row = static_cast<const char*>(lanes[8 * m + lane / 4]->operands[1]);
      check_aligned(row, 16);
      memcpy(static_cast<uint32_t*>(lanes[lane]->operands[0]) + m, row + lane % 4 * 4, 4);
    }
}

}  // namespace vdla

#define VDLA_COPIES(size)                                                                                        \
  static inline void copy_##size(void* to, const void* from) { vdla::access(to, from, size); }                   \
  template <class T>                                                                                             \
  static inline void copy_##size(vdla::Place<T> to, const void* from) {                                          \
    vdla::block.bytes_written += size;                                                                           \
    vdla::access(to.address, from, size);                                                                        \
  }                                                                                                              \
  template <class To, class T>                                                                                   \
  static inline void copy_##size(To to, vdla::Place<T> from) {                                                   \
    vdla::block.bytes_read += size;                                                                              \
    copy_##size(to, static_cast<const void*>(from.address));                                                     \
  }                                                                                                              \
  static inline void copy_async_##size(void* to, const void* from, bool exists) {                                \
    vdla::copy_async(to, from, size, exists);                                                                    \
  }                                                                                                              \
  template <class T>                                                                                             \
  static inline void copy_async_##size(void* to, vdla::Place<T> from, bool exists) {                             \
    vdla::block.bytes_read += exists ? size : 0;                                                                 \
    vdla::copy_async(to, from.address, size, exists);                                                            \
  }                                                                                                              \
  static inline void clear_##size(void* to) {                                                                    \
    vdla::check_aligned(to, size);                                                                               \
    memset(to, 0, size);                                                                                         \
  }
VDLA_COPIES(4)
VDLA_COPIES(8)
VDLA_COPIES(16)
static inline void copies_started() { ++vdla::block.running->groups; }
#define VDLA_ARRIVED(but) \
  static inline void copies_arrived_but_##but() { vdla::wait_for_copies(but); }
VDLA_ARRIVED(0)
VDLA_ARRIVED(1)
VDLA_ARRIVED(2)
VDLA_ARRIVED(3)
VDLA_ARRIVED(4)
VDLA_ARRIVED(5)
VDLA_ARRIVED(6)
static inline void ldmatrix_x4(uint32_t* to, const void* row) {
  vdla::reads_16(row);
  vdla::together(vdla::load_matrices<4>, to, row);
}
static inline void ldmatrix_x2(uint32_t* to, const void* row) {
  if ((vdla::block.running - vdla::fibres.data()) % vdla::WARP < 16) vdla::reads_16(row);  // the others' are not read
  vdla::together(vdla::load_matrices<2>, to, row);
}
static inline void mma_m16n8k16_f16(float* d, const uint32_t* a, const uint32_t* b) {
  vdla::together(vdla::multiply<vdla::F16>, d, a, b);
}
static inline void mma_m16n8k16_bf16(float* d, const uint32_t* a, const uint32_t* b) {
  vdla::together(vdla::multiply<vdla::BF16>, d, a, b);
}
static inline void mma_m16n8k8_tf32(float* d, const uint32_t* a, const uint32_t* b) {
  vdla::together(vdla::multiply<vdla::TF32>, d, a, b);
}
static inline void mma_m16n8k32_s8(int32_t* d, const uint32_t* a, const uint32_t* b) {
  vdla::together(vdla::multiply<vdla::S8>, d, a, b);
}
