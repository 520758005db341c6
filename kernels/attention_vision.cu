// Attention of the vision tower by mma. The tree is in attention_vision.h.
#include "attention_vision.h"

#define WARPS 8
#define THREADS (WARPS * 32)
#define PAIRS 4                                        // tiles of keys and values in the ring
#define RING_BYTES (PAIRS * (KEY_BYTES + VALUE_BYTES))
#define QUERY_BYTES (WARPS * 16 * DEPTH * 2)

#if HAS_BULK
// Keys and values of a tile into its place in the ring, once everybody is through with what stood there. By one thread.
DEVICE void fetch(const u8* keys, i32 tile, u8* ring, u64* full, u64* empty) {
  i32 slot = tile % PAIRS;
  u32 waited = (u32)(tile / PAIRS & 1) ^ 1u;
  u8* to = ring + slot * (KEY_BYTES + VALUE_BYTES);
  bar_wait(empty + slot, waited);
  const u8* from = keys + (i64)tile * HEADS * HEAD_BYTES;
  bar_expect(full + 2 * slot, KEY_BYTES);
  bulk_load(to, from, KEY_BYTES, full + 2 * slot);
  bar_expect(full + 2 * slot + 1, VALUE_BYTES);
  bulk_load(to + KEY_BYTES, from + KEY_BYTES, VALUE_BYTES, full + 2 * slot + 1);
}
#endif

// Mean of the values, [rows][HEADS * HEAD_DIM] as activations (prefill layout of out_rows rows), without sums and without what
// pads their depth. grid (blocks of 128 rows, HEADS); threads and shared bytes: vision_attention_shape.
LUCE_KERNEL_RESIDENT(vision_attention, THREADS, 2)(const u8* tiles_at, i32 rows, u16* y, i32 out_rows, i32 out_depth) {
  i32 tiles = ceil_div(rows, TILE_ROWS), head = block_y();
  const u8* mine = tiles_at + (i64)head * HEAD_BYTES;
  const u8* keys = mine + KEY_BYTES;
  pdl_launch();
#if HAS_BULK
  u8* queries = shared_memory();
  u8* ring = queries + QUERY_BYTES;
  u64* full = (u64*)(ring + RING_BYTES);
  u64* empty = full + 2 * PAIRS;
  if (thread() == 0) {
    for (i32 i = 0; i < 2 * PAIRS; i++) bar_init(full + i, 1);
    for (i32 i = 0; i < PAIRS; i++) bar_init(empty + i, WARPS);
    bar_init_fence();
    pdl_wait();
    for (i32 i = 0; i < min_(2, tiles); i++) fetch(keys, i, ring, full, empty);
  }
  sync_block();
#endif
  pdl_wait();
  const i32 first = block_x() * (WARPS * 16) + warp() * 16;
  const f32 c = score_scale();
  // A warp behind the last tile only keeps the ring going.
  i32 from = min_(first, tiles * TILE_ROWS - 16);
  mine += (i64)(from / TILE_ROWS) * HEADS * HEAD_BYTES + from % TILE_ROWS / 8 * (DEPTH * 16);
#if HAS_BULK
  for (i32 i = lane(); i < DEPTH * 2; i += 32) cp_async16(queries + warp() * (DEPTH * 32) + i * 16, mine + i * 16);
  cp_async_commit();
  cp_async_wait<0>();
  sync_warp();
  mine = queries + warp() * (DEPTH * 32);
#endif
  RowPair me = row_pair();
  f32 o[DIM_GROUPS * 4] = {};
  NO_UNROLL for (i32 tile = 0; tile < tiles; tile++) {
#if HAS_BULK
    i32 slot = tile % PAIRS;
    u32 phase = (u32)(tile / PAIRS & 1);
    const u8* tile_keys = ring + slot * (KEY_BYTES + VALUE_BYTES);
    const u8* tile_values = tile_keys + KEY_BYTES;
    if (thread() == 0 && tile + 2 < tiles) fetch(keys, tile + 2, ring, full, empty);
    sync_warp();
    bar_wait(full + 2 * slot, phase);
#else
    const u8* tile_keys = keys + (i64)tile * HEADS * HEAD_BYTES;
    const u8* tile_values = tile_keys + KEY_BYTES;
#endif
    f32 s[32] = {};
    UNROLL for (i32 step = 0; step < STEPS; step++) {
      u32 a[4];
      fragments(a, mine + lane() / 8 % 2 * (DEPTH * 16) + (2 * step + lane() / 16) * CORE_BYTES + lane() % 8 * 16);
      UNROLL for (i32 i = 0; i < 8; i += 2) {
        u32 b[4];
        fragments(b, tile_keys + (i + lane() / 16) * (DEPTH * 16) + (2 * step + lane() / 8 % 2) * CORE_BYTES + lane() % 8 * 16);
        multiply(*(f32(*)[4])&s[4 * i], a, b[0], b[1]);
        multiply(*(f32(*)[4])&s[4 * i + 4], a, b[2], b[3]);
      }
    }
    weigh(me, s, tile, rows, c);
    rescale_sums(me, o);
#if HAS_BULK
    bar_wait(full + 2 * slot + 1, phase);
#endif
    UNROLL for (i32 pairs = 0; pairs < 2; pairs++) {
      u32 p[2][4];
      UNROLL for (i32 k = 0; k < 2; k++) step_operand(p[k], s, 2 * pairs + k);
      UNROLL for (i32 i = 0; i < DIM_GROUPS; i++) {
        u32 b[4];
        fragments(b, tile_values + (pairs * 4 + lane() / 8) * (HEAD_DIM * 16) + i * CORE_BYTES + lane() % 8 * 16);
        multiply(*(f32(*)[4])&o[4 * i], p[0], b[0], b[1]);
        multiply(*(f32(*)[4])&o[4 * i], p[1], b[2], b[3]);
      }
    }
#if HAS_BULK
    sync_warp();
    if (lane() == 0) bar_arrive(empty + slot);
#endif
  }
  finish_rows(me, o, first, rows, head, {y, out_rows, out_rows, out_depth});
}
LUCE_EXPORT(vision_attention)

// Threads and shared bytes of vision_attention, rows of a block.
LUCE_KERNEL(vision_attention_shape, 32)(i32* found) {
  if (thread() == 0) {
    found[0] = THREADS;
    found[1] = HAS_BULK ? QUERY_BYTES + RING_BYTES + 3 * PAIRS * 8 : 0;
    found[2] = WARPS * 16;
  }
}
LUCE_EXPORT(vision_attention_shape)
