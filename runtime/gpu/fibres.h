// Runs CUDA kernels on the host's processor, for tests: every thread of a block is a fibre, which runs until its next barrier.
//
// The kernels' text is compiled as it is. Shared memory is poisoned before each block, and the threads run in an order that the
// caller chooses, so that what depends on a missing barrier shows. A barrier that not all threads of a block reach is an error.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static __attribute__((section(SHARED_SECTION)))

namespace vdla {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

enum Order { FORWARDS, BACKWARDS, SHUFFLED };
enum Result { DONE, DIVERGENT_BARRIER };
constexpr size_t STACK_BYTES = 256 << 10;
constexpr unsigned char POISON = 0xff;  // a float of these bytes is not a number

}  // namespace vdla

static vdla::Index threadIdx, blockIdx;

namespace vdla {

#ifdef __x86_64__
// Saves the registers that a function must keep, and goes on where the other stack was left.
extern "C" void vdla_switch(void** save, void* load);
asm(R"(
.text
.local vdla_switch
vdla_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#endif

struct Fibre {
  Index index;
  bool ended = false;
  char* stack = nullptr;
#ifdef __x86_64__
  void* pointer = nullptr;
#else
  ucontext_t context;
#endif
};

struct Block {
  void (*kernel)(void**) = nullptr;
  void** arguments = nullptr;
  Fibre* running = nullptr;
  uint64_t barriers = 0;
#ifdef __x86_64__
  void* scheduler = nullptr;
#else
  ucontext_t scheduler;
#endif
};

static Block block;

static void leave() {
#ifdef __x86_64__
  vdla_switch(&block.running->pointer, block.scheduler);
#else
  swapcontext(&block.running->context, &block.scheduler);
#endif
}

static void begin() {
  block.kernel(block.arguments);
  block.running->ended = true;
  leave();
}

static void prepare(Fibre& fibre) {
  if (!fibre.stack) fibre.stack = static_cast<char*>(aligned_alloc(64, STACK_BYTES));
  fibre.ended = false;
#ifdef __x86_64__
  void** top = reinterpret_cast<void**>(fibre.stack + STACK_BYTES) - 2;
  *top = reinterpret_cast<void*>(&begin);
  fibre.pointer = top - 6;  // six registers, whose first values do not matter
#else
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = fibre.stack;
  fibre.context.uc_stack.ss_size = STACK_BYTES;
  fibre.context.uc_link = nullptr;
  makecontext(&fibre.context, begin, 0);
#endif
}

static void resume(Fibre& fibre) {
  block.running = &fibre;
  threadIdx = fibre.index;
#ifdef __x86_64__
  vdla_switch(&block.scheduler, fibre.pointer);
#else
  swapcontext(&block.scheduler, &fibre.context);
#endif
}

static std::vector<Fibre> fibres;

static void arrange(std::vector<unsigned>& order, Order wish, uint64_t& state) {
  if (wish == BACKWARDS) std::reverse(order.begin(), order.end());
  if (wish != SHUFFLED) return;
  for (size_t i = order.size(); i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
}

static Index index_of(unsigned number, Index size) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

// Runs a kernel. One without barriers needs no fibres: its threads run one after the other.
static Result launch(void (*kernel)(void**), void** arguments, Index grid, Index size, Order wish, bool waits,
                     char* shared, size_t shared_bytes, uint64_t* barriers) {
  unsigned threads = size.x * size.y * size.z, blocks = grid.x * grid.y * grid.z;
  std::vector<unsigned> order(threads), block_order(blocks);
  for (unsigned i = 0; i < threads; ++i) order[i] = i;
  for (unsigned i = 0; i < blocks; ++i) block_order[i] = i;
  uint64_t state = 1;
  arrange(block_order, wish, state);
  if (wish == BACKWARDS) arrange(order, wish, state);
  if (waits && fibres.size() < threads) fibres.resize(threads);
  block.kernel = kernel;
  block.arguments = arguments;
  block.barriers = 0;
  for (unsigned number : block_order) {
    blockIdx = index_of(number, grid);
    memset(shared, POISON, shared_bytes);
    if (!waits) {
      for (unsigned thread : order) {
        threadIdx = index_of(thread, size);
        kernel(arguments);
      }
      continue;
    }
    for (unsigned i = 0; i < threads; ++i) {
      prepare(fibres[i]);
      fibres[i].index = index_of(i, size);
    }
    for (unsigned ended = 0; ended < threads;) {
      if (wish == SHUFFLED) arrange(order, wish, state);
      ended = 0;
      for (unsigned thread : order) {
        resume(fibres[thread]);
        ended += fibres[thread].ended;
      }
      if (ended && ended < threads) return DIVERGENT_BARRIER;
      block.barriers += !ended;
    }
  }
  *barriers += block.barriers;
  return DONE;
}

}  // namespace vdla

static inline void __syncthreads() { vdla::leave(); }
static inline float __int_as_float(int bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}
static inline int __float_as_int(float number) {
  int bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
