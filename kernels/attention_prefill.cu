// Attention of passes with lanes of any length: 64 rows (tokens x heads that share keys) at once, keys in ascending order.
// The tree is in attention.h. Macros: HEADS, KV_HEADS, HEAD_DIM.
//
// Eight warps compute, one fills the ring. Warp (r, h) has rows 16 r .. 16 r + 15: it makes the scores of half h of a
// tile's keys and sums half h of the dims, so that the split's sums and the running total of all splits both stay in
// registers. The two warps of the same rows exchange their maxima and their probabilities.
#include "attention.h"

#define TILE_HEADS (GROUP % 2 == 0 ? 2 : 1)
#define QUERY_TILE (64 / TILE_HEADS)            // tokens of a Tile
#define CONSUMERS 8
#define CONSUMER_THREADS (CONSUMERS * 32)
#define THREADS (CONSUMER_THREADS + (HAS_BULK ? 32 : 0))
#define STEPS (HEAD_DIM / 16)
#define COLUMNS (HEAD_DIM / 16)                 // groups of 8 dims in half of them
#define QUERY_BYTES (64 * HEAD_DIM * 2)         // core matrices, [row / 8][dim / 8][row % 8][dim % 8]
#define STAGES (163840 / TILE_BYTES < 10 ? 163840 / TILE_BYTES : 10)
#define PROBABILITY_BYTES (CONSUMERS * 2 * 32 * 16)
#define MAXIMA_BYTES (CONSUMERS * 16 * 4)
#if HAS_BULK
#define RING_BYTES (STAGES * TILE_BYTES)
#else
#define RING_BYTES 0
#endif

#if HAS_BULK
// Keys and values of the lane's tiles up to the key `end`, into the ring. By one warp.
DEVICE void fill_ring(const u8* keys, const u8* values, const i32* table, i32 blocks, i32 kv_head, i32 fresh, i32 end, u8* ring,
                      u64* full, u64* empty) {
  i32 stage = 0, mine = 0;
  u32 round = 0;
  bool waited = false;
  for (i32 tile = 0; tile * BLOCK_ROWS < end; tile++) {
    if (tile % 32 == 0 && (tile + lane()) * BLOCK_ROWS < end) mine = block_in_pool(table[tile + lane()], blocks);
    i64 at = tile_at(shfl(mine, tile % 32), kv_head);
    u32 bytes = (u32)(ceil_div(min_(end - tile * BLOCK_ROWS, BLOCK_ROWS), 8) * GROUP_BYTES);
    // Keys from `fresh` on come from this pass; what earlier passes wrote may be read before it.
    if ((tile + 1) * BLOCK_ROWS > fresh && !waited) {
      pdl_wait();
      waited = true;
    }
    for (i32 part = 0; part < 2; part++) {
      if (lane() == 0) {
        bar_wait(empty + stage, (round & 1u) ^ 1u);
        bar_expect(full + stage, bytes);
        bulk_load(ring + stage * TILE_BYTES, (part ? values : keys) + at, bytes, full + stage);
      }
      if (++stage == STAGES) {
        stage = 0;
        round++;
      }
    }
  }
}
#endif

