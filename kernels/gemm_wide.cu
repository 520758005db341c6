// Weight GEMM for 17 to 64 rows, between the one bound by reading weights (gemm_decode.cu) and the one for many rows
// (gemm_prefill.cu): y[row, n] = sum over k of x[row, k] W[n, k], with their tree.
//
// A warp owns a row-block at a time and takes its records through a ring of its own; four warps multiply as a warpgroup (wgmma,
// weights in registers). Activations pass once through a ring that all warps of the CTA share, so what a CTA reads of them is divided by all the
// row-blocks it holds; a warp more fills that ring, three the weights'. Row-blocks that are too few for a whole round of all CTAs, and those of
// small matrices, are taken in slices of K, and the sums of their chunks of 1,024 K meet in device memory: gemm_wide_sum adds them up in
// ascending order.
//
// What a warp executes one thing after the other is what counts: its number is a uniform value, so that rings and descriptors are; the next
// quarter's words are loaded before products are issued; a quarter's fragments are made while the one before it is multiplied, across records.
#include "activation.h"
#include "records.h"

#if HAS_WGMMA
#define WGMMA_TYPE OPERAND_TYPE
#include "wgmma.h"

#ifndef TOKENS
#error "TOKENS: rows of the activations that are multiplied at a time, 32 or 64"
#endif
#ifndef GROUPS
#error "GROUPS: warpgroups of a CTA that multiply"
#endif
#ifndef X_STAGES
#error "X_STAGES: stages of a record's depth of activations, with their sums"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_..."
#endif
#define EPILOGUE_STORE 0    // y = product
#define EPILOGUE_ADD 1      // y = add(y, product)
#define EPILOGUE_SWIGLU 2   // h = silu(gate) up, as activations with sums: a row-block is 8 rows of the gate and the same 8 of up
#ifndef BUFFERS
#error "BUFFERS: fragments of weights of a warp, 1 or 2; with two the next ones are made while products run"
#endif
#define TOTAL_SHARED (GROUPS > (MINIMA ? 0 : SCALED ? 3 : 4))  // the running total lies in shared memory, not in registers
#if FORMAT == FORMAT_BF16
#define PIECES 4            // of a record, each one stage of a ring
#else
#define PIECES 1
#endif
#define PIECE_BYTES (RECORD_BYTES / PIECES)
#define QUARTERS (4 / PIECES)
#define ACC (TOKENS / 2)
#define TILE_VALUES (16 * TOKENS)   // a row-block's sums
#define PIECE_X (TOKENS * 128)              // bytes of 64 k of activations
#if defined(LUCE_HOST)
#define ALWAYS 0  // its checks would mind what warps without a row-block read
#else
#define ALWAYS (TOTAL_SHARED || BUFFERS == 1)  // such warps do as the others, without a branch; else there are not enough registers for it
#endif
#define X_BYTES (4 * PIECE_X)
#define SUM_BYTES (TOKENS * 32)
#define WORKERS (GROUPS * 4)
// Registers of a thread that multiplies; those that fetch take 32. Together what the CTA has.
#define WORK_REGISTERS (GROUPS == 5 ? 88 : GROUPS == 4 ? 112 : GROUPS == 3 ? 160 : 232)

