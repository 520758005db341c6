// Products of the vision tower: y[R, N] = x[R, K] W^T + bias of operands, an element one chain of k16 steps in ascending order. For sm_90a
// and the host build.
//
// W and x stand alike, in the prefill layout (activation.h): 64 k of a tile of rows are one piece, a stage of the ring has those of
// 128 rows of W (operand A) and TOKENS rows of x (operand B). The block's two warpgroups take tiles in turn, each with all of a
// tile's sums in registers, so that one's products run while the other makes of its sums what the epilogue says.
#include "activation.h"

#if HAS_WGMMA
#include "gemm_tower_epilogue.h"
#define WGMMA_TYPE OPERAND_TYPE
#include "wgmma_shared.h"

#ifndef STAGES
#error "STAGES: of 64 k in the ring"
#endif
#define W_ROWS 128
#define W_BYTES (W_ROWS * 128)
#define STAGE_BYTES (W_BYTES + TOKENS * 128)
#define GROUPS 2

struct Shape { i32 live, rows, n, w_rows, steps, weight_tiles, tiles, band, token_tiles; };
struct Tile { i32 weights, tokens; };

// Tiles in bands of token tiles, so that those that run at one time share weights and activations in L2.
DEVICE Tile tile_at(const Shape& s, i32 index) {
  i32 of_band = s.band * s.weight_tiles, first = index / of_band * s.band;
  i32 width = min_(s.band, s.token_tiles - first), rest = index - first * s.weight_tiles;
  return {rest / width, first + rest % width};
}

struct Ring { u8* at; u64 *full, *empty; };

DEVICE void fetch(const u8* x, const u8* w, const Shape& s, const Ring& ring) {
  i32 stage = 0;
  u32 phase = 1;
  NO_UNROLL for (i32 index = block_x(); index < s.tiles; index += grid_x()) {
    Tile tile = tile_at(s, index);
    i32 token = tile.tokens * TOKENS;
    u32 bytes = (u32)min_(TOKENS, s.rows - token) * 128;
    const u8* from_w = w + (i64)tile.weights * W_BYTES;
    const u8* from_x = x + (i64)token * 128;
    NO_UNROLL for (i32 step = 0; step < s.steps; step++, from_w += (i64)s.w_rows * 128, from_x += (i64)s.rows * 128) {
      bar_wait(ring.empty + stage, phase);
      bar_expect(ring.full + stage, W_BYTES + bytes);
      bulk_load(ring.at + stage * STAGE_BYTES, from_w, W_BYTES, ring.full + stage);
      bulk_load(ring.at + stage * STAGE_BYTES + W_BYTES, from_x, bytes, ring.full + stage);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
  }
}

DEVICE void leave(u64* empty) {
  sync_warp();
  if (lane() == 0) bar_arrive(empty);
}

DEVICE void work(const Shape& s, const Ring& ring, const Output& out) {
  const i32 group = shfl(warp() / 4, 0);
  f32 low[SUMS], high[SUMS];   // rows 0 to 63 and 64 to 127 of the tile
  i32 turn = group;
  NO_UNROLL for (i32 index = block_x() + group * grid_x(); index < s.tiles; index += GROUPS * grid_x(), turn += GROUPS) {
    i32 stage = turn * s.steps % STAGES, before = 0;
    u32 phase = (u32)(turn * s.steps / STAGES) & 1u;
    // A barrier tells two rounds of the ring apart, no more: the other group has seen all stages before these.
    if (turn) barrier_sync(1 + group, GROUPS * 128);
    NO_UNROLL for (i32 step = 0; step < s.steps; step++) {
      bar_wait(ring.full + stage, phase);
      TileDesc a = tile_desc<128, 1024>(ring.at + stage * STAGE_BYTES), b = tile_step(a, W_BYTES);
      wgmma_hold(low);
      wgmma_hold(high);
      wgmma_fence();
      UNROLL for (i32 k = 0; k < 4; k++) {
        wgmma_shared<TOKENS>(low, tile_step(a, k * 256), tile_step(b, k * 256), k || step);
        wgmma_shared<TOKENS>(high, tile_step(a, W_BYTES / 2 + k * 256), tile_step(b, k * 256), k || step);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (step) leave(ring.empty + before);
      before = stage;
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    if (index + grid_x() < s.tiles) barrier_arrive(2 - group, GROUPS * 128);
    wgmma_wait<0>();
    wgmma_hold(low);
    wgmma_hold(high);
    leave(ring.empty + before);
    Tile tile = tile_at(s, index);
    i32 block = tile.weights * (W_ROWS / 16) + warp() % 4, token = tile.tokens * TOKENS;
    finish(low, block, token, s.live, s.rows, s.n, out);
    finish(high, block + 4, token, s.live, s.rows, s.n, out);
  }
}

// x: activations (prefill layout, `rows` rows of which `live` count); w: W in the same layout, `w_rows` rows, a multiple of 128, of
// which N count. steps: of 64 k; what pads K in them is zero on both sides. out, stride, depth, bias [N], turn: what the epilogue
// takes (gemm_tower_epilogue.h). band: token tiles of a band. Grid: any number of blocks; more than multiprocessors makes no sense.
// 384 threads, STAGES (16 + stage) bytes of shared memory.
LUCE_KERNEL_RESIDENT(gemm_tower, GROUPS * 128 + 128, 1)(
    const u8* x, const u8* w, void* out, i32 live, i32 rows, i32 N, i32 w_rows, i32 steps, i32 stride, i32 depth, i32 band, const f32* bias,
    const f32x2* turn) {
  u8* shared = shared_memory();
  u64* bars = (u64*)(shared + STAGES * STAGE_BYTES);
  Ring ring = {shared, bars, bars + STAGES};
  i32 weight_tiles = w_rows / W_ROWS, token_tiles = ceil_div(live, TOKENS);
  Shape s = {live, rows, N, w_rows, steps, weight_tiles, weight_tiles * token_tiles, band, token_tiles};
  if (thread() == 0) {
    for (i32 i = 0; i < STAGES; i++) bar_init(ring.full + i, 1), bar_init(ring.empty + i, 4);
    bar_init_fence();
  }
  sync_block();
  pdl_wait();
  pdl_launch();
  if (warp() >= GROUPS * 4) {
    registers_shrink<24>();
    if (thread() == GROUPS * 128) fetch(x, w, s, ring);
  } else {
    registers_grow<240>();
    work(s, ring, {out, stride, depth, bias, turn});
  }
}
#else
LUCE_KERNEL(gemm_tower, 32)(const u8*) { trap("gemm_tower needs warpgroup products"); }
#endif
LUCE_EXPORT(gemm_tower)
