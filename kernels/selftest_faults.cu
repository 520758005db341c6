// Faults on purpose: what traps and the sanitizers of the host build must find (tests/kernels/test_sanitizers.py).
#include "device.h"

// out [grid][64]: blocks of 64 of a pool, by a table. With `checked` an id outside the pool is a trap.
LUCE_KERNEL(selftest_gather, 64)(const f32* pool, const i32* table, f32* out, i32 blocks, i32 checked) {
  i32 id = table[block_x()];
  if (checked && (u32)id >= (u32)blocks) trap("a block id outside the pool");
  out[block_x() * 64 + thread()] = pool[(i64)id * 64 + thread()];
}
LUCE_EXPORT(selftest_gather)

// out[i] = i of the thread half a block away, through shared memory; with `synced` 0 nobody waits for it, with 2 the last one never comes.
LUCE_KERNEL(selftest_exchange, 64)(f32* out, i32 synced) {
  f32* shared = (f32*)shared_memory();
  shared[thread()] = (f32)thread();
  if (synced == 2 && thread() == 63) trap("the others wait");
  if (synced) sync_block();
  out[thread()] = shared[(thread() + 32) % 64];
}
LUCE_EXPORT(selftest_exchange)
