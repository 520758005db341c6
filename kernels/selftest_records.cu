// The weights of records as the GEMMs get them, for tests.
#include "records.h"

// w f32 [16][256 nr], d f32 [16][nr], minima f32 [16][8 nr] of one row-block of nr records.
LUCE_KERNEL(selftest_records, 32)(const u8* records, f32* w, f32* d, f32* minima, i32 nr) {
  i32 l = lane(), g = l >> 2, t = l & 3, r = block_x();
  const u8* record = records + (i64)r * RECORD_BYTES;
  f32 unit = SCALED ? 1048576.0f : 1.0f;
  Scales s;
  load_scales(record, l, s);
  for (i32 quarter = 0; quarter < 4; quarter++) {
    u32 a[4][4];
    load_weights(record, s, l, quarter, a);
    for (i32 step = 0; step < 4; step++)
      for (i32 i = 0; i < 4; i++) {
        f32* at = w + (g + (i & 1) * 8) * 256 * nr + r * 256 + quarter * 64 + step * 16 + (i >> 1) * 8 + 2 * t;
        at[0] = mul(bf16_low(a[step][i]), unit);
        at[1] = mul(bf16_high(a[step][i]), unit);
      }
  }
#if SCALED
  f32 d0, d1;
  load_row_scales(record, l, d0, d1);
  d[g * nr + r] = div(d0, unit);
  d[(g + 8) * nr + r] = div(d1, unit);
#endif
#if MINIMA
  u32 m[4];
  load_minima(record, l, m);
  for (i32 i = 0; i < 2; i++) {
    f32* at = minima + (g + i * 8) * 8 * nr + r * 8 + 2 * t;
    at[0] = bf16_low(m[i]);
    at[1] = bf16_high(m[i]);
  }
#endif
}
LUCE_EXPORT(selftest_records)
