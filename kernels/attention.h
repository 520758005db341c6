// What the attention kernels share: where keys and values stand, the tree of a row's softmax, and its pieces.
//
// Shapes are macros: HEADS, KV_HEADS, HEAD_DIM.
//
// Pools, one for keys and one for values of each layer: bf16 [block][kv head][64 * HEAD_DIM]. The tile of a (block, kv head)
// is made of core matrices, 8 rows of 8 values, 128 bytes each, which is what ldmatrix reads without bank conflicts and
// wgmma without a swizzle; one bulk copy takes a tile, or the first groups of 8 keys of it:
//   keys    [key / 8][dim / 8][key % 8][dim % 8]      (both operands' k is the dim)
//   values  [key / 8][dim / 8][dim % 8][key % 8]      (turned: k is the key)
//
// The tree. One row (one query head of one token) attends to keys 0 .. its position:
//   split   SPLIT_KEYS keys at absolute multiples of it; starts from m = -infinity, O = 0, l = 0
//   tile    128 keys (two blocks) of the split, in ascending order. S = q k by k16 steps over the dims in ascending order from
//           zero. m' = max(m, S of visible keys), a = 2^(c (m - m')), p = 2^(c S - c m'), exactly 0 where hidden, with
//           c = log2(e) / sqrt(HEAD_DIM); O = a O, then O += p v by k16 steps over the keys in ascending order, p rounded to bf16.
//           l is kept in 8 parts: half of the tile (block) x column pair (key / 2 % 4); l' = a l + (the sums of p over 16 keys, in
//           ascending order from zero, added in ascending order from zero)
//   merge   of the splits in ascending order from M = -infinity, T = 0, L = 0: M' = max(M, m), a = 2^(c (M - M')),
//           b = 2^(c (m - M')), T' = a T + b O, L' = a L + b l for each half, l's column pairs summed before
//   end     y = T (1 / (L first half + L second half)) times sigmoid(gate)
// Tiles and splits that lie behind a row's position change nothing in it (a = 1, p = 0; b O = 0), so how many of them are
// computed beside it does not matter.
//
// Block ids are checked against the pool: one that is not in it is read as block 0, and every row that needs it gets NaN, which
// the check of lanes then finds.
#pragma once
#include "activation.h"
#include "attention_core.h"
#include "batch.h"

#if !defined(HEADS) || !defined(KV_HEADS) || !defined(HEAD_DIM)
#error "attention needs HEADS, KV_HEADS, HEAD_DIM"
#endif
#if HEADS % KV_HEADS || HEAD_DIM % 32 || HEAD_DIM > 256
#error "attention: HEADS is a multiple of KV_HEADS, HEAD_DIM of 32 and at most 256"
#endif

#ifndef SHARED_LIMIT
#define SHARED_LIMIT 232448  // bytes of shared memory that a block may have
#endif
#define GROUP (HEADS / KV_HEADS)
#define SPLIT_KEYS 256
#define TILE_KEYS 128
#define SPLIT_TILES (SPLIT_KEYS / TILE_KEYS)
#define TILE_BYTES (BLOCK_ROWS * HEAD_DIM * 2)  // of a block and kv head
#define GROUP_BYTES (HEAD_DIM * 16)  // 8 keys of a tile

// Byte offset of a (block, kv head)'s tile.
DEVICE i64 tile_at(i32 block, i32 kv_head) { return ((i64)block * KV_HEADS + kv_head) * TILE_BYTES; }
// Byte offset within a tile.
DEVICE i32 key_at(i32 key, i32 dim) { return ((key / 8 * (HEAD_DIM / 8) + dim / 8) * 64 + key % 8 * 8 + dim % 8) * 2; }
DEVICE i32 value_at(i32 key, i32 dim) { return ((key / 8 * (HEAD_DIM / 8) + dim / 8) * 64 + dim % 8 * 8 + key % 8) * 2; }

// Keys at or past `count` of a pair of keys that a fragment's word holds become exact zeros.
DEVICE u32 pair_mask(i32 key, i32 count) { return (key < count ? 0xffffu : 0u) | (key + 1 < count ? 0xffff0000u : 0u); }

DEVICE i32 block_in_pool(i32 block, i32 blocks) { return (u32)block < (u32)blocks ? block : 0; }
// Do blocks `from`, `from` + step, ... of a table, up to the key `end`, lie in the pool?
DEVICE bool in_pool(const i32* table, i32 from, i32 step, i32 end, i32 blocks) {
  bool all = true;
  for (i32 i = from; i * BLOCK_ROWS < end; i += step) all = all && (u32)table[i] < (u32)blocks;
  return all;
}

DEVICE i32 splits_of(i32 keys) { return ceil_div(keys, SPLIT_KEYS); }

// The merge of one more split into a row's running maximum: factors for what there is (a) and for the split (b).
struct MergeFactors { f32 a, b; };
DEVICE MergeFactors merge_factors(f32& most, f32 m, f32 c) {
  f32 next = larger(most, m);
  MergeFactors f = {rescale(most, next, c), rescale(m, next, c)};
  most = next;
  return f;
}

// What a row gives to the output product: the mean of the values, in which no zero stays negative, times the gate.
DEVICE f32 scale_of(f32 low, f32 high) { return div(1.0f, add(low, high)); }
DEVICE f32 mean_of(f32 total, f32 scale) { return add(mul(total, scale), 0.0f); }
DEVICE f32 gated(f32 mean, f32 gate) { return mul(mean, sigmoid_(gate)); }

// Zeros behind the values of a row, up to the depth that the product takes; by `threads` threads in whole warps.
DEVICE void pad_activations(const Activations& out, i32 row, i32 thread_index, i32 threads) {
  const f32 zero[1] = {0.0f};
  for (i32 k = HEADS * HEAD_DIM + thread_index; k < out.depth; k += threads) store_activations(out, row, k, zero);
}
