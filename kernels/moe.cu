// Mixture of experts around its products: router, choice of experts, rows in the order of experts, the weighted sum per row.
//
// A row goes through `used` experts and the shared one: `ranks` = used + 1 pairs, rank 0 the best expert, the last rank the shared
// one (index `experts`), whose weight is the sigmoid of one more router row. luce/engines/qwen35/moe.py has the same steps.
#include "batch.h"
#include "moe_route.h"

#ifndef ROUTER_ROWS
#define ROUTER_ROWS 4      // rows that a warp multiplies at once, with
#endif
#ifndef ROUTER_OUTPUTS
#define ROUTER_OUTPUTS 1   // so many experts
#endif
#define ROUTER_THREADS 256
#ifndef ROUTER_AHEAD
#define ROUTER_AHEAD 0     // weights of so many 512 k are on their way before the rows are there
#endif
#ifndef ROUTER_BF16
#define ROUTER_BF16 0      // the router's weights are bf16, not f32
#endif

DEVICE f32x4 router_weights(const u8* w, i64 at) {
#if ROUTER_BF16
  u32x2 two = *(const u32x2*)(w + at * 2);
  return {bf16_low(two.x), bf16_high(two.x), bf16_low(two.y), bf16_high(two.y)};
#else
  u32x4 four = load_stream(w + at * 4);
  return {as_f32(four.x), as_f32(four.y), as_f32(four.z), as_f32(four.w)};
#endif
}

typedef f32 RouterSums[ROUTER_OUTPUTS][ROUTER_ROWS];
typedef f32x4 RouterWeights[ROUTER_OUTPUTS][4];

// A lane's weights of 512 k from `at` (WHOLE), or of what there is of them: zeros past the row.
template <bool WHOLE> DEVICE void router_load(const u8* w, const i64 (&row)[ROUTER_OUTPUTS], i32 at, i32 width, RouterWeights& v) {
  UNROLL
  for (i32 n = 0; n < ROUTER_OUTPUTS; n++) {
    UNROLL
    for (i32 part = 0; part < 4; part++)
      v[n][part] = WHOLE || at + part * 128 < width ? router_weights(w, row[n] + at + part * 128) : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
  }
}

// Its sums over them.
template <bool WHOLE>
DEVICE void router_sums(const f32* const (&x)[ROUTER_ROWS], const RouterWeights& v, i32 at, i32 width, RouterSums& sums) {
  f32x4 a[4];
  UNROLL
  for (i32 i = 0; i < ROUTER_ROWS; i++) {
    UNROLL
    for (i32 part = 0; part < 4; part++)
      a[part] = WHOLE || at + part * 128 < width ? *(const f32x4*)(x[i] + at + part * 128) : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
    UNROLL
    for (i32 n = 0; n < ROUTER_OUTPUTS; n++) {
      UNROLL
      for (i32 part = 0; part < 4; part++)
        sums[n][i] = fma_(a[part].w, v[n][part].w, fma_(a[part].z, v[n][part].z, fma_(a[part].y, v[n][part].y, fma_(a[part].x, v[n][part].x, sums[n][i]))));
    }
  }
}

