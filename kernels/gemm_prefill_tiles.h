// Tiles of the prefill GEMM, the rings that bring their operands into shared memory, and who fetches them. Part of gemm_prefill.cu.
#pragma once

#define CHUNK_RECORDS (CHUNK_DEPTH / RECORD_DEPTH)
#if FORMAT == FORMAT_BF16
#define PART_K 64  // k of a stage of weights
#else
#define PART_K 256
#endif
#define PART_BYTES (RECORD_BYTES * PART_K / 256)
#define PARTS (256 / PART_K)  // of a record
#define STEPS (PART_K / 64)   // stages of activations in a part
// A block's rings, and the row-blocks of its tile: with SPLIT each warpgroup has rings of its own, and they take the chunks of one tile in turn.
#define RINGS (SPLIT ? GROUPS : 1)
#define TILE_BLOCKS (SPLIT ? 4 : GROUPS * 4)
#define X_BYTES (TOKENS * 128)
#define SUM_BYTES (MINIMA * TOKENS * 32)
#define W_BYTES (TILE_BLOCKS * PART_BYTES + SUM_BYTES)
#define ACC (TOKENS / 2)     // sums of a thread
#define WORKERS (GROUPS * 128)
#define STAGED_ROW 68        // words of an output row of 64 on its way: no bank conflicts
// Words of a place for totals (each thread its own), then for rows on their way or for sums; a warpgroup's or, with SPLIT, all's.
#if EPILOGUE != EPILOGUE_SWIGLU && STORE
#define PLACE (TOKENS * STAGED_ROW)
#else
#define PLACE (TOTAL_SHARED * 128 * ACC + (EPILOGUE == EPILOGUE_SWIGLU) * 4 * TOKENS)
#endif

struct Shape {
  i32 live, rows, n, blocks, records, chunks, weight_tiles, token_tiles, band;
};
struct Tile { i32 weights, tokens; };

// Tiles in bands of token tiles, so that those that run at one time share weights and activations in L2.
DEVICE Tile tile_at(const Shape& s, i32 index) {
  i32 of_band = s.band * s.weight_tiles, first = index / of_band * s.band;
  i32 width = min_(s.band, s.token_tiles - first), rest = index - first * s.weight_tiles;
  return {rest / width, first + rest % width};
}

// The chunks that somebody works on: all of the block's, or every GROUPS-th.
struct Turn {
  i32 tile, chunk, left;  // tile: its number; left: chunks from here on, of the block
};
DEVICE Turn first_turn(const Shape& s, i32 ring) {
  i32 first = block_x(), stride = grid_x(), tiles = s.weight_tiles * s.token_tiles;
  i32 left = first < tiles ? ((tiles - 1 - first) / stride + 1) * s.chunks - ring : 0;
  return {first + ring / s.chunks * stride, ring % s.chunks, left};
}
DEVICE void next_turn(Turn& turn, const Shape& s) {
  turn.left -= RINGS;
  turn.chunk += RINGS;
  while (turn.chunk >= s.chunks) turn.chunk -= s.chunks, turn.tile += grid_x();
}
DEVICE i32 records_of(const Turn& turn, const Shape& s) { return min_(CHUNK_RECORDS, s.records - turn.chunk * CHUNK_RECORDS); }

// A ring of stages in shared memory: `full` counts the fetching thread and its bytes, `empty` the warps that have read.
template <int STAGES> struct Ring {
  u64* bars;
  u8* at;
  i32 stage;
  u32 phase;
};
template <int N> DEVICE u64* full(const Ring<N>& ring) { return ring.bars + ring.stage; }
template <int N> DEVICE u64* empty(const Ring<N>& ring) { return ring.bars + N + ring.stage; }
template <int N> DEVICE i32 stage_before(const Ring<N>& ring) { return ring.stage ? ring.stage - 1 : N - 1; }
template <int N> DEVICE u64* empty_before(const Ring<N>& ring) { return ring.bars + N + stage_before(ring); }
template <int N> DEVICE void next(Ring<N>& ring) {
  if (++ring.stage == N) ring.stage = 0, ring.phase ^= 1;
}

// Shared memory: activations, weights, totals (in whose place rows leave), barriers.
struct Plan { u8 *x, *w; f32* totals; u64* bars; };

