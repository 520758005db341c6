// Products of experts: each tile of up to TILES * 8 rows of one expert with that expert's weights, by the tree of the weight GEMMs
// (gemm_decode.cu), so a row's bits do not depend on who else chose its expert.
//
// A warp takes a row-block's records through a ring of its own in shared memory and multiplies them with activations that it reads
// where they are, each column's row by its index: nothing is gathered. Blocks stay and take unit after unit. A unit is a tile with
// one row-block for a warp, or, where sums of 32 results are wanted, with four row-blocks for four warps. EPILOGUE_COMBINE (few
// rows): a block takes the same row-block of all tiles, so that all that a row's sum over its experts needs meets in its shared memory.
#include "activation.h"
#include "batch.h"
#include "moe_route.h"
#include "records.h"

#ifndef TILES
#error "TILES: of 8 rows, 1 to 8"
#endif
#ifndef WARPS
#error "WARPS: of a block, a multiple of 4"
#endif
#ifndef STAGES
#error "STAGES: pieces of a warp's ring"
#endif
#ifndef ROUTE
#define ROUTE 0            // the pass has one row: its experts are found here, from the router's logits
#endif
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_STORE, EPILOGUE_SWIGLU or EPILOGUE_COMBINE"
#endif
#ifndef SUMS
#define SUMS 1             // of 32 results beside the activations of EPILOGUE_SWIGLU: the next product's format has minima
#endif
#define EPILOGUE_STORE 0   // y f32 [positions][y_stride]
#define EPILOGUE_COMBINE 1 // y f32 [rows][y_stride] += the sum over ranks of weight * result, ascending, as moe_combine
#define EPILOGUE_SWIGLU 2  // activations of the next product, a row a position; rows of weights: 8 of the gate, the same 8 of up
#if FORMAT == FORMAT_BF16
#define PIECES 2           // of a record, each one stage
#else
#define PIECES 1
#endif
#define COMBINE_STRIDE 17  // floats of a result in shared memory, so that rows lie in different banks
#define PIECE_BYTES (RECORD_BYTES / PIECES)
#define QUARTERS (4 / PIECES)
#define TEAM (EPILOGUE == EPILOGUE_SWIGLU && SUMS ? 4 : 1)  // warps with a unit in common
#define TEAMS (WARPS / TEAM)

typedef f32 Sums[TILES][4];

