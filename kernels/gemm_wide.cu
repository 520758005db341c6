// Weight GEMM for 17 to 64 rows, between the one bound by reading weights (gemm_decode.cu) and the one for many rows
// (gemm_prefill.cu): y[row, n] = sum over k of x[row, k] W[n, k], with their tree.
//
// A warp owns a row-block at a time and takes its records through a ring of its own; four warps multiply as a warpgroup (wgmma,
// weights in registers). Activations pass once through a ring that all warps of the CTA share and another warp fills, so what a CTA
// reads of them is divided by all the row-blocks it holds. Where a matrix has too few row-blocks for that, CTAs take slices of K, and the sums of
// their chunks of 1,024 K meet in device memory: gemm_wide_sum adds them up in ascending order.
#include "activation.h"
#include "records.h"

#if HAS_WGMMA
#include "wgmma.h"

#ifndef TOKENS
#error "TOKENS: rows of the activations that are multiplied at a time, 32 or 64"
#endif
#ifndef GROUPS
#error "GROUPS: warpgroups of a CTA that multiply"
#endif
#ifndef X_STAGES
#error "X_STAGES: stages of 128 k of activations"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_..."
#endif
#define EPILOGUE_STORE 0    // y = product
#define EPILOGUE_ADD 1      // y = add(y, product)
#define EPILOGUE_SWIGLU 2   // h = bf16 of silu(gate) up, as activations with sums: a row-block is 8 rows of the gate and the same 8 of up
#ifndef BUFFERS
#error "BUFFERS: fragments of weights of a warp, 1 or 2; with two the next ones are made while products run"
#endif
#ifndef TOTAL_SHARED
#define TOTAL_SHARED (SCALED || GROUPS > 4)  // the running total lies in shared memory, not in registers
#endif
#if FORMAT == FORMAT_BF16
#ifndef PIECES
#define PIECES 4            // of a record, each one stage of a ring
#endif
#else
#define PIECES 1
#endif
#define PIECE_BYTES (RECORD_BYTES / PIECES)
#define QUARTERS (4 / PIECES)
#define ACC (TOKENS / 2)
#define TILE_VALUES (16 * TOKENS)   // a row-block's sums
#define PIECE_X (TOKENS * 128)              // bytes of 64 k of activations
#define X_QUARTERS 2                        // of a record, in a stage of activations
#define X_BYTES (X_QUARTERS * PIECE_X)
#define SUM_BYTES (TOKENS * 32)
#define SUM_SLOTS ((X_STAGES * X_QUARTERS + 3) / 4)  // a slot is free when the stages of its record are
#define WORKERS (GROUPS * 4)
// Registers of a thread that multiplies; those that fetch take 24. Together what the CTA has.
#define WORK_REGISTERS (GROUPS == 5 ? 88 : GROUPS == 4 ? 112 : GROUPS == 3 ? 160 : 232)

// How the work is dealt out: K in `slices`, each to CTAs of its own, which go over it in `passes`, each with other row-blocks.
struct Deal {
  i32 row_blocks, records, slices, passes;
};
// Chunks of K and row-blocks that a CTA takes in a pass.
struct Turn {
  i32 first_chunk, chunks, records, begin, end;
};
DEVICE Turn turn_of(const Deal& d, i32 pass) {
  const i32 all = ceil_div(d.records, 4);
  i32 low = 0, high = grid_x(), at = 0, end = all;
  NO_UNROLL
  for (i32 slice = 0; slice < d.slices; slice++) {  // CTAs in proportion to the chunks of a slice
    at = all * slice / d.slices, end = all * (slice + 1) / d.slices;
    low = grid_x() * at / all, high = grid_x() * end / all;
    if (block_x() < high) break;
  }
  const i32 cta = block_x() - low, ctas = high - low;
  const i32 from = d.row_blocks * cta / ctas, mine = d.row_blocks * (cta + 1) / ctas - from;
  return {at, end - at, min_((end - at) * 4, d.records - at * 4), from + mine * pass / d.passes, from + mine * (pass + 1) / d.passes};
}

