// Number formats: bf16 and f16 as bits in u16. Included by device.h.
#pragma once

DEVICE f32 bf16_to_f32(u16 h) { return as_f32((u32)h << 16); }
DEVICE f32 bf16_low(u32 pair) { return as_f32(pair << 16); }
DEVICE f32 bf16_high(u32 pair) { return as_f32(pair & 0xffff0000u); }

// Two bf16 in one word, `low` in the lower half. Round to nearest even.
DEVICE u32 pack_bf16(f32 low, f32 high) { return native_pack_bf16(low, high); }
DEVICE u16 f32_to_bf16(f32 v) { return (u16)pack_bf16(v, 0.0f); }
DEVICE f32 round_bf16(f32 v) { return bf16_to_f32(f32_to_bf16(v)); }

DEVICE f32 f16_to_f32(u16 h) { return native_f16_to_f32(h); }
// Two f16 in one word, `low` in the lower half. Round to nearest even; past the range infinite.
DEVICE u32 pack_f16(f32 low, f32 high) { return native_pack_f16(low, high); }

// The bit form of the conversions above, for targets without an instruction.
DEVICE u32 soft_pack_bf16(f32 low, f32 high) {
  u32 a = as_u32(low), b = as_u32(high);
  a = (a & 0x7fffffffu) > 0x7f800000u ? 0x7fff0000u : a + 0x7fffu + ((a >> 16) & 1u);
  b = (b & 0x7fffffffu) > 0x7f800000u ? 0x7fff0000u : b + 0x7fffu + ((b >> 16) & 1u);
  return (a >> 16) | (b & 0xffff0000u);
}

DEVICE u16 soft_f32_to_f16(f32 v) {
  u32 sign = as_u32(v) >> 16 & 0x8000u, a = as_u32(v) & 0x7fffffffu;
  if (a > 0x7f800000u) return 0x7fff;
  if (a >= 0x477ff000u) return (u16)(sign | 0x7c00u);                                     // 65,520 and more
  if (a < 0x38800000u) return (u16)(sign | (as_u32(add(as_f32(a), 0.5f)) - 0x3f000000u));  // 2^-24 is the last place of a half
  return (u16)(sign | ((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
}
DEVICE u32 soft_pack_f16(f32 low, f32 high) { return soft_f32_to_f16(low) | (u32)soft_f32_to_f16(high) << 16; }

DEVICE f32 soft_f16_to_f32(u16 h) {
  u32 sign = (u32)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return as_f32(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x400u) return as_f32(sign | ((magnitude << 13) + 0x38000000u));
  f32 small = mul((f32)magnitude, 5.9604644775390625e-8f);  // subnormal: units of 2^-24
  return as_f32(sign | as_u32(small));
}