// How the work is dealt out. Row-blocks below `met` (a multiple of 4, or all) are taken over all of K, in `passes` passes of a CTA; those from there
// on in `slices` slices of K, each by CTAs of its own in `rest_passes` passes.
struct Deal {
  i32 row_blocks, records, met, passes, slices, rest_passes;
};
DEVICE i32 turns_of(const Deal& d) { return d.passes + d.rest_passes; }
// Chunks of K and row-blocks that a CTA takes in a pass.
struct Turn {
  i32 first_chunk, chunks, records, begin, end;
  bool sliced;
};
DEVICE Turn turn_of(const Deal& d, i32 number) {
  const bool sliced = number >= d.passes;
  const i32 all = ceil_div(d.records, 4), slices = sliced ? d.slices : 1, first = sliced ? d.met : 0, count = (sliced ? d.row_blocks : d.met) - first;
  i32 low = 0, high = grid_x(), at = 0, end = all;
  NO_UNROLL
  for (i32 slice = 0; slice < slices; slice++) {  // CTAs in proportion to the chunks of a slice
    at = all * slice / slices, end = all * (slice + 1) / slices;
    low = grid_x() * at / all, high = grid_x() * end / all;
    if (block_x() < high) break;
  }
  const i32 cta = block_x() - low, ctas = high - low;
  const i32 from = count * cta / ctas, mine = count * (cta + 1) / ctas - from;
  const i32 pass = sliced ? number - d.passes : number, passes = sliced ? d.rest_passes : d.passes;
  return {at, end - at, min_((end - at) * 4, d.records - at * 4), first + from + mine * pass / passes, first + from + mine * (pass + 1) / passes, sliced};
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
  to.weights = to.sums + MINIMA * X_STAGES * SUM_BYTES;
  to.totals = (f32x4*)(to.weights + held * stages * PIECE_BYTES);
  to.x_full = (u64*)(to.totals + TOTAL_SHARED * held * (TILE_VALUES / 4));
  to.x_empty = to.x_full + X_STAGES;
  to.w_bars = to.x_empty + X_STAGES;
  shared_ends(to.w_bars + held * stages * 2);
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
  NO_UNROLL
  for (i32 number = 0; number < turns_of(deal); number++) {
    const Turn turn = turn_of(deal, number);
    const u8* from = x + turn.first_chunk * 16 * step + row0 * 128;
    const u8* sums = x + (i64)deal.records * RECORD_DEPTH * x_rows * 2 + ((i64)turn.first_chunk * 4 * x_rows + row0) * 32;
    NO_UNROLL
    for (i32 i = 0; i < turn.records; i++) {
      u64* full = at.x_full + ring.stage;
      bar_wait(at.x_empty + ring.stage, ring.phase ^ 1);
      bar_expect(full, X_BYTES + MINIMA * SUM_BYTES);
      NO_UNROLL
      for (int quarter = 0; quarter < 4; quarter++, from += step) bulk_load(at.x + ring.stage * X_BYTES + quarter * PIECE_X, from, PIECE_X, full);
      if (MINIMA) bulk_load(at.sums + ring.stage * SUM_BYTES, sums, SUM_BYTES, full);
      sums += (i64)x_rows * 32;
      next<X_STAGES>(ring);
    }
  }
}

// The weights of all warps, by FETCHERS warps of which each lane fills the ring of one. Lanes stay together: one that waits holds up the others,
// so none may be ahead of a warp that is yet to read.
#define FETCHERS 3
struct WeightFetch {
  const u8* from;  // nullptr: the lane's warp has no row-block in this pass
  i32 left, turn;  // pieces of this pass; the number of the next one
  i32 stage;
  u32 phase;
};
DEVICE void fetch_piece(WeightFetch& f, const u8* w, const Deal& deal, i32 reader, u8* ring, u64* bars, i32 stages) {
  if (f.left == 0) {
    const Turn turn = turn_of(deal, f.turn++);
    f.from = turn.begin + reader < turn.end ? w + ((i64)(turn.begin + reader) * deal.records + turn.first_chunk * 4) * RECORD_BYTES : nullptr;
    f.left = turn.records * PIECES;
  }
  f.left--;
  if (f.from) {
    bar_wait(bars + stages + f.stage, f.phase);  // in the first round nobody has to leave
    bar_expect(bars + f.stage, PIECE_BYTES);
    bulk_load(ring + f.stage * PIECE_BYTES, f.from, PIECE_BYTES, bars + f.stage);
    f.from += PIECE_BYTES;
    if (++f.stage == stages) f.stage = 0, f.phase ^= 1;
  }
  sync_warp();
}

typedef u32 Fragments[4][4];

// What a warp multiplies with.
struct Worker {
  Layout at;
  TileDesc x_tile, sums_tile;  // the first stage's activations and their sums
  Ring x, w;
  u8* weights;                 // its ring
  u64* bars;                   // full, then empty
  i32 stages;
  i32 held;                    // a stage of activations that products may still read
  i32 read;                    // the piece of weights before the one at `w`
  Fragments a[BUFFERS];        // of the quarter that is next, and of the one after it
  Scales scales;
#if SCALED
  f32 d0, d1;
#endif
#if MINIMA
  u32 low[4];
#endif
};

// A stage of activations is no longer read by this warp.
DEVICE void leave(const Worker& me, i32 stage) {
  sync_warp();
  if (lane() == 0) bar_arrive(me.at.x_empty + stage);
}

// A piece's stage may be filled again. A bulk copy may overtake loads that were only issued: everything that was read has been used.
DEVICE void release(const Worker& me, i32 stage) {
  sync_warp();
  if (lane() == 0) bar_arrive(me.bars + me.stages + stage);
}

