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
#include "cluster.h"
#include "wgmma.h"

#ifndef TOKENS
#error "TOKENS: activation rows of a tile (64, 128, 192 or 256)"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_..."
#endif
#define EPILOGUE_STORE 0   // y = product
#define EPILOGUE_ADD 1     // y = add(y, product)
#define EPILOGUE_SWIGLU 2  // bf16 of silu(gate) up, as activations with sums: a row-block is 8 rows of the gate and the same 8 of up
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
#define TOTAL_SHARED SCALED  // the running total T lies in shared memory, not in registers
#endif

#ifndef STORE
#define STORE (TOKENS <= 128)  // rows of the output pass through shared memory
#endif
#define CHUNK_RECORDS (CHUNK_DEPTH / RECORD_DEPTH)
#if FORMAT == FORMAT_BF16
#define PART_K 64   // k of a stage of weights
#else
#define PART_K 256
#endif
#define PART_BYTES (RECORD_BYTES * PART_K / 256)
#define X_BYTES (TOKENS * 128)
#define SUM_BYTES (MINIMA * TOKENS * 32)
#define W_BYTES (GROUPS * 4 * PART_BYTES + SUM_BYTES)
#define PARTS (256 / PART_K)       // of a record
#define STEPS (PART_K / 64)        // stages of activations in a part
#define ACC (TOKENS / 2)           // sums of a thread
#define WORKERS (GROUPS * 128)
#define STAGED_ROW 68                // words of an output row of 64 on its way: no bank conflicts
// Words that a warpgroup has for its totals (each thread its own), then for rows on their way or for sums.
#if EPILOGUE != EPILOGUE_SWIGLU && STORE
#define GROUP_TOTAL (TOKENS * STAGED_ROW)
#else
#define GROUP_TOTAL (TOTAL_SHARED * 128 * ACC + (EPILOGUE == EPILOGUE_SWIGLU) * 4 * TOKENS)
#endif
#define FETCH_REGISTERS 24
#if GROUPS == 1
#define WORK_REGISTERS 232
#elif GROUPS == 2
#define WORK_REGISTERS 240
#else
#define WORK_REGISTERS 160
#endif

struct Shape {
  i32 live, rows, blocks, records, weight_tiles, token_tiles, band;  // weight tiles of a cluster: CLUSTER * GROUPS * 64 rows
};
struct Tile { i32 weights, tokens; };  // of this block

DEVICE i32 first_tile() { return block_x() / CLUSTER; }
DEVICE i32 tile_stride() { return grid_x() / CLUSTER; }
// Tiles in bands of token tiles, so that those that run at one time share weights and activations in L2.
DEVICE Tile tile_at(const Shape& s, i32 index) {
  i32 of_band = s.band * s.weight_tiles, first = index / of_band * s.band;
  i32 width = min_(s.band, s.token_tiles - first), rest = index - first * s.weight_tiles;
  return {rest / width * CLUSTER + cluster_rank(), first + rest % width};
}

