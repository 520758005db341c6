// The weights of records as the GEMMs get them, for tests.
#include "records.h"

// w f32 [16][256 nr], d f32 [16][nr], minima f32 [16][8 nr] of one row-block of nr records.
LUCE_KERNEL(selftest_records, 32)(const u8* records, f32* w, f32* d, f32* minima, i32 nr) {
  i32 l = lane(), g = l >> 2, t = l & 3, r = block_x();
  const u8* record = records + (i64)r * RECORD_BYTES;
  const f32 power = OPERANDS == OPERANDS_F16 ? 16777216.0f : 1048576.0f;  // that the weights of scaled formats lack
  Scales s;
  load_scales(record, l, s);
  for (i32 quarter = 0; quarter < 4; quarter++) {
    u32 a[4][4];
    load_weights(record, s, l, quarter, a);
    for (i32 step = 0; step < 4; step++)
      for (i32 i = 0; i < 4; i++) {
        f32* at = w + (g + (i & 1) * 8) * 256 * nr + r * 256 + quarter * 64 + step * 16 + (i >> 1) * 8 + 2 * t;
        at[0] = SCALED ? mul(operand_low(a[step][i]), power) : divide_unit(operand_low(a[step][i]));
        at[1] = SCALED ? mul(operand_high(a[step][i]), power) : divide_unit(operand_high(a[step][i]));
      }
  }
#if SCALED
  f32 d0, d1;
  load_row_scales(record, l, d0, d1);
  d[g * nr + r] = divide_unit(div(d0, power));
  d[(g + 8) * nr + r] = divide_unit(div(d1, power));
#endif
#if MINIMA
  u32 m[4];
  load_minima(record, l, m);
  for (i32 i = 0; i < 2; i++) {
    f32* at = minima + (g + i * 8) * 8 * nr + r * 8 + 2 * t;
    at[0] = divide_unit(operand_low(m[i]));
    at[1] = divide_unit(operand_high(m[i]));
  }
#endif
}
LUCE_EXPORT(selftest_records)