// Shared memory: rings of weights, activations, their sums, totals, barriers.
struct Layout {
  u8 *weights, *x, *sums;
  f32x4* totals;
  u64 *x_full, *x_empty, *w_bars;
};
DEVICE Layout layout_of(u8* at, i32 held, i32 stages) {
  Layout to;
  to.x = at;
  to.sums = to.x + X_STAGES * X_BYTES;
  to.weights = to.sums + MINIMA * SUM_SLOTS * SUM_BYTES;
  to.totals = (f32x4*)(to.weights + held * stages * PIECE_BYTES);
  to.x_full = (u64*)(to.totals + TOTAL_SHARED * held * (TILE_VALUES / 4));
  to.x_empty = to.x_full + X_STAGES;
  to.w_bars = to.x_empty + X_STAGES;
  shared_ends(to.w_bars + held * stages);
  return to;
}

struct Ring {
  i32 stage;
  u32 phase;
};
template <int STAGES> DEVICE void next(Ring& ring) {
  if (++ring.stage == STAGES) ring.stage = 0, ring.phase ^= 1;
}

// Activations of all passes, by one lane.
DEVICE void fetch_activations(const u8* x, i32 x_rows, const Deal& deal, const Layout& at) {
  Ring ring = {0, 0};
  const i64 step = (i64)x_rows * 128, row0 = (i64)block_y() * TOKENS;
  i32 slot = 0;
  NO_UNROLL
  for (i32 pass = 0; pass < deal.passes; pass++) {
    const Turn turn = turn_of(deal, pass);
    const u8* from = x + turn.first_chunk * 16 * step + row0 * 128;
    const u8* sums = x + (i64)deal.records * RECORD_DEPTH * x_rows * 2 + ((i64)turn.first_chunk * 4 * x_rows + row0) * 32;
    NO_UNROLL
    for (i32 i = 0; i < turn.records * (4 / X_QUARTERS); i++) {
      u64* full = at.x_full + ring.stage;
      u8* to = at.x + ring.stage * X_BYTES;
      const bool with_sums = MINIMA && (i + 1) % (4 / X_QUARTERS) == 0;
      bar_wait(at.x_empty + ring.stage, ring.phase ^ 1);
      bar_expect(full, X_BYTES + (with_sums ? SUM_BYTES : 0));
      UNROLL
      for (int quarter = 0; quarter < X_QUARTERS; quarter++, from += step) bulk_load(to + quarter * PIECE_X, from, PIECE_X, full);
      if (with_sums) {
        bulk_load(at.sums + slot * SUM_BYTES, sums, SUM_BYTES, full);
        sums += (i64)x_rows * 32;
        if (++slot == SUM_SLOTS) slot = 0;
      }
      next<X_STAGES>(ring);
    }
  }
}

// What a warp multiplies with.
struct Worker {
  Layout at;
  Ring x, w;
  u8* weights;     // its ring
  u64* bars;
  i32 stages;
  i32 slot;        // of the sums
};

// A stage of activations is no longer read by this warp.
DEVICE void leave(const Worker& me, i32 stage) {
  sync_warp();
  if (lane() == 0) bar_arrive(me.at.x_empty + stage);
}

