// Attention of passes with lanes of any length, by mma instructions (NVIDIA from sm_80; attention_prefill_wgmma.cu is the faster
// one on sm_90a). The tree is in attention.h. Macros: HEADS, KV_HEADS, HEAD_DIM.
#include "attention_prefill.h"

#define THREADS (CONSUMER_THREADS + (HAS_BULK ? 32 : 0))
#define ROOM ((SHARED_LIMIT - QUERY_BYTES - PROBABILITY_BYTES - 2048) / TILE_BYTES)
#define STAGES (ROOM < 10 ? ROOM : 10)
#if HAS_BULK
#define RING_BYTES (STAGES * TILE_BYTES)
#else
#define RING_BYTES 0
#endif
#define USED_BYTES (QUERY_BYTES + PROBABILITY_BYTES + RING_BYTES)
#define BODY_BYTES (USED_BYTES > STAGED_BYTES ? USED_BYTES : STAGED_BYTES)

#if HAS_BULK
// Of each tile the keys of its blocks, then their values, into the ring. By one warp.
DEVICE void fill_ring(const Rows& rows, const u8* keys, const u8* values, i32 blocks, u8* ring, u64* full, u64* empty) {
  i32 stage = 0, mine = 0, all = ceil_div(rows.end, BLOCK_ROWS);
  u32 round = 0;
  bool waited = false;
  for (i32 part = 0; part < 2 * all; part++) {
    i32 pair = part / 4 * 2, both = min_(2, all - pair), in = part - 2 * pair, block = pair + in % both;
    if (in == 0 && pair % 32 == 0 && pair + lane() < all) mine = block_in_pool(rows.table[pair + lane()], blocks);
    i64 at = tile_at(shfl(mine, block % 32), rows.kv_head);
    u32 bytes = (u32)(ceil_div(min_(rows.end - block * BLOCK_ROWS, BLOCK_ROWS), 8) * GROUP_BYTES);
    // Keys from the lane's start on come from this pass; what earlier passes wrote may be read before it.
    if ((block + 1) * BLOCK_ROWS > rows.place.start && !waited) {
      pdl_wait();
      waited = true;
    }
    if (lane() == 0) {
      bar_wait(empty + stage, (round & 1u) ^ 1u);
      bar_expect(full + stage, bytes);
      bulk_load(ring + stage * TILE_BYTES, (in < both ? keys : values) + at, bytes, full + stage);
    }
    if (++stage == STAGES) {
      stage = 0;
      round++;
    }
  }
}
#endif

// Rows of the tiles of the pass, of TILE_HEADS heads each.
//   q, keys, values, tables, blocks  as attention_decode has them; a Tile has up to QUERY_TILE tokens
//   x  f32 [rows][stride], where the gates stand (attention_inputs); y: see activation.h, K = HEADS * HEAD_DIM
// grid (HEADS / TILE_HEADS, tiles or more); threads and shared bytes: attention_prefill_shape.
LUCE_KERNEL(attention_prefill, THREADS)(
    const u16* q, const u16* keys, const u16* values, const Pass* pass, const Row* pass_rows, const Lane* lanes,
    const Tile* tiles, const i32* tables, i32 blocks, const f32* x, i32 stride, u16* y, i32 y_rows, i32 y_tile,
    i32 y_depth) {
  u8* queries = shared_memory();
  u8* probabilities = queries + QUERY_BYTES;
  u8* ring = probabilities + PROBABILITY_BYTES;
  f32* maxima = (f32*)(queries + BODY_BYTES);
  u64* full = (u64*)((u8*)maxima + MAXIMA_BYTES);
  u64* empty = full + STAGES;
  u32* bad = (u32*)(empty + STAGES);
  pdl_launch();
  i32 index = pass->tiles - 1 - block_y();  // long ones first
  if (index < 0) return;
  Rows rows = block_rows(tiles[index], lanes, tables, block_x() * TILE_HEADS);
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
    fill_ring(rows, (const u8*)keys, (const u8*)values, blocks, ring, full, empty);
    return;
  }
