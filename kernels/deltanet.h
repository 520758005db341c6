// Gated DeltaNet in chunk form, one arithmetic for steps and prefill (design §6; luce/engines/qwen35/deltanet.py is the same in
// numpy). Within the 64-chunk that holds row i, with S the state at its start and G the log decay summed up from there:
//
//   x_i = v_i - e^G_i S^T k_i            W_ij = e^(G_i - G_j) k_j.k_i   (j < i)     P_ij = e^(G_i - G_j) k_j.q_i   (j <= i)
//   u_i = beta_i (x_i - sum_j W_ij u_j)  o_i = e^G_i S^T q_i + sum_j P_ij u_j       S' = e^G_63 S + sum_j k_j (e^(G_63 - G_j) u_j)^T
//
// What is fixed, whoever computes a row (deltanet_step.cu row by row, deltanet_chunk.cu 64 at a time):
// - k and q are unit vectors (q times DK^-0.5) rounded to bf16. v, u, S, o are f32; where the matrix instruction takes S, W, P or u,
//   it takes the bf16 next to the value and the bf16 next to the rest: products of 16 bits and more, sums in f32.
// - Key products are chains over ascending k16 steps of the key dimension, S first high then low. Sums over j are chains over whole
//   16-row blocks of the chunk in ascending order, from zero: high u high W, high u low W, low u high W. The rows of the block that
//   holds i enter u_i one by one in ascending order by fma, and o_i as a last block. x - chain, then the rows.
// - G is exact: integers of 2^-40, so that differences of sums that reach minus thousands keep all their places.
//
// State of a layer, each slot's part of an array in one piece (copying it moves the state; nobody needs to clear it):
//   s     f32  [slots][HV][DV / 16][DK / 16][2][32][4]   S, in the order of the fragments (StateFragment below)
//   k     bf16 [slots][HK][128][DK]                      ring: position t stands at t mod 128
//   u     f32  [slots][HV][128][DV]                      ring
//   g     i64  [slots][HV][128]                          ring
//   conv  f32  [slots][72][CHANNELS]                     rows before the convolution: position t stands at t mod 72
// S stands at the lane's `base` (batch.h) and is zero by definition while that is 0; ring rows from a lane's start on hold anything.
//
// A pass touches a layer's state once and begins behind a copy (of its descriptors), which lets no grid start early. So kernels read
// state before pdl_wait: whoever wrote it belongs to an earlier pass.
//
// Rows of a slot are finite or the slot is lost: a row that is not finite may also spoil earlier rows of its 16-row block.
#pragma once
#include "activation.h"
#include "batch.h"
#include "quick_maths.h"

#if !defined(HK) || !defined(HV) || !defined(DK) || !defined(DV)
#error "define HK, HV (key and value heads), DK, DV (their sizes)"
#endif
#if DK % 16 || DK > 128 || DV % 16 || DV > 256 || HV % HK
#error "DK and DV are multiples of 16, at most 128 and 256; HV is one of HK"
#endif

#define RATIO (HV / HK)
#define CHANNELS (2 * HK * DK + HV * DV)   // of the convolution: q, k, v, each head after head
#define STEPS (DK / 16)                    // k16 steps over the key dimension
#define TILES (DV / 16)                    // one warp's columns of v: 16
#define BLOCKS (CHUNK_ROWS / 16)
#define STATE_FLOATS (HV * DK * DV)        // of a slot
#define UNIT_EPS 1e-6f

DEVICE void product(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1); }

// ---- Fragments. With g = lane / 4 and t = lane % 4, a lane holds of a 16-row block (time) or a k16 step (keys) the four
// consecutive places 4t .. 4t + 3, as operand places 2t, 2t + 1, 2t + 8, 2t + 9; and of 16 columns of v the columns 2g, 2g + 1,
// as rows g and g + 8 of the operand. So sums come out of the instruction in the order in which it takes operands.

// First of the four key places of a step.
DEVICE i32 key_place(i32 step, i32 t) {
  return DK % 32 == 0 ? step / 2 * 32 + 8 * t + step % 2 * 4 : step * 16 + 4 * t;  // two steps: 8 in a row, 16 bytes
}
// Place in a 16-row block (or step, see key_column) of column n of result tile `half`.
DEVICE i32 row_place(i32 n, i32 half) { return 4 * (n / 2) + 2 * half + n % 2; }
DEVICE i32 key_column(i32 step, i32 half, i32 n) { return key_place(step, n / 2) + 2 * half + n % 2; }

// 16 columns of v by 16 places: [half][(2g, 4t + 2 half), (2g, + 1), (2g + 1, 4t + 2 half), (2g + 1, + 1)].
typedef f32 Fragment[2][4];

struct Operand { u32 high[4], low[4]; };

