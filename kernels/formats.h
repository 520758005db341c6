// Number formats of model files, decoded value by value with the arithmetic of the gguf package: every step one rounding in
// f32, so that a value equals the one that luce/weights/formats.py decodes, bit for bit.
//
// decode4(row, k, out): values k .. k + 3 (k a multiple of 4) of a row of blocks. Rows begin at any even address.
#pragma once
#include "device.h"

#define FORMAT_F32 0
#define FORMAT_BF16 1
#define FORMAT_F16 2
#define FORMAT_Q8_0 3
#define FORMAT_Q4_0 4
#define FORMAT_Q4_K 5
#define FORMAT_Q5_K 6
#define FORMAT_Q6_K 7
#define FORMAT_IQ4_XS 8

DEVICE u16 load_u16(const u8* at) { return *(const u16*)at; }

// Scale and minimum of sub-block j (32 values) of Q4_K and Q5_K, from their 12 packed bytes.
DEVICE void k_scale(const u8* packed, i32 j, u32& scale, u32& minimum) {
  if (j < 4) {
    scale = packed[j] & 63u;
    minimum = packed[j + 4] & 63u;
  } else {
    scale = (packed[j + 4] & 15u) | (packed[j - 4] >> 6 << 4);
    minimum = (packed[j + 4] >> 4) | (packed[j] >> 6 << 4);
  }
}

// Entry i of IQ4_XS's table of values.
DEVICE i32 iq4_value(u32 i) {
  const u64 low = 0xf6eaddcfbfad9881ull, high = 0x7159453526190d01ull;
  return (i32)(i8)(u8)((i < 8 ? low >> (8 * i) : high >> (8 * (i - 8))) & 255u);
}

template <int F> DEVICE void decode4(const u8* row, i32 k, f32 (&out)[4]) {
  if (F == FORMAT_F32) {
    for (i32 i = 0; i < 4; i++) out[i] = ((const f32*)row)[k + i];
  } else if (F == FORMAT_BF16) {
    for (i32 i = 0; i < 4; i++) out[i] = bf16_to_f32(((const u16*)row)[k + i]);
  } else if (F == FORMAT_F16) {
    for (i32 i = 0; i < 4; i++) out[i] = f16_to_f32(((const u16*)row)[k + i]);
  } else if (F == FORMAT_Q8_0) {
    const u8* block = row + k / 32 * 34;
    f32 d = f16_to_f32(load_u16(block));
    for (i32 i = 0; i < 4; i++) out[i] = mul((f32)(i8)block[2 + k % 32 + i], d);
  } else if (F == FORMAT_Q4_0) {
    const u8* block = row + k / 32 * 18;
    f32 d = f16_to_f32(load_u16(block));
    i32 j = k % 32;
    for (i32 i = 0; i < 4; i++) {
      u32 byte = block[2 + j % 16 + i];
      out[i] = mul((f32)((i32)(j < 16 ? byte & 15u : byte >> 4) - 8), d);
    }
  } else if (F == FORMAT_Q4_K || F == FORMAT_Q5_K) {
    const i32 bytes = F == FORMAT_Q4_K ? 144 : 176;
    const u8* block = row + k / 256 * bytes;
    i32 j = k % 256 / 32, i0 = k % 32;
    u32 scale, minimum;
    k_scale(block + 4, j, scale, minimum);
    f32 d = mul(f16_to_f32(load_u16(block)), (f32)scale), m = mul(f16_to_f32(load_u16(block + 2)), (f32)minimum);
    const u8* low = block + (F == FORMAT_Q4_K ? 16 : 48) + j / 2 * 32;
    for (i32 i = 0; i < 4; i++) {
      u32 byte = low[i0 + i], q = j % 2 ? byte >> 4 : byte & 15u;
      if (F == FORMAT_Q5_K) q |= (block[16 + i0 + i] >> j & 1u) << 4;
      out[i] = sub(mul(d, (f32)q), m);
    }
  } else if (F == FORMAT_Q6_K) {
    const u8* block = row + k / 256 * 210;
    i32 half = k % 256 / 128, part = k % 128 / 32, i0 = k % 32;  // ql: two runs of 64 bytes; qh: two of 32
    f32 d = mul(f16_to_f32(load_u16(block + 208)), (f32)(i8)block[192 + k % 256 / 16]);
    for (i32 i = 0; i < 4; i++) {
      u32 byte = block[half * 64 + part % 2 * 32 + i0 + i], top = block[128 + half * 32 + i0 + i] >> (2 * part) & 3u;
      u32 q = (part < 2 ? byte & 15u : byte >> 4) | top << 4;
      out[i] = mul(d, (f32)((i32)q - 32));
    }
  } else {
    const u8* block = row + k / 256 * 136;
    i32 j = k % 256 / 32, i0 = k % 32;
    u32 low = block[4 + j / 2] >> (4 * (j % 2)) & 15u, high = (u32)load_u16(block + 2) >> (2 * j) & 3u;
    f32 d = mul(f16_to_f32(load_u16(block)), (f32)((i32)(low | high << 4) - 32));
    for (i32 i = 0; i < 4; i++) {
      u32 byte = block[8 + j * 16 + i0 % 16 + i];
      out[i] = mul(d, (f32)iq4_value(i0 < 16 ? byte & 15u : byte >> 4));
    }
  }
}

// Bytes of a row of `n` values.
template <int F> DEVICE i64 row_bytes(i32 n) {
  switch (F) {
    case FORMAT_F32: return (i64)n * 4;
    case FORMAT_Q8_0: return (i64)n / 32 * 34;
    case FORMAT_Q4_0: return (i64)n / 32 * 18;
    case FORMAT_Q4_K: return (i64)n / 256 * 144;
    case FORMAT_Q5_K: return (i64)n / 256 * 176;
    case FORMAT_Q6_K: return (i64)n / 256 * 210;
    case FORMAT_IQ4_XS: return (i64)n / 256 * 136;
    default: return (i64)n * 2;
  }
}
