// The weight GEMM for many rows: y[R, N] = x[R, K] W^T, with the expression tree and the packed weights of the decode GEMM.
//
// Weights are the A operand: a warp owns a row-block (16 weight rows), dequantises its records from shared memory into
// fragments, and a warpgroup's four row-blocks are the 64 rows of a wgmma. Activations (PREFILL layout, activation.h) are B, a
// tile of TOKENS rows that the block's warpgroups share. Two warps of one more warpgroup do nothing but fetch: activations, 64 k
// a stage; records or parts of them. Blocks stay and take tile after tile.
//
// Tree of a row's element: flat formats: P = one chain of k16 steps over 1,024 k; scaled formats: C = a chain over 256 k,
// P = fma(d, C, P), then the minima's step into P, over 1,024 k; T = 0 + P_0 + P_1 + ... Nothing else enters, so
// neither tiles nor neighbours nor the number of rows can change a bit.
#include "activation.h"
#include "records.h"

#if HAS_WGMMA
#include "bulk_store.h"
#define WGMMA_TYPE OPERAND_TYPE
#include "wgmma.h"

#ifndef TOKENS
#error "TOKENS: activation rows of a tile (64, 96, 128, 160, 192 or 256)"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_..."
#endif
#define EPILOGUE_STORE 0   // y = product
#define EPILOGUE_ADD 1     // y = add(y, product)
#define EPILOGUE_SWIGLU 2  // silu(gate) up, as activations with sums: a row-block is 8 rows of the gate and the same 8 of up
#ifndef GROUPS
#define GROUPS 2  // warpgroups that multiply
#endif
#ifndef X_STAGES
#error "X_STAGES: stages of 64 k of activations"
#endif
#ifndef W_STAGES
#error "W_STAGES: stages of PART_K k of weights"
#endif
#ifndef TOTAL_SHARED
#define TOTAL_SHARED (SCALED || SPLIT)  // the running total T lies in shared memory, not in registers
#endif

#ifndef SPLIT
#define SPLIT 0  // 1: the block's warpgroups take the chunks of one tile in turn; for few rows, when tiles are few and k is long
#endif
#if SPLIT && GROUPS != 2
#error "SPLIT is for two warpgroups"
#endif
#ifndef STORE
#define STORE (TOKENS <= 160)  // rows of the output pass through shared memory
#endif
// Registers of a thread that multiplies and of one that fetches; together what the block has.
#if GROUPS == 3
#define WORK_REGISTERS 160
#define FETCH_REGISTERS 32
#elif TOKENS > 128
#define WORK_REGISTERS 240
#define FETCH_REGISTERS 24
#else
#define WORK_REGISTERS 232
#define FETCH_REGISTERS 40
#endif
#include "gemm_prefill_tiles.h"

#include "gemm_prefill_epilogue.h"

struct Worker {
  Ring<X_STAGES> x;
  Ring<W_STAGES> w;
  const u8* part;  // of this warp
  Scales scales;
};

// The next part of the weights is there.
DEVICE void open_part(Worker& me) {
  bar_wait(full(me.w), me.w.phase);
  me.part = me.w.at + me.w.stage * W_BYTES + warp() % TILE_BLOCKS * PART_BYTES;
  load_scales(me.part, lane(), me.scales);
}

// This warp has done with a stage. What it read there must be *used*: a bulk copy may overtake a load that was only issued (seen on an
// H200 with tiles of 192, when products keep shared memory busy), and neither sync_warp nor the barrier waits for it.
DEVICE void leave(u64* empty) { bar_arrive_warp(empty); }

typedef u32 Fragments[4][4];

// Four k16 steps with the fragments in `a`; stage of activations `me.x`. Waits until all products but these are done.
DEVICE void products(Worker& me, f32 (&acc)[ACC], const Fragments& a, bool keep) {
  bar_wait(full(me.x), me.x.phase);
  TileDesc b = tile_desc<128, 1024>(me.x.at + me.x.stage * X_BYTES);
  wgmma_fence();
  UNROLL for (i32 k = 0; k < 4; k++) wgmma<TOKENS>(acc, a[k], tile_step(b, k * 256), k || keep);
  wgmma_commit();
  wgmma_wait<1>();
}

