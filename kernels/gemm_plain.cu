// Weight GEMM for devices without bulk copies: the tree of gemm_decode.cu and gemm_prefill.cu with plain loads, for any number of
// rows in either layout of activations. Correct everywhere; fast nowhere.
//
// A block has one row-block and ROWS activations; its warps take the chunks of 1,024 K in turn, and the partial sums are added in
// ascending order out of shared memory, all of them at the end or those of a round of the warps at a time.
#include "gemm_epilogue.h"

#ifndef WARPS
#error "WARPS: of a block"
#endif
#ifndef PREFILL
#error "PREFILL: 1 for activations in the prefill layout (ROWS is 8 or more), 0 for the step layout of height ROWS"
#endif
#ifndef ROUNDS
#define ROUNDS 0   // 1: shared memory holds WARPS partial sums, not those of all chunks
#endif

// c += a quarter's weights x the activations from k on.
DEVICE void multiply_from(Tile& c, const u32 (&a)[4][4], const Activations& x, i32 first, i32 k, i32 lane) {
#if PREFILL
  UNROLL
  for (int step = 0; step < 4; step++) {
    UNROLL
    for (int i = 0; i < TILES; i++) {
      const u16* at = x.at + activation_index(x, first + i * 8 + (lane >> 2), k + step * 16 + (lane & 3) * 2);
      multiply_step(c[i], a[step], *(const u32*)at, *(const u32*)(at + 64));
    }
  }
#else
  multiply(c, a, (const u8*)x.at + (i64)(k / 32) * ROWS * ROW_BYTES + lane_activations(lane));
#endif
}

// x: activations of x_rows rows in tiles of x_tile (0: step layout). y f32 [.][y_stride]: rows below `rows` and columns below n are
// written. Grid: row-blocks, tiles of ROWS rows.
LUCE_KERNEL_RESIDENT(gemm_plain, WARPS * WARP, 1)
(u16* x, i32 x_rows, i32 x_tile, const u8* RESTRICT w, f32* y, i32 rows, i32 n, i32 y_stride, i32 records, i32 epilogue) {
  const i32 lane = ::lane(), chunks = ceil_div(records, 4), first = block_y() * ROWS;
  const Activations a = {x, x_rows, x_tile, records * RECORD_DEPTH};
  f32* partials = (f32*)shared_memory();
  f32 t[MERGED];
  UNROLL
  for (int v = 0; v < MERGED; v++) t[v] = 0.0f;
  for (i32 from = 0;; from += WARPS) {
    const i32 to = ROUNDS ? min_(chunks, from + WARPS) : chunks;
    for (i32 chunk = from + warp(); chunk < to; chunk += WARPS) {
      Tile p;
      clear(p);
      const i32 end = min_(records, chunk * 4 + 4);
      for (i32 r = chunk * 4; r < end; r++) {
        const u8* record = w + ((i64)block_x() * records + r) * RECORD_BYTES;
        Scales scales;
        load_scales(record, lane, scales);
#if SCALED
        Tile c;
        clear(c);
#else
        Tile& c = p;
#endif
        UNROLL
        for (int quarter = 0; quarter < 4; quarter++) {
          u32 v[4][4];
          load_weights(record, scales, lane, quarter, v);
          multiply_from(c, v, a, first, r * RECORD_DEPTH + quarter * 64, lane);
        }
#if SCALED
        // hi and lo of the sums of two blocks, for eight rows at a time
        u32x2 sums[TILES] = {};
        UNROLL
        for (int i = 0; i < (MINIMA ? TILES : 0); i++) {
          const u16* at = a.at + activation_sum_index(a, first + i * 8 + lane_row(lane), r * 8 + (lane & 3) * 2);
          sums[i] = {*(const u32*)at, *(const u32*)(at + activation_sum_gap(a))};
        }
        add_record(p, c, record, sums, lane);
#endif
      }
      put_partial(partials + (chunk - from) * PARTIAL, p, lane);
    }
    sync_block();
    if (warp() > 0 && to == chunks) return;
    if (warp() == 0) {
      for (i32 chunk = from; chunk < to; chunk++) take_partial(t, partials + (chunk - from) * PARTIAL, lane);
    }
    if (to == chunks) break;
    sync_block();
  }
  finish_rows(t, {y, y_stride, rows, n, first}, block_x(), epilogue == EPILOGUE_ADD, lane);
}
LUCE_EXPORT(gemm_plain)
