// Mixture of experts around its products: router, choice of experts, rows in the order of experts, the weighted sum per row.
//
// A row goes through `used` experts and the shared one: `ranks` = used + 1 pairs, rank 0 the best expert, the last rank the shared
// one (index `experts`), whose weight is the sigmoid of one more router row. luce/engines/qwen35/moe.py has the same steps.
#include "batch.h"
#include "moe.h"

#define ROUTER_ROWS 4      // rows that a warp multiplies at once
#define ROUTER_THREADS 256
#ifndef ROUTER_BF16
#define ROUTER_BF16 0      // the router's weights are bf16, not f32
#endif

// logits f32 [R][outputs] = x W^T with x f32 [R][width], W [outputs][width]; width a multiple of 128.
// Grid (ceil(outputs / 8), ceil(R / ROUTER_ROWS)), ROUTER_THREADS threads. Tree: a lane's 4 consecutive k of every 128 in one chain,
// then the lanes.
LUCE_KERNEL(moe_router, ROUTER_THREADS)(const Pass* pass, const f32* RESTRICT x, const u8* RESTRICT w, i32 outputs, i32 width, f32* logits) {
  i32 n = block_x() * (ROUTER_THREADS / WARP) + warp(), row = block_y() * ROUTER_ROWS;
  pdl_wait();
  pdl_launch();
  i32 rows = pass->rows;
  if (n >= outputs || row >= rows) return;
  f32 sums[ROUTER_ROWS] = {};
  const f32* from = x + (i64)row * width;
  NO_UNROLL
  for (i32 k = 4 * lane(); k < width; k += 128) {
#if ROUTER_BF16
    u32x2 two = *(const u32x2*)(w + ((i64)n * width + k) * 2);
    f32x4 v = {bf16_low(two.x), bf16_high(two.x), bf16_low(two.y), bf16_high(two.y)};
#else
    f32x4 v = *(const f32x4*)(w + ((i64)n * width + k) * 4);
#endif
    UNROLL
    for (i32 i = 0; i < ROUTER_ROWS; i++) {
      if (row + i >= rows) continue;
      f32x4 a = *(const f32x4*)(from + (i64)i * width + k);
      sums[i] = fma_(a.w, v.w, fma_(a.z, v.z, fma_(a.y, v.y, fma_(a.x, v.x, sums[i]))));
    }
  }
  UNROLL
  for (i32 i = 0; i < ROUTER_ROWS; i++) {
    f32 sum = warp_sum(sums[i]);
    if (lane() == 0 && row + i < rows) logits[(i64)(row + i) * outputs + n] = sum;
  }
}
LUCE_EXPORT(moe_router)

// The best experts of every row: largest logit first, the lower index first among equals; weights are the softmax over them.
// chosen i32, weights f32 [R][used + 1]; logits [R][experts + 1]. Grid (R), as many threads as experts (rounded up to 32, at most
// 1,024), 8 * threads bytes of shared memory.
LUCE_KERNEL(moe_route, 1024)(const Pass* pass, const f32* RESTRICT logits, i32 experts, i32 used, i32* chosen, f32* weights) {
  u64* keys = (u64*)shared_memory();
  pdl_wait();
  pdl_launch();
  i32 r = block_x(), e = thread();
  if (r >= pass->rows) return;
  const f32* row = logits + (i64)r * (experts + 1);
  i32* mine = chosen + (i64)r * (used + 1);
  f32* its = weights + (i64)r * (used + 1);
  u32 bits = e < experts ? as_u32(add(row[e], 0.0f)) : 0;
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  u64 key = e < experts ? (u64)bits << 32 | (u32)(experts - e) : 0;  // no two are equal, NaN has its place
  keys[e] = key;
  sync_block();
  i32 rank = 0;
  for (i32 i = 0; i < block_threads(); i++) rank += keys[i] > key;
  if (e < experts && rank < used) {
    mine[rank] = e;
    its[rank] = row[e];
  }
  sync_block();  // what a block wrote to device memory, all of it sees
  if (e > 0) return;
  f32 best = its[0], total = 0.0f;
  for (i32 i = 0; i < used; i++) {
    f32 w = exp_(sub(its[i], best));
    its[i] = w;
    total = i ? add(total, w) : w;
  }
  for (i32 i = 0; i < used; i++) its[i] = div(its[i], total);
  mine[used] = experts;
  its[used] = sigmoid_(row[experts]);
}
LUCE_EXPORT(moe_route)

