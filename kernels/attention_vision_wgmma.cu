// Attention of the vision tower by warpgroup products (sm_90a): the same bits as attention_vision.cu, faster. The tree is in
// attention_vision.h. HEAD_DIM: one for which wgmma.h has products.
//
// A warpgroup takes 64 rows. While it makes a tile's probabilities, the scores of the next tile and the sums of the one before run.
#include "attention_vision.h"

#if HAS_WGMMA
#include "wgmma_shared.h"

#ifndef GROUPS
#define GROUPS 2   // warpgroups that compute
#endif
#define WORKERS (GROUPS * 128)
#define THREADS (WORKERS + 128)
#ifndef STAGES
#define STAGES 8
#endif
#define STAGE_BYTES (KEY_BYTES + VALUE_BYTES)

struct Ring { u8* at; u64 *keys, *values, *empty; };

DEVICE void fill_ring(const u8* keys, i32 tiles, const Ring& ring) {
  NO_UNROLL for (i32 tile = 0; tile < tiles; tile++) {
    i32 stage = tile % STAGES;
    u8* to = ring.at + stage * STAGE_BYTES;
    const u8* from = keys + (i64)tile * HEADS * HEAD_BYTES;
    bar_wait(ring.empty + stage, (u32)(tile / STAGES & 1) ^ 1u);
    bar_expect(ring.keys + stage, KEY_BYTES);
    bulk_load(to, from, KEY_BYTES, ring.keys + stage);
    bar_expect(ring.values + stage, VALUE_BYTES);
    bulk_load(to + KEY_BYTES, from + KEY_BYTES, VALUE_BYTES, ring.values + stage);
  }
}

// Mean of the values, [rows][HEADS * HEAD_DIM] as activations (prefill layout of out_rows rows), without sums and without what
// pads their depth. grid (blocks of 64 GROUPS rows, HEADS); threads and shared bytes: vision_attention_wgmma_shape.
LUCE_KERNEL_RESIDENT(vision_attention_wgmma, THREADS, 1)(const u8* tiles_at, i32 rows, u16* y, i32 out_rows, i32 out_depth) {
  const i32 tiles = ceil_div(rows, TILE_ROWS), head = block_y();
  u8* shared = shared_memory();
  u64* bars = (u64*)(shared + STAGES * STAGE_BYTES);
  Ring ring = {shared, bars, bars + STAGES, bars + 2 * STAGES};
  const u8* mine = tiles_at + (i64)head * HEAD_BYTES;
  pdl_launch();
  if (thread() == 0) {
    for (i32 i = 0; i < STAGES; i++) bar_init(ring.keys + i, 1), bar_init(ring.values + i, 1), bar_init(ring.empty + i, GROUPS * 4);
    bar_init_fence();
  }
  sync_block();
  pdl_wait();
  if (warp() >= GROUPS * 4) {
    registers_shrink<24>();
    if (thread() == WORKERS) fill_ring(mine + KEY_BYTES, tiles, ring);
    return;
  }
  registers_grow<GROUPS == 2 ? 240 : 160>();
  const i32 index = block_x() * GROUPS + shfl(warp() / 4, 0);
  const f32 c = score_scale();
  // A warpgroup behind the last tile only keeps the ring going.
  mine += (i64)min_(index, tiles - 1) * HEADS * HEAD_BYTES + warp() % 4 * (DEPTH * 32) + lane() * 4;
  u32 q[STEPS][4];
  UNROLL for (i32 step = 0; step < STEPS; step++)
    UNROLL for (i32 i = 0; i < 4; i++) q[step][i] = *(const u32*)(mine + i % 2 * (DEPTH * 16) + (2 * step + i / 2) * CORE_BYTES);

  RowPair me = row_pair();
  f32 o[DIM_GROUPS * 4] = {}, first[32] = {}, second[32] = {};
  auto score = [&](f32 (&s)[32], i32 tile) {
    i32 stage = tile % STAGES;
    bar_wait(ring.keys + stage, (u32)(tile / STAGES & 1));
    TileDesc keys = tile_desc<CORE_BYTES, DEPTH * 16>(ring.at + stage * STAGE_BYTES);
    wgmma_hold(s);
    wgmma_fence();
    UNROLL for (i32 step = 0; step < STEPS; step++) wgmma<TILE_ROWS>(s, q[step], tile_step(keys, step * 2 * CORE_BYTES), step > 0);
    wgmma_commit();
  };
  // The values of a tile by its probabilities are added to o in the background.
  auto mix = [&](const f32 (&s)[32], i32 tile) {
    u32 p[4][4];
    UNROLL for (i32 step = 0; step < 4; step++) step_operand(p[step], s, step);
    i32 stage = tile % STAGES;
    bar_wait(ring.values + stage, (u32)(tile / STAGES & 1));
    TileDesc values = tile_desc<HEAD_DIM * 16, CORE_BYTES>(ring.at + stage * STAGE_BYTES + KEY_BYTES);
    wgmma_hold(o);
    wgmma_fence();
    UNROLL for (i32 step = 0; step < 4; step++) wgmma<HEAD_DIM>(o, p[step], tile_step(values, step * 2 * (HEAD_DIM * 16)), 1);
    wgmma_commit();
  };
  // The sums of the tile before are done.
  auto leave = [&](i32 tile) {
    wgmma_hold(o);
    sync_warp();
    if (tile > 0 && lane() == 0) bar_arrive(ring.empty + (tile - 1) % STAGES);
    rescale_sums(me, o);
  };
  // A tile that is not the last.
  auto turn = [&](f32 (&s)[32], f32 (&next)[32], i32 tile) {
    score(next, tile + 1);
    weigh(me, s, tile, rows, c);
    wgmma_wait<1>();
    leave(tile);
    mix(s, tile);
    wgmma_wait<1>();
    wgmma_hold(next);
  };
  auto last = [&](f32 (&s)[32]) {
    weigh(me, s, tiles - 1, rows, c);
    wgmma_wait<0>();
    leave(tiles - 1);
    mix(s, tiles - 1);
  };
  score(first, 0);
  wgmma_wait<0>();
  wgmma_hold(first);
  i32 tile = 0;
  NO_UNROLL for (; tile + 2 < tiles; tile += 2) {
    turn(first, second, tile);
    turn(second, first, tile + 1);
  }
  if (tile + 2 == tiles) {
    turn(first, second, tile);
    last(second);
  } else {
    last(first);
  }
  wgmma_wait<0>();
  wgmma_hold(o);
  finish_rows(me, o, index * TILE_ROWS + warp() % 4 * 16, rows, head, {y, out_rows, out_rows, out_depth});
}
LUCE_EXPORT(vision_attention_wgmma)

// Threads and shared bytes of vision_attention_wgmma, rows of a block.
LUCE_KERNEL(vision_attention_wgmma_shape, 32)(i32* found) {
  if (thread() == 0) {
    found[0] = THREADS;
    found[1] = STAGES * (STAGE_BYTES + 24);
    found[2] = GROUPS * TILE_ROWS;
  }
}
LUCE_EXPORT(vision_attention_wgmma_shape)
#endif