// Fragments of a quarter; with the first of a piece, it has to be there.
template <int LOADED> DEVICE void load_quarter(Worker& me, int quarter, Codes& codes, Fragments& to) {
  const u8* piece = me.weights + me.w.stage * PIECE_BYTES;
  if (quarter % QUARTERS == 0) {
    bar_wait(me.bars + me.w.stage, me.w.phase);
    load_scales(piece, lane(), me.scales);
  }
#if SCALED
  if (quarter == 3) load_row_scales(piece, lane(), me.d0, me.d1);
#endif
#if MINIMA
  if (quarter == 3) load_minima(piece, lane(), me.low);
#endif
  if (!LOADED || quarter % QUARTERS == 0) load_codes(piece, lane(), quarter % QUARTERS, codes);
  make_weights(codes, me.scales, lane(), quarter % QUARTERS, to);
}

// The products of a record, onto what `sums` holds or, in scaled formats, from zero. `real`: the warp has a row-block; else it multiplies
// anything, since the warpgroup must. `busy`: products of the record before may still run. `more`: there is a record after it.
DEVICE void multiply(f32 (&sums)[ACC], Worker& me, bool real, bool busy, bool more) {
  bar_wait(me.at.x_full + me.x.stage, me.x.phase);
  UNROLL
  for (int quarter = 0; quarter < 4; quarter++) {
    const bool load = (ALWAYS && quarter % QUARTERS < QUARTERS - 1) || (real && (quarter < 3 || more));
    Codes codes;  // of the next quarter, on their way while products are issued
    if (quarter % QUARTERS < QUARTERS - 1 && load) load_codes(me.weights + me.w.stage * PIECE_BYTES, lane(), quarter + 1, codes);
    const TileDesc b = tile_step(me.x_tile, me.x.stage * X_BYTES + quarter * PIECE_X);
    wgmma_fence();
    UNROLL
    for (int k = 0; k < 4; k++)
      wgmma<TOKENS>(sums, me.a[quarter % BUFFERS][k], tile_step(b, k * 256), (SCALED ? quarter > 0 : 1) || k > 0);
    wgmma_commit();
    if (real && quarter % QUARTERS == QUARTERS - 1) {
      if (!SCALED) release(me, me.w.stage);  // products have been issued with the last fragments
      me.read = me.w.stage;
      if (++me.w.stage == me.stages) me.w.stage = 0, me.w.phase ^= 1;
    }
    wgmma_wait<BUFFERS - 1>();  // the other fragments are free
    if (BUFFERS == 2 && quarter == 0 && busy) leave(me, me.held);
    // What others than real warps multiply is nobody's: a branch less is worth more.
    if (load) load_quarter<1>(me, (quarter + 1) % 4, codes, me.a[(quarter + 1) % BUFFERS]);
  }
  me.held = me.x.stage;
  if (BUFFERS == 1 && !SCALED) leave(me, me.held);
  next<X_STAGES>(me.x);
}

#if SCALED
// P = fma(d, C, P), and the minima's step into P, which still runs afterwards.
DEVICE void promote(f32 (&p)[ACC], const f32 (&c)[ACC], Worker& me, bool real) {
  UNROLL
  for (int i = 0; i < ACC; i++) p[i] = fma_(i & 2 ? me.d1 : me.d0, c[i], p[i]);
#if MINIMA
  wgmma_fence();
  wgmma<TOKENS>(p, me.low, tile_step(me.sums_tile, me.held * SUM_BYTES), 1);
  wgmma_commit();
#endif
  if (real) release(me, me.read);
}
#endif

// The products of all records of a turn. P of each chunk goes to `close`.
template <class Close> DEVICE void products(f32 (&p)[ACC], Worker& me, i32 records, bool real, Close close) {
#if SCALED
  f32 c[ACC];
#endif
  NO_UNROLL
  for (i32 first = 0; first < records; first += 4) {
    const i32 end = min_(first + 4, records);
    UNROLL
    for (int i = 0; i < ACC; i++) p[i] = 0.0f;
#if SCALED
    multiply(c, me, real, false, first + 1 < records);
    NO_UNROLL
    for (i32 record = first + 1; record < end; record++) {
      wgmma_wait<0>();
      promote(p, c, me, real);
      if (BUFFERS == 1) {
        if (MINIMA) wgmma_wait<0>();
        leave(me, me.held);
      }
      multiply(c, me, real, true, record + 1 < records);
    }
    wgmma_wait<0>();
    promote(p, c, me, real);
    if (MINIMA) wgmma_wait<0>();
    leave(me, me.held);
#else
    NO_UNROLL
    for (i32 record = first; record < end; record++) multiply(p, me, real, record > first, record + 1 < records);
    wgmma_wait<0>();
    if (BUFFERS == 2) leave(me, me.held);
#endif
    close();
  }
}

