// ln and e^x in f64 by one fixed sequence of exact operations (the forms of fdlibm), within one unit in the last place.
#pragma once
#include "device.h"

// ln(x) of a normal x > 0.
DEVICE f64 log64(f64 x) {
  u64 bits = as_u64(x) + 0x00095f6400000000ull;  // mantissas from sqrt(2) on belong to the next power
  i32 k = (i32)(bits >> 52) - 1023;
  f64 m = as_f64((bits & 0x000fffffffffffffull) + 0x3fe6a09c00000000ull);  // [sqrt(1/2), sqrt(2))
  f64 f = sub(m, 1.0), s = div(f, add(2.0, f)), z = mul(s, s), w = mul(z, z);
  f64 even = mul(w, fma_(w, fma_(w, 1.531383769920937332e-01, 2.222219843214978396e-01), 3.999999999940941908e-01));
  f64 odd = fma_(w, fma_(w, fma_(w, 1.479819860511658591e-01, 1.818357216161805012e-01), 2.857142874366239149e-01),
                 6.666666666666735130e-01);
  f64 r = add(mul(z, odd), even), half = mul(mul(0.5, f), f), n = (f64)k;
  f64 low = fma_(s, add(half, r), mul(n, 1.90821492927058770002e-10));
  return sub(mul(n, 6.93147180369123816490e-01), sub(sub(half, low), f));
}

// e^x for x <= 0; zero below -700.
DEVICE f64 exp64(f64 x) {
  if (x < -700.0) return 0.0;
  f64 shifted = fma_(x, 1.44269504088896338700e+00, 6755399441055744.0);  // an integer in the low bits
  f64 n = sub(shifted, 6755399441055744.0);
  f64 high = fma_(n, -6.93147180369123816490e-01, x), low = mul(n, 1.90821492927058770002e-10);
  f64 r = sub(high, low), t = mul(r, r);
  f64 p = fma_(t, 4.13813679705723846039e-08, -1.65339022054652515390e-06);
  p = fma_(t, p, 6.61375632143793436117e-05);
  p = fma_(t, p, -2.77777777770155933842e-03);
  p = fma_(t, p, 1.66666666666666019037e-01);
  f64 c = sub(r, mul(t, p));
  f64 y = sub(1.0, sub(sub(low, div(mul(r, c), sub(2.0, c))), high));
  return mul(y, as_f64((u64)(i64)((i32)n + 1023) << 52));
}