// The products of one chunk: its sum P. `real`: the warp has a row-block; else it multiplies zeros, since the warpgroup must.
template <class Refill> DEVICE void chunk_products(f32 (&p)[ACC], Worker& me, i32 records, bool real, Refill refill) {
  u32 a[BUFFERS][4][4];
  Scales scales;
#if SCALED
  f32 c[ACC];
#else
  f32 (&c)[ACC] = p;
#endif
  UNROLL
  for (int i = 0; i < ACC; i++) p[i] = 0.0f;
  if (!real) UNROLL for (int i = 0; i < BUFFERS * 16; i++) a[i >> 4][i >> 2 & 3][i & 3] = 0;
  i32 held = 0;  // a stage of activations that products may still read
  NO_UNROLL
  for (i32 record = 0; record < records; record++) {
#if SCALED
    f32 d0 = 0.0f, d1 = 0.0f;
#endif
#if MINIMA
    u32 low[4] = {};
#endif
    UNROLL
    for (int quarter = 0; quarter < 4; quarter++) {
      u32(&w)[4][4] = a[quarter % BUFFERS];
      const u8* piece = me.weights + me.w.stage * PIECE_BYTES;
      if (real) {
        if (quarter % QUARTERS == 0) {
          bar_wait(me.bars + me.w.stage, me.w.phase);
          load_scales(piece, lane(), scales);
        }
#if SCALED
        if (quarter == 3) load_row_scales(piece, lane(), d0, d1);
#endif
#if MINIMA
        if (quarter == 3) load_minima(piece, lane(), low);
#endif
        load_weights(piece, scales, lane(), quarter % QUARTERS, w);
      }
      if (quarter % X_QUARTERS == 0) bar_wait(me.at.x_full + me.x.stage, me.x.phase);
      TileDesc b = tile_desc<128, 1024>(me.at.x + me.x.stage * X_BYTES + quarter % X_QUARTERS * PIECE_X);
      wgmma_fence();
      UNROLL
      for (int k = 0; k < 4; k++) wgmma_bf16<TOKENS>(c, w[k], tile_step(b, k * 256), (SCALED ? quarter > 0 : 1) || k > 0);
      wgmma_commit();
      // Products have been issued with the last fragments, so what was read has arrived: the stage may be filled again.
      if (real && quarter % QUARTERS == QUARTERS - 1) {
        refill(me.w.stage);
        if (++me.w.stage == me.stages) me.w.stage = 0, me.w.phase ^= 1;
      }
      wgmma_wait<BUFFERS - 1>();  // the other fragments are free
      if (BUFFERS == 2 && quarter % X_QUARTERS == 0 && (quarter > 0 || (!SCALED && record > 0))) leave(me, held);
      if (quarter % X_QUARTERS == X_QUARTERS - 1) {
        held = me.x.stage;
        if (BUFFERS == 1 && !(SCALED && quarter == 3)) leave(me, held);
        next<X_STAGES>(me.x);
      }
    }
#if SCALED
    wgmma_wait<0>();
    UNROLL
    for (int i = 0; i < ACC; i++) p[i] = fma_(i & 2 ? d1 : d0, c[i], p[i]);
#if MINIMA
    wgmma_fence();
    wgmma_bf16<TOKENS>(p, low, tile_desc<128, 256>(me.at.sums + me.slot * SUM_BYTES), 1);
    wgmma_commit();
    wgmma_wait<0>();
#endif
    if (++me.slot == SUM_SLOTS) me.slot = 0;
    leave(me, held);
#endif
  }
#if !SCALED
  wgmma_wait<0>();
  if (BUFFERS == 2) leave(me, held);
#endif
}

// A warpgroup without row-blocks lets the activations pass.
DEVICE void idle(Worker& me, i32 records) {
  for (i32 i = 0; i < records * (4 / X_QUARTERS); i++) {
    bar_wait(me.at.x_full + me.x.stage, me.x.phase);
    leave(me, me.x.stage);
    next<X_STAGES>(me.x);
  }
  me.slot = (me.slot + records) % SUM_SLOTS;
}

struct Out {
  u32* counts;   // of the row-blocks of 32 k that are there; zero before and after
  f32* y;
  u16* h;
  i32 rows, n, y_stride, h_rows, h_depth;
};