// A ring of stages in shared memory: `full` counts the fetching thread and its bytes, `empty` the warps that have read.
template <int STAGES> struct Ring {
  u64* bars;
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

struct Plan { u8 *x, *w; f32x4* totals; f32* staged; u64* bars; };  // totals and staged are one place

DEVICE Plan plan_of(u8* shared) {
  u8* w = shared + X_STAGES * X_BYTES;
  u8* totals = w + W_STAGES * W_BYTES;
  return {shared, w, (f32x4*)totals, (f32*)totals, (u64*)(totals + GROUPS * GROUP_TOTAL * 4)};
}

DEVICE void fetch_activations(const u8* x, const Shape& s, const Plan& plan) {
  Ring<X_STAGES> ring = {plan.bars, 0, 0};
  if (lane() == 0)
    NO_UNROLL for (i32 t = first_tile(); t < s.weight_tiles * s.token_tiles; t += tile_stride()) {
      i32 token = tile_at(s, t).tokens * TOKENS;
      u32 bytes = (u32)min_(TOKENS, s.rows - token) * 128;
      // This block's share of the stage; the cluster's others fetch the rest.
      u32 start = cluster_rank() * (X_BYTES / CLUSTER), mine = start < bytes ? min_((u32)X_BYTES / CLUSTER, bytes - start) : 0;
      const u8* from = x + (i64)token * 128 + start;
      NO_UNROLL for (i32 k = 0; k < s.records * 4; k++, from += (i64)s.rows * 128) {
        bar_wait(empty(ring), ring.phase ^ 1);
        bar_expect(full(ring), bytes);
        if (CLUSTER == 1 || mine) bulk_load_cluster(plan.x + ring.stage * X_BYTES + start, from, mine, full(ring));
        next(ring);
      }
    }
}

DEVICE void fetch_weights(const u8* w, const u8* sums, const Shape& s, const Plan& plan) {
  Ring<W_STAGES> ring = {plan.bars + 2 * X_STAGES, 0, 0};
  i32 mine = lane();
  NO_UNROLL for (i32 t = first_tile(); t < s.weight_tiles * s.token_tiles; t += tile_stride()) {
    Tile tile = tile_at(s, t);
    i32 block = min_(tile.weights * GROUPS * 4 + min_(mine, GROUPS * 4 - 1), s.blocks - 1);
    const u8* from = w + (i64)block * s.records * RECORD_BYTES;
    u32 sum_bytes = MINIMA * (u32)min_(TOKENS, s.rows - tile.tokens * TOKENS) * 32;
    NO_UNROLL for (i32 k = 0; k < s.records * PARTS; k++, from += PART_BYTES) {
      bar_wait(empty(ring), ring.phase ^ 1);
      u8* to = plan.w + ring.stage * W_BYTES;
      if (mine == 0) {
        bar_expect(full(ring), GROUPS * 4 * PART_BYTES + sum_bytes);
        if (MINIMA)
          bulk_load(to + GROUPS * 4 * PART_BYTES, sums + ((i64)k * s.rows + tile.tokens * TOKENS) * 32, sum_bytes, full(ring));
      }
      sync_warp();
      if (mine < GROUPS * 4) bulk_load(to + mine * PART_BYTES, from, PART_BYTES, full(ring));
      next(ring);
    }
  }
}

struct Worker {
  Ring<X_STAGES> x;
  Ring<W_STAGES> w;
  const u8* part;  // of this warp
  Scales scales;
};

// The next part of the weights is there.
DEVICE void open_part(Worker& me, const Plan& plan) {
  bar_wait(full(me.w), me.w.phase);
  me.part = plan.w + me.w.stage * W_BYTES + warp() * PART_BYTES;
  load_scales(me.part, lane(), me.scales);
}

DEVICE void leave(u64* empty) {
  sync_warp();
  if (lane() == 0) bar_arrive(empty);
}
DEVICE void leave_cluster(u64* empty) {
  sync_warp();
  if (lane() == 0) bar_arrive_cluster(empty);
}

#if EPILOGUE == EPILOGUE_SWIGLU
// Gate and up of one k lie in one thread. Four warps hold the 32 k of one sum, a row-block's 8 k each.
DEVICE void epilogue(const f32 (&t)[ACC], const Shape& s, const Plan& plan, Tile tile, void* out, i32 width, i32 out_k) {
  i32 block = tile.weights * GROUPS * 4 + warp(), g = lane() >> 2, odd = g & 1;
  if (block * 8 >= out_k) return;  // all of the warpgroup
  Activations to = {(u16*)out, s.rows, s.rows, out_k};
  i32 token0 = tile.tokens * TOKENS, mine = (lane() & 3) * 2 + odd;
  bool inside = block * 8 + g < width;
  f32 sums[TOKENS / 8];
  UNROLL for (i32 j = 0; j < TOKENS / 8; j++) {
    f32 first = inside ? mul(silu_(t[4 * j]), t[4 * j + 2]) : 0.0f, second = inside ? mul(silu_(t[4 * j + 1]), t[4 * j + 3]) : 0.0f;
    // A lane holds two tokens of one k; its neighbour the same two of the next k. Each takes one token and both k.
    f32 other = shfl_xor(odd ? first : second, 4);
    u32 both = odd ? pack_bf16(other, second) : pack_bf16(first, other);
    i32 token = token0 + 8 * j + mine;
    if (token < s.live) *(u32*)(to.at + activation_index(to, token, block * 8 + (g & ~1))) = both;
    sums[j] = add(bf16_low(both), bf16_high(both));
  }
  // Halves of the tokens go to the lane that holds the other k: four k, then eight.
  bool second_pair = g & 2, second_half = g & 4;
  f32 pairs[TOKENS / 16], eights[TOKENS / 32];
  UNROLL for (i32 j = 0; j < TOKENS / 16; j++) {
    f32 other = shfl_xor(second_pair ? sums[2 * j] : sums[2 * j + 1], 8);
    pairs[j] = add(second_pair ? sums[2 * j + 1] : sums[2 * j], other);
  }
  UNROLL for (i32 j = 0; j < TOKENS / 32; j++) {
    f32 other = shfl_xor(second_half ? pairs[2 * j] : pairs[2 * j + 1], 16);
    eights[j] = add(second_half ? pairs[2 * j + 1] : pairs[2 * j], other);
  }
  f32* shared = plan.staged + warp() / 4 * GROUP_TOTAL + TOTAL_SHARED * 128 * ACC;
  barrier_sync(1 + warp() / 4, 128);  // the tile before has been read
  UNROLL for (i32 j = 0; j < TOKENS / 32; j++)
    shared[(warp() & 3) * TOKENS + 8 * (4 * j + 2 * second_half + second_pair) + mine] = eights[j];
  barrier_sync(1 + warp() / 4, 128);
  for (i32 token = thread() & 127; token < TOKENS && token0 + token < s.live; token += 128) {
    f32 sum = add(add(shared[token], shared[TOKENS + token]), add(shared[2 * TOKENS + token], shared[3 * TOKENS + token]));
    store_activation_sum(to, token0 + token, block / 4, sum);
  }
}
#elif STORE == 0
DEVICE void epilogue(const f32 (&t)[ACC], const Shape& s, const Plan& plan, Tile tile, void* out, i32 width, i32 out_k) {
  i32 row = (tile.weights * GROUPS * 4 + warp()) * 16 + (lane() >> 2), token0 = tile.tokens * TOKENS + (lane() & 3) * 2;
  f32* y = (f32*)out + row + (i64)token0 * width;
  bool low = row < width, high = row + 8 < width;
  UNROLL for (i32 j = 0; j < TOKENS / 8; j += 4, y += (i64)32 * width) {
    f32 v[16];
    UNROLL for (i32 i = 0; i < 16; i++) v[i] = t[4 * j + i];
#if EPILOGUE == EPILOGUE_ADD
    f32 old[16];  // all loads before the first store
    UNROLL for (i32 i = 0; i < 16; i++) {
      i32 token = 8 * (i >> 2) + (i & 1);
      old[i] = token0 + 8 * j + token < s.live && (i & 2 ? high : low) ? y[(i64)token * width + (i & 2) * 4] : 0.0f;
    }
    UNROLL for (i32 i = 0; i < 16; i++) v[i] = add(old[i], v[i]);
#endif
    UNROLL for (i32 i = 0; i < 16; i++) {
      i32 token = 8 * (i >> 2) + (i & 1);
      if (token0 + 8 * j + token < s.live && (i & 2 ? high : low)) y[(i64)token * width + (i & 2) * 4] = v[i];
    }
  }
}
#else
// Rows of the output pass through shared memory, in the place of the totals, and leave in the background.
DEVICE void epilogue(const f32 (&t)[ACC], const Shape& s, const Plan& plan, Tile tile, void* out, i32 width, i32 out_k) {
  i32 row0 = (tile.weights * GROUPS + warp() / 4) * 64, token0 = tile.tokens * TOKENS;
  f32* staged = plan.staged + warp() / 4 * GROUP_TOTAL;
  f32* at = staged + (lane() & 3) * 2 * STAGED_ROW + (warp() & 3) * 16 + (lane() >> 2);
  if (!TOTAL_SHARED) bulk_store_wait();
  barrier_sync(1 + warp() / 4, 128);  // totals have been read, or the rows before have left
  UNROLL for (i32 j = 0; j < TOKENS / 8; j++)
    UNROLL for (i32 i = 0; i < 4; i++) at[(8 * j + (i & 1)) * STAGED_ROW + (i & 2) * 4] = t[4 * j + i];
  proxy_fence();
  barrier_sync(1 + warp() / 4, 128);
  i32 bytes = min_(64, width - row0) * 4;
  if (bytes > 0)
    for (i32 token = thread() & 127; token < TOKENS && token0 + token < s.live; token += 128) {
      f32* to = (f32*)out + (i64)(token0 + token) * width + row0;
#if EPILOGUE == EPILOGUE_ADD
      bulk_store_add(to, staged + token * STAGED_ROW, (u32)bytes);
#else
      bulk_store(to, staged + token * STAGED_ROW, (u32)bytes);
#endif
    }
  bulk_store_commit();
}
#endif

typedef u32 Fragments[4][4];

// Four k16 steps with the fragments in `a`; stage of activations `me.x`. Waits until all products but these are done.
DEVICE void products(Worker& me, const Plan& plan, f32 (&acc)[ACC], const Fragments& a, bool keep) {
  bar_wait(full(me.x), me.x.phase);
  TileDesc b = tile_desc<128, 1024>(plan.x + me.x.stage * X_BYTES);
  wgmma_fence();
  UNROLL for (i32 k = 0; k < 4; k++) wgmma_bf16<TOKENS>(acc, a[k], tile_step(b, k * 256), k || keep);
  wgmma_commit();
  wgmma_wait<1>();
}

// The 16 k16 steps of a record, of which the first four's fragments are in a[0]; leaves the next record's there.
// `keep`: onto what acc holds. `busy`: products of the record before this one may still run and hold a stage.
DEVICE void record_products(Worker& me, const Plan& plan, f32 (&acc)[ACC], Fragments (&a)[2], bool keep, bool busy, bool more, f32& d0, f32& d1, u32 (&low)[4]) {
  UNROLL for (i32 i = 0; i < 4; i++) {
    products(me, plan, acc, a[i & 1], i || keep);
    if (i || (!SCALED && busy)) leave_cluster(empty_before(me.x));
    if (MINIMA && !i && busy) leave(empty_before(me.w));
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
    if (STEPS > 1 && (i + 1) % STEPS == 0) {
      if (!MINIMA) leave(empty(me.w));
      next(me.w);
    }
    if (i < 3 || more) {
      if ((i + 1) % STEPS == 0) open_part(me, plan);
      load_weights(me.part, me.scales, lane(), (i + 1) % STEPS, a[(i + 1) & 1]);
      if (STEPS == 1) {
        leave(empty(me.w));
        next(me.w);
      }
    }
  }
}

#if SCALED
// P = fma(d, C, P), and the minima's step into P, which may still run afterwards.
DEVICE void promote(Worker& me, const Plan& plan, const f32 (&acc)[ACC], f32 (&sum)[ACC], f32 d0, f32 d1, const u32 (&low)[4]) {
  wgmma_wait<0>();
  leave_cluster(empty_before(me.x));
  UNROLL for (i32 i = 0; i < ACC; i++) sum[i] = fma_(i & 2 ? d1 : d0, acc[i], sum[i]);
#if MINIMA
  wgmma_fence();
  wgmma_bf16<TOKENS>(sum, low, tile_desc<128, 256>(plan.w + stage_before(me.w) * W_BYTES + GROUPS * 4 * PART_BYTES), 1);
  wgmma_commit();
#endif
}
#endif

DEVICE void work(const Shape& s, const Plan& plan, void* out, i32 width, i32 out_k) {
  Worker me = {{plan.bars, 0, 0}, {plan.bars + 2 * X_STAGES, 0, 0}};
  f32 acc[ACC];
#if SCALED
  f32 sum[ACC];
#else
  f32 (&sum)[ACC] = acc;
#endif
#if TOTAL_SHARED
  f32x4* slot = plan.totals + warp() / 4 * (GROUP_TOTAL / 4) + (thread() & 127);
#else
  f32 total[ACC];
#endif
  Fragments a[2];
  f32 d0, d1;
  u32 low[4];
  NO_UNROLL for (i32 t = first_tile(); t < s.weight_tiles * s.token_tiles; t += tile_stride()) {
    open_part(me, plan);
    load_weights(me.part, me.scales, lane(), 0, a[0]);
    if (STEPS == 1) {
      leave(empty(me.w));
      next(me.w);
    }
    NO_UNROLL for (i32 first = 0; first < s.records; first += CHUNK_RECORDS) {
      i32 last = min_(first + CHUNK_RECORDS, s.records);
      record_products(me, plan, acc, a, false, false, first + 1 < s.records, d0, d1, low);
#if SCALED
      UNROLL for (i32 i = 0; i < ACC; i++) sum[i] = 0.0f;
#endif
      NO_UNROLL for (i32 record = first + 1; record < last; record++) {
#if SCALED
        promote(me, plan, acc, sum, d0, d1, low);
        record_products(me, plan, acc, a, false, true, record + 1 < s.records, d0, d1, low);
#else
        record_products(me, plan, acc, a, true, true, record + 1 < s.records, d0, d1, low);
#endif
      }
#if SCALED
      promote(me, plan, acc, sum, d0, d1, low);
      if (MINIMA) wgmma_wait<0>();
#else
      wgmma_wait<0>();
#endif
      if (MINIMA) leave(empty_before(me.w));
      else if (!SCALED) leave_cluster(empty_before(me.x));
      bool start = first == 0;
#if TOTAL_SHARED
      if (start) UNROLL for (i32 i = 0; i < ACC; i++) sum[i] = add(0.0f, sum[i]);
      else
        UNROLL for (i32 i = 0; i < ACC / 4; i++) {
          f32x4 old = slot[i * 128];
          sum[4 * i] = add(old.x, sum[4 * i]), sum[4 * i + 1] = add(old.y, sum[4 * i + 1]);
          sum[4 * i + 2] = add(old.z, sum[4 * i + 2]), sum[4 * i + 3] = add(old.w, sum[4 * i + 3]);
        }
#if EPILOGUE != EPILOGUE_SWIGLU && STORE
      if (start && last < s.records) {
        bulk_store_wait();
        barrier_sync(1 + warp() / 4, 128);
      }
#endif
      if (last < s.records) UNROLL for (i32 i = 0; i < ACC / 4; i++) slot[i * 128] = {sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]};
#else
      UNROLL for (i32 i = 0; i < ACC; i++) total[i] = add(start ? 0.0f : total[i], sum[i]);
#endif
    }
#if TOTAL_SHARED
    epilogue(sum, s, plan, tile_at(s, t), out, width, out_k);
#else
    epilogue(total, s, plan, tile_at(s, t), out, width, out_k);
#endif
  }
  bulk_store_wait();
}

