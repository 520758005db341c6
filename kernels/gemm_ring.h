// Weights on their way to a warp that multiplies: a ring of its own in shared memory, which bulk copies fill, and the product of a unit
// of work out of it: a chunk of 1,024 K of BLOCKS row-blocks, which spare reading the activations again.
#pragma once
#include "gemm_tile.h"

// BLOCKS: row-blocks that are multiplied together, 1 or 2. One for whoever has always one, and then without a loop over them: it would
// be unrolled late, and the compiler take other registers.
#ifdef BLOCKS
#define EACH_BLOCK \
  UNROLL           \
  for (int b = 0; b < BLOCKS; b++)
#else
#define BLOCKS 1
#define EACH_BLOCK if (constexpr int b = 0; true)
#endif
#if FORMAT == FORMAT_BF16
#define PIECES (2 * BLOCKS) // of a record; one of each row-block is a stage
#else
#define PIECES 1
#endif
#define PIECE_BYTES (RECORD_BYTES / PIECES)
#define STAGE_BYTES (PIECE_BYTES * BLOCKS)
#define QUARTERS (4 / PIECES)

struct Ring {
  u8* memory;
  u64* bars;
  i32 stages;
  // lane 0: what is loaded next
  const u8* from;
  i64 gap;    // to the second row-block
  i32 left;   // pieces of the unit
  // what is multiplied next
  i32 stage;
  u32 phase;
};

// Lane 0: loads the next piece. `next` says what comes behind a unit's last one, or leaves `left` 0.
template <class Next> DEVICE void load_stage(Ring& ring, i32 stage, const Next& next) {
  if (ring.left == 0) return;
  bar_expect(ring.bars + stage, STAGE_BYTES);
  UNROLL
  for (int b = 0; b < BLOCKS; b++)
    bulk_load(ring.memory + stage * STAGE_BYTES + b * PIECE_BYTES, ring.from + b * ring.gap, PIECE_BYTES, ring.bars + stage);
  ring.from += PIECE_BYTES;
  if (--ring.left == 0) next();
}
template <class Next> DEVICE void fill_ring(Ring& ring, const Next& next) {
  next();
  NO_UNROLL
  for (i32 i = 0; i < ring.stages; i++) bar_init(ring.bars + i, 1);
  bar_init_fence();
  NO_UNROLL
  for (i32 i = 0; i < ring.stages; i++) load_stage(ring, i, next);
}

// B operands of 64 K. Kept from unit to unit: load_activations leaves columns that do not exist as they are.
typedef u32x4 Values[2][TILES];

// p = the products of a unit of so many pieces with the activations at `x`, whose sums are at `sums`: this lane's places in them.
template <class Next>
DEVICE void multiply_unit(Tile (&p)[BLOCKS], Ring& ring, i32 pieces, const u8* x, [[maybe_unused]] const u8* sums,
                          [[maybe_unused]] Values& values, i32 lane, const Next& next) {
  EACH_BLOCK clear(p[b]);
  NO_UNROLL
  for (i32 piece = 0; piece < pieces; piece++) {
    const u8* record = ring.memory + ring.stage * STAGE_BYTES;
    bar_wait(ring.bars + ring.stage, ring.phase);
    Scales scales[BLOCKS];
    EACH_BLOCK load_scales(record + b * PIECE_BYTES, lane, scales[b]);
#if SCALED
    Tile c[BLOCKS];
    EACH_BLOCK clear(c[b]);
#else
    Tile (&c)[BLOCKS] = p;
#endif
    UNROLL
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
#if TILES <= 2
      UNROLL
      for (int pair = 0; pair < 2; pair++) load_activations(values[pair], x + (2 * quarter + pair) * (ROWS * ROW_BYTES));
#endif
      EACH_BLOCK {
        u32 a[4][4];
        load_weights(record + b * PIECE_BYTES, scales[b], lane, quarter, a);
#if TILES <= 2
        UNROLL
        for (int pair = 0; pair < 2; pair++) multiply_pair(c[b], a, pair, values[pair]);
#else
        multiply(c[b], a, x + quarter * (64 * ROWS * 2));
#endif
      }
    }
#if SCALED
    u32x2 sum[TILES] = {};
#if MINIMA
    UNROLL
    for (int t = 0; t < TILES; t++) sum[t] = words2_at(sums + t * 8 * SUM_BYTES);
#endif
    EACH_BLOCK add_record(p[b], c[b], record + b * PIECE_BYTES, sum, lane);
    sums += ROWS * SUM_BYTES;
#endif
    x += QUARTERS * 64 * ROWS * 2;
    sync_warp();
    if (lane == 0) load_stage(ring, ring.stage, next);
    if (++ring.stage == ring.stages) ring.stage = 0, ring.phase ^= 1;
  }
}
