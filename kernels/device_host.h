// The host build: a block's threads run on the CPU, so that every kernel can be tested without a GPU. Included by device.h.
//
// Two ways to run threads, chosen at compile time. Fibers (the default) are quick and run in one fixed order. With
// LUCE_HOST_THREADS each is a thread of the system, so that the address and thread sanitizers see what races and what
// strays; keep those cases small. Blocks (with CLUSTER: clusters of them) run one after another, so a block that waits for a later one is a deadlock; it
// is reported, as is every trap. Shared memory starts as NaN in every block; a bulk copy poisons its destination at
// once and delivers when somebody waits for it, so that nobody can read too early unnoticed.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>
#ifdef LUCE_HOST_THREADS
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#endif

#define DEVICE static inline
#define METHOD inline
#define DEVICE_CALL static inline
#define LUCE_KERNEL(name, threads)                       \
  static const int name##_max_threads = threads;         \
  static void name
#define LUCE_KERNEL_RESIDENT(name, threads, blocks) LUCE_KERNEL(name, threads)
#define LUCE_KERNEL_CLUSTER(name, threads, blocks, cluster) LUCE_KERNEL(name, threads)
// The entry that the host device calls: 0, or what went wrong.
#define LUCE_EXPORT(name)                                                                        \
  extern "C" __attribute__((visibility("default"))) const char* name##_host(const i32* shape, i64 shared, void** arguments) { \
    return luce_host::launch(name, name##_max_threads, shape, shared, arguments);                 \
  }
#define RESTRICT __restrict__
#define UNROLL
#define NO_UNROLL
#define HAS_MMA 1
#define HAS_WMMA 0
#define HAS_BULK 1
#define HAS_WGMMA 1
#define HAS_PDL 1

namespace luce_host {

#ifdef CLUSTER
constexpr i32 BLOCKS_TOGETHER = CLUSTER;
#else
constexpr i32 BLOCKS_TOGETHER = 1;
#endif

struct Failure { std::string what; };

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

struct Copy { void* to; const void* from; u32 bytes; };

// Stands beside an mbarrier's u64, found by its address.
struct Phase : Meeting {
  const void* at = nullptr;
  u32 count = 0, arrived = 0, phase = 0;
  i64 pending = 0;
  std::vector<Copy> copies;
};

struct Payload { u32 words[8]; };

struct Warp : Meeting {
  i32 arrived = 0;
  u64 round = 0;
  Payload payload[2][WARP];
  std::vector<f64> products[2];  // of a matrix instruction
};

// A block, or a cluster of them: block `rank` has threads rank * each .. and the rank-th piece of the shared memory.
struct Block {
  i32 threads = 0, each = 0, index[3] = {}, grid[3] = {};
  u8* shared = nullptr;
  i64 shared_bytes = 0, shared_step = 0;
  Barrier barriers[BLOCKS_TOGETHER][16], together;
  std::vector<Warp*> warps;
  std::vector<Barrier*> groups;  // of four warps
  std::deque<Phase> phases;
#ifdef LUCE_HOST_THREADS
  std::mutex phases_lock;
  std::atomic<bool> failed{false};
#else
  u64 changes = 0;  // moves on whenever anybody gets further: none for a whole round is a deadlock
#endif
  Failure failure;
};

#ifdef LUCE_HOST_THREADS
#define LUCE_LOCAL thread_local
#else
#define LUCE_LOCAL
#endif
inline LUCE_LOCAL Block* block = nullptr;
inline LUCE_LOCAL i32 current = 0;

[[noreturn]] void fail(const std::string& what);

#ifdef LUCE_HOST_THREADS
struct Lock {
  std::unique_lock<std::mutex> held;
  Meeting& meeting;
  explicit Lock(Meeting& at) : held(at.lock), meeting(at) {}
  void arrive() {}  // others need not look: nothing that they wait for has come
  void change() { meeting.changed.notify_all(); }
  template <class Done> void wait(Done done) {
    while (!done()) {
      if (block->failed) throw Failure{"another thread failed"};
      if (meeting.changed.wait_for(held, std::chrono::seconds(20)) == std::cv_status::timeout && !done())
        fail("deadlock: nobody comes");
    }
  }
};
[[noreturn]] inline void fail(const std::string& what) {
  if (!block->failed.exchange(true)) block->failure.what = what;
  throw Failure{what};
}
#else
struct Fiber {
  jmp_buf at;
  ucontext_t start;
  bool running = false, done = false;
};
inline std::vector<Fiber>* fibers = nullptr;
inline std::vector<u8*> stacks;
inline jmp_buf scheduler;
constexpr size_t STACK = 256 * 1024, GUARD = 64 * 1024;

// Below it lies memory that nobody may touch: a stack that is too small ends the process and never writes into another.
inline u8* guarded_stack() {
  u8* made = (u8*)mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED || mprotect(made, GUARD, PROT_NONE)) abort();
  return made + GUARD;
}

