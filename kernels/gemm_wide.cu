// Weight GEMM for 17 to 64 rows, between the one bound by reading weights (gemm_decode.cu) and the one for many rows
// (gemm_prefill.cu): y[row, n] = sum over k of x[row, k] W[n, k], with their tree.
//
// As in gemm_decode.cu every warp takes its weights through a ring of its own, but four warps multiply four row-blocks, a quad,
// as a warpgroup (wgmma, weights in registers). A CTA keeps the activations of a slice, a few chunks of 1,024 K, in shared
// memory and takes quads; a chunk's partial sums of a quad go to device memory, and whichever warpgroup comes last adds them up
// in ascending order. Where one slice is all of K they stay in registers.
#include "activation.h"
#include "records.h"

#if HAS_WGMMA
#include "wgmma.h"

#ifndef TOKENS
#error "TOKENS: rows of the activations, 32 or 64; their layout is prefill with one tile"
#endif
#ifndef GROUPS
#error "GROUPS: warpgroups of a CTA"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_..."
#endif
#define EPILOGUE_STORE 0    // y = product
#define EPILOGUE_ADD 1      // y = add(y, product)
#define EPILOGUE_SWIGLU 2   // h = bf16 of silu(gate) up, as activations: a row-block is 8 rows of the gate and the same 8 of up
#ifndef OWN_SUMS
#define OWN_SUMS 0          // 1: the sums of 32 activations are not in x, they are made here (nobody wrote them)
#endif
#if FORMAT == FORMAT_BF16
#define PIECES 2            // of a record, each one stage of a ring
#else
#define PIECES 1
#endif
#define PIECE_BYTES (RECORD_BYTES / PIECES)
#define QUARTERS (4 / PIECES)
#define ACC (TOKENS / 2)
#define CHUNK_BYTES (CHUNK_DEPTH * TOKENS * 2)

// A warp's ring: records of its row-block, chunk after chunk.
struct Ring {
  u8* memory;
  u64* bars;
  i32 stages, stage;
  u32 phase;
};
struct Loads {      // lane 0 alone
  const u8* at;
  i32 left, quad;
};

// The products of one chunk of a quad: its sum P. left: pieces.
template <class Refill> DEVICE void chunk_products(f32 (&p)[ACC], Ring& ring, const u8* x, const u8* sums, i32 pieces, bool real, Refill refill) {
  u32 a[2][4][4];
#if SCALED
  f32 c[ACC];
#else
  f32 (&c)[ACC] = p;
#endif
  UNROLL
  for (int i = 0; i < ACC; i++) p[i] = 0.0f;
  NO_UNROLL
  for (i32 piece = 0; piece < pieces; piece++) {
    const u8* record = ring.memory + ring.stage * PIECE_BYTES;
    Scales scales;
    if (real) {
      bar_wait(ring.bars + ring.stage, ring.phase);
      load_scales(record, lane(), scales);
    }
#if SCALED
    f32 d0 = 0.0f, d1 = 0.0f;
#endif
#if MINIMA
    u32 low[4] = {};
#endif
    UNROLL
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
      u32(&w)[4][4] = a[quarter & 1];
      if (quarter == QUARTERS - 1 && real) {
#if SCALED
        load_row_scales(record, lane(), d0, d1);
#endif
#if MINIMA
        load_minima(record, lane(), low);
#endif
      }
      if (real) load_weights(record, scales, lane(), quarter, w);
      else
        UNROLL for (int i = 0; i < 16; i++) w[i >> 2][i & 3] = 0;
      TileDesc b = tile_desc<128, 1024>(x);
      wgmma_fence();
      UNROLL
      for (int k = 0; k < 4; k++) wgmma_bf16<TOKENS>(c, w[k], tile_step(b, k * 256), (SCALED ? quarter > 0 : 1) || k > 0);
      wgmma_commit();
      // Products have been issued with the last fragments, so what was read has arrived: the stage may be filled again.
      if (quarter == QUARTERS - 1 && real) refill(ring.stage);
      wgmma_wait<1>();  // the other fragments are free
      x += TOKENS * 128;
    }
    if (++ring.stage == ring.stages) ring.stage = 0, ring.phase ^= 1;
#if SCALED
    wgmma_wait<0>();
    UNROLL
    for (int i = 0; i < ACC; i++) p[i] = fma_(i & 2 ? d1 : d0, c[i], p[i]);
#if MINIMA
    wgmma_fence();
    wgmma_bf16<TOKENS>(p, low, tile_desc<128, 256>(sums), 1);
    wgmma_commit();
    wgmma_wait<0>();
    sums += TOKENS * 32;
#endif
#endif
  }
  wgmma_wait<0>();
}

