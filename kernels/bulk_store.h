// Copies from shared to device memory in the background (sm_90, host): by any thread, in groups of its own.
//
// Ordinary stores to the shared memory need proxy_fence() by the storing threads and a barrier before the copy. The memory may be
// written again once the copying thread has come through bulk_store_wait(). Addresses and sizes are multiples of 16.
#pragma once

#if defined(LUCE_HOST)
// As late as may be: when the thread that asked for it waits.
DEVICE void bulk_store(f32* to, const f32* from, u32 bytes) { luce_host::bulk_store(to, from, bytes, false); }
DEVICE void bulk_store_add(f32* to, const f32* from, u32 bytes) { luce_host::bulk_store(to, from, bytes, true); }
DEVICE void bulk_store_commit() {}
DEVICE void bulk_store_wait() { luce_host::bulk_store_wait(); }
#elif HAS_BULK
DEVICE void bulk_store(f32* to, const f32* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
// to[i] = to[i] + from[i], one rounding. An order among several adds to one place is not defined.
DEVICE void bulk_store_add(f32* to, const f32* from, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
DEVICE void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
#endif
