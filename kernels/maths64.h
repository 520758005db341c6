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

// e^x for x <= 0; zero below -700. The power series to r^13 on [-ln 2 / 2, ln 2 / 2].
DEVICE f64 exp64(f64 x) {
  if (x < -700.0) return 0.0;
  f64 n = sub(fma_(x, 1.44269504088896338700e+00, 6755399441055744.0), 6755399441055744.0);
  f64 r = fma_(n, -1.90821492927058770002e-10, fma_(n, -6.93147180369123816490e-01, x));
  f64 p = 1.6059043836821613e-10;
  p = fma_(p, r, 2.0876756987868099e-09);
  p = fma_(p, r, 2.5052108385441719e-08);
  p = fma_(p, r, 2.7557319223985891e-07);
  p = fma_(p, r, 2.7557319223985893e-06);
  p = fma_(p, r, 2.4801587301587302e-05);
  p = fma_(p, r, 1.9841269841269841e-04);
  p = fma_(p, r, 1.3888888888888889e-03);
  p = fma_(p, r, 8.3333333333333332e-03);
  p = fma_(p, r, 4.1666666666666664e-02);
  p = fma_(p, r, 1.6666666666666666e-01);
  p = fma_(p, r, 0.5);
  p = add(1.0, fma_(mul(r, r), p, r));
  return mul(p, as_f64((u64)(i64)((i32)n + 1023) << 52));
}