// logits f32 [R][outputs] = x W^T with x f32 [R][width], W [outputs][width]; width a multiple of 4.
// Grid (ceil(outputs / (8 ROUTER_OUTPUTS)), ceil(R / ROUTER_ROWS)), ROUTER_THREADS threads. Tree: a lane's 4 consecutive k of every
// 128 in one chain, then the lanes; how many rows and experts a warp takes at once is not part of it.
LUCE_KERNEL(moe_router, ROUTER_THREADS)(const Pass* pass, const f32* x, const u8* w, i32 outputs, i32 width, f32* logits) {
  const i32 first = (block_x() * (ROUTER_THREADS / WARP) + warp()) * ROUTER_OUTPUTS, row = block_y() * ROUTER_ROWS;
  i64 weights[ROUTER_OUTPUTS];
  UNROLL
  for (i32 n = 0; n < ROUTER_OUTPUTS; n++) weights[n] = (i64)min_(first + n, outputs - 1) * width;
  i32 start = 4 * lane();
#if ROUTER_AHEAD  // the first weights do not wait for the kernel before
  RouterWeights ahead[ROUTER_AHEAD];
  UNROLL
  for (i32 i = 0; i < ROUTER_AHEAD; i++) router_load<false>(w, weights, start + 512 * i, width, ahead[i]);
#endif
  const i32 rows = pass->rows;  // of descriptors, which are there before a pass begins
  pdl_wait();
  pdl_launch();
  if (first >= outputs || row >= rows) return;
  RouterSums sums = {};
  const f32* from[ROUTER_ROWS];
  UNROLL
  for (i32 i = 0; i < ROUTER_ROWS; i++) from[i] = x + (i64)min_(row + i, rows - 1) * width;
#if ROUTER_AHEAD
  UNROLL
  for (i32 i = 0; i < ROUTER_AHEAD; i++, start += 512) {
    if (start < width) router_sums<false>(from, ahead[i], start, width, sums);
  }
#endif
  RouterWeights v;
  NO_UNROLL
  for (; start + 384 < width; start += 512) {
    router_load<true>(w, weights, start, width, v);
    router_sums<true>(from, v, start, width, sums);
  }
  if (start < width) {
    router_load<false>(w, weights, start, width, v);
    router_sums<false>(from, v, start, width, sums);
  }
  UNROLL
  for (i32 n = 0; n < ROUTER_OUTPUTS; n++) {
    UNROLL
    for (i32 i = 0; i < ROUTER_ROWS; i++) {
      f32 sum = warp_sum(sums[n][i]);
      if (lane() == 0 && row + i < rows && first + n < outputs) logits[(i64)(row + i) * outputs + first + n] = sum;
    }
  }
}
LUCE_EXPORT(moe_router)

// Choices of every row. chosen i32, weights f32 [R][used + 1]; logits [R][experts + 1]; experts at most 32 ROUTE_KEYS. Grid (ceil(R / 4)), 128
// threads, a warp a row.
LUCE_KERNEL(moe_route, 128)(const Pass* pass, const f32* logits, i32 experts, i32 used, i32* chosen, f32* weights) {
  const i32 r = block_x() * 4 + warp(), ranks = used + 1, rows = pass->rows;
  pdl_wait();
  pdl_launch();
  if (r < rows) route_row(logits + (i64)r * (experts + 1), experts, used, chosen + (i64)r * ranks, weights + (i64)r * ranks);
}
LUCE_EXPORT(moe_route)

// What moe_route above and moe_group below do, for up to 64 rows, by one block of PLAN_THREADS threads, at least experts + 1: an
// expert's rows are bits. 12 * (experts + 1) + 256 bytes of shared memory.
#define PLAN_THREADS 1024
LUCE_KERNEL(moe_choose, PLAN_THREADS)(const Pass* pass, const f32* logits, i32 experts, i32 used, i32* chosen, f32* weights, i32 height,
                                      i32* order, i32* place, ExpertTile* tiles, i32* num_tiles) {
  u64* sums = (u64*)shared_memory();
  u32* takers = (u32*)(sums + 32);           // [experts + 1][2]: bit r, row r goes through it
  u32* first = takers + 2 * (experts + 1);   // [experts + 1]
  for (i32 i = thread(); i < 2 * (experts + 1); i += PLAN_THREADS) takers[i] = 0;
  const i32 rows = pass->rows, ranks = used + 1, pairs = rows * ranks;
  pdl_wait();
  pdl_launch();
  for (i32 row = warp(); row < rows; row += PLAN_THREADS / WARP)
    route_row(logits + (i64)row * (experts + 1), experts, used, chosen + row * ranks, weights + row * ranks);
  sync_block();
  const i32 pair = thread(), r = pair / ranks, expert = pair < pairs ? chosen[pair] : 0;  // of up to 1,024 pairs
  if (pair < pairs) atomic_or(takers + 2 * expert + r / 32, 1u << (r % 32));
  for (i32 i = pair + PLAN_THREADS; i < pairs; i += PLAN_THREADS) atomic_or(takers + 2 * chosen[i] + i / ranks / 32, 1u << (i / ranks % 32));
  sync_block();
  // Where each expert's positions and tiles begin: a scan over experts, positions above, tiles below.
  const i32 e = thread();
  const i32 count = e <= experts ? popcount(takers[2 * e]) + popcount(takers[2 * e + 1]) : 0, mine = (count + height - 1) / height;
  u64 both = (u64)count << 32 | (u32)mine, sum = both;
  for (i32 step = 1; step < WARP; step <<= 1) {
    u64 other = shfl(sum, lane() < step ? lane() : lane() - step);
    if (lane() >= step) sum += other;
  }
  if (lane() == WARP - 1) sums[warp()] = sum;
  sync_block();
  u64 before = lane() < warp() ? sums[lane()] : 0;
  for (i32 mask = 16; mask > 0; mask >>= 1) before += shfl_xor(before, mask);
  sum += before;
  const i32 at = (i32)((sum - both) >> 32), tile = (i32)(u32)(sum - both);
  if (e <= experts) {
    first[e] = (u32)at;
    for (i32 i = 0; i < mine; i++) tiles[tile + i] = {e, at + i * height, min_(height, count - i * height), 0};
  }
  if (e == experts) {
    num_tiles[0] = tile + mine;
    num_tiles[1] = tile;
  }
  sync_block();
  for (i32 i = pair; i < pairs; i += PLAN_THREADS) {
    const i32 its = i == pair ? expert : chosen[i], row = i / ranks;
    u32 low = takers[2 * its], high = takers[2 * its + 1], below = (1u << (row % 32)) - 1u;
    i32 position = (i32)first[its] + (row < 32 ? popcount(low & below) : popcount(low) + popcount(high & below));
    order[position] = i;
    place[i] = position;
  }
}
LUCE_EXPORT(moe_choose)

