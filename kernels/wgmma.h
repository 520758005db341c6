// Warpgroup products (sm_90a): d[64 x COLUMNS] += a[64 x 16] b[16 x COLUMNS], bf16 or f16 in (WGMMA_TYPE), f32 sums, in the
// background.
//
// A comes from registers: warp w of the warpgroup holds rows 16w to 16w + 15 in the fragment order of mma.m16n8k16. B lies in
// shared memory as core matrices of 8 columns x 8 k (128 contiguous bytes, a column's 8 k side by side), `K_STRIDE` bytes from one
// core to the next along k and `COLUMN_STRIDE` along the columns; no swizzle. d[4 j + i] is element i of mma_bf16's c for
// columns 8 j to 8 j + 7. The sums of a chain of k16 steps equal, bit for bit, those of a chain of mma_bf16 (mma_f16).
//
// Order: wgmma_fence() after ordinary writes to d or a; products; wgmma_commit() closes a group; wgmma_wait<N>() until at most the
// N latest groups run. d, a and the shared memory of a group belong to it until it is done.
#pragma once

#ifndef WGMMA_TYPE
#define WGMMA_TYPE "bf16"
#endif

#if defined(LUCE_HOST)

typedef luce_host::Tile TileDesc;

template <u32 K_STRIDE, u32 COLUMN_STRIDE> DEVICE TileDesc tile_desc(const u8* shared) {
  return {shared, K_STRIDE, COLUMN_STRIDE};
}
// The same tile `bytes` (a multiple of 16) further on.
DEVICE TileDesc tile_step(TileDesc tile, u32 bytes) {
  tile.at += bytes;
  return tile;
}
DEVICE void wgmma_fence() {}
DEVICE void wgmma_commit() {}
template <int PENDING> DEVICE void wgmma_wait() {}
template <int REGISTERS> DEVICE void registers_grow() {}
template <int REGISTERS> DEVICE void registers_shrink() {}

template <int COLUMNS> DEVICE void wgmma(f32 (&d)[COLUMNS / 2], const u32 (&a)[4], TileDesc b, i32 keep) {
  luce_host::multiply(d, {a[0], a[1], a[2], a[3]}, COLUMNS, keep, &b, WGMMA_TYPE[0] == 'f');
}

#elif HAS_WGMMA

typedef u64 TileDesc;

template <u32 K_STRIDE, u32 COLUMN_STRIDE> DEVICE TileDesc tile_desc(const u8* shared) {
  return (u64)((shared_address(shared) & 0x3ffff) >> 4) | (u64)(K_STRIDE >> 4) << 16 | (u64)(COLUMN_STRIDE >> 4) << 32;
}
DEVICE TileDesc tile_step(TileDesc tile, u32 bytes) {
  asm("{.reg .b32 low, high; mov.b64 {low, high}, %0; add.u32 low, low, %1; mov.b64 %0, {low, high};}" : "+l"(tile) : "r"(bytes >> 4));
  return tile;
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
// How many registers a thread of this warpgroup may use; multiples of 8 from 24 to 240.
template <int REGISTERS> DEVICE void registers_grow() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS> DEVICE void registers_shrink() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

// keep = 0 starts a chain: d = a b.
template <int COLUMNS> DEVICE void wgmma(f32 (&d)[COLUMNS / 2], const u32 (&a)[4], TileDesc b, i32 keep);

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
template <> DEVICE void wgmma<32>(f32 (&d)[16], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;}"
      : D16(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma<64>(f32 (&d)[32], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;}"
      : D16(0), D16(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma<72>(f32 (&d)[36], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %41, 0; wgmma.mma_async.sync.aligned.m64n72k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35}, "
      "{%36, %37, %38, %39}, %40, p, 1, 1, 0;}"
      : D16(0), D16(16), D4(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma<80>(f32 (&d)[40], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %45, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39}, "
      "{%40, %41, %42, %43}, %44, p, 1, 1, 0;}"
      : D16(0), D16(16), D4(32), D4(36)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma<96>(f32 (&d)[48], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %53, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "
      "{%48, %49, %50, %51}, %52, p, 1, 1, 0;}"
      : D16(0), D16(16), D16(32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma<128>(f32 (&d)[64], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 0;}"
      : D16(0), D16(16), D16(32), D16(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma<160>(f32 (&d)[80], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %85, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
      "{%80, %81, %82, %83}, %84, p, 1, 1, 0;}"
      : D16(0), D16(16), D16(32), D16(48), D16(64)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma<192>(f32 (&d)[96], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %101, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "{%96, %97, %98, %99}, %100, p, 1, 1, 0;}"
      : D16(0), D16(16), D16(32), D16(48), D16(64), D16(80)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
template <> DEVICE void wgmma<256>(f32 (&d)[128], const u32 (&a)[4], TileDesc b, i32 keep) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32." WGMMA_TYPE "." WGMMA_TYPE " {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "{%128, %129, %130, %131}, %132, p, 1, 1, 0;}"
      : D16(0), D16(16), D16(32), D16(48), D16(64), D16(80), D16(96), D16(112)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
#undef D16
#undef D4

#endif