DEVICE Plan plan_of(u8* shared) {
  u8* w = shared + RINGS * X_STAGES * X_BYTES;
  f32* totals = (f32*)(w + RINGS * W_STAGES * W_BYTES);
  return {shared, w, totals, (u64*)(totals + (SPLIT ? 1 : GROUPS) * PLACE)};
}
DEVICE Ring<X_STAGES> x_ring(const Plan& plan, i32 ring) {
  return {plan.bars + ring * 2 * X_STAGES, plan.x + ring * X_STAGES * X_BYTES, 0, 0};
}
DEVICE Ring<W_STAGES> w_ring(const Plan& plan, i32 ring) {
  return {plan.bars + RINGS * 2 * X_STAGES + ring * 2 * W_STAGES, plan.w + ring * W_STAGES * W_BYTES, 0, 0};
}
// With SPLIT: a warpgroup's turn at the totals.
DEVICE u64* turn_bar(const Plan& plan, i32 group) { return plan.bars + RINGS * 2 * (X_STAGES + W_STAGES) + group; }

DEVICE void init_bars(const Plan& plan) {
  for (i32 ring = 0; ring < RINGS; ring++) {
    u64* x = x_ring(plan, ring).bars;
    for (i32 i = 0; i < X_STAGES; i++) bar_init(x + i, 1), bar_init(x + X_STAGES + i, TILE_BLOCKS * WARP_ARRIVALS);
    u64* w = w_ring(plan, ring).bars;
    for (i32 i = 0; i < W_STAGES; i++) bar_init(w + i, 1), bar_init(w + W_STAGES + i, TILE_BLOCKS * WARP_ARRIVALS);
  }
  for (i32 i = 0; SPLIT && i < GROUPS; i++) bar_init(turn_bar(plan, i), 4 * WARP_ARRIVALS);
  bar_init_fence();
}

DEVICE void fetch_activations(const u8* x, const Shape& s, const Plan& plan, i32 of) {
  Ring<X_STAGES> ring = x_ring(plan, of);
  if (lane() == 0)
    NO_UNROLL for (Turn turn = first_turn(s, of); turn.left > 0; next_turn(turn, s)) {
      i32 token = tile_at(s, turn.tile).tokens * TOKENS;
      u32 bytes = (u32)min_(TOKENS, s.rows - token) * 128;
      const u8* from = x + ((i64)turn.chunk * (CHUNK_DEPTH / 64) * s.rows + token) * 128;
      i32 stages = records_of(turn, s) * 4;
      NO_UNROLL for (i32 k = 0; k < stages; k++, from += (i64)s.rows * 128) {
        bar_wait(empty(ring), ring.phase ^ 1);
        bar_expect(full(ring), bytes);
        bulk_load(ring.at + ring.stage * X_BYTES, from, bytes, full(ring));
        next(ring);
      }
    }
}

DEVICE void fetch_weights(const u8* w, const u8* sums, const Shape& s, const Plan& plan, i32 of) {
  Ring<W_STAGES> ring = w_ring(plan, of);
  i32 mine = lane();
  NO_UNROLL for (Turn turn = first_turn(s, of); turn.left > 0; next_turn(turn, s)) {
    Tile tile = tile_at(s, turn.tile);
    i32 block = min_(tile.weights * TILE_BLOCKS + min_(mine, TILE_BLOCKS - 1), s.blocks - 1), token = tile.tokens * TOKENS;
    i32 record = turn.chunk * CHUNK_RECORDS, parts = records_of(turn, s) * PARTS;
    const u8* from = w + ((i64)block * s.records + record) * RECORD_BYTES;
    const u8* sums_from = sums + ((i64)record * s.rows + token) * 32;
    u32 sum_bytes = MINIMA * (u32)min_(TOKENS, s.rows - token) * 32;
    NO_UNROLL for (i32 k = 0; k < parts; k++, from += PART_BYTES, sums_from += (i64)s.rows * 32) {
      bar_wait(empty(ring), ring.phase ^ 1);
      u8* to = ring.at + ring.stage * W_BYTES;
      if (mine == 0) {
        bar_expect(full(ring), TILE_BLOCKS * PART_BYTES + sum_bytes);
        if (MINIMA) bulk_load(to + TILE_BLOCKS * PART_BYTES, sums_from, sum_bytes, full(ring));
      }
      sync_warp();
      if (mine < TILE_BLOCKS) bulk_load(to + mine * PART_BYTES, from, PART_BYTES, full(ring));
      next(ring);
    }
  }
}