// x: activations of K k (PREFILL layout, `rows` rows of which `live` count), their sums behind; w: ceil(N / 16) packed row-blocks.
// out: f32 [live, width] or, with EPILOGUE_SWIGLU, activations of `rows` rows and `out_k` k, of which `width` are real and the rest
// become 0. band: token tiles of a band. Grid: any number of blocks, at most one a multiprocessor makes sense.
#if CLUSTER > 1
extern "C" __global__ void CLUSTER_KERNEL gemm_prefill(const u8*, const u8*, void*, i32, i32, i32, i32, i32, i32, i32);
#endif
LUCE_KERNEL_RESIDENT(gemm_prefill, WORKERS + 128, 1)
(const u8* x, const u8* w, void* out, i32 live, i32 rows, i32 N, i32 K, i32 width, i32 out_k, i32 band) {
  u8* shared = shared_memory();
  Plan plan = plan_of(shared);
  i32 blocks = ceil_div(N, ROW_BLOCK), cover = EPILOGUE == EPILOGUE_SWIGLU ? max_(blocks, out_k / 8) : blocks;
  Shape s = {live, rows, blocks, K / RECORD_DEPTH, ceil_div(cover, CLUSTER * GROUPS * 4), ceil_div(live, TOKENS), band};
  if (thread() == 0) {
    for (i32 i = 0; i < X_STAGES; i++) bar_init(plan.bars + i, 1), bar_init(plan.bars + X_STAGES + i, CLUSTER * GROUPS * 4);
    u64* more = plan.bars + 2 * X_STAGES;
    for (i32 i = 0; i < W_STAGES; i++) bar_init(more + i, 1), bar_init(more + W_STAGES + i, GROUPS * 4);
    bar_init_fence();
  }
  cluster_sync();
  pdl_wait();
  if (warp() >= GROUPS * 4) {
    registers_shrink<FETCH_REGISTERS>();
    if (warp() == GROUPS * 4) fetch_activations(x, s, plan);
    else if (warp() == GROUPS * 4 + 1) fetch_weights(w, x + (i64)rows * K * 2, s, plan);
  } else {
    registers_grow<WORK_REGISTERS>();
    work(s, plan, out, width, out_k);
  }
  if (CLUSTER > 1) cluster_sync();  // nobody leaves while others still write into its shared memory
}
#else
LUCE_KERNEL(gemm_prefill, 32)(const u8*) { trap("gemm_prefill needs warpgroup products; gemm_plain is for this device"); }
#endif
LUCE_EXPORT(gemm_prefill)
