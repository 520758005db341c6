// Weight GEMM for few rows, where reading the weights is what costs: y[row, n] = sum over k of x[row, k] W[n, k].
//
// A unit of work is a chunk of 1,024 K of a row-block: up to four records, which lie together. Units are numbered row-block
// by row-block; a CTA has a run of them and deals them to its warps in turn. Each warp takes its records through a ring of
// its own in shared memory by bulk copies and multiplies them with the activations, which the whole CTA keeps in shared memory.
// The partial sums of a row-block meet in shared memory, and whichever warp comes last adds them up in ascending order. A row-block that two
// CTAs share meets in device memory; a CTA does its shared units first, so that nobody waits for them at the end. Where the
// activations are too many for shared memory, a CTA takes a slice of the chunks (and all row-blocks are shared).
//
// None of that touches the tree: which warp, CTA or slice a unit falls to changes no bit.
#include "gemm_epilogue.h"

#ifndef WARPS
#error "WARPS: of a CTA"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_..."
#endif
#ifndef OWN_SUMS
#define OWN_SUMS 0          // 1: the sums of 32 activations are not in x, they are made here (nobody wrote them)
#endif
#ifndef NORM
#define NORM 0              // pieces of 256 values a warp whose RMS norm the CTA makes itself, of f32 rows; 0: x is there
#endif
#ifndef CTAS
#define CTAS 1              // that should fit on a multiprocessor
#endif
#ifndef BESIDE
#define BESIDE 0            // warps of a block of another grid that runs beside this one: so many registers are left (28 warps: 72 each)
#endif

#if HAS_BULK
#include "gemm_ring.h"
#include "gemm_units.h"
#if NORM
#define ALL_WARPS WARPS
#include "gemm_norm.h"
#endif
#include "gemm_sums.h"