inline void yield_() {
  if (!_setjmp((*fibers)[current].at)) _longjmp(scheduler, 1);
}
struct Lock {
  explicit Lock(Meeting&) {}
  void arrive() { block->changes++; }
  void change() { block->changes++; }
  template <class Done> void wait(Done done) {
    while (!done()) yield_();
  }
};
[[noreturn]] inline void fail(const std::string& what) {
  block->failure.what = what;
  _longjmp(scheduler, 2);
}
#endif

inline void meet(Barrier& barrier, i32 threads, bool wait) {
  Lock lock(barrier);
  if (barrier.arrived && barrier.expected != threads) fail("a barrier is used with different numbers of threads");
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

// All lanes of a warp show their words to each other, and the last to come does `complete` before anybody goes on. Says which
// of both sides holds the words; it stays valid until the lane's next exchange but one.
template <class Complete> u64 exchange(Warp& warp, const Payload& mine, Complete complete) {
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
inline Warp& warp_here() { return *block->warps[current / WARP]; }
inline const Payload* exchange(const Payload& mine) {
  Warp& warp = warp_here();
  return warp.payload[exchange(warp, mine, [](u64) {})];
}

typedef f64 Eight __attribute__((vector_size(64)));
inline f64 bf16_half(u32 word, int half) {
  u32 bits = half ? word & 0xffff0000u : word << 16;
  f32 value;
  memcpy(&value, &bits, 4);
  return value;
}
// A warp's a[16 x 16] b[16 x columns], a in the fragments of m16n8k16; `words(all, lane, j, pair)` gives a lane's b0 and b1
// of columns 8 j to 8 j + 7. Products are exact in f64, sums go up in k. A lane's element i of such columns is fragment(j, i).
struct Products {
  const f64* at;
  f64 fragment(i32 j, i32 i) const {
    i32 lane = current % WARP;
    return at[(j * 16 + lane / 4 + (i >> 1) * 8) * 8 + lane % 4 * 2 + (i & 1)];
  }
};
template <class Words> Products multiply(const Payload& mine, i32 columns, Words words) {
  Warp& warp = warp_here();
  u64 side = exchange(warp, mine, [&](u64 now) {
    const Payload* all = warp.payload[now];
    warp.products[now].resize((size_t)(16 * columns));
    f64 a[16][16];
    for (i32 lane = 0; lane < WARP; lane++)
      for (i32 word = 0; word < 4; word++)
        for (i32 half = 0; half < 2; half++)
          a[lane / 4 + (word & 1) * 8][(word >> 1) * 8 + lane % 4 * 2 + half] = bf16_half(all[lane].words[word], half);
    for (i32 j = 0; j < columns / 8; j++) {
      f64 b[16][8];
      for (i32 lane = 0; lane < WARP; lane++) {
        u32 pair[2];
        words(all, lane, j, pair);
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
        memcpy(&warp.products[now][(size_t)(j * 16 + row) * 8], &sum, sizeof sum);
      }
    }
  });
  return {warp.products[side].data()};
}

inline Phase& phase_of(const void* bar) {
#ifdef LUCE_HOST_THREADS
  std::lock_guard<std::mutex> guard(block->phases_lock);
#endif
  for (Phase& phase : block->phases)
    if (phase.at == bar) return phase;
  fail("an mbarrier is used before bar_init");
}

inline void deliver(Phase& phase) {
  for (const Copy& copy : phase.copies) {
    memcpy(copy.to, copy.from, copy.bytes);
    phase.pending -= copy.bytes;
  }
  phase.copies.clear();
}
inline void settle(Phase& phase) {
  if (phase.arrived == phase.count && phase.pending == 0) {
    phase.arrived = 0;
    phase.phase++;
  }
}

template <class... Arguments, size_t... At>
void call(void (*kernel)(Arguments...), void** arguments, std::index_sequence<At...>) {
  kernel(*(std::remove_reference_t<Arguments>*)arguments[At]...);
}

#ifndef LUCE_HOST_THREADS
inline void (*entry)(void*);
inline void* entry_data;
inline void fiber_main() {
  entry(entry_data);
  (*fibers)[current].done = true;
  block->changes++;
  _longjmp(scheduler, 1);
}
inline void run_fibers() {
  std::vector<Fiber> mine((size_t)block->threads);
  fibers = &mine;
  while (stacks.size() < mine.size())
    stacks.push_back(guarded_stack());
  volatile i32 left = block->threads;
  volatile i32 idle = 0;
  for (volatile i32 next = 0; left > 0; next = next + 1 == block->threads ? 0 : next + 1) {
    if (mine[next].done) {
      if (++idle > 2 * block->threads) { block->failure.what = "deadlock: no thread of the block gets further"; return; }
      continue;
    }
    current = next;
    volatile u64 before = block->changes;
    int how = _setjmp(scheduler);
    if (how == 0) {
      Fiber& fiber = mine[next];
      if (!fiber.running) {
        fiber.running = true;
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = stacks[(size_t)next];
        fiber.start.uc_stack.ss_size = STACK;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, fiber_main, 0);
        setcontext(&fiber.start);
      }
      _longjmp(fiber.at, 1);
    }
    if (how == 2) return;
    if (mine[next].done) left = left - 1;
    idle = block->changes == before ? idle + 1 : 0;
    if (idle > 2 * block->threads) { block->failure.what = "deadlock: no thread of the block gets further"; return; }
  }
}
#endif

template <class Run> void run_block(Run run) {
#ifdef LUCE_HOST_THREADS
  std::vector<std::thread> threads;
  Block* mine = block;
  for (i32 i = 0; i < mine->threads; i++)
    threads.emplace_back([=] {
      block = mine;
      current = i;
      try { run(); } catch (const Failure&) {}
    });
  for (auto& thread : threads) thread.join();
#else
  entry_data = &run;
  entry = [](void* data) { (*(Run*)data)(); };
  run_fibers();
#endif
}

template <class... Arguments>
const char* launch(void (*kernel)(Arguments...), int most, const i32* shape, i64 shared, void** arguments) {
  static std::string failure;
  i32 threads = shape[3];
  if (threads <= 0 || threads > most || threads % WARP) {
    failure = "a block of " + std::to_string(threads) + " threads; the kernel takes multiples of 32 up to " + std::to_string(most);
    return failure.c_str();
  }
  if (shared > 232448) return "more than 227 KiB of shared memory";
  if (shape[0] % BLOCKS_TOGETHER) return "a grid that is no multiple of the cluster";
  for (i32 z = 0; z < shape[2]; z++)
    for (i32 y = 0; y < shape[1]; y++)
      for (i32 x = 0; x < shape[0]; x += BLOCKS_TOGETHER) {
        Block here;
        here.each = threads;
        here.threads = threads * BLOCKS_TOGETHER;
        here.index[0] = x, here.index[1] = y, here.index[2] = z;
        for (int i = 0; i < 3; i++) here.grid[i] = shape[i];
        here.shared_bytes = shared;
        here.shared_step = (shared + 1023) / 1024 * 1024 + 1024;
        here.shared = (u8*)aligned_alloc(1024, (size_t)(here.shared_step * BLOCKS_TOGETHER));
        memset(here.shared, 0xff, (size_t)(here.shared_step * BLOCKS_TOGETHER));
        std::vector<Warp> warps((size_t)(here.threads / WARP));
        std::vector<Barrier> groups((size_t)((here.threads + 127) / 128));
        for (Warp& warp : warps) here.warps.push_back(&warp);
        for (Barrier& group : groups) here.groups.push_back(&group);
        block = &here;
        run_block([&] { call(kernel, arguments, std::index_sequence_for<Arguments...>{}); });
        free(here.shared);
        block = nullptr;
        if (!here.failure.what.empty()) {
          failure = "block (" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + "), thread " +
                    std::to_string(current) + ": " + here.failure.what;
          return failure.c_str();
        }
      }
  return nullptr;
}

}  // namespace luce_host

