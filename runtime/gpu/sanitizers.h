// What the sanitizers of g++ must know of fibres, in texts that are compiled with -fsanitize=address or thread; nothing otherwise.
//
// AddressSanitizer: on which stack the processor is, and that shared memory has gaps between its arrays, which nobody may touch.
// ThreadSanitizer: which fibre runs, that a barrier orders what is before and behind it, and that blocks follow one another. It
// watches the fibres, not what runs them; of instructions of a whole warp it knows what `ldmatrix` reads.
#pragma once
#include <cstddef>
#include <cstring>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void __tsan_unaligned_read16(void* place);
}
#define UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define UNWATCHED
#endif

namespace vdla {

#ifdef __SANITIZE_THREAD__
constexpr bool WATCHES_THREADS = true;
#else
constexpr bool WATCHES_THREADS = false;
#endif

#ifdef __SANITIZE_ADDRESS__
// Shared memory with its gaps, where memset and memcpy would be refused.
#define GAPS_TOO __attribute__((no_sanitize("address"), optimize("no-tree-loop-distribute-patterns")))
GAPS_TOO static void fill(char* to, char value, size_t size) {
  for (size_t i = 0; i < size; ++i) to[i] = value;
}
GAPS_TOO static void copy(char* to, const char* from, size_t size) {
  for (size_t i = 0; i < size; ++i) to[i] = from[i];
}
#else
static inline void fill(char* to, char value, size_t size) { memset(to, value, size); }
static inline void copy(char* to, const char* from, size_t size) { memcpy(to, from, size); }
#endif

// A stack, and what the sanitizers know of it.
struct Stack {
  const void* bottom = nullptr;
  size_t size_bytes = 0;
  void* saved = nullptr;  // AddressSanitizer's
  void* thread = nullptr;  // ThreadSanitizer's

  // Before a fibre begins anew on this stack, whose last one may have been left anywhere.
  void prepare(const void* memory, size_t size) {
    bottom = memory;
    size_bytes = size;
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(memory, size);
#endif
#ifdef __SANITIZE_THREAD__
    if (!thread) thread = __tsan_create_fiber(0);
#endif
  }

  // Before the first fibre begins, on the stack of the process.
  void prepare() {
#ifdef __SANITIZE_THREAD__
    thread = __tsan_get_current_fiber();
#endif
  }

  // Before the processor goes on another stack.
  UNWATCHED void leave_for(const Stack& other) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&saved, other.bottom, other.size_bytes);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(other.thread, __tsan_switch_to_fiber_no_sync);
#endif
    (void)other;
  }

  // When it is on this stack again, or for the first time; where it comes from.
  UNWATCHED void arrive_from(Stack& other) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(saved, &other.bottom, &other.size_bytes);
#endif
    (void)other;
  }
};

// From here on, what this fibre does is not watched.
UNWATCHED static inline void look_away() {
#ifdef __SANITIZE_THREAD__
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
}

UNWATCHED static inline void look_again() {
#ifdef __SANITIZE_THREAD__
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
}

// Everything before a `happens` of any fibre is before what follows a `happened` on the same place.
UNWATCHED static inline void happens(void* place) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(place);
#endif
  (void)place;
}

UNWATCHED static inline void happened(void* place) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(place);
#endif
  (void)place;
}

// The running fibre reads 16 bytes by an instruction that its whole warp executes.
UNWATCHED static inline void reads_16(const void* place) {
#ifdef __SANITIZE_THREAD__
  __tsan_unaligned_read16(const_cast<void*>(place));
#endif
  (void)place;
}

// While kernels run: the function that runs them is not watched, and all that it did before and does afterwards is before and
// behind what fibres do, which have these places for that.
struct Launching {
  char (&places)[2];
  explicit Launching(char (&places)[2]) : places(places) {
    look_away();
    for (char& place : places) happens(&place);
  }
  ~Launching() {
    for (char& place : places) happened(&place);
    look_again();
  }
};

}  // namespace vdla