// y f32 [.][y_stride]; h: the activations of the next GEMM, depth h_depth (EPILOGUE_SWIGLU). parts, counts: scratch for shared row-blocks,
// counts zero before and after. Of the first `n` rows of W and the first `rows` of x something is written. slice: chunks of
// a slice; aligned: CTAs take whole row-blocks. stages: pieces of a warp's ring. slots: row-blocks of a CTA whose partial sums
// can be under way. With NORM x is f32 [.][norm_width] and its RMS norm with factors `scale` is what is multiplied; the CTA has
// all of K then, and NORM WARPS >= rows records. followed: by a grid that reads x and runs beside this one.
LUCE_KERNEL_RESIDENT(gemm_decode, (WARPS + BESIDE) * WARP, CTAS)
(const u8* x, const u8* RESTRICT w, f32* y, u16* h, f32* parts, u32* counts, i32 rows, i32 n, i32 y_stride, i32 h_depth,
 i32 row_blocks, i32 records, i32 slice, i32 aligned, i32 stages, i32 slots, const f32* scale, f32 eps,
 i32 norm_width, i32 followed) {
  const i32 lane = ::lane(), warp = ::warp(), depth = records * RECORD_DEPTH, chunks = ceil_div(records, 4);
  const bool sliced = slice < chunks;
  const Slice k = slice_of(slice, chunks, block_x(), grid_x());
  const i32 first_chunk = k.from, width = k.chunks, cta = k.nth, ctas = k.of;
  // The CTA's units, begin .. end - 1; of those the last ones, of a row-block that the next CTA shares, come first.
  const i32 units = row_blocks * width;
  const u32 shares = aligned ? (u32)row_blocks : (u32)units, share = aligned ? (u32)width : 1;
  const i32 begin = (i32)(shares * (u32)cta / (u32)ctas * share), end = (i32)(shares * (u32)(cta + 1) / (u32)ctas * share);
  const i32 first_whole = ceil_div(begin, width), last_block = end / width;
  const i32 tail = last_block >= first_whole ? end - last_block * width : 0, count = end - begin;
  const u32 divisor = divisor_of(width);
  auto unit_at = [&](i32 i, i32& block, i32& chunk) {
    i32 u = i < tail ? end - tail + i : begin + i - tail;
    block = divided(u, width, divisor);
    chunk = u - block * width;
  };
  auto records_of = [&](i32 chunk) { return min_(4, records - (first_chunk + chunk) * 4); };

  // shared memory: the table of values, rings, activations, sums, partial sums, counters, barriers
  u8* memory = shared_memory() + TABLE_BYTES;
  u8* xs = memory + WARPS * stages * STAGE_BYTES;
  const i32 resident = min_(slice * CHUNK_DEPTH, depth) * ROWS * 2;
  u8* sums = xs + resident;
  f32* partials = (f32*)(sums + (MINIMA ? resident / 16 : 0));
  u64* x_bar = (u64*)(partials + (sliced ? 0 : max_(slots * chunks, WARPS)) * PARTIAL);
  u32* counters = (u32*)(x_bar + 1 + WARPS * stages);  // partial sums of a place that are there
  u32* merged = counters + slots;                      // row-blocks of a place that are added up
  shared_ends(merged + slots);

  Ring ring = {memory + warp * (stages * STAGE_BYTES), x_bar + 1 + warp * stages, stages};
  i32 load_unit = warp;
  auto next_load = [&] {
    if (load_unit < count) {
      i32 block, chunk;
      unit_at(load_unit, block, chunk);
      ring.from = w + ((i64)block * records + (first_chunk + chunk) * 4) * RECORD_BYTES;
      ring.left = records_of(chunk) * PIECES;
    }
    load_unit += WARPS;
  };
  if (lane == 0) fill_ring(ring, next_load);
  if (thread() == 0) {
    bar_init(x_bar, 1);
    NO_UNROLL
    for (i32 i = 0; i < slots; i++) {
      counters[i] = merged[i] = 0;
      if (SHOW_ORDERS) bar_init(shown_bar(i), (u32)width * WARP), bar_init(shown_bar(slots + i), WARP);
    }
    bar_init_fence();
  }
#if TABLE
  make_table();
#endif
  if (!followed) pdl_launch();
#if NORM
  norm_activations(pdl_wait, (const f32*)x, scale, eps, norm_width, rows, records, 0, records, {(u16*)xs, ROWS, 0, depth}, 0, partials);
#else
  pdl_wait();
  sync_block();
  if (thread() == 0) {
    const i32 bytes = min_(width * CHUNK_DEPTH, depth - first_chunk * CHUNK_DEPTH) * ROWS * 2;
    const u8* from = x + (i64)first_chunk * CHUNK_DEPTH * ROWS * 2;
    const bool with_sums = MINIMA && !OWN_SUMS;
    bar_expect(x_bar, (u32)(with_sums ? bytes + bytes / 16 : bytes));
    NO_UNROLL
    for (i32 at = 0; at < bytes; at += 16384) bulk_load(xs + at, from + at, (u32)min_(16384, bytes - at), x_bar);
    if (with_sums) bulk_load(sums, x + (i64)depth * ROWS * 2 + (i64)first_chunk * (CHUNK_DEPTH * ROWS / 8), (u32)bytes / 16, x_bar);
  }
  bar_wait(x_bar, 0);
#endif
  if (followed) pdl_launch();
#if MINIMA && OWN_SUMS
  make_sums(xs, (u16*)sums, min_(width * 4, records - first_chunk * 4));
  sync_block();
#endif

  const u8* my_x = xs + lane_activations(lane);
  const u8* my_sums = sums + lane_sums(lane);
  Values values = {};
  for (i32 i = warp; i < count; i += WARPS) {
    i32 block, chunk;
    unit_at(i, block, chunk);
    Tile p[1];
    multiply_unit(p, ring, records_of(chunk) * PIECES, my_x + chunk * (CHUNK_DEPTH * ROWS * 2), my_sums + chunk * (CHUNK_DEPTH * ROWS / 8),
                  values, lane, next_load);

    // The partial sum to where those of its row-block meet; the last one adds them up.
    const bool shared = sliced || block * width < begin || (block + 1) * width > end;
    f32 t[MERGED];
    UNROLL
    for (int v = 0; v < MERGED; v++) t[v] = 0.0f;
    if (shared) {
      // of the row-blocks that CTAs share, each is the last of one CTA
      const i32 place = sliced ? block : (i32)(((u32)(block * width + 1) * (u32)ctas - 1) / (u32)units);
      f32* mine = parts + (i64)place * chunks * PARTIAL;
      put_partial(mine + (first_chunk + chunk) * PARTIAL, p[0], lane);
      sync_warp();
      u32 before = 0;
      if (lane == 0) before = atomic_add_ordered(counts + place, 1u);
      if (shfl(before, 0) != (u32)chunks - 1) continue;
      sync_warp();
      for (i32 c = 0; c < chunks; c++) take_partial(t, (const f32*)mine + c * PARTIAL, lane);
      if (lane == 0) counts[place] = 0;
    } else if (width > 1) {
      // A place for its sums: that of the row-block `slots` before, once that one is added up.
      const i32 nth = block - first_whole, slot = nth % slots, round = nth / slots;
      f32* mine = partials + slot * width * PARTIAL;
      await_(merged + slot, (u32)round);
      if (SHOW_ORDERS) bar_wait(shown_bar(slots + slot), (u32)(round + 1) & 1);  // not alone: who is two rounds ahead would pass
      put_partial(mine + chunk * PARTIAL, p[0], lane);
      fence_block();
      sync_warp();
      u32 before = 0;
      if (lane == 0) before = atomic_add(counters + slot, 1u);
      if (SHOW_ORDERS) bar_arrive(shown_bar(slot));
      if (shfl(before, 0) != (u32)width - 1) continue;
      fence_block();
      if (SHOW_ORDERS) bar_wait(shown_bar(slot), (u32)round & 1);
      for (i32 c = 0; c < width; c++) take_partial(t, mine + c * PARTIAL, lane);
      sync_warp();
      if (lane == 0) counters[slot] = 0;
      if (SHOW_ORDERS) bar_arrive(shown_bar(slots + slot));
      if (lane == 0) publish_(merged + slot, (u32)round + 1);
    } else {
      f32* mine = partials + warp * PARTIAL;
      put_partial(mine, p[0], lane);
      sync_warp();
      take_partial(t, mine, lane);
      sync_warp();
    }

    if (EPILOGUE == EPILOGUE_SWIGLU) finish_swiglu(t, {h, ROWS, 0, h_depth}, block, rows, n, lane);
    else finish_rows(t, {y, y_stride, rows, n, 0}, block, EPILOGUE == EPILOGUE_ADD, lane);
  }
  if (EPILOGUE == EPILOGUE_SWIGLU && block_x() == 0) pad_swiglu({h, ROWS, 0, h_depth}, rows, n, thread(), block_threads());
}
#else
LUCE_KERNEL(gemm_decode, 32)(const u8*) { trap("gemm_decode needs bulk copies; gemm_plain is for this device"); }
#endif
LUCE_EXPORT(gemm_decode)