DEVICE i32 luce_rank() { return luce_host::BLOCKS_TOGETHER == 1 ? 0 : luce_host::current / luce_host::block->each; }
DEVICE i32 thread() { return luce_host::BLOCKS_TOGETHER == 1 ? luce_host::current : luce_host::current % luce_host::block->each; }
DEVICE i32 block_threads() { return luce_host::block->each; }
DEVICE i32 block_x() { return luce_host::block->index[0] + luce_rank(); }
DEVICE i32 block_y() { return luce_host::block->index[1]; }
DEVICE i32 block_z() { return luce_host::block->index[2]; }
DEVICE i32 grid_x() { return luce_host::block->grid[0]; }
DEVICE i32 grid_y() { return luce_host::block->grid[1]; }
DEVICE i32 grid_z() { return luce_host::block->grid[2]; }
DEVICE u8* shared_memory() { return luce_host::block->shared + luce_rank() * luce_host::block->shared_step; }
DEVICE void shared_ends(const void* at) {
  if ((const u8*)at > shared_memory() + luce_host::block->shared_bytes) luce_host::fail("too little shared memory for what the kernel lays out");
}

DEVICE u32 as_u32(f32 v) { u32 r; memcpy(&r, &v, 4); return r; }
DEVICE f32 as_f32(u32 v) { f32 r; memcpy(&r, &v, 4); return r; }
DEVICE u64 as_u64(f64 v) { u64 r; memcpy(&r, &v, 8); return r; }
DEVICE f64 as_f64(u64 v) { f64 r; memcpy(&r, &v, 8); return r; }

