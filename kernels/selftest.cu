// Every function of device.h and maths.h on given numbers: the self-test of a device (tests, `luce doctor`).
#include "device.h"

// y[f, i] = function f of x[i]; z beside x for the ones of two and three arguments.
LUCE_KERNEL(selftest_maths, 256)(const f32* x, const f32* z, f32* y, i32 n) {
  for (i32 i = block_x() * block_threads() + thread(); i < n; i += grid_x() * block_threads()) {
    f32 a = x[i], b = z[i], out[] = {exp_(a), log_(a), log1p_unit(abs_(b)), sigmoid_(a), silu_(a), softplus_(a), tanh_(a),
      gelu_tanh_(a), add(a, b), sub(a, b), mul(a, b), fma_(a, b, a), div(a, b), sqrt_(abs_(a)), round_bf16(a),
      f16_to_f32((u16)as_u32(a)), bf16_low(fma_bf16x2(pack_bf16(a, b), pack_bf16(b, a), pack_bf16(a, a))),
      f16_to_f32((u16)pack_f16(a, b)), f16_to_f32((u16)(pack_f16(b, a) >> 16)),
      f16_to_f32((u16)fma_f16x2(pack_f16(a, b), pack_f16(b, a), pack_f16(a, a))),
      as_f32(prmt(as_u32(a), as_u32(b), 0x6240u)), as_f32(and_or(as_u32(a), as_u32(b), 0x43004300u))};
    for (u32 f = 0; f < sizeof(out) / sizeof(f32); f++) y[(i64)f * n + i] = out[f];
  }
}
LUCE_EXPORT(selftest_maths)

// One block of `threads`: sums, shuffles and barriers. out[thread] = sum over its warp of x + sum over the block.
LUCE_KERNEL(selftest_block, 256)(const f32* x, f32* out) {
  f32* sums = (f32*)shared_memory();
  f32 mine = x[thread()], total = warp_sum(mine);
  if (lane() == 0) sums[warp()] = total;
  sync_block();
  f32 all = 0;
  for (i32 i = 0; i < block_threads() / WARP; i++) all = add(all, sums[i]);
  u32 negative = ballot_(mine < 0.0f);
  out[thread()] = add(add(total, all), (f32)popcount(negative));
  out[block_threads() + thread()] = shfl_down(mine, 3);
  out[2 * block_threads() + thread()] = warp_max(mine);
}
LUCE_EXPORT(selftest_block)

#if HAS_MMA
// d [16, 8] = a [16, 16] b [8, 16]^T, words in fragment order of a row-major matrix.
LUCE_KERNEL(selftest_mma, 32)(const u32* a, const u32* b, f32* d) {
  i32 g = lane() / 4, t = lane() % 4;
  f32 c[4] = {};
  mma_bf16(c, a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4], b[g * 8 + t], b[g * 8 + t + 4]);
  for (i32 i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}
LUCE_EXPORT(selftest_mma)
LUCE_KERNEL(selftest_mma_f16, 32)(const u32* a, const u32* b, f32* d) {
  i32 g = lane() / 4, t = lane() % 4;
  f32 c[4] = {};
  mma_f16(c, a[g * 8 + t], a[(g + 8) * 8 + t], a[g * 8 + t + 4], a[(g + 8) * 8 + t + 4], b[g * 8 + t], b[g * 8 + t + 4]);
  for (i32 i = 0; i < 4; i++) d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = c[i];
}
LUCE_EXPORT(selftest_mma_f16)

// Words of four 8x8 matrices of bf16, plain and transposed, as ldmatrix hands them out.
LUCE_KERNEL(selftest_ldmatrix, 32)(const u32* x, u32* out) {
  u32* tile = (u32*)shared_memory();
  for (i32 i = 0; i < 4; i++) tile[i * 32 + lane()] = x[i * 32 + lane()];
  sync_warp();
  u32 r[4];
  ldmatrix_x4(r, tile + lane() * 4);
  for (i32 i = 0; i < 4; i++) out[i * 32 + lane()] = r[i];
  ldmatrix_x4_trans(r, tile + lane() * 4);
  for (i32 i = 0; i < 4; i++) out[128 + i * 32 + lane()] = r[i];
}
LUCE_EXPORT(selftest_ldmatrix)
#endif

#if HAS_BULK
// A ring of two stages: out[i] = x[i] + 1 for `stages` pieces of 1,024 bytes, by 64 threads.
LUCE_KERNEL(selftest_bulk, 64)(const f32* x, f32* out, i32 stages) {
  u64* full = (u64*)shared_memory();
  f32* ring = (f32*)(shared_memory() + 128);
  pdl_wait();
  if (thread() == 0) {
    for (i32 i = 0; i < 2; i++) bar_init(full + i, 1);
    bar_init_fence();
    for (i32 i = 0; i < min_(2, stages); i++) {
      bar_expect(full + i, 1024);
      bulk_load(ring + i * 256, x + i * 256, 1024, full + i);
    }
  }
  sync_block();
  for (i32 i = 0; i < stages; i++) {
    bar_wait(full + i % 2, (u32)(i / 2 & 1));
    for (i32 k = thread(); k < 256; k += 64) out[i * 256 + k] = add(ring[i % 2 * 256 + k], 1.0f);
    sync_block();
    if (thread() == 0 && i + 2 < stages) {
      bar_expect(full + i % 2, 1024);
      bulk_load(ring + i % 2 * 256, x + (i + 2) * 256, 1024, full + i % 2);
    }
  }
  pdl_launch();
}
LUCE_EXPORT(selftest_bulk)
#endif
