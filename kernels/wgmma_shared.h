// Warpgroup products with both operands in shared memory, beside those of wgmma.h with A in registers.
//
// A has 64 rows: core matrices as B's, 8 rows x 8 k; tile_desc<K_STRIDE, ROW_STRIDE>. All else as in wgmma.h.
#pragma once
#include "wgmma.h"

#if defined(LUCE_HOST)

template <int COLUMNS> DEVICE void wgmma_shared(f32 (&d)[COLUMNS / 2], TileDesc a, TileDesc b, i32 keep) {
  const u8* rows = a.at + (u32)(warp() % 4 * 2) * a.column_stride + lane() * 4;
  u32 words[4];
  for (u32 i = 0; i < 4; i++) words[i] = *(const u32*)(rows + i % 2 * a.column_stride + i / 2 * a.k_stride);
  wgmma<COLUMNS>(d, words, b, keep);
}
// Nothing before it reads or writes d.
template <int COUNT> DEVICE void wgmma_hold(f32 (&)[COUNT]) {}

#elif HAS_WGMMA

template <int COUNT> DEVICE void wgmma_hold(f32 (&d)[COUNT]) {
  UNROLL for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}

template <int COLUMNS> DEVICE void wgmma_shared(f32 (&d)[COLUMNS / 2], TileDesc a, TileDesc b, i32 keep);

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
template <> DEVICE void wgmma_shared<64>(f32 (&d)[32], TileDesc a, TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;}"
      : D16(0), D16(16)
      : "l"(a), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma_shared<96>(f32 (&d)[48], TileDesc a, TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "%48, %49, p, 1, 1, 0, 0;}"
      : D16(0), D16(16), D16(32)
      : "l"(a), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma_shared<128>(f32 (&d)[64], TileDesc a, TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;}"
      : D16(0), D16(16), D16(32), D16(48)
      : "l"(a), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma_shared<144>(f32 (&d)[72], TileDesc a, TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %74, 0; wgmma.mma_async.sync.aligned.m64n144k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71}, "
      "%72, %73, p, 1, 1, 0, 0;}"
      : D16(0), D16(16), D16(32), D16(48), D4(64), D4(68)
      : "l"(a), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma_shared<160>(f32 (&d)[80], TileDesc a, TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
      "%80, %81, p, 1, 1, 0, 0;}"
      : D16(0), D16(16), D16(32), D16(48), D16(64)
      : "l"(a), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma_shared<176>(f32 (&d)[88], TileDesc a, TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87}, "
      "%88, %89, p, 1, 1, 0, 0;}"
      : D16(0), D16(16), D16(32), D16(48), D16(64), D4(80), D4(84)
      : "l"(a), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma_shared<192>(f32 (&d)[96], TileDesc a, TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "%96, %97, p, 1, 1, 0, 0;}"
      : D16(0), D16(16), D16(32), D16(48), D16(64), D16(80)
      : "l"(a), "l"(b), "r"(keep));
}
#undef D16
#undef D4

#endif
