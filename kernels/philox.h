// Philox4x32-10, keyed and counted as luce/sampling/philox.py says: one word for (seed, position, token id).
#pragma once
#include "maths64.h"

DEVICE void philox(u32 block, u32 position, u32 seed_low, u32 seed_high, u32 (&out)[4]) {
  u32 c0 = block, c1 = position, c2 = 0, c3 = 0, k0 = seed_low, k1 = seed_high;
  UNROLL
  for (i32 i = 0; i < 10; i++) {
    u32 h0 = mul_high(c0, 0xD2511F53u), l0 = c0 * 0xD2511F53u, h1 = mul_high(c2, 0xCD9E8D57u), l1 = c2 * 0xCD9E8D57u;
    c0 = h1 ^ c1 ^ k0;
    c1 = l1;
    c2 = h0 ^ c3 ^ k1;
    c3 = l0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0; out[1] = c1; out[2] = c2; out[3] = c3;
}

// The word of an id, of its block's.
DEVICE u32 word_of(const u32 (&words)[4], i32 id) {
  i32 at = id & 3;
  return at < 2 ? (at == 0 ? words[0] : words[1]) : (at == 2 ? words[2] : words[3]);
}

// Standard Gumbel noise of a word.
DEVICE_CALL f64 gumbel(u32 word) {
  f64 u = mul(add((f64)word, 0.5), 2.3283064365386963e-10);
  return -log64(-log64(u));
}

DEVICE_CALL f64 gumbel_of(i32 id, i32 position, u32 seed_low, u32 seed_high) {
  u32 words[4];
  philox((u32)id >> 2, (u32)position, seed_low, seed_high, words);
  return gumbel(word_of(words, id));
}

// Bounds of gumbel(word) without a logarithm. With v = 1 - u in [2^-(n+1), 2^-n): v <= -ln(1 - v) <= 2 ln 2 v for v <= 1/2.
DEVICE f32 gumbel_below(i32 n) { return n > 0 ? (f32)n * 0.6931f - 0.3268f : -3.14f; }
DEVICE f32 gumbel_above(i32 n) { return (f32)(n + 1) * 0.6932f; }
