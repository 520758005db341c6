// What becomes of the sums of a product of the vision tower: 16 rows of W by TOKENS rows of x in a warp, in wgmma's order, a thread's
// in `t`: rows g and g + 8 of W, rows 8 j + 2 (lane % 4) and the next of x. Part of gemm_tower.cu. v is the sum and the bias.
//
//   EPILOGUE_STORE     y = v, f32 rows of `stride`
//   EPILOGUE_ADD       y = y + v
//   EPILOGUE_GELU      gelu(v), tanh form: activations (prefill layout, `rows` rows, `depth`) without sums, zeros from N on
//   EPILOGUE_GELU_ERF  the same of the exact one
//   EPILOGUE_HEADS     queries, keys and values as the attention takes them: below; macros HEADS, HEAD_DIM
#pragma once
#include "activation.h"
#include "quick_maths.h"

#ifndef TOKENS
#error "TOKENS: rows of x of a tile, one of wgmma_shared.h's columns"
#endif
#ifndef EPILOGUE
#error "EPILOGUE: EPILOGUE_..."
#endif
#define EPILOGUE_STORE 0
#define EPILOGUE_ADD 1
#define EPILOGUE_GELU 2
#define EPILOGUE_GELU_ERF 3
#define EPILOGUE_HEADS 4
#define SUMS (TOKENS / 2)  // of a thread, of 64 rows of W
#define TOGETHER (TOKENS % 32 ? 2 : 4)  // groups of 8 rows of x whose loads are under way at once

struct Output {
  void* at;
  i32 stride, depth;
  const f32* bias;
  const f32x2* turn;
};

#if EPILOGUE == EPILOGUE_STORE || EPILOGUE == EPILOGUE_ADD
// *at = *at + v without waiting for it. One addition for each place: no order among several to depend on.
DEVICE void put(f32* at, f32 v) {
#if EPILOGUE == EPILOGUE_STORE
  *at = v;
#elif defined(__CUDA_ARCH__)
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(at), "f"(v) : "memory");
#else
  *at = add(*at, v);
#endif
}

DEVICE void finish(const f32 (&t)[SUMS], i32 block, i32 token0, i32 live, i32 rows, i32 n, const Output& out) {
  i32 row = block * 16 + lane() / 4, first = token0 + lane() % 4 * 2;
  UNROLL for (i32 half = 0; half < 2; half++) {
    if (row + 8 * half >= n) break;
    f32 shift = out.bias[row + 8 * half];
    f32* y = (f32*)out.at + (i64)first * out.stride + row + 8 * half;
    UNROLL for (i32 j = 0; j < TOKENS / 8; j++, y += (i64)8 * out.stride) {
      UNROLL for (i32 i = 0; i < 2; i++) {
        if (first + 8 * j + i < live) put(y + i * out.stride, add(t[4 * j + 2 * half + i], shift));
      }
    }
  }
}
#elif EPILOGUE == EPILOGUE_GELU || EPILOGUE == EPILOGUE_GELU_ERF
// The lanes of a core of 8 rows x 8 k hold two rows of one k each; afterwards one row of two.
DEVICE void finish(const f32 (&t)[SUMS], i32 block, i32 token0, i32 live, i32 rows, i32 n, const Output& out) {
  i32 g = lane() / 4, odd = g % 2;
  if (block * 16 >= out.depth) return;
  Activations to = {(u16*)out.at, rows, rows, out.depth};
  i32 mine = token0 + lane() % 4 * 2 + odd;
  UNROLL for (i32 half = 0; half < 2; half++) {
    i32 k = block * 16 + half * 8 + g;
    bool inside = k < n;
    f32 shift = inside ? out.bias[k] : 0.0f;
    u16* at = to.at + activation_index(to, mine, k & ~1);  // the next eight rows are 512 values further on
    UNROLL for (i32 j = 0; j < TOKENS / 8; j++) {
      f32 v[2];
      UNROLL for (i32 i = 0; i < 2; i++) {
        f32 x = add(t[4 * j + 2 * half + i], shift);
        v[i] = inside ? EPILOGUE == EPILOGUE_GELU ? quick_gelu(x) : gelu_erf_(x) : 0.0f;
      }
      f32 other = shfl_xor(odd ? v[0] : v[1], 4);
      u32 both = odd ? pack_activations(other, v[1]) : pack_activations(v[0], other);
      if (mine + 8 * j < live) *(u32*)(at + j * 512) = both;
    }
  }
}
#else
#include "vision_tiles.h"
// Rows of W come as queries, keys, values. Those of queries and keys stand in pairs that turn together: of pair p = head HEAD_DIM / 2
// + i (dims i and i + HEAD_DIM / 2 of the head) the first is row 16 (p / 8) + p % 8, the second is 8 rows behind. Values in order.
//   turn  (cosine, sine) [live][HEAD_DIM / 2]
//   out   tiles [rows / 64][HEADS] (vision_tiles.h); rows from `live` on become zeros
DEVICE i64 group_at(i32 token, i32 group_bytes) { return (i64)(token / TILE_ROWS) * HEADS * HEAD_BYTES + token % TILE_ROWS / 8 * group_bytes; }

