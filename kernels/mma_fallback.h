// m16n8k16 with the PTX fragment layout where the device has no such instruction: by the 16x16x16 one and shuffles (gfx11,
// gfx12), else by shuffles and fma. Correct everywhere, fast nowhere. Include after device.h.
#pragma once

#if HAS_WMMA
DEVICE void fallback_mma_bf16(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  i32 row = lane() % 16;
  WmmaOperand left, right;
  for (i32 word = 0; word < WMMA_WORDS; word++) {
    i32 pair = wmma_k() / 2 + word, from = row % 8 * 4 + pair % 4;
    // Which register holds the pair differs by lane only in halves: take both and choose.
    u32 near_low = shfl(a[0], from), far_low = shfl(a[1], from), near_high = shfl(a[2], from), far_high = shfl(a[3], from);
    u32 low = row < 8 ? near_low : far_low, high = row < 8 ? near_high : far_high;
    left.words[word] = pair < 4 ? low : high;
    u32 b_low = shfl(b0, from), b_high = shfl(b1, from);
    right.words[word] = row < 8 ? (pair < 4 ? b_low : b_high) : 0u;
  }
  f32 sums[8];
  for (i32 i = 0; i < 8; i++) {
    // Sum i of this lane is (wmma_row(i), column lane % 16); in c it is register (row / 8) * 2 + column % 2 of lane
    // row % 8 * 4 + column / 2.
    i32 r = wmma_row(i), from = r % 8 * 4 + row / 2 % 4;
    f32 c0 = shfl(c[0], from), c1 = shfl(c[1], from), c2 = shfl(c[2], from), c3 = shfl(c[3], from);
    f32 even = r < 8 ? c0 : c2, odd = r < 8 ? c1 : c3;
    sums[i] = row < 8 ? (row % 2 ? odd : even) : 0.0f;
  }
  wmma_bf16(sums, left, right);
  i32 g = lane() / 4, t = lane() % 4;
  f32 all[16];
  for (i32 lower = 0; lower < 2; lower++)
    for (i32 odd = 0; odd < 2; odd++) {
      // The lane and the sum that hold row g + 8 lower, column 2t + odd.
      i32 wanted = g + 8 * lower, column = 2 * t + odd;
      f32 value = 0.0f;
      for (i32 i = 0; i < 8; i++)
        for (i32 half = 0; half < 2; half++) {
          f32 got = shfl(sums[i], half * 16 + column);
          i32 row_there = WMMA_WORDS == 4 ? half * 8 + i : 2 * i + half;
          if (row_there == wanted) value = got;
        }
      all[lower * 2 + odd] = value;
    }
  for (i32 i = 0; i < 4; i++) c[i] = all[i];
}
#else
DEVICE void fallback_mma_bf16(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  i32 g = lane() / 4, t = lane() % 4;
  f32 sums[4] = {};
  for (i32 pair = 0; pair < 8; pair++) {
    i32 high = pair / 4, from = g * 4 + pair % 4;
    u32 top = shfl(a[2 * high], from), below = shfl(a[2 * high + 1], from);
    for (i32 odd = 0; odd < 2; odd++) {
      u32 b = shfl(high ? b1 : b0, (2 * t + odd) * 4 + pair % 4);
      sums[odd] = fma_(bf16_high(top), bf16_high(b), fma_(bf16_low(top), bf16_low(b), sums[odd]));
      sums[2 + odd] = fma_(bf16_high(below), bf16_high(b), fma_(bf16_low(below), bf16_low(b), sums[2 + odd]));
    }
  }
  for (i32 i = 0; i < 4; i++) c[i] = add(c[i], sums[i]);
}
#endif