// Pairs in the order of experts, those of one expert in the order of rows. Block e does expert e: grid (experts + 1), GROUP_THREADS
// threads, 4 * (experts + 1) + 64 bytes of shared memory.
// order i32 [R * ranks]: the pair at a position; place: the position of a pair; tiles: runs of up to `height` positions of one
// expert, in their order; num_tiles: of all, and of those before the shared expert's.
#define GROUP_THREADS 256
LUCE_KERNEL(moe_group, GROUP_THREADS)(const Pass* pass, const i32* chosen, i32 experts, i32 used, i32 height, i32* order,
                                      i32* place, ExpertTile* tiles, i32* num_tiles) {
  u32* counts = (u32*)(shared_memory() + 64);
  u32* sums = (u32*)shared_memory();
  i32 e = block_x(), ranks = used + 1, pairs = pass->rows * ranks;
  pdl_wait();
  pdl_launch();
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

// x += sum over ranks of weight * result, ascending. results f32 [positions][width]; x f32 [R][width], width a multiple of 4; up to
// COMBINE_RANKS ranks. Grid (blocks, R).
#define COMBINE_RANKS 16
LUCE_KERNEL(moe_combine, 256)(const Pass* pass, const i32* place, const f32* weights, i32 ranks, const f32* results, f32* x, i32 width) {
  const i32 r = block_y(), rows = pass->rows;
  pdl_wait();
  pdl_launch();
  if (r >= rows) return;
  const f32* from[COMBINE_RANKS];
  f32 w[COMBINE_RANKS];
  UNROLL
  for (i32 i = 0; i < COMBINE_RANKS; i++) {
    const i32 at = r * ranks + min_(i, ranks - 1);
    w[i] = weights[at];
    from[i] = results + (i64)place[at] * width;
  }
  for (i32 k = 4 * (block_x() * block_threads() + thread()); k < width; k += 4 * grid_x() * block_threads()) {
    f32x4 sum = {0.0f, 0.0f, 0.0f, 0.0f}, v[COMBINE_RANKS];
    UNROLL
    for (i32 i = 0; i < COMBINE_RANKS; i++)
      if (i < ranks) v[i] = *(const f32x4*)(from[i] + k);
    f32x4* to = (f32x4*)(x + (i64)r * width + k);
    const f32x4 old = *to;
    UNROLL
    for (i32 i = 0; i < COMBINE_RANKS; i++) {
      if (i >= ranks) continue;
      const f32x4 term = {mul(v[i].x, w[i]), mul(v[i].y, w[i]), mul(v[i].z, w[i]), mul(v[i].w, w[i])};
      sum = i ? f32x4{add(sum.x, term.x), add(sum.y, term.y), add(sum.z, term.z), add(sum.w, term.w)} : term;
    }
    *to = {add(old.x, sum.x), add(old.y, sum.y), add(old.z, sum.z), add(old.w, sum.w)};
  }
}
LUCE_EXPORT(moe_combine)