// The 16 k16 steps of a record, of which the first four's fragments are in a[0]; leaves the next record's there.
// `keep`: onto what acc holds. `busy`: products of the record before this one may still run and hold a stage.
DEVICE void record_products(Worker& me, f32 (&acc)[ACC], Fragments (&a)[2], bool keep, bool busy, bool more, f32& d0, f32& d1, u32 (&low)[4]) {
  UNROLL for (i32 i = 0; i < 4; i++) {
    products(me, acc, a[i & 1], i || keep);
    if (i || (!SCALED && busy)) leave(empty_before(me.x));
    if (STEPS == 1 || (SCALED && !i && busy)) leave(empty_before(me.w));
    next(me.x);
    if (i == 3) {
#if SCALED
      load_row_scales(me.part, lane(), d0, d1);
#if MINIMA
      load_minima(me.part, lane(), low);
#endif
#endif
    }
    // Fragments of the next four steps, while these run.
    if (STEPS > 1 && i == 3) {
      if (!SCALED) leave(empty(me.w));
      next(me.w);
    }
    if (i < 3 || more) {
      if ((i + 1) % STEPS == 0) open_part(me);
      load_weights(me.part, me.scales, lane(), (i + 1) % STEPS, a[(i + 1) & 1]);
      if (STEPS == 1) next(me.w);
    }
  }
}

#if SCALED
// P = fma(d, C, P), and the minima's step into P, which may still run afterwards.
DEVICE void promote(Worker& me, const f32 (&acc)[ACC], f32 (&sum)[ACC], f32 d0, f32 d1, const u32 (&low)[4]) {
  wgmma_wait<0>();
  leave(empty_before(me.x));
  UNROLL for (i32 i = 0; i < ACC; i++) sum[i] = fma_(i & 2 ? d1 : d0, acc[i], sum[i]);
#if MINIMA
  wgmma_fence();
  wgmma<TOKENS>(sum, low, tile_desc<128, 256>(me.w.at + stage_before(me.w) * W_BYTES + TILE_BLOCKS * PART_BYTES), 1);
  wgmma_commit();
#endif
}
#endif

#if TOTAL_SHARED
// T = T + P in this thread's slots; of the last chunk only in `sum`.
DEVICE void add_total(f32 (&sum)[ACC], f32x4* slot, bool first, bool last) {
  if (first) UNROLL for (i32 i = 0; i < ACC; i++) sum[i] = add(0.0f, sum[i]);
  else
    UNROLL for (i32 i = 0; i < ACC / 4; i++) {
      f32x4 old = slot[i * 128];
      sum[4 * i] = add(old.x, sum[4 * i]), sum[4 * i + 1] = add(old.y, sum[4 * i + 1]);
      sum[4 * i + 2] = add(old.z, sum[4 * i + 2]), sum[4 * i + 3] = add(old.w, sum[4 * i + 3]);
    }
#if EPILOGUE != EPILOGUE_SWIGLU && STORE && !SPLIT
  if (first && !last) {  // rows of the tile before have left this place
    bulk_store_wait();
    barrier_sync(1 + warp() / 4, 128);
  }
#endif
  if (!last) UNROLL for (i32 i = 0; i < ACC / 4; i++) slot[i * 128] = {sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]};
}
#endif