DEVICE void sync_block() { luce_host::meet(luce_host::block->barriers[luce_rank()][0], luce_host::block->each, true); }
DEVICE void sync_warp() { luce_host::exchange({}); }
DEVICE void barrier_sync(i32 id, i32 threads) { luce_host::meet(luce_host::block->barriers[luce_rank()][id], threads, true); }
DEVICE void barrier_arrive(i32 id, i32 threads) { luce_host::meet(luce_host::block->barriers[luce_rank()][id], threads, false); }
DEVICE u32 shfl(u32 v, i32 from) { return luce_host::exchange({{v}})[from & (WARP - 1)].words[0]; }
DEVICE u32 ballot_(bool v) {
  const luce_host::Payload* all = luce_host::exchange({{v}});
  u32 bits = 0;
  for (int i = 0; i < WARP; i++) bits |= all[i].words[0] << i;
  return bits;
}
DEVICE u32 most_of_warp(u32 v) {
  for (int step = 16; step > 0; step >>= 1) {
    u32 other = shfl(v, (int)(thread() & 31) ^ step);
    v = other > v ? other : v;
  }
  return v;
}
DEVICE i32 popcount(u32 v) { return __builtin_popcount(v); }
DEVICE i32 leading_zeros(u32 v) { return v ? __builtin_clz(v) : 32; }

