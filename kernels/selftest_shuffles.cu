// by_shuffles.h beside the instructions that it stands for, on the same words.
#include "device.h"
#include "by_shuffles.h"

#if HAS_MMA
// d [2][16, 8]: c + a [16, 16] b [8, 16]^T by the instruction and by shuffles; words in order of rows.
LUCE_KERNEL(selftest_shuffles_mma, 32)(const u32* a, const u32* b, const f32* c, f32* d, i32 f16) {
  i32 g = lane() / 4, t = lane() % 4;
  f32 sums[2][4];
  for (i32 i = 0; i < 4; i++) sums[0][i] = sums[1][i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  u32 w[6] = {a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4], b[g * 8 + t], b[g * 8 + t + 4]};
  if (f16) {
    mma_f16(sums[0], w[0], w[1], w[2], w[3], w[4], w[5]);
    mma_by_shuffles<PairOfF16>(sums[1], w[0], w[1], w[2], w[3], w[4], w[5]);
  } else {
    mma_bf16(sums[0], w[0], w[1], w[2], w[3], w[4], w[5]);
    mma_by_shuffles<PairOfBf16>(sums[1], w[0], w[1], w[2], w[3], w[4], w[5]);
  }
  for (i32 n = 0; n < 2; n++)
    for (i32 i = 0; i < 4; i++) d[n * 128 + (g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[n][i];
}
LUCE_EXPORT(selftest_shuffles_mma)

// out [4][4][32]: four 8x8 matrices plain and transposed, by the instruction and by shuffles.
LUCE_KERNEL(selftest_shuffles_ldmatrix, 32)(const u32* x, u32* out) {
  u32* tile = (u32*)shared_memory();
  for (i32 i = 0; i < 4; i++) tile[i * 32 + lane()] = x[i * 32 + lane()];
  sync_warp();
  const u32* row = tile + lane() * 4;
  u32 r[4][4];
  ldmatrix_x4(r[0], row);
  ldmatrix_by_shuffles(r[1], row);
  ldmatrix_x4_trans(r[2], row);
  ldmatrix_trans_by_shuffles(r[3], row);
  for (i32 n = 0; n < 4; n++)
    for (i32 i = 0; i < 4; i++) out[n * 128 + i * 32 + lane()] = r[n][i];
}
LUCE_EXPORT(selftest_shuffles_ldmatrix)
#endif