#if MINIMA && OWN_SUMS
// Sums of 32 of the activations in shared memory, where those of x would stand.
DEVICE void make_sums(const u8* xs, u16* sums, i32 records) {
  for (i32 i = thread(); i < records * 8 * TOKENS; i += block_threads()) {
    i32 block = i / TOKENS, row = i % TOKENS, of = block & 7;
    const u8* at = xs + (block >> 1) * (TOKENS * 128) + (row >> 3) * 1024 + (block & 1) * 512 + (row & 7) * 16;
    f32 eights[4];
    UNROLL
    for (int k = 0; k < 4; k++) {
      u32x4 v = words4_at(at + k * 128);
      eights[k] = sum_of_eight(v.x, v.y, v.z, v.w);
    }
    f32 sum = sum_of_eights(eights[0], eights[1], eights[2], eights[3]), hi = round_bf16(sum);
    u16* to = sums + (block >> 3) * (TOKENS * 16) + (row >> 3) * 128 + (row & 7) * 8 + of;
    to[0] = f32_to_bf16(hi);
    to[64] = f32_to_bf16(sub(sum, hi));
  }
}
#endif

// x: activations in the prefill layout with one tile of TOKENS rows. y f32 [.][y_stride]: rows below `rows` and columns below n are
// written. h: the next GEMM's activations in the same layout, depth h_depth (EPILOGUE_SWIGLU). parts, counts: scratch, counts zero before and after. slice: chunks of a slice. stages: pieces of a ring.
LUCE_KERNEL_RESIDENT(gemm_wide, GROUPS * 128, 1)
(const u8* x, const u8* RESTRICT w, f32* y, u16* h, f32* parts, u32* counts, i32 rows, i32 n, i32 y_stride, i32 h_depth,
 i32 row_blocks, i32 records, i32 slice, i32 stages) {
  const i32 group = warp() / 4, in_group = thread() & 127, depth = records * RECORD_DEPTH, chunks = ceil_div(records, 4);
  i32 cta = block_x(), ctas = grid_x(), first_chunk = 0, width = chunks;
  if (slice < chunks) {  // CTAs in proportion to the chunks of a slice
    for (i32 at = 0;; at += slice) {
      i32 end = min_(chunks, at + slice);
      i32 low = (i32)((i64)grid_x() * at / chunks), high = (i32)((i64)grid_x() * end / chunks);
      if (block_x() < high) {
        first_chunk = at, width = end - at, cta = block_x() - low, ctas = high - low;
        break;
      }
    }
  }
  const bool whole = width == chunks;
  const i32 quads = ceil_div(row_blocks, 4);
  const i32 begin = (i32)((i64)quads * cta / ctas), end = (i32)((i64)quads * (cta + 1) / ctas);
  const i32 slice_records = min_(width * 4, records - first_chunk * 4);

  // shared memory: rings, activations, sums, a word for each warpgroup, barriers
  u8* memory = shared_memory();
  u8* xs = memory + GROUPS * 4 * stages * PIECE_BYTES;
  const i32 resident = min_(slice * CHUNK_DEPTH, depth) * TOKENS * 2;
  u8* sums = xs + resident;
  u64* x_bar = (u64*)(sums + (MINIMA ? resident / 16 : 0));
  u64* bars = x_bar + 1;
  u32* words = (u32*)(bars + GROUPS * 4 * stages);
  shared_ends(words + GROUPS);
  Ring ring = {memory + warp() * stages * PIECE_BYTES, bars + warp() * stages, stages, 0, 0};

  Loads loads = {nullptr, 0, begin + group};
  auto next_quad = [&] {
    i32 block = loads.quad * 4 + (warp() & 3);
    if (loads.quad < end && block < row_blocks) {
      loads.at = w + ((i64)block * records + first_chunk * 4) * RECORD_BYTES;
      loads.left = slice_records * PIECES;
    }
    loads.quad += GROUPS;
  };
  auto load = [&](i32 stage) {
    if (loads.left == 0) return;
    bar_expect(ring.bars + stage, PIECE_BYTES);
    bulk_load(ring.memory + stage * PIECE_BYTES, loads.at, PIECE_BYTES, ring.bars + stage);
    loads.at += PIECE_BYTES;
    if (--loads.left == 0) next_quad();
  };
  auto refill = [&](i32 stage) {
    sync_warp();
    if (lane() == 0) load(stage);
  };
  if (lane() == 0) {
    next_quad();
    for (i32 i = 0; i < stages; i++) bar_init(ring.bars + i, 1);
    bar_init_fence();
    for (i32 i = 0; i < stages; i++) load(i);
  }
  if (thread() == 0) {
    bar_init(x_bar, 1);
    bar_init_fence();
  }
  pdl_launch();
  pdl_wait();
  sync_block();
  if (thread() == 0) {
    const i32 bytes = slice_records * RECORD_DEPTH * TOKENS * 2;
    const u8* from = x + (i64)first_chunk * CHUNK_BYTES;
    const bool with_sums = MINIMA && !OWN_SUMS;
    bar_expect(x_bar, (u32)(with_sums ? bytes + bytes / 16 : bytes));
    for (i32 at = 0; at < bytes; at += 16384) bulk_load(xs + at, from + at, 16384, x_bar);
    if (with_sums) bulk_load(sums, x + (i64)depth * TOKENS * 2 + (i64)first_chunk * (CHUNK_BYTES / 16), (u32)bytes / 16, x_bar);
  }
  bar_wait(x_bar, 0);
#if MINIMA && OWN_SUMS
  make_sums(xs, (u16*)sums, slice_records);
  proxy_fence();
  sync_block();
#endif

  for (i32 quad = begin + group; quad < end; quad += GROUPS) {
    const i32 block = quad * 4 + (warp() & 3);
    f32 t[ACC], p[ACC];
    UNROLL
    for (int i = 0; i < ACC; i++) t[i] = 0.0f;
    f32x4* mine = (f32x4*)parts + (i64)quad * chunks * (ACC / 4 * 128) + in_group;
    NO_UNROLL
    for (i32 chunk = 0; chunk < width; chunk++) {
      const i32 pieces = min_(4, slice_records - chunk * 4) * PIECES;
      chunk_products(p, ring, xs + chunk * CHUNK_BYTES, sums + chunk * (CHUNK_BYTES / 16), pieces, block < row_blocks, refill);
      if (whole) {
        UNROLL
        for (int i = 0; i < ACC; i++) t[i] = add(t[i], p[i]);
      } else {
        f32x4* to = mine + (first_chunk + chunk) * (ACC / 4 * 128);
        UNROLL
        for (int i = 0; i < ACC / 4; i++) to[i * 128] = {p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]};
      }
    }
    if (!whole) {
      fence_device();
      barrier_sync(1 + group, 128);
      if (in_group == 0) words[group] = atomic_add(counts + quad, (u32)width);
      barrier_sync(1 + group, 128);
      if (words[group] + (u32)width != (u32)chunks) continue;
      fence_device();
      NO_UNROLL
      for (i32 chunk = 0; chunk < chunks; chunk++) {
        const f32x4* from = mine + chunk * (ACC / 4 * 128);
        f32x4 v[ACC / 4];
        UNROLL
        for (int i = 0; i < ACC / 4; i++) v[i] = from[i * 128];
        UNROLL
        for (int i = 0; i < ACC / 4; i++) {
          t[4 * i] = add(t[4 * i], v[i].x), t[4 * i + 1] = add(t[4 * i + 1], v[i].y);
          t[4 * i + 2] = add(t[4 * i + 2], v[i].z), t[4 * i + 3] = add(t[4 * i + 3], v[i].w);
        }
      }
      if (in_group == 0) counts[quad] = 0;
    }
#if EPILOGUE == EPILOGUE_SWIGLU
    // A lane has two rows of one k; its neighbour the same two of the next k. Each stores one row and both.
    const Activations next = {h, TOKENS, TOKENS, h_depth};
    const i32 k = block * 8 + (lane() >> 2), odd = k & 1;
    const bool real = block < row_blocks && 2 * k < n;
    UNROLL
    for (int j = 0; j < TOKENS / 8; j++) {
      f32 first = real ? mul(silu_(t[4 * j]), t[4 * j + 2]) : 0.0f, second = real ? mul(silu_(t[4 * j + 1]), t[4 * j + 3]) : 0.0f;
      f32 other = shfl_xor(odd ? first : second, 4);
      u32 both = odd ? pack_bf16(other, second) : pack_bf16(first, other);
      i32 row = 8 * j + (lane() & 3) * 2 + odd;
      if (row < rows && k < h_depth) *(u32*)(next.at + activation_index(next, row, k & ~1)) = both;
    }
#else
    UNROLL
    for (int i = 0; i < ACC; i++) {
      i32 row = (i >> 2) * 8 + (lane() & 3) * 2 + (i & 1), index = block * ROW_BLOCK + (lane() >> 2) + (i & 2) * 4;
      if (row < rows && index < n && block < row_blocks) {
        f32* to = y + (i64)row * y_stride + index;
        *to = EPILOGUE == EPILOGUE_ADD ? add(*to, t[i]) : t[i];
      }
    }
#endif
  }
#if EPILOGUE == EPILOGUE_SWIGLU
  if (block_x() == 0) {  // padding of the next GEMM's K, past the last quad
    const Activations next = {h, TOKENS, TOKENS, h_depth};
    const i32 first = quads * 32, pad = h_depth - first;
    for (i32 i = thread(); i < pad * rows; i += block_threads()) next.at[activation_index(next, i / pad, first + i % pad)] = 0;
  }
#endif
}
#else
LUCE_KERNEL(gemm_wide, 32)(const u8*) { trap("gemm_wide needs warpgroup products; gemm_plain is for this device"); }
#endif
LUCE_EXPORT(gemm_wide)
