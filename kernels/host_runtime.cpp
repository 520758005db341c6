// What the threads of a block do with each other in the host build (device_host.h): barriers, exchanges in a warp, matrix
// products, copies in the background, and the threads themselves. One shared library, which every module is linked to.
#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>
#ifdef LUCE_HOST_THREADS
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#endif

#include "device.h"

namespace luce_host {

LUCE_LOCAL Place* block = nullptr;
LUCE_LOCAL i32 current = 0;

namespace {

struct Failure {};

#ifdef LUCE_HOST_THREADS
// What threads wait at: a lock of its own, so that waiting at one thing orders nothing else (and races stay visible).
struct Meeting {
  std::mutex lock;
  std::condition_variable changed;
};
#else
struct Meeting {};
#endif

struct Barrier : Meeting {
  i32 arrived = 0, expected = 0;
  u64 phase = 0;
};

struct Barriers { Barrier of[16]; };

struct Copy { void* to; const void* from; u32 bytes; };
struct Store { f32* to; const f32* from; u32 bytes; bool adds; };

// Stands beside an mbarrier's u64, found by its address.
struct Phase : Meeting {
  const void* at = nullptr;
  u32 count = 0, arrived = 0, phase = 0;
  i64 pending = 0;
  std::vector<Copy> copies;
};

struct Warp : Meeting {
  i32 arrived = 0;
  u64 round = 0;
  Payload payload[2][WARP];
  std::vector<f64> products[2];  // of a matrix instruction
};

struct Block : Place {
  std::vector<Barriers> barriers;  // by block
  Barrier together;
  std::vector<Warp> warps;
  std::vector<std::vector<Store>> stores;  // by thread
  std::deque<Phase> phases;
#ifdef LUCE_HOST_THREADS
  std::mutex phases_lock;
  std::atomic<bool> failed{false};
#else
  u64 changes = 0;  // moves on whenever anybody gets further: none for a whole round is a deadlock
#endif
  std::string failure;

  Block(i32 threads_of_each, i32 blocks)
      : Place{threads_of_each * blocks, threads_of_each, {}, {}, nullptr, 0, 0},
        barriers((size_t)blocks),
        warps((size_t)(threads / WARP)),
        stores((size_t)threads) {}
};

Block& here() { return *(Block*)block; }
Warp& warp_here() { return here().warps[(size_t)(current / WARP)]; }
i32 rank_here() { return current / block->each; }

[[noreturn]] void fail_with(const std::string& what);

#ifdef LUCE_HOST_THREADS
void give_up_if_another_failed() {
  if (here().failed) throw Failure{};
}
struct Lock {
  std::unique_lock<std::mutex> held;
  Meeting& meeting;
  explicit Lock(Meeting& at) : held(at.lock), meeting(at) {}
  void arrive() {}  // others need not look: nothing that they wait for has come
  void change() { meeting.changed.notify_all(); }
  template <class Done> void wait(Done done) {
    while (!done()) {
      give_up_if_another_failed();
      if (meeting.changed.wait_for(held, std::chrono::seconds(20)) == std::cv_status::timeout && !done())
        fail_with("deadlock: nobody comes");
    }
  }
};
void fail_with(const std::string& what) {
  if (!here().failed.exchange(true)) here().failure = what;
  throw Failure{};
}
#else
// Goes from one block to the next on its stack: to make a context costs two calls of the system.
struct Fiber {
  jmp_buf at;
  ucontext_t start;
  u8* stack;
  bool started = false, done = false;
};
std::deque<Fiber> fibers;  // those of the largest block so far
jmp_buf scheduler;
constexpr size_t STACK = 256 * 1024, GUARD = 64 * 1024;

// Below it lies memory that nobody may touch: a stack that is too small ends the process and never writes into another.
u8* guarded_stack() {
  u8* made = (u8*)mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED || mprotect(made, GUARD, PROT_NONE)) abort();
  return made + GUARD;
}

void yield_() {
  if (!_setjmp(fibers[(size_t)current].at)) _longjmp(scheduler, 1);
}
struct Lock {
  explicit Lock(Meeting&) {}
  void arrive() { here().changes++; }
  void change() { here().changes++; }
  template <class Done> void wait(Done done) {
    while (!done()) yield_();
  }
};
void fail_with(const std::string& what) {
  here().failure = what;
  _longjmp(scheduler, 2);
}
#endif

void meet_at(Barrier& barrier, i32 threads, bool wait) {
  Lock lock(barrier);
  if (barrier.arrived && barrier.expected != threads) fail_with("a barrier is used with different numbers of threads");
  barrier.expected = threads;
  u64 phase = barrier.phase;
  lock.arrive();
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    barrier.phase++;
    lock.change();
  } else if (wait) {
    lock.wait([&] { return barrier.phase != phase; });
  }
}

