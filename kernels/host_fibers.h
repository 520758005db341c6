// How one thread of the system runs all threads of a block (host_runtime.cpp): each has a stack of its own and runs until it
// has to wait. Warps have turns; in its turn a warp's lanes run one after the other, round after round, for as long as any of
// them gets further. So what is in use at a time are 32 stacks, and they fit the nearest cache.
#pragma once

#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <string>
#include <vector>

#include "device.h"

namespace luce_host {
namespace {

// The compiler's own jumps are a few instructions, the C library's a few dozen. Clang has them for some machines only.
#if defined(__clang__) && !defined(__x86_64__)
typedef jmp_buf Mark;
#define LUCE_MARK(at) _setjmp(at)
#define LUCE_JUMP(at) _longjmp(at, 1)
#else
typedef void* Mark[5];
#define LUCE_MARK(at) __builtin_setjmp(at)
#define LUCE_JUMP(at) __builtin_longjmp(at, 1)
#endif

constexpr size_t STACK = 256 * 1024, GUARD = 64 * 1024;
constexpr i32 ROUNDS = 64;  // in a turn: a warp that only ever asks whether something is there lets others run

// Goes from one block to the next on its stack: to make a context costs two calls of the system.
struct Fiber {
  Mark at;
  u8* stack;
  bool started;
};
// It waits while the counter says so.
struct Wait {
  const u64* counter;
  u64 value;
};

struct Turn {
  i32 warps, warp, lane, rounds, idle, left;
  u64 before;
};

std::vector<Fiber> fibers;  // those of the largest block so far
std::vector<Wait> waits;
Turn turn;
Mark scheduler;
u64 changes;  // moves on whenever anybody gets further
const char* stopped;  // why nobody goes on, if not because all are done
void (*entry)(const void*);
const void* entry_call;
const u64 NOTHING = 0;
constexpr Wait READY = {&NOTHING, 1}, DONE = {&NOTHING, 0};

// Below it lies memory that nobody may touch: a stack that is too small ends the process and never writes into another.
u8* guarded_stack() {
  u8* made = (u8*)mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED || mprotect(made, GUARD, PROT_NONE)) abort();
  return made + GUARD;
}

// What jumps and what marks are functions of their own: none may jump to its own mark.
[[noreturn]] __attribute__((noinline)) void stop(const char* why) {
  stopped = why;
  LUCE_JUMP(scheduler);
}

[[noreturn]] void fiber_main();
[[noreturn]] void start(i32 thread) {
  Fiber& fiber = fibers[(size_t)thread];
  fiber.started = true;
  static ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack;
  // Not all begin at the same address of a page: they would take the same few lines of the cache from each other.
  context.uc_stack.ss_size = STACK - (size_t)(thread % WARP) * 128;
  context.uc_link = nullptr;
  makecontext(&context, fiber_main, 0);
  setcontext(&context);
  abort();
}

[[noreturn]] __attribute__((noinline)) void run_next() {
  for (;;) {
    if (++turn.lane == WARP) {
      turn.lane = 0;
      bool further = changes != turn.before;
      turn.before = changes;
      turn.idle = further ? 0 : turn.idle + 1;
      if (turn.idle > 2 * turn.warps) stop("deadlock: no thread of the block gets further");
      if (!further || ++turn.rounds == ROUNDS) {
        turn.rounds = 0;
        if (++turn.warp == turn.warps) turn.warp = 0;
      }
    }
    i32 next = turn.warp * WARP + turn.lane;
    const Wait& wait = waits[(size_t)next];
    if (*wait.counter == wait.value) continue;
    current = next;
    if (!fibers[(size_t)next].started) start(next);
    LUCE_JUMP(fibers[(size_t)next].at);
  }
}

__attribute__((noinline)) void yield_() {
  if (!LUCE_MARK(fibers[(size_t)current].at)) run_next();
}
__attribute__((noinline)) void yield_for_good() {
  if (!LUCE_MARK(fibers[(size_t)current].at)) stop(nullptr);
}

void yield_while(const u64& counter, u64 value) {
  i32 mine = current;
  waits[(size_t)mine] = {&counter, value};
  yield_();
  waits[(size_t)mine] = READY;
}

void fiber_main() {
  for (;;) {
    entry(entry_call);
    waits[(size_t)current] = DONE;
    changes++;
    if (--turn.left) yield_();
    else yield_for_good();  // until the next block begins
  }
}

__attribute__((noinline)) void run_until_stopped() {
  if (!LUCE_MARK(scheduler)) run_next();
}

// Why a thread has failed, or none gets further; null: all are done.
const char* run_fibers(i32 threads, void (*run)(const void*), const void* call) {
  entry = run;
  entry_call = call;
  while ((i32)fibers.size() < threads) fibers.push_back({{}, guarded_stack(), false});
  waits.assign((size_t)threads, READY);
  turn = {threads / WARP, 0, -1, 0, 0, threads, changes};
  run_until_stopped();
  if (stopped)
    for (Fiber& fiber : fibers) fiber.started = false;  // some stand in the middle of the kernel
  return stopped;
}

}  // namespace
}  // namespace luce_host