DEVICE void finish(const f32 (&t)[SUMS], i32 block, i32 token0, i32 live, i32 rows, i32 n, const Output& out) {
  i32 g = lane() / 4, pair_token = lane() % 4 * 2, part = block / (WIDTH / 16), in_part = block % (WIDTH / 16);
  if (block * 16 >= n) return;
  u8* base = (u8*)out.at + part * KEY_BYTES;
  f32 shift[2] = {out.bias[block * 16 + g], out.bias[block * 16 + 8 + g]};
  if (part == 2) {
    UNROLL for (i32 half = 0; half < 2; half++) {
      i32 dim = in_part * 16 + half * 8 + g, head = dim / HEAD_DIM, in_head = dim % HEAD_DIM;
      u8* at = base + (i64)head * HEAD_BYTES + in_head / 8 * CORE_BYTES + in_head % 8 * 16 + pair_token * 2;
      UNROLL for (i32 j = 0; j < TOKENS / 8; j++) {
        i32 token = token0 + 8 * j, first = token + pair_token;
        f32 a = first < live ? add(t[4 * j + 2 * half], shift[half]) : 0.0f;
        f32 b = first + 1 < live ? add(t[4 * j + 2 * half + 1], shift[half]) : 0.0f;
        if (token < rows) *(u32*)(at + group_at(token, HEAD_DIM * 16)) = pack_bf16(a, b);
      }
    }
    return;
  }
  i32 pair = in_part * 8 + g, head = pair / (HEAD_DIM / 2), in_head = pair % (HEAD_DIM / 2);
  u8* at = base + (i64)head * HEAD_BYTES + in_head / 4 * CORE_BYTES + pair_token * 16 + in_head % 4 * 4;
  const f32x2* angles = out.turn + in_head;
  UNROLL for (i32 j = 0; j < TOKENS / 8; j += TOGETHER) {
    f32x2 angle[2 * TOGETHER];  // all loads before the first store
    UNROLL for (i32 i = 0; i < 2 * TOGETHER; i++)
      angle[i] = angles[(i64)min_(token0 + 8 * (j + i / 2) + pair_token + i % 2, live - 1) * (HEAD_DIM / 2)];
    UNROLL for (i32 i = 0; i < 2 * TOGETHER; i++) {
      i32 group = j + i / 2, token = token0 + 8 * group, mine = token + pair_token + i % 2;
      f32 u = add(t[4 * group + i % 2], shift[0]), v = add(t[4 * group + 2 + i % 2], shift[1]);
      u32 both = pack_bf16(fma_(u, angle[i].x, mul(-v, angle[i].y)), fma_(v, angle[i].x, mul(u, angle[i].y)));
      if (token < rows) *(u32*)(at + group_at(token, DEPTH * 16) + i % 2 * 16) = mine < live ? both : 0u;
    }
  }
}
#endif
