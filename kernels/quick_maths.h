// e^x and 1 / x by the device's own approximations where it has some, to about 2^-22, and what is made of them: where there are so
// many values that exact ones would cost more than the products beside them.
#pragma once
#include "device.h"

#if defined(__CUDA_ARCH__)
// 2^x; exactly 1 at 0, and exactly 0 below 2^-126.
DEVICE f32 quick_exp2(f32 x) {
  f32 y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE f32 quick_exp(f32 x) { return quick_exp2(mul(x, 1.44269504f)); }
DEVICE f32 quick_reciprocal(f32 x) {
  f32 y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
DEVICE f32 quick_exp2(f32 x) { return exp_(mul(x, 0.693147181f)); }
DEVICE f32 quick_exp(f32 x) { return exp_(x); }
DEVICE f32 quick_reciprocal(f32 x) { return div(1.0f, x); }
#endif
DEVICE f32 quick_silu(f32 x) { return mul(x, quick_reciprocal(add(1.0f, quick_exp(-x)))); }
// GELU, tanh form: x times the logistic function of twice what the tanh is of.
DEVICE f32 quick_gelu(f32 x) {
  return mul(x, quick_reciprocal(add(1.0f, quick_exp2(mul(x, fma_(-0.1029432397f, mul(x, x), -2.3022081983f))))));
}