// What becomes of the sums of a row-block with eight activations from 8 j: elements of mma.m16n8k16's c.
DEVICE void finish(const Out& out, i32 block, i32 j, f32x4 t) {
  const i32 row0 = block_y() * TOKENS + j * 8 + (lane() & 3) * 2;
#if EPILOGUE == EPILOGUE_SWIGLU
  // A lane has two rows of one k; its neighbour the same two of the next k. Each stores one row and both.
  const Activations next = {out.h, out.h_rows, out.h_rows, out.h_depth};
  const i32 k = block * 8 + (lane() >> 2), odd = k & 1;
  const bool real = 2 * k < out.n;
  f32 first = real ? mul(silu_(t.x), t.z) : 0.0f, second = real ? mul(silu_(t.y), t.w) : 0.0f;
  f32 other = shfl_xor(odd ? first : second, 4);
  u32 both = odd ? pack_bf16(other, second) : pack_bf16(first, other);
  if (row0 + odd < out.rows) *(u32*)(next.at + activation_index(next, row0 + odd, k & ~1)) = both;
#else
  f32 v[4] = {t.x, t.y, t.z, t.w};
  UNROLL
  for (int i = 0; i < 4; i++) {
    i32 row = row0 + (i & 1), index = block * ROW_BLOCK + (lane() >> 2) + (i & 2) * 4;
    if (row < out.rows && index < out.n) {
      f32* to = out.y + (i64)row * out.y_stride + index;
      *to = EPILOGUE == EPILOGUE_ADD ? add(*to, v[i]) : v[i];
    }
  }
#endif
}
#if EPILOGUE == EPILOGUE_SWIGLU
// Padding of the next GEMM's K, past the last row-block; by one CTA.
DEVICE void pad(const Out& out, i32 row_blocks, i32 threads) {
  const Activations next = {out.h, out.h_rows, out.h_rows, out.h_depth};
  const i32 first = row_blocks * 8, width = out.h_depth - first, row0 = block_y() * TOKENS, rows = min_(TOKENS, out.rows - row0);
  for (i32 i = thread(); i < width * rows; i += threads) {
    const i32 row = row0 + i % rows, k = first + i / rows;
    next.at[activation_index(next, row, k)] = 0;
    if (k % 32 == 0) store_activation_sum(next, row, k / 32, 0.0f);
  }
}
// A row-block's activations are stored, or those of one of `parts` of it: who is the last of 32 k adds them up. By whole warps.
DEVICE void sum_up(const Out& out, i32 block, i32 row_blocks, i32 parts) {
  u32* count = out.counts + block_y() * ceil_div(row_blocks, 4) + block / 4;
  const i32 here = min_(4, row_blocks - (block & ~3));
  u32 before = 0;
  fence_device();
  sync_warp();
  if (lane() == 0) before = atomic_add(count, 1u);
  if (shfl(before, 0) != (u32)(here * parts - 1)) return;
  fence_device();
  const Activations next = {out.h, out.h_rows, out.h_rows, out.h_depth};
  const i32 row0 = block_y() * TOKENS;
  for (i32 row = row0 + lane(); row < min_(row0 + TOKENS, out.rows); row += 32) {
    f32 eights[4];
    UNROLL
    for (int k = 0; k < 4; k++) {
      u32x4 v = {0, 0, 0, 0};
      if (k < here) v = *(const u32x4*)(next.at + activation_index(next, row, (block & ~3) * 8 + k * 8));
      eights[k] = sum_of_eight(v.x, v.y, v.z, v.w);
    }
    store_activation_sum(next, row, block / 4, sum_of_eights(eights[0], eights[1], eights[2], eights[3]));
  }
  if (lane() == 0) *count = 0;
}
#endif

// Sums that meet: of a row-block the total of the first slice, then P of every later chunk.
DEVICE i32 slots_of(const Deal& d) { return ceil_div(d.records, 4) - ceil_div(d.records, 4) / d.slices + 1; }
DEVICE f32x4* part_at(f32* parts, const Deal& d, i32 block, i32 slot) {
  return (f32x4*)parts + (((i64)block_y() * d.row_blocks + block) * slots_of(d) + slot) * (TILE_VALUES / 4) + lane();
}