// A warpgroup without row-blocks lets the activations pass.
DEVICE void idle(Worker& me, i32 records) {
  NO_UNROLL
  for (i32 i = 0; i < records; i++) {
    bar_wait(me.at.x_full + me.x.stage, me.x.phase);
    leave(me, me.x.stage);
    next<X_STAGES>(me.x);
  }
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
  u32 both = odd ? pack_activations(other, second) : pack_activations(first, other);
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
// The same of all activations; sums_at(j) are those of eight.
template <class Sums> DEVICE void finish_block(const Out& out, i32 block, Sums sums_at) {
#if EPILOGUE != EPILOGUE_SWIGLU
  const i32 row0 = block_y() * TOKENS, stride = out.y_stride;
  if (row0 + TOKENS <= out.rows && (block + 1) * ROW_BLOCK <= out.n) {  // nothing to ask value by value
    f32* to = out.y + (i64)(row0 + (lane() & 3) * 2) * stride + block * ROW_BLOCK + (lane() >> 2);
    UNROLL
    for (int j = 0; j < TOKENS / 8; j += 2, to += 16 * (i64)stride) {
      f32* at[4] = {to, to + stride, to + 8 * (i64)stride, to + 9 * (i64)stride};
      f32 old[8];
      UNROLL
      for (int i = 0; i < 8; i++) old[i] = EPILOGUE == EPILOGUE_ADD ? at[i & 3][(i >> 2) * 8] : 0.0f;
      const f32x4 a = sums_at(j), b = sums_at(j + 1);
      const f32 v[8] = {a.x, a.y, b.x, b.y, a.z, a.w, b.z, b.w};
      UNROLL
      for (int i = 0; i < 8; i++) at[i & 3][(i >> 2) * 8] = EPILOGUE == EPILOGUE_ADD ? add(old[i], v[i]) : v[i];
    }
    return;
  }
#endif
  UNROLL
  for (int j = 0; j < TOKENS / 8; j++) finish(out, block, j, sums_at(j));
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
  sync_warp();
  if (lane() == 0) before = atomic_add_ordered(count, 1u);
  if (shfl(before, 0) != (u32)(here * parts - 1)) return;
  sync_warp();
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
  return (f32x4*)parts + (((i64)block_y() * (d.row_blocks - d.met) + block - d.met) * slots_of(d) + slot) * (TILE_VALUES / 4) + lane();
}

// x: activations in the prefill layout with one tile of x_rows rows; TOKENS of them are multiplied by the CTAs of one grid y. y f32
// [.][y_stride]: rows below `rows` and columns below n are written. h: the next GEMM's activations in the same layout, depth
// h_depth (EPILOGUE_SWIGLU), without sums. parts, counts: scratch, counts zero before and after. slices
// to rest_passes: Deal; what slices leave is for gemm_wide_sum. held: row-blocks of a pass at most; stages: pieces of a warp's ring.
LUCE_KERNEL_RESIDENT(gemm_wide, WORKERS * 32 + 128, 1)
(const u8* x, const u8* RESTRICT w, f32* y, u16* h, f32* parts, u32* counts, i32 rows, i32 n, i32 y_stride, i32 h_depth, i32 row_blocks, i32 records,
 i32 x_rows, i32 slices, i32 met, i32 passes, i32 rest_passes, i32 held, i32 stages) {
  const i32 mine = shfl((u32)warp(), 0);  // the same for a warp's lanes, as the compiler sees it
  const Layout at = layout_of(shared_memory() + TABLE_BYTES, held, stages);
  const Deal deal = {row_blocks, records, met, passes, slices, rest_passes};

  const i32 reader = lane() * FETCHERS + mine - WORKERS - 1;  // whose weights this lane fetches
  u64* reader_bars = at.w_bars + reader * stages * 2;
  if (mine > WORKERS && reader < held) {
    for (i32 i = 0; i < stages * 2; i++) bar_init(reader_bars + i, 1);
    bar_init_fence();
  }
  if (thread() == WORKERS * 32) {
    for (i32 i = 0; i < X_STAGES; i++) bar_init(at.x_full + i, 1), bar_init(at.x_empty + i, WORKERS);
    bar_init_fence();
  }
#if TABLE_BYTES
  make_table();
#endif
  sync_block();
  pdl_launch();
  if (mine > WORKERS) {
    registers_shrink<32>();
    WeightFetch f = {nullptr, 0, 0, 0, 1};
    NO_UNROLL
    while (f.left > 0 || f.turn < turns_of(deal)) fetch_piece(f, w, deal, reader, at.weights + reader * stages * PIECE_BYTES, reader_bars, stages);
  } else if (mine == WORKERS) {
    registers_shrink<32>();
    pdl_wait();
    if (lane() == 0) fetch_activations(x, x_rows, deal, at);
  } else {
    registers_grow<WORK_REGISTERS>();
    pdl_wait();
    Worker me = {at, tile_desc<128, 1024>(at.x), tile_desc<128, 256>(at.sums), {0, 0}, {0, 0}, at.weights + (mine < held ? mine : 0) * stages * PIECE_BYTES,
                 at.w_bars + mine * stages * 2, stages, 0, 0};
    const Out out = {counts, y, h, rows, n, y_stride, x_rows, h_depth};
    NO_UNROLL
    for (i32 number = 0; number < turns_of(deal); number++) {
      const Turn turn = turn_of(deal, number);
      const i32 block = turn.begin + mine;
      const bool real = block < turn.end, first = turn.first_chunk == 0;
      if (block - (mine & 3) >= turn.end) {
        idle(me, turn.records);
        continue;
      }
#if TOTAL_SHARED
      f32x4* total = at.totals + mine * (TILE_VALUES / 4) + lane();
#else
      f32 total[ACC];
      UNROLL
      for (int i = 0; i < ACC; i++) total[i] = 0.0f;
#endif
      Codes codes;
      if (real) load_quarter<0>(me, 0, codes, me.a[0]);
      f32x4* part = turn.sliced ? part_at(parts, deal, block, first ? 0 : 1 + turn.first_chunk - (records + 3) / 4 / slices) : nullptr;
      f32 p[ACC];
      i32 chunk = 0;
      // T = T + P, or P is kept for gemm_wide_sum.
      auto close = [&] {
        if (first) {
#if TOTAL_SHARED
          if (real)
            UNROLL for (int i = 0; i < ACC / 4; i++) {
              f32x4 old = {0.0f, 0.0f, 0.0f, 0.0f};
              if (chunk > 0) old = total[i * 32];
              total[i * 32] = {add(old.x, p[4 * i]), add(old.y, p[4 * i + 1]), add(old.z, p[4 * i + 2]), add(old.w, p[4 * i + 3])};
            }
#else
          UNROLL
          for (int i = 0; i < ACC; i++) total[i] = add(total[i], p[i]);
#endif
        } else if (real) {
          UNROLL
          for (int i = 0; i < ACC / 4; i++) part[i * 32] = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
          part += TILE_VALUES / 4;
        }
        chunk++;
      };
      products(p, me, turn.records, real, close);
      if (!first || !real) continue;
      auto sums_at = [&](int j) -> f32x4 {
#if TOTAL_SHARED
        return total[j * 32];
#else
        return {total[4 * j], total[4 * j + 1], total[4 * j + 2], total[4 * j + 3]};
#endif
      };
      if (turn.sliced) UNROLL for (int i = 0; i < ACC / 4; i++) part[i * 32] = sums_at(i);
      else finish_block(out, block, sums_at);
#if EPILOGUE == EPILOGUE_SWIGLU
      if (!turn.sliced) sum_up(out, block, row_blocks, 1);
#endif
    }
#if EPILOGUE == EPILOGUE_SWIGLU
    if (block_x() == 0 && met == row_blocks) pad(out, row_blocks, WORKERS * 32);
#endif
  }
}

// Adds up what several slices of K left in `parts`. A warp takes a row-block's sums with eight activations.
LUCE_KERNEL(gemm_wide_sum, 256)
(f32* parts, f32* y, u16* h, u32* counts, i32 rows, i32 n, i32 y_stride, i32 h_depth, i32 row_blocks, i32 records, i32 x_rows, i32 slices,
 i32 met) {
  pdl_launch();
  pdl_wait();
  const Out out = {counts, y, h, rows, n, y_stride, x_rows, h_depth};
  const Deal deal = {row_blocks, records, met, 0, slices, 1};
  const i32 slots = slots_of(deal), job = block_x() * (block_threads() / 32) + warp(), block = met + job / (TOKENS / 8), j = job % (TOKENS / 8);
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
