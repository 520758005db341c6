// Matrix instructions of device_cuda.h where a device has none of that form: the same fragments, by shuffles and fma. Right
// everywhere, fast nowhere. Included by device_hip.h, and by selftest_shuffles.cu, which tests it on the host.
#pragma once

struct PairOfBf16 {
  static METHOD f32 low(u32 pair) { return as_f32(pair << 16); }
  static METHOD f32 high(u32 pair) { return as_f32(pair & 0xffff0000u); }
};
struct PairOfF16 {
  static METHOD f32 low(u32 pair) { return native_f16_to_f32((u16)pair); }
  static METHOD f32 high(u32 pair) { return native_f16_to_f32((u16)(pair >> 16)); }
};

// mma_bf16 and mma_f16; pairs of k in ascending order from zero, then added to c.
template <class Pair> DEVICE void mma_by_shuffles(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  i32 l = thread() & 31, g = l / 4, t = l % 4;
  f32 sums[4] = {};
  UNROLL for (i32 k = 0; k < 8; k++) {  // two places of k
    u32 above = shfl(k < 4 ? a0 : a2, g * 4 + k % 4), below = shfl(k < 4 ? a1 : a3, g * 4 + k % 4);
    UNROLL for (i32 i = 0; i < 2; i++) {
      u32 b = shfl(k < 4 ? b0 : b1, (2 * t + i) * 4 + k % 4);
      f32 low = Pair::low(b), high = Pair::high(b);
      sums[i] = fma_(Pair::high(above), high, fma_(Pair::low(above), low, sums[i]));
      sums[2 + i] = fma_(Pair::high(below), high, fma_(Pair::low(below), low, sums[2 + i]));
    }
  }
  UNROLL for (i32 i = 0; i < 4; i++) c[i] = add(c[i], sums[i]);
}
DEVICE const u8* shfl_pointer(const void* v, i32 from) {
  u64 at = (u64)v;
  return (const u8*)((u64)shfl((u32)(at >> 32), from) << 32 | shfl((u32)at, from));
}
DEVICE void ldmatrix_by_shuffles(u32 (&r)[4], const void* row) {
  i32 l = thread() & 31;
  UNROLL for (i32 i = 0; i < 4; i++) r[i] = ((const u32*)shfl_pointer(row, i * 8 + l / 4))[l % 4];
}
DEVICE void ldmatrix_trans_by_shuffles(u32 (&r)[4], const void* row) {
  i32 l = thread() & 31;
  UNROLL for (i32 i = 0; i < 4; i++) {
    u32 first = ((const u16*)shfl_pointer(row, i * 8 + l % 4 * 2))[l / 4];
    r[i] = first | (u32)((const u16*)shfl_pointer(row, i * 8 + l % 4 * 2 + 1))[l / 4] << 16;
  }
}