DEVICE void clear(Sums& c) {
  UNROLL
  for (int i = 0; i < TILES; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
}

// A warp's units, one after the other.
struct Units {
  const ExpertTile* tiles;
  i32 per, num_tiles, row_blocks, unit, end, step;  // units of a tile, or (combined) of a row-block; the next unit
  // Its tile and row-block; a row-block past the last: it is no unit.
  METHOD void take(i32& tile, i32& block) const {
#if EPILOGUE == EPILOGUE_COMBINE
    tile = unit % per;
    block = tile < num_tiles ? block_x() + unit / per * grid_x() : row_blocks;
#else
    tile = unit / per;
    block = (unit - tile * per) * TEAM + warp() % TEAM;
#endif
  }
};

// The pieces that a warp reads over all its units.
struct Stream {
  Units units;
  const u8* weights;
  i64 expert_bytes, block_bytes;
  const u8* at;
  i32 left;            // pieces of the unit in hand
  METHOD void open(i32 pieces) {
    left = 0;
    while (units.unit < units.end && left == 0) {
      i32 tile, block;
      units.take(tile, block);
      if (block < units.row_blocks) {
        at = weights + units.tiles[tile].expert * expert_bytes + block * block_bytes;
        left = pieces;
      }
      units.unit += units.step;
    }
  }
};

#if HAS_MMA
// x: activations in the step layout with x_rows rows of depth records * 256; the row of position p is order[p] / ranks, or p itself
// without order. weights: records of the experts one after the other, expert_bytes each, row_blocks row-blocks; experts from
// first_expert on. num_tiles: where the tiles of the launch end and, if `from` is given, begin. y or h gets the products of the
// first `n` rows of weights. EPILOGUE_COMBINE: order is the places of pairs, of pass->rows rows, and h their weights. Grid: any;
// WARPS warps.
LUCE_KERNEL_RESIDENT(moe_gemm, WARPS * WARP, 1)
(const u8* x, i32 x_rows, const i32* order, i32 ranks, const ExpertTile* tiles, const i32* from, const i32* num_tiles,
 const u8* RESTRICT weights, i64 expert_bytes, i32 first_expert, i32 row_blocks, i32 records, i32 n, f32* y, i32 y_stride, u16* h,
 i32 h_rows, i32 h_depth, const Pass* pass, const f32* logits, i32 experts, i32* chosen, f32* shares_to) {
  const i32 lane = ::lane(), warp = ::warp(), team = warp / TEAM;
  u8* ring = shared_memory() + warp * (STAGES * PIECE_BYTES);
  u64* bars = (u64*)(shared_memory() + WARPS * STAGES * PIECE_BYTES) + warp * STAGES;
  [[maybe_unused]] f32* room = (f32*)(shared_memory() + WARPS * STAGES * (PIECE_BYTES + 8));
#if HAS_BULK
  if (lane == 0) {
    for (i32 i = 0; i < STAGES; i++) bar_init(bars + i, 1);
    bar_init_fence();
  }
  sync_warp();
#endif
#if EPILOGUE != EPILOGUE_COMBINE
  pdl_wait();
  pdl_launch();
#endif
#if ROUTE
  Alone& alone = *(Alone*)(((u64)(room + WARPS * TILES * 8 + ranks * COMBINE_STRIDE) + 15) & ~(u64)15);
  if (warp == 0) route_alone(alone, logits, experts, ranks - 1);
  sync_block();
  const i32 first_tile = 0, num = ranks;
  tiles = alone.tiles;
  if (chosen && block_x() == 0 && thread() < ranks) {   // for who asks
    chosen[thread()] = alone.tiles[alone.place[thread()]].expert;
    shares_to[thread()] = alone.weights[thread()];
  }
#else
  const i32 first_tile = from ? *from : 0, num = *num_tiles - first_tile;
#endif
#if EPILOGUE == EPILOGUE_COMBINE
  const i32 per = ceil_div(num, WARPS) * WARPS, begin = warp, step = WARPS;
  const i32 end = block_x() < row_blocks ? ceil_div(row_blocks - block_x(), grid_x()) * per : 0;
#else
  const i32 per = ceil_div(row_blocks, TEAM), begin = team * grid_x() + block_x(), step = grid_x() * TEAMS, end = num * per;
#endif
  const ExpertTile* mine = tiles + first_tile;
  Units units = {mine, per, num, row_blocks, begin, end, step};
  Stream stream = {units, weights - first_expert * expert_bytes, expert_bytes, (i64)records * RECORD_BYTES, nullptr, 0};
#if HAS_BULK
  auto load = [&](i32 stage) {  // lane 0
    if (stream.left == 0) return;
    bar_expect(bars + stage, PIECE_BYTES);
    bulk_load(ring + stage * PIECE_BYTES, stream.at, PIECE_BYTES, bars + stage);
    stream.at += PIECE_BYTES;
    if (--stream.left == 0) stream.open(records * PIECES);
  };
  if (lane == 0) {
    stream.open(records * PIECES);
    for (i32 i = 0; i < STAGES; i++) load(i);
  }
#endif
#if EPILOGUE == EPILOGUE_COMBINE
  // The tiles (or logits) were there before the grid ahead of this one let it start: that one makes the activations alone. So weights
  // are on their way while it still runs.
  pdl_wait();
  pdl_launch();
#endif
  const i64 depth = (i64)records * RECORD_DEPTH, x_step = (i64)x_rows * 64;
  [[maybe_unused]] const u8* x_sums = x + depth * x_rows * 2;
  i32 stage = 0;
  u32 phase = 0;
  for (; units.unit < end; units.unit += step) {
    i32 number, block;
    units.take(number, block);
    const ExpertTile tile = mine[min_(number, num - 1)];
    Sums t;
    clear(t);
    if (block < row_blocks) {
      u32 off[TILES];  // of the lane's column: its row's 64 bytes of 32 k, and its place in them; half of it among the sums
      UNROLL
      for (int i = 0; i < TILES; i++) {
        i32 at = tile.first + min_(8 * i + (lane >> 2), tile.count - 1);
        off[i] = (u32)(EPILOGUE == EPILOGUE_COMBINE || !order ? at : ROUTE ? 0 : order[at] / ranks) * 64 + (lane & 3) * 16;
      }
      const u8* record = nullptr;
#if !HAS_BULK
      record = stream.weights + tile.expert * expert_bytes + block * stream.block_bytes;
#endif
      Sums p;
      clear(p);
      const u8* at_x = x;
      NO_UNROLL
      for (i32 r = 0; r < records; r++) {
#if SCALED
        Sums c;
        clear(c);
#else
        Sums& c = p;
#endif
        UNROLL
        for (int piece = 0; piece < PIECES; piece++) {
#if HAS_BULK
          record = ring + stage * PIECE_BYTES;
          bar_wait(bars + stage, phase);
#endif
          Scales scales;
          load_scales(record, lane, scales);
          UNROLL
          for (int quarter = 0; quarter < QUARTERS; quarter++) {
            u32 a[4][4];
            load_weights(record, scales, lane, quarter, a);
            UNROLL
            for (int pair = 0; pair < 2; pair++) {
              UNROLL
              for (int i = 0; i < TILES; i++) {
                if (TILES > 1 && 8 * i >= tile.count) continue;
                u32x4 b = words4_at(at_x + off[i]);
                mma_operands(c[i], a[2 * pair][0], a[2 * pair][1], a[2 * pair][2], a[2 * pair][3], b.x, b.y);
                mma_operands(c[i], a[2 * pair + 1][0], a[2 * pair + 1][1], a[2 * pair + 1][2], a[2 * pair + 1][3], b.z, b.w);
              }
              at_x += x_step;
            }
          }
#if SCALED
          f32 d0, d1;
          load_row_scales(record, lane, d0, d1);
          UNROLL
          for (int i = 0; i < TILES; i++) {
            p[i][0] = fma_(d0, c[i][0], p[i][0]);
            p[i][1] = fma_(d0, c[i][1], p[i][1]);
            p[i][2] = fma_(d1, c[i][2], p[i][2]);
            p[i][3] = fma_(d1, c[i][3], p[i][3]);
          }
#endif
#if MINIMA
          u32 m[4];
          load_minima(record, lane, m);
          UNROLL
          for (int i = 0; i < TILES; i++) {
            u32x2 b = words2_at(x_sums + (i64)r * x_rows * 32 + off[i] / 2);
            mma_operands(p[i], m[0], m[1], m[2], m[3], b.x, b.y);
          }
#endif
#if HAS_BULK
          sync_warp();
          if (lane == 0) load(stage);
          if (++stage == STAGES) stage = 0, phase ^= 1;
#else
          record += PIECE_BYTES;
#endif
        }
        if ((r + 1) % (CHUNK_DEPTH / RECORD_DEPTH) == 0 || r == records - 1) {
          UNROLL
          for (int i = 0; i < TILES; i++) {
            UNROLL
            for (int v = 0; v < 4; v++) t[i][v] = add(t[i][v], p[i][v]);
          }
          clear(p);
        }
      }
    }
    const i32 g = lane >> 2, column = 2 * (lane & 3);
#if EPILOGUE == EPILOGUE_STORE
    UNROLL
    for (int i = 0; i < TILES; i++) {
      UNROLL
      for (int v = 0; v < 4; v++) {
        i32 at = 8 * i + column + (v & 1), row = block * ROW_BLOCK + g + (v & 2) * 4;
        if (at < tile.count && row < n) y[(i64)(tile.first + at) * y_stride + row] = t[i][v];
      }
    }
#elif EPILOGUE == EPILOGUE_COMBINE
    f32* results = room + tile.first * COMBINE_STRIDE;
    UNROLL
    for (int i = 0; i < TILES; i++) {
      UNROLL
      for (int v = 0; v < 4; v++) {
        i32 at = 8 * i + column + (v & 1);
        if (at < tile.count && block < row_blocks) results[at * COMBINE_STRIDE + g + (v & 2) * 4] = t[i][v];
      }
    }
    if ((units.unit + step) % per >= step) continue;
    sync_block();  // all tiles of the row-block are done
    const i32 row_block = block_x() + units.unit / per * grid_x();
#if ROUTE
    const f32* shares = alone.weights;
    order = alone.place;
#else
    const f32* shares = (const f32*)h;
#endif
    for (i32 i = thread(); i < pass->rows * ROW_BLOCK; i += WARPS * WARP) {
      const i32 r = i / ROW_BLOCK, row = row_block * ROW_BLOCK + i % ROW_BLOCK;
      f32 sum = 0.0f;
      for (i32 rank = 0; rank < ranks; rank++) {
        const i32 pair = r * ranks + rank;
        const f32 term = mul(room[order[pair] * COMBINE_STRIDE + i % ROW_BLOCK], shares[pair]);
        sum = rank ? add(sum, term) : term;
      }
      f32* to = y + (i64)r * y_stride + row;
      if (row < n) *to = add(*to, sum);
    }
    sync_block();
#else
    // Gate and up of one k lie in one lane, for two columns; the lane with the next k has the other half of a word. Each takes one.
    const Activations next = {h, h_rows, 0, h_depth};
    const bool odd = g & 1, inside = 2 * (block * 8 + g) < n;
#if SUMS
    f32* quarters = room + team * (4 * TILES * 8);
    barrier_sync(1 + team, 128);  // the unit before has been read
#endif
    UNROLL
    for (int i = 0; i < TILES; i++) {
      f32 low = inside ? mul(silu_(t[i][0]), t[i][2]) : 0.0f, high = inside ? mul(silu_(t[i][1]), t[i][3]) : 0.0f;
      f32 other = shfl_xor(odd ? low : high, 4);
      u32 both = odd ? pack_activations(other, high) : pack_activations(low, other);
      i32 at = 8 * i + column + odd;
      if (at < tile.count && 8 * block < h_depth)
        *(u32*)(next.at + activation_index(next, tile.first + at, block * 8 + (g & ~1))) = both;
#if SUMS
      f32 sum = add(operand_low(both), operand_high(both));
      sum = add(sum, shfl_xor(sum, 8));
      sum = add(sum, shfl_xor(sum, 16));
      if (g < 2) quarters[warp % 4 * (TILES * 8) + at] = sum;
#endif
    }
#if SUMS
    barrier_sync(1 + team, 128);
    for (i32 at = warp % 4 * WARP + lane; at < tile.count; at += 128) {
      const f32* four = quarters + at;
      f32 sum = add(add(four[0], four[TILES * 8]), add(four[2 * TILES * 8], four[3 * TILES * 8]));
      if (block / 4 * 32 < h_depth) store_activation_sum(next, tile.first + at, block / 4, sum);
    }
#endif
#endif
  }
}
#else
LUCE_KERNEL(moe_gemm, 32)(const u8*) { trap("moe_gemm needs mma.m16n8k16"); }
#endif
LUCE_EXPORT(moe_gemm)
