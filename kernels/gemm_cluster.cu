// Weight GEMM for few rows, by clusters of CTAs (by single ones: gemm_decode.cu), where reading the weights is what costs:
// y[row, n] = sum over k of x[row, k] W[n, k].
//
// A cluster of CTAs takes whole row-blocks; its CTAs share their K, in chunks of 1,024: each keeps the activations of its own chunks
// alone in shared memory. A unit of work is a chunk of a group of BLOCKS row-blocks, which spare reading the activations again; a
// CTA deals its units to its warps in turn. Each of these takes its records through a ring of its own by bulk copies. Partial sums
// go to one CTA of the cluster, the home of the group, by stores that count at a barrier there; MERGERS more warps of every CTA add
// them up in ascending order and write the products, so that no warp that multiplies waits for another. Where the activations
// of a whole row are too many for a cluster, it takes a slice of the chunks, and partial sums meet in device memory.
//
// None of that touches the tree: which warp, CTA or slice a unit falls to changes no bit.
#include "gemm_epilogue.h"

#ifndef WARPS
#error "WARPS: of a CTA, that multiply"
#endif
#ifndef MERGERS
#define MERGERS 1           // warps that add up
#endif
#define ALL_WARPS (WARPS + MERGERS)
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_..."
#endif
#ifndef OWN_SUMS
#define OWN_SUMS 0          // 1: the sums of 32 activations are not in x, they are made here (nobody wrote them)
#endif
#ifndef NORM
#define NORM 0              // pieces of 256 values a warp whose RMS norm the CTA makes itself, of f32 rows; 0: x is there
#endif
#ifndef CTAS
#define CTAS 1              // that should fit on a multiprocessor
#endif
#ifndef BLOCKS
#define BLOCKS 1            // row-blocks of a group, 1 or 2
#endif
#define GROUP_PARTIAL (PARTIAL * BLOCKS)

#if HAS_BULK
#include "gemm_ring.h"
#include "gemm_units.h"
#if NORM
#include "gemm_norm.h"
#endif
#include "gemm_sums.h"