// x: activations in the prefill layout with one tile of x_rows rows; TOKENS of them are multiplied by the CTAs of one grid y. y f32
// [.][y_stride]: rows below `rows` and columns below n are written. h: the next GEMM's activations in the same layout, depth
// h_depth (EPILOGUE_SWIGLU), without sums. parts, counts: scratch, counts zero before and after. slices,
// passes: Deal; what several slices leave is for gemm_wide_sum. held: row-blocks of a pass at most; stages: pieces of a warp's ring.
LUCE_KERNEL_RESIDENT(gemm_wide, WORKERS * 32 + 128, 1)
(const u8* x, const u8* RESTRICT w, f32* y, u16* h, f32* parts, u32* counts, i32 rows, i32 n, i32 y_stride, i32 h_depth, i32 row_blocks, i32 records,
 i32 x_rows, i32 slices, i32 passes, i32 held, i32 stages) {
  const Layout at = layout_of(shared_memory(), held, stages);
  const Deal deal = {row_blocks, records, slices, passes};
  Worker me = {at, {0, 0}, {0, 0}, at.weights + warp() * stages * PIECE_BYTES, at.w_bars + warp() * stages, stages, 0};

  const u8* load_at = nullptr;  // lane 0 of a warp alone
  i32 load_left = 0, load_pass = 0;
  auto next_block = [&] {
    while (load_left == 0 && load_pass < passes) {
      const Turn turn = turn_of(deal, load_pass++);
      if (turn.begin + warp() < turn.end) {
        load_at = w + ((i64)(turn.begin + warp()) * records + turn.first_chunk * 4) * RECORD_BYTES;
        load_left = turn.records * PIECES;
      }
    }
  };
  auto load = [&](i32 stage) {
    if (load_left == 0) return;
    bar_expect(me.bars + stage, PIECE_BYTES);
    bulk_load(me.weights + stage * PIECE_BYTES, load_at, PIECE_BYTES, me.bars + stage);
    load_at += PIECE_BYTES;
    if (--load_left == 0) next_block();
  };
  auto refill = [&](i32 stage) {
    sync_warp();
    if (lane() == 0) load(stage);
  };
  if (warp() < held && lane() == 0) {
    next_block();
    for (i32 i = 0; i < stages; i++) bar_init(me.bars + i, 1);
    bar_init_fence();
    for (i32 i = 0; i < stages; i++) load(i);
  }
  if (thread() == WORKERS * 32) {
    for (i32 i = 0; i < X_STAGES; i++) bar_init(at.x_full + i, 1), bar_init(at.x_empty + i, WORKERS);
    bar_init_fence();
  }
  pdl_launch();
  pdl_wait();
  sync_block();
  if (warp() >= WORKERS) {
    registers_shrink<24>();
    if (thread() == WORKERS * 32) fetch_activations(x, x_rows, deal, at);
  } else {
    registers_grow<WORK_REGISTERS>();
    const Out out = {counts, y, h, rows, n, y_stride, x_rows, h_depth};
    NO_UNROLL
    for (i32 pass = 0; pass < passes; pass++) {
      const Turn turn = turn_of(deal, pass);
      const i32 block = turn.begin + warp();
      const bool real = block < turn.end, first = turn.first_chunk == 0;
      if (block - (warp() & 3) >= turn.end) {
        idle(me, turn.records);
        continue;
      }
#if TOTAL_SHARED
      f32x4* total = at.totals + warp() * (TILE_VALUES / 4) + lane();
#else
      f32 t[ACC];
#endif
      f32 p[ACC];
      NO_UNROLL
      for (i32 chunk = 0; chunk < turn.chunks; chunk++) {
        chunk_products(p, me, min_(4, turn.records - chunk * 4), real, refill);
        if (!first) {
          if (real) {
            f32x4* to = part_at(parts, deal, block, 1 + turn.first_chunk + chunk - (records + 3) / 4 / slices);
            UNROLL
            for (int i = 0; i < ACC / 4; i++) to[i * 32] = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
          }
          continue;
        }
#if TOTAL_SHARED
        if (!real) continue;
        UNROLL
        for (int i = 0; i < ACC / 4; i++) {
          f32x4 old = {0.0f, 0.0f, 0.0f, 0.0f};
          if (chunk > 0) old = total[i * 32];
          total[i * 32] = {add(old.x, p[4 * i]), add(old.y, p[4 * i + 1]), add(old.z, p[4 * i + 2]), add(old.w, p[4 * i + 3])};
        }
#else
        UNROLL
        for (int i = 0; i < ACC; i++) t[i] = add(chunk > 0 ? t[i] : 0.0f, p[i]);
#endif
      }
      if (!first || !real) continue;
      f32x4* to = slices > 1 ? part_at(parts, deal, block, 0) : nullptr;
      UNROLL
      for (int i = 0; i < ACC / 4; i++) {
#if TOTAL_SHARED
        const f32x4 v = total[i * 32];
#else
        const f32x4 v = {t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]};
#endif
        if (slices > 1) to[i * 32] = v;
        else finish(out, block, i, v);
      }
#if EPILOGUE == EPILOGUE_SWIGLU
      if (slices == 1) sum_up(out, block, row_blocks, 1);
#endif
    }
#if EPILOGUE == EPILOGUE_SWIGLU
    if (block_x() == 0 && slices == 1) pad(out, row_blocks, WORKERS * 32);
#endif
  }
}

