// Single values of packed weights (records.h says where they stand), with the arithmetic of formats.h: the embedding of a tied
// model reads the head's records. decode_pair: values k and k + 1 (k even, below 256) of row n (0..15) of a record.
#pragma once
#include "formats.h"

template <int F> DEVICE i32 record_bytes() {
  return F == FORMAT_BF16 ? 8192 : F == FORMAT_Q8_0 ? 4352 : F == FORMAT_Q4_0 ? 2304 : F == FORMAT_Q4_K ? 2368
       : F == FORMAT_Q5_K ? 2880 : F == FORMAT_Q6_K ? 3360 : F == FORMAT_IQ4_XS ? 2208 : 0;
}

template <int F> DEVICE void decode_pair(const u8* record, i32 n, i32 k, f32 (&out)[2]) {
  i32 g = n % 8, below = n / 8, step = k / 16, half = k / 8 % 2, at = 4 * g + k / 2 % 4, quarter = k / 64, block = k / 32;
  i32 sub = block % 2, step2 = step % 2;
  if (F == FORMAT_BF16) {
    u32 word = *(const u32*)(record + step * 512 + at * 16 + (2 * half + below) * 4);
    out[0] = divide_unit(operand_low(word));
    out[1] = divide_unit(operand_high(word));
    return;
  }
  u32 code[2];
  if (F == FORMAT_Q8_0) {
    u32 both = load_u16(record + block * 512 + at * 16 + step2 * 8 + half * 4 + below * 2);
    f32 d = f16_to_f32(load_u16(record + 4096 + g * 32 + block * 4 + below * 2));
    out[0] = mul((f32)((i32)(both & 255u) - 128), d);
    out[1] = mul((f32)((i32)(both >> 8) - 128), d);
  } else if (F == FORMAT_Q4_0) {
    u32 both = load_u16(record + quarter * 512 + at * 16 + step % 4 * 4 + below * 2) >> (4 * half);
    f32 d = f16_to_f32(load_u16(record + 2048 + g * 32 + block * 4 + below * 2));
    out[0] = mul((f32)((i32)(both & 15u) - 8), d);
    out[1] = mul((f32)((i32)(both >> 8 & 15u) - 8), d);
  } else if (F == FORMAT_IQ4_XS) {
    u32 word = *(const u32*)(record + quarter * 512 + at * 16 + step % 4 * 4) >> (16 * half + 8 * below);
    u32 scale = record[2048 + g * 16 + block * 2 + below];
    f32 d = mul(f16_to_f32(load_u16(record + 2176 + g * 4 + below * 2)), (f32)((i32)scale - 32));
    for (i32 i = 0; i < 2; i++) {
      u32 turned = word >> (4 * i) & 15u;  // rotated right by one
      out[i] = mul(d, (f32)iq4_value((turned << 1 & 15u) | turned >> 3));
    }
  } else {
    const u8* words = record + quarter * 512 + at * 16 + (step2 * 2 + half) * 4;
    for (i32 i = 0; i < 2; i++) code[i] = load_u16(words + 2 * i) >> (4 * (2 * below + sub)) & 15u;
    if (F == FORMAT_Q6_K) {
      const u8* tops = record + 2048 + quarter * 256 + at * 8 + step2 * 4;
      i32 shift = ((sub ? 2 : 4) + 4 * (2 * half + below)) % 16;
      f32 d = mul(f16_to_f32(load_u16(record + 3328 + g * 4 + below * 2)),
                  (f32)((i32)record[3072 + g * 32 + quarter * 8 + below * 4 + step % 4] - 128));
      for (i32 i = 0; i < 2; i++) {
        u32 top = load_u16(tops + 2 * i) >> shift & 3u;
        out[i] = mul(d, (f32)((i32)(sub ? code[i] << 2 | top : code[i] | top << 4) - 32));
      }
    } else {
      const u8* scales = record + (F == FORMAT_Q4_K ? 2048 : 2560);
      if (F == FORMAT_Q5_K) {
        u32 fifth = *(const u32*)(record + 2048 + at * 16 + quarter * 4) >> ((4 + 4 * (2 * step2 + half) + 2 * below + sub) % 16);
        code[0] |= (fifth & 1u) << 4;
        code[1] |= (fifth >> 16 & 1u) << 4;
      }
      f32 d = mul(f16_to_f32(load_u16(scales + 256 + g * 8 + below * 2)), (f32)scales[g * 16 + block * 2 + below]);
      f32 m = mul(f16_to_f32(load_u16(scales + 260 + g * 8 + below * 2)), (f32)scales[128 + g * 16 + block / 2 * 4 + below * 2 + sub]);
      out[0] = ::sub(mul(d, (f32)code[0]), m);
      out[1] = ::sub(mul(d, (f32)code[1]), m);
    }
  }
}