DEVICE u32 atomic_add(u32* at, u32 v) { return __atomic_fetch_add(at, v, __ATOMIC_ACQ_REL); }
DEVICE u64 atomic_add(u64* at, u64 v) { return __atomic_fetch_add(at, v, __ATOMIC_ACQ_REL); }
template <class T> DEVICE T luce_atomic_max(T* at, T v) {
  T old = __atomic_load_n(at, __ATOMIC_ACQUIRE);
  while (old < v && !__atomic_compare_exchange_n(at, &old, v, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {}
  return old;
}
DEVICE u32 atomic_max(u32* at, u32 v) { return luce_atomic_max(at, v); }
DEVICE u64 atomic_max(u64* at, u64 v) { return luce_atomic_max(at, v); }
DEVICE u32 atomic_or(u32* at, u32 v) { return __atomic_fetch_or(at, v, __ATOMIC_ACQ_REL); }
DEVICE u32 atomic_add_ordered(u32* at, u32 v) { return atomic_add(at, v); }
// Grids and blocks run one after the other: a value that is not there yet never comes.
DEVICE void trap(const char* what);
DEVICE void await_device(const u32* at, u32 value) {
  if (__atomic_load_n(at, __ATOMIC_ACQUIRE) < value) trap("a block waits for one that runs after it");
}
DEVICE void fence_device() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE void fence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
DEVICE void publish_(u32* at, u32 value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
#ifndef LUCE_HOST_THREADS
  luce_host::block->changes++;
#endif
}
DEVICE void await_(const u32* at, u32 value) {
  while (__atomic_load_n(at, __ATOMIC_ACQUIRE) < value) {
#ifdef LUCE_HOST_THREADS
    if (luce_host::block->failed) throw luce_host::Failure{"another thread failed"};
    std::this_thread::yield();
#else
    luce_host::yield_();
#endif
  }
}

// Compiled with -ffp-contract=off.
DEVICE f32 add(f32 a, f32 b) { return a + b; }
DEVICE f32 sub(f32 a, f32 b) { return a - b; }
DEVICE f32 mul(f32 a, f32 b) { return a * b; }
DEVICE f32 fma_(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
DEVICE f32 div(f32 a, f32 b) { return a / b; }
DEVICE f32 sqrt_(f32 a) { return sqrtf(a); }
DEVICE f64 add(f64 a, f64 b) { return a + b; }
DEVICE f64 sub(f64 a, f64 b) { return a - b; }
DEVICE f64 mul(f64 a, f64 b) { return a * b; }
DEVICE f64 fma_(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
DEVICE f64 div(f64 a, f64 b) { return a / b; }
DEVICE u32 mul_high(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }

DEVICE u32 soft_pack_bf16(f32 low, f32 high);
DEVICE f32 soft_f16_to_f32(u16 h);
DEVICE u32 native_pack_bf16(f32 low, f32 high) { return soft_pack_bf16(low, high); }
DEVICE f32 native_f16_to_f32(u16 h) { return soft_f16_to_f32(h); }
DEVICE u32 prmt(u32 a, u32 b, u32 select) {
  u64 bytes = ((u64)b << 32) | a;
  u32 r = 0;
  for (int i = 0; i < 4; i++) {
    u32 byte = (u32)(bytes >> 8 * (select >> 4 * i & 7) & 0xff);
    if (select >> 4 * i & 8) byte = byte & 0x80 ? 0xff : 0;
    r |= byte << 8 * i;
  }
  return r;
}
DEVICE u32 and_or(u32 a, u32 b, u32 c) { return (a & b) | c; }
DEVICE u32 xor_and(u32 a, u32 b, u32 c) { return (a ^ b) & c; }
DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  // In double the product is exact and the sum is rounded far below bf16's last place.
  f64 low = (f64)as_f32(a << 16) * as_f32(b << 16) + as_f32(c << 16);
  f64 high = (f64)as_f32(a & 0xffff0000u) * as_f32(b & 0xffff0000u) + as_f32(c & 0xffff0000u);
  return soft_pack_bf16((f32)low, (f32)high);
}
DEVICE void mma_bf16(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  luce_host::Products sums = luce_host::multiply(
      {{a0, a1, a2, a3, b0, b1}}, 8, [](const luce_host::Payload* all, i32 lane, i32, u32 (&pair)[2]) {
        pair[0] = all[lane].words[4], pair[1] = all[lane].words[5];
      });
  for (int i = 0; i < 4; i++) c[i] = (f32)(c[i] + sums.fragment(0, i));
}
DEVICE void cp_async16(void* to, const void* from) { memcpy(to, from, 16); }
DEVICE void cp_async_commit() {}
template <int PENDING> DEVICE void cp_async_wait() {}
DEVICE void luce_ldmatrix(u32 (&r)[4], const void* row, bool transposed) {
  u64 address = (u64)row;
  const luce_host::Payload* all = luce_host::exchange({{(u32)address, (u32)(address >> 32)}});
  int lane = luce_host::current % WARP;
  for (int matrix = 0; matrix < 4; matrix++) {
    u16 pair[2];
    for (int i = 0; i < 2; i++) {
      int y = lane / 4, x = lane % 4 * 2 + i;
      if (transposed) std::swap(x, y);
      const luce_host::Payload& line = all[matrix * 8 + y];
      pair[i] = ((const u16*)(line.words[0] | (u64)line.words[1] << 32))[x];
    }
    r[matrix] = pair[0] | (u32)pair[1] << 16;
  }
}
DEVICE void ldmatrix_x4(u32 (&r)[4], const void* row) { luce_ldmatrix(r, row, false); }
DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* row) { luce_ldmatrix(r, row, true); }
DEVICE void load_stream16(const void* at, u32& x, u32& y, u32& z, u32& w) {
  const u32* words = (const u32*)at;
  x = words[0], y = words[1], z = words[2], w = words[3];
}

DEVICE void bar_init(u64* bar, u32 count) {
#ifdef LUCE_HOST_THREADS
  std::lock_guard<std::mutex> guard(luce_host::block->phases_lock);
#endif
  luce_host::block->phases.emplace_back();
  luce_host::Phase& phase = luce_host::block->phases.back();
  phase.at = bar;
  phase.count = count;
}
DEVICE void bar_init_fence() {}
DEVICE void proxy_fence() {}
DEVICE void bar_expect(u64* bar, u32 bytes) {
  luce_host::Phase& phase = luce_host::phase_of(bar);
  luce_host::Lock lock(phase);
  phase.pending += bytes;
  phase.arrived++;
  luce_host::settle(phase);
  lock.change();
}
DEVICE void bar_arrive(u64* bar) { bar_expect(bar, 0); }
DEVICE void bulk_load(void* to, const void* from, u32 bytes, u64* bar) {
  if (((u64)to | (u64)from | bytes) & 15) luce_host::fail("a bulk copy that is not a multiple of 16 bytes");
  luce_host::Phase& phase = luce_host::phase_of(bar);
  luce_host::Lock lock(phase);
  memset(to, 0xff, bytes);
  phase.copies.push_back({to, from, bytes});
  lock.change();
}
DEVICE void bar_wait(u64* bar, u32 parity) {
  luce_host::Phase& phase = luce_host::phase_of(bar);
  luce_host::Lock lock(phase);
  lock.wait([&] {
    if ((phase.phase & 1) == parity && phase.arrived == phase.count) {
      luce_host::deliver(phase);
      luce_host::settle(phase);
      lock.change();
    }
    return (phase.phase & 1) != parity;
  });
}
DEVICE void pdl_wait() {}
DEVICE void pdl_launch() {}
DEVICE void trap(const char* what) { luce_host::fail(what); }