// The last lane to come does `complete` before anybody goes on. Says which of both sides holds the words.
template <class Complete> u64 exchanged(Warp& warp, const Payload& mine, Complete complete) {
  Lock lock(warp);
  u64 round = warp.round;
  warp.payload[round & 1][current % WARP] = mine;
  lock.arrive();
  if (++warp.arrived == WARP) {
    complete(round & 1);
    warp.arrived = 0;
    warp.round++;
    lock.change();
  } else {
    lock.wait([&] { return warp.round != round; });
  }
  return round & 1;
}

typedef f64 Eight __attribute__((vector_size(64)));
f64 bf16_half(u32 word, int half) { return as_f32(half ? word & 0xffff0000u : word << 16); }

// The products of a warp, by groups of 8 columns, rows, columns. They are exact in f64, sums go up in k.
void product(f64* to, const Payload* all, i32 columns, const Tile* tile) {
  f64 a[16][16];
  for (i32 lane = 0; lane < WARP; lane++)
    for (i32 word = 0; word < 4; word++)
      for (i32 half = 0; half < 2; half++)
        a[lane / 4 + (word & 1) * 8][(word >> 1) * 8 + lane % 4 * 2 + half] = bf16_half(all[lane].words[word], half);
  for (i32 j = 0; j < columns / 8; j++) {
    f64 b[16][8];
    for (i32 lane = 0; lane < WARP; lane++) {
      u32 pair[2] = {all[lane].words[4], all[lane].words[5]};
      if (tile) {
        const u8* core = tile->at + (u32)j * tile->column_stride + lane * 4;
        pair[0] = *(const u32*)core, pair[1] = *(const u32*)(core + tile->k_stride);
      }
      for (i32 word = 0; word < 2; word++)
        for (i32 half = 0; half < 2; half++) b[word * 8 + lane % 4 * 2 + half][lane / 4] = bf16_half(pair[word], half);
    }
    for (i32 row = 0; row < 16; row++) {
      Eight sum = {};
      for (i32 k = 0; k < 16; k++) {
        Eight right;
        memcpy(&right, b[k], sizeof right);
        sum += a[row][k] * right;
      }
      memcpy(to + (j * 16 + row) * 8, &sum, sizeof sum);
    }
  }
}

Phase& phase_of(const void* bar) {
#ifdef LUCE_HOST_THREADS
  std::lock_guard<std::mutex> guard(here().phases_lock);
#endif
  for (Phase& phase : here().phases)
    if (phase.at == bar) return phase;
  fail_with("an mbarrier is used before bar_init");
}

void deliver(Phase& phase) {
  for (const Copy& copy : phase.copies) {
    memcpy(copy.to, copy.from, copy.bytes);
    phase.pending -= copy.bytes;
  }
  phase.copies.clear();
}
void settle(Phase& phase) {
  if (phase.arrived == phase.count && phase.pending == 0) {
    phase.arrived = 0;
    phase.phase++;
  }
}

#ifdef LUCE_HOST_THREADS
void run_threads(void (*run)(const void*), const void* call) {
  std::vector<std::thread> threads;
  Place* mine = block;
  for (i32 i = 0; i < mine->threads; i++)
    threads.emplace_back([=] {
      block = mine;
      current = i;
      try { run(call); } catch (const Failure&) {}
    });
  for (auto& thread : threads) thread.join();
}
#else
void (*entry)(const void*);
const void* entry_call;
void fiber_main() {
  for (;;) {
    entry(entry_call);
    fibers[(size_t)current].done = true;
    here().changes++;
    yield_();
  }
}
void start(Fiber& fiber) {
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack;
  fiber.start.uc_stack.ss_size = STACK;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, fiber_main, 0);
  setcontext(&fiber.start);
}
// False: a thread has failed, or none gets further.
bool run_fibers() {
  const i32 threads = block->threads;
  volatile i32 left = threads, idle = 0;
  for (volatile i32 next = 0; left > 0; next = next + 1 == threads ? 0 : next + 1) {
    volatile u64 before = here().changes;
    if (!fibers[(size_t)next].done) {
      current = next;
      int how = _setjmp(scheduler);
      if (how == 2) return false;
      if (how == 0) {
        Fiber& fiber = fibers[(size_t)next];
        if (fiber.started) _longjmp(fiber.at, 1);
        start(fiber);
      }
      if (fibers[(size_t)next].done) left = left - 1;
    }
    idle = here().changes == before ? idle + 1 : 0;
    if (idle > 2 * threads) {
      here().failure = "deadlock: no thread of the block gets further";
      return false;
    }
  }
  return true;
}
void run_threads(void (*run)(const void*), const void* call) {
  entry = run;
  entry_call = call;
  while ((i32)fibers.size() < block->threads) fibers.emplace_back().stack = guarded_stack();
  for (i32 i = 0; i < block->threads; i++) fibers[(size_t)i].done = false;
  if (!run_fibers())
    for (Fiber& fiber : fibers) fiber.started = false;  // some stand in the middle of the kernel
}
#endif

}  // namespace

