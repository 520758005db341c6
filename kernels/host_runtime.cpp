// What the threads of a block do with each other in the host build (device_host.h): barriers, exchanges in a warp, matrix
// products, copies in the background, and the threads themselves. One shared library, which every module is linked to.
#include <stdlib.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>
#ifdef LUCE_HOST_THREADS
#include <atomic>
#include <chrono>

#include "host_threads.h"
#else
#include "host_fibers.h"
#endif

#include "device.h"

namespace luce_host {

LUCE_LOCAL Place* block = nullptr;
LUCE_LOCAL i32 current = 0;

namespace {

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
  Payload payload[2];
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
  void wait_while(const u64& counter, u64 value) {
    wait([&] { return counter != value; });
  }
};
void fail_with(const std::string& what) {
  if (!here().failed.exchange(true)) here().failure = what;
  throw Failure{};
}
#else
struct Lock {
  explicit Lock(Meeting&) {}
  void arrive() { changes++; }
  void change() { changes++; }
  void wait_while(const u64& counter, u64 value) {
    if (counter == value) yield_while(counter, value);
  }
  template <class Done> void wait(Done done) {
    while (!done()) yield_();
  }
};
void fail_with(const std::string& what) {
  here().failure = what;
  stop(here().failure.c_str());
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
    lock.wait_while(barrier.phase, phase);
  }
}

// The last lane to come does `complete` before anybody goes on. Says which of both sides holds the words.
template <i32 WORDS, class Complete> u64 exchanged(Warp& warp, const u32* mine, Complete complete) {
  Lock lock(warp);
  u64 round = warp.round;
  for (i32 i = 0; i < WORDS; i++) warp.payload[round & 1].words[i][current % WARP] = mine[i];
  lock.arrive();
  if (++warp.arrived == WARP) {
    complete(round & 1);
    warp.arrived = 0;
    warp.round++;
    lock.change();
  } else {
    lock.wait_while(warp.round, round);
  }
  return round & 1;
}

typedef u32 Words __attribute__((vector_size(16)));
typedef f32 Singles __attribute__((vector_size(16)));
typedef f64 Four __attribute__((vector_size(32)));

// f16 in the lower half of each word as f32: its bits are those of a number 2^-112 times as large.
Singles from_f16(Words words) {
  Words magnitude = words & 0x7fffu, more = (Words)(magnitude >= 0x7c00u) & 0x7f800000u;
  Singles found = (Singles)(magnitude << 13) * 5.192296858534828e33f;  // 2^112
  return (Singles)((Words)found | more | (words & 0x8000u) << 16);
}

// Pairs of bf16 or of f16 (`half`), as two numbers each.
void widen(f64* low, f64* high, const u32* pairs, bool half) {
  for (i32 i = 0; i < WARP; i += 4) {
    Words words;
    memcpy(&words, pairs + i, sizeof words);
    Four lows = __builtin_convertvector(half ? from_f16(words) : (Singles)(words << 16), Four);
    Four highs = __builtin_convertvector(half ? from_f16(words >> 16) : (Singles)(words & 0xffff0000u), Four);
    memcpy(low + i, &lows, sizeof lows);
    memcpy(high + i, &highs, sizeof highs);
  }
}

// The products of a warp, by columns, rows. They are exact in f64, sums go up in k.
void product(f64* to, const Payload& all, i32 columns, const Tile* tile, bool half_precision) {
  f64 a[2][2][2][WARP];  // by half of the rows, half of the k, half of the pair; then as sorted
  for (i32 word = 0; word < 4; word++) {
    u32 sorted[WARP];  // by pair, row
    for (i32 pair = 0; pair < 4; pair++)
      for (i32 row = 0; row < 8; row++) sorted[pair * 8 + row] = all.words[word][row * 4 + pair];
    widen(a[word & 1][word >> 1][0], a[word & 1][word >> 1][1], sorted, half_precision);
  }
  for (i32 j = 0; j < columns / 8; j++) {
    f64 b[2][2][WARP];  // by half of the k, half of the pair; then as lanes: by column, pair
    for (i32 half = 0; half < 2; half++) {
      const u32* words = all.words[4 + half];
      if (tile) words = (const u32*)(tile->at + (u32)j * tile->column_stride + (u32)half * tile->k_stride);
      widen(b[half][0], b[half][1], words, half_precision);
    }
    for (i32 column = 0; column < 8; column += 2) {
      Four sums[2][4] = {};
      for (i32 k = 0; k < 16; k++) {
        i32 pair = (k & 7) / 2;
        const f64* right = b[k >> 3][k & 1] + column * 4 + pair;
        for (i32 i = 0; i < 4; i++) {
          Four left;
          memcpy(&left, a[i >> 1][k >> 3][k & 1] + pair * 8 + (i & 1) * 4, sizeof left);
          sums[0][i] += left * right[0];
          sums[1][i] += left * right[4];
        }
      }
      memcpy(to + (j * 8 + column) * 16, sums, sizeof sums);
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

#ifndef LUCE_HOST_THREADS
void run_threads(void (*run)(const void*), const void* call) {
  const char* why = run_fibers(block->threads, run, call);
  if (why && here().failure.empty()) here().failure = why;
}
#endif

}  // namespace

void fail(const char* what) { fail_with(what); }

void meet(i32 id, i32 threads, bool wait) { meet_at(here().barriers[(size_t)rank_here()].of[id], threads, wait); }
void meet_cluster() { meet_at(here().together, block->threads, true); }

const u32* exchange(u32 mine) {
  Warp& warp = warp_here();
  return warp.payload[exchanged<1>(warp, &mine, [](u64) {})].words[0];
}
const Payload& exchange(u32 mine, u32 more) {
  Warp& warp = warp_here();
  u32 words[2] = {mine, more};
  return warp.payload[exchanged<2>(warp, words, [](u64) {})];
}

void multiply(f32* d, const u32 (&mine)[6], i32 columns, bool keep, const Tile* tile, bool half) {
  Warp& warp = warp_here();
  const f64* sums = warp.products[exchanged<6>(warp, mine, [&](u64 side) {
    warp.products[side].resize((size_t)(16 * columns));
    product(warp.products[side].data(), warp.payload[side], columns, tile, half);
  })].data();
  const f64* at = sums + current % 4 * 32 + current % WARP / 4;
  for (i32 j = 0; j < columns / 8; j++, at += 128)
    for (i32 i = 0; i < 4; i++) {
      f64 sum = at[(i & 1) * 16 + (i >> 1) * 8];
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
  changes++;
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