// Rows of `tiles` of the pass, of TILE_HEADS heads each.
//   q, keys, values, tables, blocks  as attention_decode has them; a Tile has up to QUERY_TILE tokens
//   x  f32 [rows][stride], where the gates stand (attention_inputs); y: see activation.h, K = HEADS * HEAD_DIM
// grid (tiles or more, HEADS / TILE_HEADS); threads and shared bytes: attention_prefill_shape.
LUCE_KERNEL(attention_prefill, THREADS)(
    const u16* RESTRICT q, const u16* keys, const u16* values, const Pass* pass, const Row* rows, const Lane* lanes,
    const Tile* tiles, const i32* tables, i32 blocks, const f32* RESTRICT x, i32 stride, u16* y, i32 y_rows, i32 y_tile, i32 y_depth) {
  u8* shared = shared_memory();
  u8* queries = shared;
  u8* ring = queries + QUERY_BYTES;
  u32x4* probabilities = (u32x4*)(ring + RING_BYTES);
  f32* maxima = (f32*)((u8*)probabilities + PROBABILITY_BYTES);
  u64* full = (u64*)((u8*)maxima + MAXIMA_BYTES);
  u64* empty = full + STAGES;
  u32* bad = (u32*)(empty + STAGES);
  pdl_launch();
  i32 index = pass->tiles - 1 - block_x();  // long ones first
  if (index < 0) return;
  Lane place = lanes[tiles[index].lane];
  i32 token = tiles[index].first, tokens = min_(QUERY_TILE, place.count - token);
  i32 head = block_y() * TILE_HEADS, kv_head = head / GROUP;
  i32 first = place.start + token, end = first + tokens;  // positions
  const i32* table = tables + place.table;
  if (thread() == 0) {
    *bad = 0;
#if HAS_BULK
    for (i32 i = 0; i < STAGES; i++) {
      bar_init(full + i, 1);
      bar_init(empty + i, CONSUMERS);
    }
    bar_init_fence();
#endif
  }
  sync_block();
#if HAS_BULK
  if (warp() == CONSUMERS) {
    fill_ring((const u8*)keys, (const u8*)values, table, blocks, kv_head, place.start, end, ring, full, empty);
    return;
  }
#endif
  if (!in_pool(table, thread(), CONSUMER_THREADS, end, blocks)) atomic_or(bad, 1u);
  if (thread() < tokens && (u32)rows[place.row + token + thread()].kv >= (u32)blocks * BLOCK_ROWS) atomic_or(bad, 1u);
  pdl_wait();
  for (i32 i = thread(); i < 64 * HEAD_DIM / 8; i += CONSUMER_THREADS) {
    i32 row = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8), at = row % QUERY_TILE;
    u8* to = queries + (row / 8 * (HEAD_DIM / 8) + chunk) * CORE_BYTES + row % 8 * 16;
    if (at < tokens) {
      cp_async16(to, q + ((i64)(place.row + token + at) * HEADS + head + row / QUERY_TILE) * HEAD_DIM + chunk * 8);
    } else {
      *(u32x4*)to = {0, 0, 0, 0};
    }
  }
  cp_async_commit();
  cp_async_wait<0>();
  barrier_sync(5, CONSUMER_THREADS);

  const f32 c = score_scale();
  const i32 g = lane() / 4, t = lane() % 4, r = warp() % 4, h = warp() / 4, other = r + 4 * (1 - h), pair = 1 + r;
  i32 position[2];
  UNROLL for (i32 half = 0; half < 2; half++) position[half] = first + min_((16 * r + 8 * half + g) % QUERY_TILE, tokens - 1);
  f32 o[COLUMNS][4] = {}, total[COLUMNS][4] = {};
  f32 split_most[2] = {MINUS_INFINITY, MINUS_INFINITY}, split_sum[2] = {}, most[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2] = {};
  i32 stage = 0, all = ceil_div(end, BLOCK_ROWS);
  u32 phase = 0;
  NO_UNROLL for (i32 tile = 0; tile < all; tile++) {
    i32 key = tile * BLOCK_ROWS;
#if HAS_BULK
    const u8* tile_keys = ring + stage * TILE_BYTES;
    bar_wait(full + stage, phase);
#else
    i64 at = tile_at(block_in_pool(table[tile], blocks), kv_head);
    const u8* tile_keys = (const u8*)keys + at;
    const u8* tile_values = (const u8*)values + at;
#endif
    f32 s[4][4] = {};
    UNROLL for (i32 step = 0; step < STEPS; step += 2) {
      u32 a[2][4];
      UNROLL for (i32 k = 0; k < 2; k++) {
        fragments(a[k], queries + ((2 * r + lane() / 8 % 2) * (HEAD_DIM / 8) + 2 * (step + k) + lane() / 16) * CORE_BYTES +
                            lane() % 8 * 16);
      }
      UNROLL for (i32 i = 0; i < 4; i++) {
        u32 b[4];
        fragments(b, tile_keys + (h * 4 + i) * GROUP_BYTES + step * 2 * CORE_BYTES + lane() * 16);
        mma_bf16(s[i], a[0][0], a[0][1], a[0][2], a[0][3], b[0], b[1]);
        mma_bf16(s[i], a[1][0], a[1][1], a[1][2], a[1][3], b[2], b[3]);
      }
    }
#if HAS_BULK
    sync_warp();
    if (lane() == 0) bar_arrive(empty + stage);
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
#endif
    if (key + BLOCK_ROWS > first + 1) {
      UNROLL for (i32 i = 0; i < 4; i++) {
        UNROLL for (i32 k = 0; k < 4; k++) {
          if (key + (h * 4 + i) * 8 + 2 * t + k % 2 > position[k / 2]) s[i][k] = MINUS_INFINITY;
        }
      }
    }
    f32 top[2], factors[2];
    UNROLL for (i32 half = 0; half < 2; half++) {
      f32 v = larger(s[0][2 * half], s[0][2 * half + 1]);
      UNROLL for (i32 i = 1; i < 4; i++) v = larger(v, larger(s[i][2 * half], s[i][2 * half + 1]));
      top[half] = quad_max(v);
    }
    if (t == 0) {
      maxima[warp() * 16 + g] = top[0];
      maxima[warp() * 16 + 8 + g] = top[1];
    }
    barrier_sync(pair, 64);
    u32 p[4][4];
    UNROLL for (i32 half = 0; half < 2; half++) {
      f32 next = larger(split_most[half], larger(top[half], maxima[other * 16 + half * 8 + g])), offset = -mul(next, c);
      factors[half] = rescale(split_most[half], next, c);
      split_most[half] = next;
      f32 added = 0.0f;
      UNROLL for (i32 i = 0; i < 4; i++) {
        UNROLL for (i32 k = 0; k < 2; k++) {
          f32& v = s[i][2 * half + k];
          v = v == MINUS_INFINITY ? 0.0f : exp2_below(fma_(v, c, offset));
          added = add(added, v);
        }
      }
      split_sum[half] = fma_(split_sum[half], factors[half], added);
    }
    UNROLL for (i32 k = 0; k < 2; k++) {
      u32x4 mine = {pack_bf16(s[2 * k][0], s[2 * k][1]), pack_bf16(s[2 * k][2], s[2 * k][3]),
                    pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]), pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3])};
      probabilities[(warp() * 2 + k) * 32 + lane()] = mine;
    }
    barrier_sync(pair, 64);
    UNROLL for (i32 k = 0; k < 4; k++) {
      u32x4 v = probabilities[((r + 4 * (k / 2)) * 2 + k % 2) * 32 + lane()];
      p[k][0] = v.x, p[k][1] = v.y, p[k][2] = v.z, p[k][3] = v.w;
    }
    UNROLL for (i32 i = 0; i < COLUMNS; i++) {
      UNROLL for (i32 k = 0; k < 4; k++) o[i][k] = mul(o[i][k], factors[k / 2]);
    }