void fail(const char* what) { fail_with(what); }

void meet(i32 id, i32 threads, bool wait) { meet_at(here().barriers[(size_t)rank_here()].of[id], threads, wait); }
void meet_cluster() { meet_at(here().together, block->threads, true); }

const Payload* exchange(const Payload& mine) {
  Warp& warp = warp_here();
  return warp.payload[exchanged(warp, mine, [](u64) {})];
}

void multiply(f32* d, const Payload& mine, i32 columns, bool keep, const Tile* tile) {
  Warp& warp = warp_here();
  const f64* sums = warp.products[exchanged(warp, mine, [&](u64 side) {
    warp.products[side].resize((size_t)(16 * columns));
    product(warp.products[side].data(), warp.payload[side], columns, tile);
  })].data();
  i32 lane = current % WARP;
  for (i32 j = 0; j < columns / 8; j++)
    for (i32 i = 0; i < 4; i++) {
      f64 sum = sums[(j * 16 + lane / 4 + (i >> 1) * 8) * 8 + lane % 4 * 2 + (i & 1)];
      d[4 * j + i] = (f32)((keep ? d[4 * j + i] : 0.0f) + sum);
    }
}

void let_others_run() {
#ifdef LUCE_HOST_THREADS
  give_up_if_another_failed();
  std::this_thread::yield();
#else
  yield_();
#endif
}
void changed() {
#ifndef LUCE_HOST_THREADS
  here().changes++;
#endif
}

void bar_init(u64* bar, u32 count) {
#ifdef LUCE_HOST_THREADS
  std::lock_guard<std::mutex> guard(here().phases_lock);
#endif
  Phase& phase = here().phases.emplace_back();
  phase.at = bar;
  phase.count = count;
}
void bar_expect(u64* bar, u32 bytes) {
  Phase& phase = phase_of(bar);
  Lock lock(phase);
  phase.pending += bytes;
  phase.arrived++;
  settle(phase);
  lock.change();
}
void bar_bytes(u64* bar, u32 bytes) {
  Phase& phase = phase_of(bar);
  Lock lock(phase);
  phase.pending -= bytes;
  settle(phase);
  lock.change();
}
void bar_wait(u64* bar, u32 parity) {
  Phase& phase = phase_of(bar);
  Lock lock(phase);
  lock.wait([&] {
    if ((phase.phase & 1) == parity && phase.arrived == phase.count) {
      deliver(phase);
      settle(phase);
      lock.change();
    }
    return (phase.phase & 1) != parity;
  });
}
void bulk_load(void* to, const void* from, u32 bytes, u64* bar) {
  if (((u64)to | (u64)from | bytes) & 15) fail_with("a bulk copy that is not a multiple of 16 bytes");
  Phase& phase = phase_of(bar);
  Lock lock(phase);
  memset(to, 0xff, bytes);
  phase.copies.push_back({to, from, bytes});
  lock.change();
}

void bulk_store(f32* to, const f32* from, u32 bytes, bool adds) {
  here().stores[(size_t)current].push_back({to, from, bytes, adds});
}
void bulk_store_wait() {
  std::vector<Store>& mine = here().stores[(size_t)current];
  for (const Store& one : mine)
    for (u32 i = 0; i < one.bytes / 4; i++) one.to[i] = one.adds ? one.to[i] + one.from[i] : one.from[i];
  mine.clear();
}

const char* launch(void (*run)(const void*), const void* call, i32 most, i32 together, const i32* shape, i64 shared) {
  static std::string failure;
  i32 threads = shape[3];
  if (threads <= 0 || threads > most || threads % WARP) {
    failure = "a block of " + std::to_string(threads) + " threads; the kernel takes multiples of 32 up to " + std::to_string(most);
    return failure.c_str();
  }
  if (shared > 232448) return "more than 227 KiB of shared memory";
  if (shape[0] % together) return "a grid that is no multiple of the cluster";
  for (i32 z = 0; z < shape[2]; z++)
    for (i32 y = 0; y < shape[1]; y++)
      for (i32 x = 0; x < shape[0]; x += together) {
        Block now(threads, together);
        now.index[0] = x, now.index[1] = y, now.index[2] = z;
        for (int i = 0; i < 3; i++) now.grid[i] = shape[i];
        now.shared_bytes = shared;
        now.shared_step = (shared + 1023) / 1024 * 1024 + 1024;
        now.shared = (u8*)aligned_alloc(1024, (size_t)(now.shared_step * together));
        memset(now.shared, 0xff, (size_t)(now.shared_step * together));
        block = &now;
        run_threads(run, call);
        free(now.shared);
        block = nullptr;
        if (!now.failure.empty()) {
          failure = "block (" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + "), thread " +
                    std::to_string(current) + ": " + now.failure;
          return failure.c_str();
        }
      }
  return nullptr;
}

}  // namespace luce_host