DEVICE void split_bf16(f32 a, f32 b, u32& high, u32& low) {
  high = pack_bf16(a, b);
  low = pack_bf16(sub(a, bf16_low(high)), sub(b, bf16_high(high)));
}
DEVICE Operand operand(const Fragment& f) {
  Operand o;
  split_bf16(f[0][0], f[0][1], o.high[0], o.low[0]);
  split_bf16(f[0][2], f[0][3], o.high[1], o.low[1]);
  split_bf16(f[1][0], f[1][1], o.high[2], o.low[2]);
  split_bf16(f[1][2], f[1][3], o.high[3], o.low[3]);
  return o;
}

// A step of S^T k for N tiles of columns. (The instructions stand in the order in which they are issued: sums that wait for each
// other apart.)
template <int N> DEVICE void far_products(f32 (&c)[N][4], const Operand& s, const u32x2 (&k)[N]) {
  UNROLL for (i32 i = 0; i < N; i++) product(c[i], s.high, k[i].x, k[i].y);
  UNROLL for (i32 i = 0; i < N; i++) product(c[i], s.low, k[i].x, k[i].y);
}
// A 16-row block of sum_j W u.
template <int N> DEVICE void near_products(f32 (&c)[N][4], const Operand& u, const u32x2 (&high)[N], const u32x2 (&low)[N]) {
  UNROLL for (i32 i = 0; i < N; i++) product(c[i], u.high, high[i].x, high[i].y);
  UNROLL for (i32 i = 0; i < N; i++) product(c[i], u.high, low[i].x, low[i].y);
  UNROLL for (i32 i = 0; i < N; i++) product(c[i], u.low, high[i].x, high[i].y);
}
// Fold a chunk into S: `u` its rows times e^(G_63 - G_j), gain e^G_63, keys(step, half, block) the operand of its keys. TOGETHER
// steps at a time.
template <int TOGETHER, class Keys> DEVICE void fold(Fragment (&s)[STEPS], const Operand (&u)[BLOCKS], f32 gain, Keys keys) {
  UNROLL for (i32 first = 0; first < STEPS; first += TOGETHER) {
    f32 c[2 * TOGETHER][4] = {};
    UNROLL for (i32 block = 0; block < BLOCKS; block++) {
      u32x2 k[2 * TOGETHER];
      UNROLL for (i32 i = 0; i < 2 * TOGETHER; i++) k[i] = keys(first + i / 2, i % 2, block);
      far_products(c, u[block], k);
    }
    UNROLL for (i32 i = 0; i < 2 * TOGETHER; i++)
      UNROLL for (i32 e = 0; e < 4; e++) s[first + i / 2][i % 2][e] = fma_(gain, s[first + i / 2][i % 2][e], c[i][e]);
  }
}

// ---- State in memory
DEVICE f32x4* state_at(f32* s, i32 slot, i32 head, i32 tile) {
  return (f32x4*)(s + (i64)slot * STATE_FLOATS) + (i64)(head * TILES + tile) * STEPS * 2 * WARP + lane();
}
DEVICE u16* key_ring(u16* k, i32 slot, i32 head) { return k + (i64)(slot * HK + head) * RING_ROWS * DK; }
DEVICE f32* u_ring(f32* u, i32 slot, i32 head) { return u + (i64)(slot * HV + head) * RING_ROWS * DV; }
DEVICE i64* decay_ring(i64* g, i32 slot, i32 head) { return g + (i64)(slot * HV + head) * RING_ROWS; }
DEVICE i32 ring_row(i32 position) { return position % RING_ROWS; }

DEVICE void load_state(Fragment (&s)[STEPS], const f32x4* at, bool zero) {
  UNROLL for (i32 step = 0; step < STEPS; step++)
    UNROLL for (i32 half = 0; half < 2; half++) {
      f32x4 v = {0.0f, 0.0f, 0.0f, 0.0f};
      if (!zero) v = at[(step * 2 + half) * WARP];
      s[step][half][0] = v.x, s[step][half][1] = v.y, s[step][half][2] = v.z, s[step][half][3] = v.w;
    }
}
DEVICE void store_state(f32x4* at, const Fragment (&s)[STEPS]) {
  UNROLL for (i32 step = 0; step < STEPS; step++)
    UNROLL for (i32 half = 0; half < 2; half++)
      at[(step * 2 + half) * WARP] = {s[step][half][0], s[step][half][1], s[step][half][2], s[step][half][3]};
}
// Rows of a 16-row block of u from the ring: `at` the block's first row, the tile's first column; rows from `rows` on are zeros.
DEVICE void load_u(Fragment& f, const f32* at, i32 rows) {
  i32 g = lane() / 4, t = lane() % 4;
  UNROLL for (i32 e = 0; e < 4; e++) {
    f32x2 v = {0.0f, 0.0f};
    if (4 * t + e < rows) v = *(const f32x2*)(at + (i64)(4 * t + e) * DV + 2 * g);
    f[e / 2][e % 2] = v.x, f[e / 2][2 + e % 2] = v.y;
  }
}

