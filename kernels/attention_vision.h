// Bidirectional attention of the vision tower: all patches of one picture, keys in tiles of 64 in ascending order. A row's bits
// depend on its picture alone, and not on which kernel made them: attention_vision.cu or attention_vision_wgmma.cu. Macros: HEADS,
// HEAD_DIM. Operands stand as in vision_tiles.h says, written by the product before (gemm_tower_epilogue.h).
//
// The tree of a row: m = -infinity, O = 0, l = 0 (by column pair, key / 2 % 4); for each tile S = q k by k16 steps over the dims
// from zero, m' = max(m, S), a = 2^(c (m - m')), p = 2^(c S - c m') with c = log2(e) / sqrt(HEAD_DIM), l' = a l + (p added in ascending
// order from zero), O = a O, then O += p v by k16 steps over the keys, p rounded to bf16; y = O (1 / l).
#pragma once
#include "activation.h"
#include "attention_core.h"
#include "vision_tiles.h"

#define STEPS (DEPTH / 16)
#define DIM_GROUPS (HEAD_DIM / 8)

// A thread's part of two rows, g and g + 8 of its warp.
struct RowPair {
  f32 most[2], sum[2];   // m, and l of its columns
  f32 factors[2];        // a of the last tile
};
DEVICE RowPair row_pair() { return {{MINUS_INFINITY, MINUS_INFINITY}, {0.0f, 0.0f}, {1.0f, 1.0f}}; }

// Every row has a score that is a number, unless its operands are none: m' is no infinity, and a score of -infinity becomes 0.
DEVICE f32 vision_probability(f32 score, f32 c, f32 offset) {
#if defined(__CUDA_ARCH__)
  return quick_exp2(fma_(score, c, offset));
#else
  return probability(score, c, offset);
#endif
}

// Scores of a tile become probabilities; those of keys from `rows` on are hidden.
DEVICE void weigh(RowPair& me, f32 (&s)[32], i32 tile, i32 rows, f32 c) {
  if ((tile + 1) * TILE_ROWS > rows) {
    UNROLL for (i32 i = 0; i < 32; i++) {
      if (tile * TILE_ROWS + i / 4 * 8 + 2 * (lane() % 4) + i % 2 >= rows) s[i] = MINUS_INFINITY;
    }
  }
  UNROLL for (i32 half = 0; half < 2; half++) {
    f32 top = larger(s[2 * half], s[2 * half + 1]), added = 0.0f;
    UNROLL for (i32 i = 1; i < 8; i++) top = larger(top, larger(s[4 * i + 2 * half], s[4 * i + 2 * half + 1]));
    f32 next = larger(me.most[half], quad_max(top)), offset = -mul(next, c);
    me.factors[half] = rescale(me.most[half], next, c);
    me.most[half] = next;
    UNROLL for (i32 i = 0; i < 8; i++) {
      UNROLL for (i32 k = 2 * half; k < 2 * half + 2; k++) {
        s[4 * i + k] = vision_probability(s[4 * i + k], c, offset);
        added = add(added, s[4 * i + k]);
      }
    }
    me.sum[half] = fma_(me.sum[half], me.factors[half], added);
  }
}
// O = a O, where a is not 1 in all of the warp.
DEVICE void rescale_sums(const RowPair& me, f32 (&o)[DIM_GROUPS * 4]) {
  if (ballot_(me.factors[0] != 1.0f || me.factors[1] != 1.0f))
    UNROLL for (i32 i = 0; i < DIM_GROUPS * 4; i++) o[i] = mul(o[i], me.factors[i / 2 % 2]);
}
// The probabilities of a k16 step as operand.
DEVICE void step_operand(u32 (&p)[4], const f32 (&s)[32], i32 step) {
  UNROLL for (i32 i = 0; i < 4; i++) p[i] = pack_bf16(s[8 * step + 4 * (i / 2) + i % 2 * 2], s[8 * step + 4 * (i / 2) + i % 2 * 2 + 1]);
}
// Rows `first` + g and + 8 of a head.
DEVICE void finish_rows(const RowPair& me, const f32 (&o)[DIM_GROUPS * 4], i32 first, i32 rows, i32 head, const Activations& to) {
  UNROLL for (i32 half = 0; half < 2; half++) {
    i32 row = first + half * 8 + lane() / 4;
    f32 scale = div(1.0f, quad_sum(me.sum[half]));
    if (row >= rows) continue;
    UNROLL for (i32 i = 0; i < DIM_GROUPS; i++)
      *(u32*)(to.at + activation_index(to, row, head * HEAD_DIM + i * 8 + 2 * (lane() % 4))) =
          pack_activations(mul(o[4 * i + 2 * half], scale), mul(o[4 * i + 2 * half + 1], scale));
  }
}