DEVICE void work(const Shape& s, const Plan& plan, void* out, i32 stride, i32 out_k) {
  const i32 ring = SPLIT ? warp() / 4 : 0;
  Worker me = {x_ring(plan, ring), w_ring(plan, ring)};
  f32 acc[ACC];
#if SCALED
  f32 sum[ACC];
#else
  f32 (&sum)[ACC] = acc;
#endif
#if TOTAL_SHARED
  f32x4* slot = (f32x4*)my_place(plan) + (thread() & 127);
#else
  f32 total[ACC];
#endif
  Fragments a[2];
  f32 d0, d1;
  u32 low[4];
  u32 phase = 0;
  Turn turn = first_turn(s, ring);
  if (turn.left > 0) {
    open_part(me);
    load_weights(me.part, me.scales, lane(), 0, a[0]);
    if (STEPS == 1) next(me.w);
  }
  NO_UNROLL for (; turn.left > 0; next_turn(turn, s)) {
    i32 records = records_of(turn, s);
    bool more = turn.left > RINGS;
    record_products(me, acc, a, false, false, more || records > 1, d0, d1, low);
#if SCALED
    UNROLL for (i32 i = 0; i < ACC; i++) sum[i] = 0.0f;
#endif
    NO_UNROLL for (i32 record = 1; record < records; record++) {
#if SCALED
      promote(me, acc, sum, d0, d1, low);
      record_products(me, acc, a, false, true, more || record + 1 < records, d0, d1, low);
#else
      record_products(me, acc, a, true, true, more || record + 1 < records, d0, d1, low);
#endif
    }
#if SCALED
    promote(me, acc, sum, d0, d1, low);
    if (MINIMA) wgmma_wait<0>();
    else proxy_fence();  // d0 and d1 are here
    leave(empty_before(me.w));
#else
    wgmma_wait<0>();
    leave(empty_before(me.x));
#endif
    bool first = turn.chunk == 0, last = turn.chunk == s.chunks - 1;
#if SPLIT
    if (ring || phase) bar_wait(turn_bar(plan, ring), (phase + ring - 1) & 1);  // the chunk before is in the totals
    phase++;
#endif
#if TOTAL_SHARED
    add_total(sum, slot, first, last);
    if (last) epilogue(sum, s, plan, tile_at(s, turn.tile), out, stride, out_k);
#else
    UNROLL for (i32 i = 0; i < ACC; i++) total[i] = add(first ? 0.0f : total[i], sum[i]);
    if (last) epilogue(total, s, plan, tile_at(s, turn.tile), out, stride, out_k);
#endif
#if SPLIT
    if (last) bulk_store_wait();
    leave(turn_bar(plan, (ring + 1) % GROUPS));
#endif
  }
  bulk_store_wait();
}

// x: activations of K k (PREFILL layout, `rows` rows of which `live` count), their sums behind; w: ceil(N / 16) packed row-blocks.
// out: f32 [live, stride], of whose rows the first N are written, or, with EPILOGUE_SWIGLU, activations of `rows` rows and `out_k` k,
// those past N / 2 zero. band: token tiles of a band. Grid: any number of blocks; more than multiprocessors makes no sense.
LUCE_KERNEL_RESIDENT(gemm_prefill, WORKERS + 128, 1)
(const u8* x, const u8* w, void* out, i32 live, i32 rows, i32 N, i32 K, i32 stride, i32 out_k, i32 band) {
  u8* shared = shared_memory();
  Plan plan = plan_of(shared);
  i32 blocks = ceil_div(N, ROW_BLOCK), cover = EPILOGUE == EPILOGUE_SWIGLU ? max_(blocks, out_k / 8) : blocks;
  Shape s = {live, rows, N, blocks, K / RECORD_DEPTH, ceil_div(K, CHUNK_DEPTH), ceil_div(cover, TILE_BLOCKS), ceil_div(live, TOKENS), band};
  if (thread() == 0) init_bars(plan);
  sync_block();
  pdl_wait();
  if (warp() >= GROUPS * 4) {
    registers_shrink<FETCH_REGISTERS>();
    i32 of = (warp() & 3) >> 1;
    if (of < RINGS) {
      if (warp() & 1) fetch_weights(w, x + (i64)rows * K * 2, s, plan, of);
      else fetch_activations(x, s, plan, of);
    }
  } else {
    registers_grow<WORK_REGISTERS>();
    work(s, plan, out, stride, out_k);
  }
}
#else
LUCE_KERNEL(gemm_prefill, 32)(const u8*) { trap("gemm_prefill needs warpgroup products; gemm_plain is for this device"); }
#endif
LUCE_EXPORT(gemm_prefill)
