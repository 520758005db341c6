// Clusters of CLUSTER blocks that share what they fetch (sm_90a). With CLUSTER 1, and on the host, a block is alone.
#pragma once

#ifndef CLUSTER
#define CLUSTER 1
#endif
#if CLUSTER > 1 && defined(LUCE_HOST)
#error "the host build has no clusters"
#endif

#if CLUSTER > 1
#define CLUSTER_KERNEL __cluster_dims__(CLUSTER, 1, 1)

DEVICE i32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (i32)rank;
}
// All threads of all its blocks.
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// An arrival at the same barrier of every block.
DEVICE void bar_arrive_cluster(u64* bar) {
  UNROLL for (u32 rank = 0; rank < CLUSTER; rank++)
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there];}"
                 ::"r"(shared_address(bar)), "r"(rank) : "memory");
}
// A bulk copy to the same place, counted at the same barrier, of every block.
DEVICE void bulk_load_cluster(void* to, const void* from, u32 bytes, u64* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(bar)), "h"((u16)((1 << CLUSTER) - 1)) : "memory");
}
#else
#define CLUSTER_KERNEL
DEVICE i32 cluster_rank() { return 0; }
DEVICE void cluster_sync() { sync_block(); }
DEVICE void bar_arrive_cluster(u64* bar) { bar_arrive(bar); }
DEVICE void bulk_load_cluster(void* to, const void* from, u32 bytes, u64* bar) { bulk_load(to, from, bytes, bar); }
#endif