// y f32 [.][y_stride]; h: the activations of the next GEMM, depth h_depth (EPILOGUE_SWIGLU). parts, counts: scratch for slices, counts zero
// before and after. Of the first `n` rows of W and the first `rows` of x something is written. slice: chunks of a cluster; window:
// the most chunks that a CTA has something of. stages: of a warp's ring. slots: groups whose partial sums can be on the way to a CTA.
// With NORM x is f32 [.][norm_width] and its RMS norm with factors `scale` is what is multiplied; NORM ALL_WARPS >= rows records.
// followed: by a grid that reads x and runs beside this one. Grid: clusters; ALL_WARPS warps.
LUCE_KERNEL_CLUSTER(gemm_cluster, ALL_WARPS * WARP, CTAS, CLUSTER)
(const u8* x, const u8* RESTRICT w, f32* y, u16* h, f32* parts, u32* counts, i32 rows, i32 n, i32 y_stride, i32 h_depth, i32 row_blocks,
 i32 records, i32 slice, i32 window, i32 stages, i32 slots, const f32* scale, f32 eps, i32 norm_width, i32 followed) {
  const i32 lane = ::lane(), warp = ::warp(), depth = records * RECORD_DEPTH, all_chunks = ceil_div(records, 4), rank = cluster_rank();
  const Slice k = slice_of(slice, all_chunks, block_x() / CLUSTER, grid_x() / CLUSTER);
  const i32 from_chunk = k.from, chunks = k.chunks;
  const i32 all_groups = ceil_div(row_blocks, BLOCKS);
  const i32 first_group = (i32)((u32)(all_groups * k.nth) / (u32)k.of);
  const i32 groups = (i32)((u32)(all_groups * (k.nth + 1)) / (u32)k.of) - first_group;
  const i32 first_chunk = split_at(rank, 0, chunks), width = split_at(rank + 1, CLUSTER - 1, chunks) - first_chunk;
  const i32 count = units_in(groups, chunks, rank);  // of this CTA
  const u32 divisor = divisor_of(chunks);
  auto records_of = [&](i32 chunk) { return min_(4, records - (from_chunk + chunk) * 4); };

  // shared memory, behind the table of values, the same in every CTA of a cluster: rings, activations, sums, partial sums, barriers, counts
  u8* memory = shared_memory() + TABLE_BYTES;
  u8* xs = memory + WARPS * stages * STAGE_BYTES;
  const i32 resident = min_(window * CHUNK_DEPTH, depth) * ROWS * 2;
  u8* sums = xs + resident;
  f32* partials = (f32*)(sums + (MINIMA ? resident / 16 : 0));
  u64* x_bars = (u64*)(partials + slots * slice * GROUP_PARTIAL);  // of chunks of activations
  u64* arrivals = x_bars + window + WARPS * stages;  // of partial sums at a slot
  u32* merged = (u32*)(arrivals + slots);      // groups of [home][slot] that are added up
  shared_ends(merged + CLUSTER * slots);

  Ring ring = {memory + warp * (stages * STAGE_BYTES), x_bars + window + warp * stages, stages};
  i32 load_unit = warp;
  auto next_load = [&] {
    if (load_unit < count) {
      i32 nth, chunk;
      unit_at(load_unit, chunks, divisor, rank, nth, chunk);
      const i32 block = (first_group + nth) * BLOCKS;
      ring.from = w + ((i64)block * records + (from_chunk + chunk) * 4) * RECORD_BYTES;
      ring.left = records_of(chunk) * PIECES;
      if (BLOCKS > 1) ring.gap = block + 1 < row_blocks ? (i64)records * RECORD_BYTES : 0;  // an odd last one is its own second
    }
    load_unit += WARPS;
  };
  if (warp < WARPS && lane == 0) fill_ring(ring, next_load);
  if (warp == WARPS && lane == 0) {
    NO_UNROLL
    for (i32 i = 0; i < window; i++) bar_init(x_bars + i, 1);
    NO_UNROLL
    for (i32 i = 0; i < slots; i++) {
      bar_init(arrivals + i, 1);
      bar_expect(arrivals + i, (u32)(chunks * GROUP_PARTIAL * 4));
      if (SHOW_ORDERS && CLUSTER == 1) bar_init(shown_bar(i), WARP);
    }
    NO_UNROLL
    for (i32 i = 0; i < CLUSTER * slots; i++) merged[i] = 0;
    bar_init_fence();
  }
#if TABLE
  make_table();
  sync_block();
#endif
  if (!followed) pdl_launch();
#if NORM
  norm_activations(pdl_wait, (const f32*)x, scale, eps, norm_width, rows, records, (from_chunk + first_chunk) * 4, width * 4,
                   {(u16*)xs, ROWS, 0, resident / (2 * ROWS)}, 0, partials);
  if (followed) pdl_launch();
  cluster_arrive();  // `partials` are nobody's room any more
#else
  sync_warp();
  cluster_arrive();
  pdl_wait();
  if (warp == WARPS && lane == 0) {
    NO_UNROLL
    for (i32 i = 0; i < width; i++) {
      const i32 k = (from_chunk + first_chunk + i) * CHUNK_DEPTH, values = min_(CHUNK_DEPTH, depth - k) * ROWS, bytes = values * 2;
      const bool with_sums = MINIMA && !OWN_SUMS;
      bar_expect(x_bars + i, (u32)(with_sums ? bytes + bytes / 16 : bytes));
      bulk_load(xs + i * (CHUNK_DEPTH * ROWS * 2), x + (i64)k * ROWS * 2, (u32)bytes, x_bars + i);
      if (with_sums) bulk_load(sums + i * (CHUNK_DEPTH * ROWS / 8), x + (i64)depth * ROWS * 2 + (i64)k * ROWS / 8, (u32)bytes / 16, x_bars + i);
    }
  }
  if (followed) pdl_launch();
  sync_warp();
#endif
  cluster_wait();
#if MINIMA && OWN_SUMS
  NO_UNROLL
  for (i32 i = 0; i < width; i++) bar_wait(x_bars + i, 0);
  make_sums(xs, (u16*)sums, min_(width * 4, records - (from_chunk + first_chunk) * 4));
  sync_block();
#endif

  if (warp < WARPS) {
    const u8* my_x = xs + lane_activations(lane) - first_chunk * (CHUNK_DEPTH * ROWS * 2);
    const u8* my_sums = sums + lane_sums(lane) - first_chunk * (CHUNK_DEPTH * ROWS / 8);
    Values values = {};
    for (i32 i = warp; i < count; i += WARPS) {
      i32 nth, chunk;
      unit_at(i, chunks, divisor, rank, nth, chunk);
#if !NORM
      bar_wait(x_bars + chunk - first_chunk, 0);
#endif
      Tile p[BLOCKS];
      multiply_unit(p, ring, records_of(chunk) * PIECES, my_x + chunk * (CHUNK_DEPTH * ROWS * 2), my_sums + chunk * (CHUNK_DEPTH * ROWS / 8),
                    values, lane, next_load);
      // To the group's home, once the group whose place it takes is added up.
      const i32 home = nth % CLUSTER, turn = nth / CLUSTER, slot = turn % slots;
      await_cluster(merged + home * slots + slot, (u32)(turn / slots));
      if (SHOW_ORDERS && CLUSTER == 1) bar_wait(shown_bar(slot), (u32)(turn / slots + 1) & 1);
      ClusterStores stores;
      stores.open(arrivals + slot, home);
      UNROLL
      for (int b = 0; b < BLOCKS; b++) put_partial(stores, partials + (slot * slice + chunk) * GROUP_PARTIAL + b * PARTIAL, p[b], lane);
    }
  } else {
    for (i32 turn = warp - WARPS;; turn += MERGERS) {
      const i32 nth = rank + turn * CLUSTER, group = first_group + nth, slot = turn % slots;
      const u32 turns = (u32)(turn / slots);  // of this slot
      if (nth >= groups) break;
      f32 old[BLOCKS][MERGED];
      if (EPILOGUE == EPILOGUE_ADD) {
        UNROLL
        for (int b = 0; b < BLOCKS; b++) load_rows(old[b], {y, y_stride, rows, n, 0}, group * BLOCKS + b, lane);
      }
      await_cluster(merged + rank * slots + slot, turns);  // else the barrier may be two phases behind, and its parity the same
      bar_wait(arrivals + slot, turns & 1);
      f32 t[BLOCKS][MERGED];
      UNROLL
      for (int v = 0; v < BLOCKS * MERGED; v++) t[v / MERGED][v % MERGED] = 0.0f;
      const f32* from = partials + slot * slice * GROUP_PARTIAL;
      auto free_slot = [&] {  // what was loaded from it has been used
        sync_warp();
        if (SHOW_ORDERS && CLUSTER == 1) bar_arrive(shown_bar(slot));
        if (lane == 0 && nth + slots * CLUSTER < groups) {  // else nobody waits for it
          bar_expect(arrivals + slot, (u32)(chunks * GROUP_PARTIAL * 4));
          publish_cluster(merged + rank * slots + slot, turns + 1);
        }
      };
      auto take = [&](const f32* chunk) {
        UNROLL
        for (int b = 0; b < BLOCKS; b++) take_partial(t[b], chunk + b * PARTIAL, lane);
      };
      if (chunks < all_chunks) {  // on to device memory; the last slice of the group adds up
        f32 *mine = parts + (i64)group * all_chunks * GROUP_PARTIAL, *to = mine + from_chunk * GROUP_PARTIAL;
        for (i32 i = lane * 4; i < chunks * GROUP_PARTIAL; i += WARP * 4) *(f32x4*)(to + i) = *(const f32x4*)(from + i);
        free_slot();
        sync_warp();
        u32 before = 0;
        if (lane == 0) before = atomic_add_ordered(counts + group, (u32)chunks);
        if (shfl(before, 0) + (u32)chunks != (u32)all_chunks) continue;
        sync_warp();
        _Pragma("unroll 8")
        for (i32 chunk = 0; chunk < all_chunks; chunk++) take(mine + chunk * GROUP_PARTIAL);
        if (lane == 0) counts[group] = 0;
      } else {
        for (i32 chunk = 0; chunk < chunks; chunk++) take(from + chunk * GROUP_PARTIAL);
      }
      UNROLL
      for (int b = 0; b < BLOCKS; b++) {
        if (EPILOGUE == EPILOGUE_SWIGLU) finish_swiglu(t[b], {h, ROWS, 0, h_depth}, group * BLOCKS + b, rows, n, lane);
        else finish_rows(t[b], old[b], {y, y_stride, rows, n, 0}, group * BLOCKS + b, EPILOGUE == EPILOGUE_ADD, lane);
      }
      if (chunks == all_chunks) free_slot();
    }
    if (EPILOGUE == EPILOGUE_SWIGLU && block_x() == 0 && warp == WARPS) pad_swiglu({h, ROWS, 0, h_depth}, rows, n, lane, WARP);
  }
  // Nobody leaves while others reach into its memory.
  sync_warp();
  if (warp < WARPS) cluster_arrive();
  else cluster_arrive_stored();
  cluster_wait();
}
#else
LUCE_KERNEL(gemm_cluster, 32)(const u8*) { trap("gemm_cluster needs bulk copies; gemm_plain is for this device"); }
#endif
LUCE_EXPORT(gemm_cluster)
