// How the work of a product with few rows is dealt out: who has which row-blocks, and which chunks of 1,024 K of them.
#pragma once
#include "cluster.h"

// A slice of K, and the place of whoever asks (a CTA, a cluster) among those that share it.
struct Slice {
  i32 from, chunks;
  i32 nth, of;
};
// Of `of` askers the nth; a slice has so many chunks, and askers in proportion to them.
DEVICE Slice slice_of(i32 slice, i32 all_chunks, i32 nth, i32 of) {
  Slice found = {0, all_chunks, nth, of};
  if (slice < all_chunks) {
    NO_UNROLL
    for (i32 at = 0;; at += slice) {
      i32 end = min_(all_chunks, at + slice);
      i32 low = (i32)((u32)(of * at) / (u32)all_chunks), high = (i32)((u32)(of * end) / (u32)all_chunks);
      if (nth < high) {
        found = {at, end - at, nth - low, high - low};
        break;
      }
    }
  }
  return found;
}

// Division of what is far below 2^32 by so many chunks, as a product with the `divisor`.
DEVICE u32 divisor_of(i32 chunks) { return chunks == 1 ? 0 : 0xffffffffu / (u32)chunks + 1; }
DEVICE i32 divided(i32 unit, i32 chunks, u32 divisor) { return chunks == 1 ? unit : (i32)mul_high((u32)unit, divisor); }

// Chunk at which CTA `rank` of a cluster begins with the cluster's row-block `nth` (or group of them): as near to even as whole
// chunks allow, in turn. CLUSTER row-blocks, a period, have `chunks` units of each CTA.
DEVICE i32 split_at(i32 rank, i32 nth, i32 chunks) { return (i32)((u32)(rank * chunks + nth % CLUSTER) / CLUSTER); }
// Units of CTA `rank` in so many row-blocks.
DEVICE i32 units_in(i32 blocks, i32 chunks, i32 rank) {
  i32 count = blocks / CLUSTER * chunks;
  NO_UNROLL
  for (i32 i = 0; i < blocks % CLUSTER; i++) count += split_at(rank + 1, i, chunks) - split_at(rank, i, chunks);
  return count;
}
// Its unit i: the nth row-block of the cluster, and the chunk.
DEVICE void unit_at(i32 i, i32 chunks, u32 divisor, i32 rank, i32& nth, i32& chunk) {
  nth = divided(i, chunks, divisor);
  i32 rest = i - nth * chunks;
  nth *= CLUSTER;
  chunk = rest;
#if CLUSTER > 1
  UNROLL
  for (i32 phase = 0; phase < CLUSTER; phase++) {
    i32 from = split_at(rank, phase, chunks), size = split_at(rank + 1, phase, chunks) - from;
    chunk = from + rest;
    if (rest < size) break;
    rest -= size;
    nth++;
  }
#endif
}