// Adds up what several slices of K left in `parts`. A warp takes a row-block's sums with eight activations.
LUCE_KERNEL(gemm_wide_sum, 256)
(f32* parts, f32* y, u16* h, u32* counts, i32 rows, i32 n, i32 y_stride, i32 h_depth, i32 row_blocks, i32 records, i32 x_rows, i32 slices) {
  pdl_launch();
  pdl_wait();
  const Out out = {counts, y, h, rows, n, y_stride, x_rows, h_depth};
  const Deal deal = {row_blocks, records, slices, 1};
  const i32 slots = slots_of(deal), job = block_x() * (block_threads() / 32) + warp(), block = job / (TOKENS / 8), j = job % (TOKENS / 8);
#if EPILOGUE == EPILOGUE_SWIGLU
  if (block_x() == 0) pad(out, row_blocks, block_threads());
#endif
  if (block >= row_blocks) return;
  const f32x4* from = part_at(parts, deal, block, 0) + j * 32;
  f32x4 t = {0.0f, 0.0f, 0.0f, 0.0f};
  UNROLL
  for (i32 most = 0; most < 32; most += 8) {
    f32x4 v[8];
    UNROLL
    for (int i = 0; i < 8; i++)
      if (most + i < slots) v[i] = from[(most + i) * (TILE_VALUES / 4)];
    UNROLL
    for (int i = 0; i < 8; i++)
      if (most + i < slots) t = {add(t.x, v[i].x), add(t.y, v[i].y), add(t.z, v[i].z), add(t.w, v[i].w)};
  }
  NO_UNROLL
  for (i32 slot = 32; slot < slots; slot++) {
    f32x4 v = from[slot * (TILE_VALUES / 4)];
    t = {add(t.x, v.x), add(t.y, v.y), add(t.z, v.z), add(t.w, v.w)};
  }
  finish(out, block, j, t);
#if EPILOGUE == EPILOGUE_SWIGLU
  sum_up(out, block, row_blocks, TOKENS / 8);
#endif
}
#else
LUCE_KERNEL(gemm_wide, 32)(const u8*) { trap("gemm_wide needs warpgroup products; gemm_plain is for this device"); }
LUCE_KERNEL(gemm_wide_sum, 32)(const u8*) { trap("gemm_wide needs warpgroup products; gemm_plain is for this device"); }
#endif
LUCE_EXPORT(gemm_wide)
LUCE_EXPORT(gemm_wide_sum)
