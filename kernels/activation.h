// Inputs of the weight GEMMs: activations as operands (operands.h) in one of two layouts, written by whoever produces them.
//
//   tile == 0   step: `rows` is the bucket of up to 64 rows (1, 2, 4, 8, 16, 32 or 64). The order in which mma.m16n8k16
//               takes its B operand: [depth / 32][row][t 4][step 2][half 2] words of two values,
//               k = 32 i + 16 step + 8 half + 2 t + {0, 1}, so that one 16-byte load of a lane feeds two k16 steps.
//   tile > 0    prefill: for any number of rows; `rows` is a multiple of `tile`, `tile` one of 8. Core matrices of wgmma's
//               B operand without swizzle: [rows / tile][depth / 64][tile / 8][k8 8][row 8][8] values. `tile` rows x 64 k
//               are one piece; inside it neighbours in k lie 128 bytes apart, neighbours in rows 1,024.
// Behind all values stand the sums of 32 consecutive ones, as operands hi and lo (hi + lo is the sum, nearly), for the minima
// of Q4_K and Q5_K:
//   step        [depth / 256][row][pair 4][hi, lo] words of two sums: block = 2 pair + {0, 1} of the eight
//   prefill     [rows / tile][depth / 256][tile / 8][hi, lo][row 8][block 8]
//
// `depth` is K rounded up to a multiple of 256; producers write zeros there. Rows past the last may hold anything: rows are
// columns of the products and never meet. The Python twin is luce/compute/activations.py.
#pragma once
#include "device.h"

struct Activations {
  u16* at;
  i32 rows;
  i32 tile;
  i32 depth;
};

// Where value (row, k) lies, in operands. Eight consecutive k from a multiple of 8: prefill, consecutive; step, pairs at 0, 8, 16, 24.
DEVICE i64 activation_index(const Activations& a, i32 row, i32 k) {
  if (a.tile == 0) return ((i64)(k >> 5) * a.rows + row) * 32 + ((k >> 1 & 3) << 3) + ((k >> 4 & 1) << 2) + ((k >> 3 & 1) << 1) + (k & 1);
  i32 in = row % a.tile;
  return (i64)(row - in) * a.depth + (i64)(k >> 6) * (a.tile * 64) + (in >> 3) * 512 + ((k >> 3 & 7) << 6) + ((in & 7) << 3) + (k & 7);
}
// Where the hi part of the sum over k = 32 block .. 32 block + 31 lies; lo stands activation_sum_gap behind it.
DEVICE i64 activation_sum_index(const Activations& a, i32 row, i32 block) {
  i64 sums = (i64)a.rows * a.depth;
  i32 of = block >> 3, j = block & 7;
  if (a.tile == 0) return sums + ((i64)of * a.rows + row) * 16 + (j >> 1) * 4 + (j & 1);
  i32 in = row % a.tile;
  return sums + (i64)(row - in) * (a.depth >> 4) + (i64)of * (a.tile * 16) + (in >> 3) * 128 + ((in & 7) << 3) + j;
}
DEVICE i32 activation_sum_gap(const Activations& a) { return a.tile == 0 ? 2 : 64; }

// hi and lo of a sum of values as they are held.
DEVICE void split_sum(f32 sum, u16& hi, u16& lo) {
  hi = f32_to_operand(sum);
  lo = f32_to_operand(sub(sum, operand_to_f32(hi)));
}

// Stores the sum of a block of 32; one lane does it.
DEVICE void store_activation_sum(const Activations& a, i32 row, i32 block, f32 sum) {
  i64 at = activation_sum_index(a, row, block);
  u16 hi, lo;
  split_sum(sum, hi, lo);
  a.at[at] = hi;
  a.at[at + activation_sum_gap(a)] = lo;
}

// Stores the eight sums of 256 values from k, a multiple of 256, by a whole warp: the four lanes 4 j .. 4 j + 3 hold sum j.
DEVICE void store_activation_sums(const Activations& a, i32 row, i32 k, f32 sum) {
  const i32 j = lane() & 7;
  f32 mine = shfl(sum, 4 * j);
  u16 hi, lo;
  split_sum(mine, hi, lo);
  u32 both = hi | (u32)lo << 16;
  u32 other = shfl_xor(both, 1);
  u32 word = j & 1 ? prmt(other, both, 0x7632u) : prmt(both, other, 0x5410u);  // lo of the pair, or hi
  if (lane() < 8) *(u32*)(a.at + activation_sum_index(a, row, (k >> 5) + (j & 6)) + (j & 1 ? activation_sum_gap(a) : 0)) = word;
}

// The sum of 32 rounded values by the same tree as store_activations: four words of two values each are eight values; of the
// eights 0 to 3 in ascending order.
DEVICE f32 sum_of_eight(u32 w0, u32 w1, u32 w2, u32 w3) {
  return add(add(add(operand_low(w0), operand_high(w0)), add(operand_low(w1), operand_high(w1))),
             add(add(operand_low(w2), operand_high(w2)), add(operand_low(w3), operand_high(w3))));
}
DEVICE f32 sum_of_eights(f32 e0, f32 e1, f32 e2, f32 e3) { return add(add(e0, e1), add(e2, e3)); }

// Stores N (1, 2, 4, 8, 16 or 32) consecutive values of a row from k, a multiple of N, and the sums of 32 as they are held. All lanes of the
// warp call it; 32 / N neighbouring lanes from a multiple of that hold the 32 values of one block in order. Where `valid` is
// false nothing is stored (the same for all lanes of a block). The sum is one binary tree over the rounded values in ascending
// order, ((v0 + v1) + (v2 + v3)) + ..., whatever N.
template <int N> DEVICE void store_activations(const Activations& a, i32 row, i32 k, const f32 (&v)[N], bool valid = true) {
  f32 sums[N];
  if constexpr (N == 1) {
    u16 bits = f32_to_activation(v[0]);
    if (valid) a.at[activation_index(a, row, k)] = bits;
    sums[0] = operand_to_f32(bits);
  } else {
    u32 words[N / 2];
    UNROLL
    for (int i = 0; i < N / 2; i++) {
      words[i] = pack_activations(v[2 * i], v[2 * i + 1]);
      sums[2 * i] = operand_low(words[i]);
      sums[2 * i + 1] = operand_high(words[i]);
    }
    if (valid) {
      if (N >= 8 && a.tile > 0) {
        UNROLL
        for (int i = 0; i + 3 < N / 2; i += 4)
          *(u32x4*)(a.at + activation_index(a, row, k + 2 * i)) = {words[i], words[i + 1], words[i + 2], words[i + 3]};
      } else {
        UNROLL
        for (int i = 0; i < N / 2; i++) *(u32*)(a.at + activation_index(a, row, k + 2 * i)) = words[i];
      }
    }
  }
  UNROLL
  for (int width = N; width > 1; width /= 2) {
    UNROLL
    for (int i = 0; i < width / 2; i++) sums[i] = add(sums[2 * i], sums[2 * i + 1]);
  }
  f32 sum = sums[0];
  UNROLL
  for (int lanes = 1; lanes < 32 / N; lanes *= 2) sum = add(sum, shfl_xor(sum, lanes));
  if (valid && lane() % (32 / N) == 0) store_activation_sum(a, row, k >> 5, sum);
}
