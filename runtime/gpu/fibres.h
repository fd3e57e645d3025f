// Runs CUDA kernels on the host's processor, for tests: every thread of a block is a fibre, which runs until its next barrier,
// or until an instruction that its warp executes together.
//
// The kernels' text is compiled as it is. Shared memory is poisoned before each block, and the threads run in an order that the
// caller chooses, so that what depends on a missing barrier shows. Asynchronous copies arrive as early as they may where threads
// run forwards, as late where they run backwards, and some so, some so where they are shuffled. A barrier that not all threads of
// a block reach is an error, and so is an instruction of a warp, or of four, that not all of its threads reach.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#include "sanitizers.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section(SHARED_SECTION)))

namespace vdla {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

enum Order { FORWARDS, BACKWARDS, SHUFFLED };
enum Result { DONE, DIVERGENT_BARRIER, DIVERGENT_WARP, DEADLOCK, FAILED };
enum State { READY, AT_BARRIER, IN_WARP, IN_GROUP, SPINNING, FAULTY, ENDED };
constexpr unsigned WARP = 32, GROUP = 128;
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

struct Fibre;
// An asynchronous copy that has been started and has not arrived; `group` counts the groups that its thread had closed before.
struct Pending {
  void* to;
  const void* from;
  unsigned size;
  bool exists;
  uint64_t group;
};
// An instruction of a warp, or of four warps, on its lanes.
typedef void (*Together)(Fibre* const* lanes);
// A warp's part of an asynchronous product: it adds rows 16 * warp to 16 * warp + 15 of a times b to what the lanes hold at d.
typedef void (*Multiply)(float* const* d, uint64_t a, uint64_t b, unsigned warp);
struct Product {
  Multiply multiply;
  float* d;
  uint64_t a, b, group;
  unsigned warp;
};

// A box that the copy engine has been asked for and has not brought; `at` begins with the element's place in its row.
struct Bulk {
  void* to;
  const void* map;
  unsigned long long* signal;
  int at[5];
};

struct Fibre {
  Index index;
  State state = READY;
  Together instruction = nullptr;
  void* operands[3] = {};
  std::vector<Pending> pending;  // asynchronous copies
  uint64_t groups = 0;           // of such copies
  std::vector<Product> products;
  uint64_t product_groups = 0;
  bool may_multiply = false, fenced = false;  // since it changed sums; since the last barrier
  char* memory = nullptr;                     // of its stack
  Stack stack;
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
  Order order = FORWARDS;
  char* shared = nullptr;
  std::vector<char> seen;  // shared memory as asynchronous instructions see it
  std::vector<Bulk> bulk;
  uint64_t changes = 0;  // of signals, for which threads may wait
  const char* failure = nullptr;  // what an instruction could not do
  uint64_t barriers = 0, bytes_read = 0, bytes_written = 0;  // bytes of main memory
  char passed[2], ended[2];  // places for ThreadSanitizer: of each second barrier, and of the end of each second block
  bool is_second = false;    // whether this block is one of the latter
  Stack stack;               // the scheduler's
#ifdef __x86_64__
  void* scheduler = nullptr;
#else
  ucontext_t scheduler;
#endif
};

static Block block;

// Go on with another fibre, in this state until it changes.
UNWATCHED static void leave(State state) {
  look_away();
  Fibre& fibre = *block.running;
  fibre.state = state;
  fibre.stack.leave_for(block.stack);
#ifdef __x86_64__
  vdla_switch(&fibre.pointer, block.scheduler);
#else
  swapcontext(&fibre.context, &block.scheduler);
#endif
  fibre.stack.arrive_from(block.stack);
  look_again();
}

UNWATCHED static void begin() {
  block.running->stack.arrive_from(block.stack);
  happened(&block.ended[!block.is_second]);
  block.kernel(block.arguments);
  happens(&block.ended[block.is_second]);
  leave(ENDED);
}

// Execute an instruction when all threads of the warp, or of four warps, are here.
static void together(Together instruction, void* a, const void* b, const void* c = nullptr, State state = IN_WARP) {
  Fibre& fibre = *block.running;
  fibre.instruction = instruction;
  fibre.operands[0] = a;
  fibre.operands[1] = const_cast<void*>(b);
  fibre.operands[2] = const_cast<void*>(c);
  leave(state);
}

// Note what a thread, or an instruction of several, cannot do, and end the launch. An instruction returns to its end first.
static void fail(const char* what) {
  block.failure = what;
  if (block.running) leave(FAULTY);
}

static void check_aligned(const void* address, unsigned size) {
  if ((uintptr_t)address % size) fail("an access at an address that is no multiple of its size");
}

static void prepare(Fibre& fibre) {
  if (!fibre.memory) fibre.memory = static_cast<char*>(aligned_alloc(64, STACK_BYTES));
  fibre.stack.prepare(fibre.memory, STACK_BYTES);
  fibre.state = READY;
  fibre.pending.clear();
  fibre.groups = fibre.product_groups = 0;
  fibre.products.clear();
  fibre.may_multiply = fibre.fenced = false;
#ifdef __x86_64__
  void** top = reinterpret_cast<void**>(fibre.memory + STACK_BYTES) - 2;
  *top = reinterpret_cast<void*>(&begin);
  fibre.pointer = top - 6;  // six registers, whose first values do not matter
#else
  getcontext(&fibre.context);
  fibre.context.uc_stack.ss_sp = fibre.memory;
  fibre.context.uc_stack.ss_size = STACK_BYTES;
  fibre.context.uc_link = nullptr;
  makecontext(&fibre.context, begin, 0);
#endif
}

static void resume(Fibre& fibre) {
  block.running = &fibre;
  threadIdx = fibre.index;
  block.stack.leave_for(fibre.stack);
#ifdef __x86_64__
  vdla_switch(&block.scheduler, fibre.pointer);
#else
  swapcontext(&block.scheduler, &fibre.context);
#endif
  block.stack.arrive_from(fibre.stack);
  block.running = nullptr;
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

// Execute the instruction that a warp waits for, if it does; DIVERGENT_WARP where some of its threads do not.
static Result step_warp(unsigned first, unsigned threads, bool& stepped) {
  Fibre* lanes[WARP];
  unsigned count = std::min(WARP, threads - first), waiting = 0;
  for (unsigned i = 0; i < count; ++i) lanes[i] = &fibres[first + i];
  if (std::none_of(lanes, lanes + count, [](Fibre* lane) { return lane->state == IN_WARP; })) return DONE;
  if (std::any_of(lanes, lanes + count, [](Fibre* lane) { return lane->state == SPINNING; })) return DONE;
  for (unsigned i = 0; i < count; ++i)
    waiting += lanes[i]->state == IN_WARP && lanes[i]->instruction == lanes[0]->instruction;
  if (waiting != WARP) return DIVERGENT_WARP;
  lanes[0]->instruction(lanes);
  for (Fibre* lane : lanes) lane->state = READY;
  stepped = true;
  return DONE;
}

// As step_warp, for four warps.
static Result step_group(unsigned first, unsigned threads, bool& stepped) {
  Fibre* lanes[GROUP];
  unsigned count = std::min(GROUP, threads - first), waiting = 0;
  for (unsigned i = 0; i < count; ++i) lanes[i] = &fibres[first + i];
  if (std::none_of(lanes, lanes + count, [](Fibre* lane) { return lane->state == IN_GROUP; })) return DONE;
  if (std::any_of(lanes, lanes + count, [](Fibre* lane) { return lane->state == SPINNING; })) return DONE;
  for (unsigned i = 0; i < count; ++i)
    waiting += lanes[i]->state == IN_GROUP && lanes[i]->instruction == lanes[0]->instruction &&
               std::equal(lanes[i]->operands + 1, lanes[i]->operands + 3, lanes[0]->operands + 1);
  if (waiting != GROUP) return DIVERGENT_WARP;
  lanes[0]->instruction(lanes);
  for (Fibre* lane : lanes) lane->state = READY;
  stepped = true;
  return DONE;
}

// Let some warps run until they wait: one after the other, each as far as it gets alone, or all mixed.
static Result run_warps(unsigned first, unsigned end, unsigned threads, std::vector<unsigned>& order, Order wish,
                        uint64_t& state) {
  unsigned warps = (end - first + WARP - 1) / WARP, together = wish == SHUFFLED ? warps : 1;
  for (unsigned number = 0; number < warps; number += together) {
    unsigned begin = first + (wish == BACKWARDS ? warps - 1 - number : number) * WARP;
    unsigned stop = std::min(end, begin + together * WARP);
    for (bool stepped = true; stepped;) {
      stepped = false;
      if (wish == SHUFFLED) arrange(order, wish, state);
      for (unsigned thread : order)
        if (thread >= begin && thread < stop && fibres[thread].state == READY && !block.failure) resume(fibres[thread]);
      for (unsigned warp = begin; warp < stop; warp += WARP)
        if (Result result = step_warp(warp, threads, stepped)) return result;
      if (block.failure) return FAILED;
    }
  }
  return DONE;
}

// The same for warpgroups.
static Result run_groups(unsigned threads, std::vector<unsigned>& order, Order wish, uint64_t& state) {
  unsigned groups = (threads + GROUP - 1) / GROUP, together = wish == SHUFFLED ? groups : 1;
  for (unsigned number = 0; number < groups; number += together) {
    unsigned first = (wish == BACKWARDS ? groups - 1 - number : number) * GROUP;
    unsigned end = std::min(threads, first + together * GROUP);
    for (bool stepped = true; stepped;) {
      stepped = false;
      if (Result result = run_warps(first, end, threads, order, wish, state)) return result;
      for (unsigned group = first; group < end; group += GROUP)
        if (Result result = step_group(group, threads, stepped)) return result;
      if (block.failure) return FAILED;
    }
  }
  return DONE;
}

// The same for all threads; those that wait for a signal look again whenever one has changed.
static Result run_threads(unsigned threads, std::vector<unsigned>& order, Order wish, uint64_t& state) {
  for (;;) {
    uint64_t changes = block.changes;
    if (Result result = run_groups(threads, order, wish, state)) return result;
    unsigned spinning = 0;
    for (unsigned i = 0; i < threads; ++i)
      if (fibres[i].state == SPINNING) {
        fibres[i].state = READY;
        ++spinning;
      }
    if (!spinning) return DONE;
    if (changes == block.changes) return DEADLOCK;
  }
}

// Run the threads of a block to their end. What all of them have fenced before a barrier, asynchronous instructions see behind it.
static Result run_block(unsigned threads, std::vector<unsigned>& order, Order wish, uint64_t& state) {
  for (;;) {
    if (Result result = run_threads(threads, order, wish, state)) return result;
    unsigned ended = 0, fenced = 0;
    for (unsigned i = 0; i < threads; ++i) {
      ended += fibres[i].state == ENDED;
      fenced += fibres[i].fenced;
    }
    if (ended == threads) return DONE;
    if (ended) return DIVERGENT_BARRIER;
    ++block.barriers;
    if (fenced == threads) copy(block.seen.data(), block.shared, block.seen.size());
    for (unsigned i = 0; i < threads; ++i) {
      fibres[i].state = READY;
      fibres[i].fenced = false;
    }
  }
}

// Runs a kernel. One without barriers needs no fibres: its threads run one after the other.
static Result launch(void (*kernel)(void**), void** arguments, Index grid, Index size, Order wish, bool waits,
                     char* shared, size_t shared_bytes, uint64_t* counts) {
  Launching launching(block.ended);
  block.stack.prepare();
  waits |= WATCHES_THREADS;
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
  block.order = wish;
  block.failure = nullptr;
  block.shared = shared;
  block.barriers = block.bytes_read = block.bytes_written = 0;
  for (unsigned number : block_order) {
    blockIdx = index_of(number, grid);
    block.is_second = !block.is_second;
    fill(shared, (char)POISON, shared_bytes);
    block.seen.assign(shared_bytes, (char)POISON);
    block.bulk.clear();
    if (!waits) {
      for (unsigned thread : order) {
        threadIdx = index_of(thread, size);
        kernel(arguments);
      }
      if (block.failure) return FAILED;
      continue;
    }
    for (unsigned i = 0; i < threads; ++i) {
      prepare(fibres[i]);
      fibres[i].index = index_of(i, size);
    }
    if (Result result = run_block(threads, order, wish, state)) return result;
  }
  counts[0] += block.barriers;
  counts[1] += block.bytes_read;
  counts[2] += block.bytes_written;
  return DONE;
}

}  // namespace vdla

static inline void __syncthreads() {
  char* place = &vdla::block.passed[vdla::block.barriers % 2];
  vdla::happens(place);
  vdla::leave(vdla::AT_BARRIER);
  vdla::happened(place);
}
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
#include "warp.h"