// Pairs in the order of experts, those of one expert in the order of rows. Block e does expert e: grid (experts + 1), GROUP_THREADS
// threads, 4 * (experts + 1) + 64 bytes of shared memory.
// order i32 [R * ranks]: the pair at a position; place: the position of a pair; tiles: runs of up to `height` positions of one
// expert, in their order; num_tiles: of all, and of those before the shared expert's.
#define GROUP_THREADS 256
LUCE_KERNEL(moe_group, GROUP_THREADS)(const Pass* pass, const i32* RESTRICT chosen, i32 experts, i32 used, i32 height, i32* order,
                                      i32* place, ExpertTile* tiles, i32* num_tiles) {
  u32* counts = (u32*)(shared_memory() + 64);
  u32* sums = (u32*)shared_memory();
  pdl_wait();
  pdl_launch();
  i32 e = block_x(), ranks = used + 1, pairs = pass->rows * ranks;
  for (i32 i = thread(); i <= experts; i += GROUP_THREADS) counts[i] = 0;
  sync_block();
  for (i32 i = thread(); i < pairs; i += GROUP_THREADS) atomic_add(counts + chosen[i], 1u);
  sync_block();
  u32 first = 0, tile = 0;
  for (i32 i = thread(); i < e; i += GROUP_THREADS) {
    first += counts[i];
    tile += (counts[i] + height - 1) / height;
  }
  u64 both = (u64)first << 32 | tile;
  for (i32 mask = 16; mask > 0; mask >>= 1) both += shfl_xor(both, mask);
  u64* parts = (u64*)sums;
  if (lane() == 0) parts[warp()] = both;
  sync_block();
  both = 0;
  for (i32 i = 0; i < GROUP_THREADS / WARP; i++) both += parts[i];
  first = (u32)(both >> 32);
  tile = (u32)both;
  i32 count = (i32)counts[e], mine = (count + height - 1) / height;
  for (i32 i = thread(); i < mine; i += GROUP_THREADS)
    tiles[tile + i] = {e, (i32)first + i * height, min_(height, count - i * height), 0};
  if (e == experts && thread() == 0) {
    num_tiles[0] = (i32)tile + mine;
    num_tiles[1] = (i32)tile;
  }
  if (count == 0) return;
  i32 before = 0;  // of this expert, among the pairs so far
  for (i32 start = 0; start < pairs; start += GROUP_THREADS) {
    i32 pair = start + thread();
    bool its = pair < pairs && chosen[pair] == e;
    u32 votes = ballot_(its);
    sync_block();
    if (lane() == 0) sums[warp()] = (u32)popcount(votes);
    sync_block();
    i32 at = before;
    for (i32 i = 0; i < GROUP_THREADS / WARP; i++) {
      if (i < warp()) at += (i32)sums[i];
      before += (i32)sums[i];
    }
    if (its) {
      at += (i32)first + popcount(votes & ((1u << lane()) - 1u));
      order[at] = pair;
      place[pair] = at;
    }
  }
}
LUCE_EXPORT(moe_group)

// x += sum over ranks of weight * result, ascending. results f32 [positions][width]; x f32 [R][width], width a multiple of 4.
// Grid (blocks, R).
LUCE_KERNEL(moe_combine, 256)(const Pass* pass, const i32* RESTRICT place, const f32* RESTRICT weights, i32 ranks,
                              const f32* RESTRICT results, f32* x, i32 width) {
  pdl_wait();
  pdl_launch();
  i32 r = block_y();
  if (r >= pass->rows) return;
  for (i32 k = 4 * (block_x() * block_threads() + thread()); k < width; k += 4 * grid_x() * block_threads()) {
    f32x4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (i32 i = 0; i < ranks; i++) {
      f32 w = weights[(i64)r * ranks + i];
      f32x4 v = *(const f32x4*)(results + (i64)place[(i64)r * ranks + i] * width + k);
      v = {mul(v.x, w), mul(v.y, w), mul(v.z, w), mul(v.w, w)};
      sum = i ? f32x4{add(sum.x, v.x), add(sum.y, v.y), add(sum.z, v.z), add(sum.w, v.w)} : v;
    }
    f32x4* to = (f32x4*)(x + (i64)r * width + k);
    *to = {add(to->x, sum.x), add(to->y, sum.y), add(to->z, sum.z), add(to->w, sum.w)};
  }
}
LUCE_EXPORT(moe_combine)
