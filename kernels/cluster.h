// Clusters of CLUSTER blocks that reach into each other's shared memory (sm_90, host). With CLUSTER 1 a block is alone.
#pragma once

#ifndef CLUSTER
#define CLUSTER 1
#endif

#if defined(LUCE_HOST)
DEVICE i32 cluster_rank() { return luce_rank() % CLUSTER; }
DEVICE void cluster_arrive() {}
DEVICE void cluster_arrive_stored() {}
DEVICE void cluster_wait() { luce_host::meet_cluster(); }
template <class T> DEVICE T* luce_in_block(T* at, i32 rank) { return (T*)((u8*)at + (rank - cluster_rank()) * luce_host::block->shared_step); }
DEVICE void publish_cluster(u32* at, u32 value) {
  for (i32 rank = 0; rank < CLUSTER; rank++) publish_(luce_in_block(at, rank), value);
}
DEVICE void await_cluster(const u32* at, u32 value) { await_(at, value); }
#elif CLUSTER > 1
DEVICE i32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (i32)rank;
}
// All threads of all its blocks arrive, and wait for each other. Barriers that bar_init_fence() followed are there for all of them then;
// ordinary stores are not (a release here is a fence that waits for bulk copies under way: microseconds).
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
// Arrival of a thread that has stored into other blocks: its stores are there when they go on (and may end).
DEVICE void cluster_arrive_stored() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
#if SHOW_ORDERS  // device.h
#define LUCE_STORE "red.relaxed.cluster.shared::cluster.max"
#define LUCE_LOAD "atom.relaxed.cluster.shared::cta.add.u32 %0, [%1], 0;"
#else
#define LUCE_STORE "st.relaxed.cluster.shared::cluster"
#define LUCE_LOAD "ld.relaxed.cluster.shared::cta.u32 %0, [%1];"
#endif
// A number in the same place of every block that only grows. It orders nothing by itself: whoever publishes has used what it loaded before,
// and whoever awaits stores only then.
DEVICE void publish_cluster(u32* at, u32 value) {
  UNROLL
  for (u32 rank = 0; rank < CLUSTER; rank++)
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; " LUCE_STORE ".u32 [there], %2;}"
                 ::"r"(shared_address(at)), "r"(rank), "r"(value) : "memory");
}
DEVICE void await_cluster(const u32* at, u32 value) {
  u32 found;
  do asm volatile(LUCE_LOAD : "=r"(found) : "r"(shared_address(at)) : "memory");
  while (found < value);
}
#else
DEVICE i32 cluster_rank() { return 0; }
DEVICE void cluster_arrive() {}
DEVICE void cluster_arrive_stored() {}
DEVICE void cluster_wait() { sync_block(); }
DEVICE void publish_cluster(u32* at, u32 value) { publish_(at, value); }
DEVICE void await_cluster(const u32* at, u32 value) { await_(at, value); }
#endif

// Stores into the same place of block `rank`, in the background; their bytes count at that block's barrier.
#if defined(LUCE_HOST)
struct ClusterStores {
  i32 rank;
  u64* bar;
  METHOD void open(u64* at, i32 to) { rank = to, bar = luce_in_block(at, to); }
  template <class T> METHOD void put(f32* to, T value) const {
    *(T*)luce_in_block(to, rank) = value;
    luce_host::bar_bytes(bar, sizeof(T));
  }
};
#elif HAS_BULK
DEVICE u32 cluster_address(const void* at, i32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
  return there;
}
struct ClusterStores {
  u32 bar, offset;
  METHOD void open(u64* at, i32 rank) { bar = cluster_address(at, rank), offset = bar - shared_address(at); }
  METHOD void put(f32* to, f32 v) const {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 ::"r"(shared_address(to) + offset), "r"(as_u32(v)), "r"(bar) : "memory");
  }
  METHOD void put(f32* to, f32x2 v) const {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                 ::"r"(shared_address(to) + offset), "r"(as_u32(v.x)), "r"(as_u32(v.y)), "r"(bar) : "memory");
  }
  METHOD void put(f32* to, f32x4 v) const {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(shared_address(to) + offset), "r"(as_u32(v.x)), "r"(as_u32(v.y)), "r"(as_u32(v.z)), "r"(as_u32(v.w)), "r"(bar) : "memory");
  }
};
#endif