// ---- Gates
#define DECAY_ONE 1099511627776.0f   // 2^40

struct Gate {
  i64 decay;   // log decay of the row
  f32 beta;
};
DEVICE Gate gate(f32 a, f32 b, f32 neg_exp_a, f32 dt_bias) {
  f32 decay = mul(neg_exp_a, softplus_(add(a, dt_bias)));
  Gate found;
  found.decay = decay >= -65536.0f ? (i64)mul(decay, DECAY_ONE) : decay < 0.0f ? -72057594037927936ll : 0;
  found.beta = decay == decay ? sigmoid_(b) : decay;   // an undefined decay shows in u
  return found;
}
// e^(difference of log decays), at most one.
DEVICE f32 decay_factor(i64 difference) { return quick_exp(mul((f32)difference, 1.0f / DECAY_ONE)); }

// ---- Convolution and unit norm. taps f32 [4][CHANNELS], the last those of the current row.
// A channel's values at the position and the three before it, oldest first.
DEVICE f32 convolve(f32 a, f32 b, f32 c, f32 d, f32 wa, f32 wb, f32 wc, f32 wd) {
  return quick_silu(fma_(d, wd, fma_(c, wc, fma_(b, wb, mul(a, wa)))));
}
// Four neighbours at once: values and taps of the positions in order.
DEVICE f32x4 convolve(const f32x4 (&x)[4], const f32x4 (&w)[4]) {
  return {convolve(x[0].x, x[1].x, x[2].x, x[3].x, w[0].x, w[1].x, w[2].x, w[3].x),
          convolve(x[0].y, x[1].y, x[2].y, x[3].y, w[0].y, w[1].y, w[2].y, w[3].y),
          convolve(x[0].z, x[1].z, x[2].z, x[3].z, w[0].z, w[1].z, w[2].z, w[3].z),
          convolve(x[0].w, x[1].w, x[2].w, x[3].w, w[0].w, w[1].w, w[2].w, w[3].w)};
}
// A head of k or q in a warp, 4 lane .. 4 lane + 3 of it in a lane (beyond DK zeros), as unit vector in bf16.
DEVICE u32x2 unit_vector(f32x4 y, bool query) {
  f32 squares = warp_sum(fma_(y.w, y.w, fma_(y.z, y.z, fma_(y.y, y.y, mul(y.x, y.x)))));
  f32 factor = div(1.0f, sqrt_(add(squares, UNIT_EPS))), scale = query ? div(1.0f, sqrt_((f32)DK)) : 1.0f;
  return {pack_bf16(mul(mul(y.x, factor), scale), mul(mul(y.y, factor), scale)),
          pack_bf16(mul(mul(y.z, factor), scale), mul(mul(y.w, factor), scale))};
}
// First channel of a head of k (q: `query`) and of v.
DEVICE i32 key_channel(i32 key_head, bool query) { return (query ? 0 : HK * DK) + key_head * DK; }
DEVICE i32 value_channel(i32 head) { return 2 * HK * DK + head * DV; }

// ---- Output norm. Squares of a head's o: pairs of columns 2g, 2g + 1 of a 16-column tile by fma, pairs by a tree over g, tiles
// in ascending order. Its values are stored 32 by 32 (activation.h): where DV is no multiple of 32, for two heads at a time.
#define OUTPUT_SPAN (DV % 32 ? 2 * DV : DV)
// Where a value of the output stands in the next product's input. TILED_OUTPUT: heads in the order of a GGUF's output matrix, in
// which head (h % RATIO) HK + h / RATIO is ours number h.
#ifndef TILED_OUTPUT
#define TILED_OUTPUT 0
#endif
#if TILED_OUTPUT && DV % 32
#error "TILED_OUTPUT: DV is a multiple of 32"
#endif
DEVICE i32 output_column(i32 column) {
  i32 head = column / DV;
  if (!TILED_OUTPUT || head >= HV) return column;
  return (head % RATIO * HK + head / RATIO) * DV + column % DV;
}
DEVICE f32 pair_square(f32 even, f32 odd) { return fma_(odd, odd, mul(even, even)); }
DEVICE f32 output_factor(f32 squares, f32 eps) { return div(1.0f, sqrt_(add(div(squares, (f32)DV), eps))); }
DEVICE f32 gated(f32 o, f32 factor, f32 weight, f32 z) { return mul(mul(mul(o, factor), weight), quick_silu(z)); }