#endif
  check_rows(rows, pass_rows, blocks, bad);
  pdl_wait();
  load_queries(rows, q, queries);
  meet(5, CONSUMER_THREADS);

  const i32 t = lane() % 4, r = warp() % 4, h = warp() / 4;
  Softmax softmax = softmax_start(rows);
  f32 o[DIM_GROUPS * 4] = {}, total[DIM_GROUPS * 4] = {};
  i32 stage = 0, tile = 0, all = ceil_div(rows.end, TILE_KEYS);
  u32 phase = 0;
  auto piece = [&](i32 block, const u16* pool) -> const u8* {
#if HAS_BULK
    bar_wait(full + stage, phase);
    return ring + stage * TILE_BYTES;
#else
    return (const u8*)pool + tile_at(block_in_pool(rows.table[tile * 2 + block], blocks), rows.kv_head);
#endif
  };
  auto release = [&] {
#if HAS_BULK
    proxy_fence();  // fragments are here: a copy may overtake loads that were only issued, and the barrier does not wait for them
    sync_warp();
    if (lane() == 0) bar_arrive(empty + stage);
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
#endif
  };
  NO_UNROLL for (; tile < all; tile++) {
    i32 key = tile * TILE_KEYS, held = rows.end - key > BLOCK_ROWS ? 2 : 1;
    f32 s[32] = {}, tops[2];
    NO_UNROLL for (i32 block = 0; block < held; block++) {
      const u8* tile_keys = piece(block, keys);
      if (block == h) {
        UNROLL for (i32 step = 0; step < STEPS; step += 2) {
          u32 a[2][4];
          UNROLL for (i32 k = 0; k < 2; k++) {
            fragments(a[k], queries + ((2 * r + lane() / 8 % 2) * (HEAD_DIM / 8) + 2 * (step + k) + lane() / 16) * CORE_BYTES +
                                lane() % 8 * 16);
          }
          UNROLL for (i32 i = 0; i < 8; i++) {
            u32 b[4];
            fragments(b, tile_keys + i * GROUP_BYTES + step * 2 * CORE_BYTES + lane() * 16);
            f32(&sums)[4] = *(f32(*)[4])(s + 4 * i);
            multiply(sums, a[0], b[0], b[1]);
            multiply(sums, a[1], b[2], b[3]);
          }
        }
      }
      release();
    }
    if (key + TILE_KEYS > rows.first + 1) softmax_hide(softmax, s, key + h * BLOCK_ROWS);
    softmax_tops(s, maxima, tops);
    meet(1 + r, 64);
    softmax_tile(softmax, 0, s, tops, maxima);
    softmax_tile(softmax, 1, s, tops, maxima);
    store_probabilities(s, probabilities);
    meet(1 + r, 64);
    rescale_split(softmax, o);
    NO_UNROLL for (i32 block = 0; block < held; block++) {
      const u8* tile_values = piece(block, values);
      i32 visible_keys = rows.end - key - block * BLOCK_ROWS;
      UNROLL for (i32 pairs = 0; pairs < BLOCK_ROWS / 32; pairs++) {
        u32 visible[4] = {~0u, ~0u, ~0u, ~0u}, p[2][4];
        if (visible_keys < BLOCK_ROWS) {
          UNROLL for (i32 k = 0; k < 4; k++) visible[k] = pair_mask(pairs * 32 + k * 8 + 2 * t, visible_keys);
        }
        UNROLL for (i32 k = 0; k < 2; k++) {
          fragments(p[k], probabilities + ((2 * r + lane() / 8 % 2) * (TILE_KEYS / 8) + block * 8 + pairs * 4 + 2 * k + lane() / 16) * CORE_BYTES +
                              lane() % 8 * 16);
        }
        UNROLL for (i32 i = 0; i < DIM_GROUPS; i++) {
          u32 b[4];
          fragments(b, tile_values + (pairs * 4 + lane() / 8) * GROUP_BYTES + (h * DIM_GROUPS + i) * CORE_BYTES + lane() % 8 * 16);
          f32(&sums)[4] = *(f32(*)[4])(o + 4 * i);
          UNROLL for (i32 k = 0; k < 2; k++) {
            multiply(sums, p[k], b[2 * k] & visible[2 * k], b[2 * k + 1] & visible[2 * k + 1]);
          }
        }
      }
      release();
    }
    if ((tile + 1) % SPLIT_TILES == 0 || tile + 1 == all) {
      softmax_end_split(softmax);
      merge_split(softmax, o, total);
    }
  }
  Activations out = {y, y_rows, y_tile, y_depth};
  meet(5, CONSUMER_THREADS);
  finish_rows(rows, softmax, total, maxima, (f32*)queries, *bad, x, stride, out);
}
LUCE_EXPORT(attention_prefill)

// Threads and shared bytes of attention_prefill, tokens of a Tile, heads of a block.
LUCE_KERNEL(attention_prefill_shape, 32)(i32* found) {
  if (thread() == 0) {
    found[0] = THREADS;
    found[1] = BODY_BYTES + MAXIMA_BYTES + 16 * STAGES + 16;
    found[2] = QUERY_TILE;
    found[3] = TILE_HEADS;
  }
}
LUCE_EXPORT(attention_prefill_shape)
