// Elementary functions by one fixed sequence of exact operations, so that their bits depend on no compiler or library.
// Within 2 units in the last place of the true value unless said otherwise. Included by device.h.
#pragma once

// 2^n for n in [-126, 127].
DEVICE f32 power_of_two(i32 n) { return as_f32((u32)(n + 127) << 23); }

// e^x for x in [-87.33654, 88.72283].
DEVICE f32 exp_in_range(f32 x) {
  f32 n = sub(fma_(x, 1.44269504f, 12582912.0f), 12582912.0f);  // round to an integer
  f32 r = fma_(n, -0.693145752f, x);
  r = fma_(n, -1.42860677e-6f, r);
  f32 p = 1.98757281e-4f;
  p = fma_(p, r, 1.39819996e-3f);
  p = fma_(p, r, 8.33345205e-3f);
  p = fma_(p, r, 4.16657962e-2f);
  p = fma_(p, r, 1.66666653e-1f);
  p = fma_(p, r, 0.5f);
  p = fma_(mul(r, r), p, r);
  p = add(p, 1.0f);
  i32 e = (i32)n, half = e / 2;  // in two steps: 2^128 has no float
  return mul(mul(p, power_of_two(half)), power_of_two(e - half));
}

// e^x. Below -87.3 the result is exactly zero (no subnormals), above 88.7 infinity; NaN stays.
DEVICE f32 exp_(f32 x) {
  if (x != x) return x;
  if (x < -87.33654f) return 0.0f;
  if (x > 88.72283f) return as_f32(0x7f800000u);
  return exp_in_range(x);
}

// ln(x) of a normal x > 0; -infinity at zero and below the normal numbers, NaN below zero.
DEVICE f32 log_(f32 x) {
  if (x != x || x < 0.0f) return as_f32(0x7fc00000u);
  if (x < 1.17549435e-38f) return as_f32(0xff800000u);
  if (as_u32(x) >= 0x7f800000u) return x;
  u32 bits = as_u32(x);
  i32 e = (i32)((bits - 0x3f2aaaabu) & 0xff800000u) >> 23;  // mantissa in [2/3, 4/3)
  f32 m = as_f32(bits - ((u32)e << 23));
  f32 f = sub(m, 1.0f), s = div(f, add(2.0f, f)), z = mul(s, s);
  f32 p = 0.1110000014f;
  p = fma_(p, z, 0.1428571492f);
  p = fma_(p, z, 0.2f);
  p = fma_(p, z, 0.3333333433f);
  f32 tail = mul(mul(add(s, s), z), p), n = (f32)e;  // ln m = 2s + 2s z (1/3 + z/5 + ...)
  f32 low = fma_(n, 1.42860677e-6f, tail);
  return fma_(n, 0.693145752f, add(add(s, s), low));
}

// ln(1 + y) for y in [0, 1], as 2 artanh(y / (2 + y)).
DEVICE f32 log1p_unit(f32 y) {
  f32 s = div(y, add(2.0f, y)), z = mul(s, s);
  f32 p = 0.0769230798f;
  p = fma_(p, z, 0.0909090936f);
  p = fma_(p, z, 0.1111111119f);
  p = fma_(p, z, 0.1428571492f);
  p = fma_(p, z, 0.2f);
  p = fma_(p, z, 0.3333333433f);
  f32 twice = add(s, s);
  return fma_(mul(twice, z), p, twice);
}

DEVICE f32 abs_(f32 x) { return as_f32(as_u32(x) & 0x7fffffffu); }
DEVICE f32 sigmoid_(f32 x) { return div(1.0f, add(1.0f, exp_(-x))); }
DEVICE f32 silu_(f32 x) { return div(x, add(1.0f, exp_(-x))); }
// silu_ of many values at once: the same bits, without branches where x is +0 or 2^-60 <= |x| <= 60, which `plain` says.
DEVICE f32 silu_in_range(f32 x, bool& plain) {
  u32 magnitude = as_u32(x) & 0x7fffffffu;
  plain = as_u32(x) == 0 || (magnitude >= 0x21800000u && magnitude <= 0x42700000u);
  x = plain ? x : 0.0f;
#if defined(__CUDA_ARCH__)
  // The steps of a division whose operands, quotient and remainders are all normal numbers.
  f32 d = add(1.0f, exp_in_range(-x)), r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  r = fma_(r, fma_(-d, r, 1.0f), r);
  f32 q = mul(x, r);
  q = fma_(r, fma_(-d, q, x), q);
  return fma_(r, fma_(-d, q, x), q);
#else
  return div(x, add(1.0f, exp_in_range(-x)));
#endif
}
// ln(1 + e^x).
DEVICE f32 softplus_(f32 x) { return add(x > 0.0f ? x : 0.0f * x, log1p_unit(exp_(-abs_(x)))); }
// tanh by e^2x; absolute error 1e-7 (relative near zero is worse).
DEVICE f32 tanh_(f32 x) { return sub(1.0f, div(2.0f, add(exp_(add(x, x)), 1.0f))); }
// GELU, tanh form.
DEVICE f32 gelu_tanh_(f32 x) {
  f32 inner = mul(0.7978845608f, mul(x, fma_(mul(0.044715f, x), x, 1.0f)));
  return mul(mul(0.5f, x), add(1.0f, tanh_(inner)));
}
// GELU by the error function, a rational minimax form on [-4, 4] (luce/compute/ops.py).
DEVICE f32 gelu_erf_(f32 x) {
  f32 v = mul(x, 0.7071067811865476f);
  v = v > 4.0f ? 4.0f : v < -4.0f ? -4.0f : v;
  f32 z = mul(v, v), p = -2.72614225801306e-10f, q = -1.45660718464996e-05f;
  p = fma_(p, z, 2.77068142495902e-08f);
  p = fma_(p, z, -2.10102402082508e-06f);
  p = fma_(p, z, -5.69250639462346e-05f);
  p = fma_(p, z, -7.34990630326855e-04f);
  p = fma_(p, z, -2.95459980854025e-03f);
  p = fma_(p, z, -1.60960333262415e-02f);
  q = fma_(q, z, -2.13374055278905e-04f);
  q = fma_(q, z, -1.68282697438203e-03f);
  q = fma_(q, z, -7.37332916720468e-03f);
  q = fma_(q, z, -1.42647390514189e-02f);
  return mul(mul(0.5f, x), add(1.0f, div(mul(v, p), q)));
}

// Sum and maximum over the lanes of a warp, the same in every lane, by a fixed tree.
DEVICE f32 warp_sum(f32 v) {
  for (i32 mask = 16; mask > 0; mask >>= 1) v = add(v, shfl_xor(v, mask));
  return v;
}
DEVICE f32 warp_max(f32 v) {
  for (i32 mask = 16; mask > 0; mask >>= 1) v = max_(v, shfl_xor(v, mask));
  return v;
}