#if HAS_BULK
    const u8* tile_values = ring + stage * TILE_BYTES;
    bar_wait(full + stage, phase);
#endif
    UNROLL for (i32 pairs = 0; pairs < BLOCK_ROWS / 32; pairs++) {
      u32 visible[4] = {~0u, ~0u, ~0u, ~0u};
      if (key + BLOCK_ROWS > end) {
        UNROLL for (i32 k = 0; k < 4; k++) visible[k] = pair_mask(key + pairs * 32 + k * 8 + 2 * t, end);
      }
      UNROLL for (i32 i = 0; i < COLUMNS; i++) {
        u32 b[4];
        fragments(b, tile_values + (pairs * 4 + lane() / 8) * GROUP_BYTES + (h * COLUMNS + i) * CORE_BYTES + lane() % 8 * 16);
        UNROLL for (i32 k = 0; k < 2; k++) {
          const u32(&v)[4] = p[pairs * 2 + k];
          mma_bf16(o[i], v[0], v[1], v[2], v[3], b[2 * k] & visible[2 * k], b[2 * k + 1] & visible[2 * k + 1]);
        }
      }
    }
#if HAS_BULK
    sync_warp();
    if (lane() == 0) bar_arrive(empty + stage);
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
#endif
    if ((tile + 1) % SPLIT_TILES == 0 || tile + 1 == all) {
      UNROLL for (i32 half = 0; half < 2; half++) {
        MergeFactors f = merge_factors(most[half], split_most[half], c);
        sum[half] = fma_(quad_sum(split_sum[half]), f.b, mul(sum[half], f.a));
        split_most[half] = MINUS_INFINITY;
        split_sum[half] = 0.0f;
        UNROLL for (i32 i = 0; i < COLUMNS; i++) {
          UNROLL for (i32 k = 2 * half; k < 2 * half + 2; k++) {
            total[i][k] = fma_(o[i][k], f.b, mul(total[i][k], f.a));
            o[i][k] = 0.0f;
          }
        }
      }
    }
  }
  if (t == 0) {
    maxima[warp() * 16 + g] = sum[0];
    maxima[warp() * 16 + 8 + g] = sum[1];
  }
  barrier_sync(pair, 64);
  // Through shared memory, where the queries were, into runs of 32 dims for the output product.
  u32* gated = (u32*)queries;
  barrier_sync(5, CONSUMER_THREADS);
  UNROLL for (i32 half = 0; half < 2; half++) {
    i32 row = 16 * r + 8 * half + g, at = row % QUERY_TILE;
    if (at >= tokens) continue;
    f32 low = maxima[r * 16 + half * 8 + g], high = maxima[(r + 4) * 16 + half * 8 + g];
    const f32* gate = x + (i64)(place.row + token + at) * stride + (2 * (head + row / QUERY_TILE) + 1) * HEAD_DIM +
                      h * COLUMNS * 8 + 2 * t;
    UNROLL for (i32 i = 0; i < COLUMNS; i++) {
      f32x2 gates = *(const f32x2*)(gate + i * 8);
      f32 a = finish(total[i][2 * half], low, high, gates.x), b = finish(total[i][2 * half + 1], low, high, gates.y);
      gated[row * (HEAD_DIM / 2) + (h * COLUMNS + i) * 4 + t] = *bad ? 0x7fc07fc0u : pack_bf16(a, b);
    }
  }
  barrier_sync(5, CONSUMER_THREADS);
  Activations out = {y, y_rows, y_tile, y_depth};
  for (i32 i = thread(); i < 64 * HEAD_DIM / 8; i += CONSUMER_THREADS) {
    i32 row = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8), at = row % QUERY_TILE;
    u32x4 words = *(const u32x4*)(gated + i * 4);
    f32 v[8] = {bf16_low(words.x), bf16_high(words.x), bf16_low(words.y), bf16_high(words.y),
                bf16_low(words.z), bf16_high(words.z), bf16_low(words.w), bf16_high(words.w)};
    store_activations(out, place.row + token + at, (head + row / QUERY_TILE) * HEAD_DIM + chunk * 8, v, at < tokens);
  }
  if (head + TILE_HEADS == HEADS) {
    for (i32 at = 0; at < tokens; at++) pad_activations(out, place.row + token + at, thread(), CONSUMER_THREADS);
  }
}
LUCE_EXPORT(attention_prefill)

// Threads and shared bytes of attention_prefill, tokens of a Tile, heads of a block.
LUCE_KERNEL(attention_prefill_shape, 32)(i32* found) {
  if (thread() == 0) {
    found[0] = THREADS;
    found[1] = QUERY_BYTES + RING_BYTES + PROBABILITY_BYTES + MAXIMA_BYTES + 16 * STAGES + 16;
    found[2] = QUERY_TILE;
    found[3] = TILE_HEADS;
  }
}
LUCE_EXPORT(attention_prefill_shape)
