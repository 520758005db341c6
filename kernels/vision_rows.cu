// Rows of the vision tower that no product writes, as activations in the prefill layout, without sums: patches out of shades or
// numbers, and rows that are normalised; and the positions in front of the first product.
#include "activation.h"

#define WARPS 8
#if defined(WIDTH) && WIDTH % 8
#error "WIDTH: a multiple of 8"
#endif

DEVICE void load8(const f32* at, f32 (&v)[8]) {
  f32x4 a = *(const f32x4*)at, b = *(const f32x4*)(at + 4);
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w; v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
DEVICE void store8(const Activations& to, i32 row, i32 k, const f32 (&v)[8]) {
  *(u32x4*)(to.at + activation_index(to, row, k)) = {pack_activations(v[0], v[1]), pack_activations(v[2], v[3]), pack_activations(v[4], v[5]), pack_activations(v[6], v[7])};
}

// What each shade of a channel stands for. shades u8 [rows][channels * size], table f32 [channels][256]; width a multiple of 8,
// zeros behind it. A warp takes a row: grid (rows / 8), 256 threads.
LUCE_KERNEL(patches_of_shades, 32 * WARPS)(const u8* shades, const f32* RESTRICT table, i32 rows, i32 width, i32 size, u16* out, i32 out_rows,
                                           i32 depth) {
  pdl_wait();
  pdl_launch();
  i32 row = block_x() * WARPS + warp();
  Activations to = {out, out_rows, out_rows, depth};
  if (row >= rows) return;
  for (i32 k = 8 * lane(); k < depth; k += 8 * WARP) {
    f32 v[8] = {};
    if (k < width) {
      u32x2 eight = *(const u32x2*)(shades + (i64)row * width + k);
      UNROLL for (i32 i = 0; i < 8; i++) v[i] = table[(k + i) / size * 256 + ((i < 4 ? eight.x : eight.y) >> (i % 4 * 8) & 255)];
    }
    store8(to, row, k, v);
  }
}
LUCE_EXPORT(patches_of_shades)

// The same of numbers f32 [rows][width].
LUCE_KERNEL(patches_of_values, 32 * WARPS)(const f32* values, i32 rows, i32 width, u16* out, i32 out_rows, i32 depth) {
  pdl_wait();
  pdl_launch();
  i32 row = block_x() * WARPS + warp();
  Activations to = {out, out_rows, out_rows, depth};
  if (row >= rows) return;
  for (i32 k = 8 * lane(); k < depth; k += 8 * WARP) {
    f32 v[8] = {};
    if (k < width) load8(values + (i64)row * width + k, v);
    store8(to, row, k, v);
  }
}
LUCE_EXPORT(patches_of_values)

// Positions of a picture's patches: rows of the learned table f32 [places][width], of each patch four (corners i32 [rows][4]) by their
// shares (f32 [rows][4]), one after the other as luce.engines.qwen35.vision.position_rows adds them; width a multiple of 4. A warp
// takes a row: grid (rows / 8), 256 threads.
LUCE_KERNEL(positions, 32 * WARPS)(const f32* RESTRICT table, const i32* corners, const f32* shares, i32 rows, i32 width, f32* out) {
  pdl_wait();
  pdl_launch();
  i32 row = block_x() * WARPS + warp();
  if (row >= rows) return;
  const f32* from[4];
  f32 share[4];
  UNROLL for (i32 c = 0; c < 4; c++) {
    from[c] = table + (i64)corners[row * 4 + c] * width;
    share[c] = shares[row * 4 + c];
  }
  for (i32 k = 4 * lane(); k < width; k += 4 * WARP) {
    f32x4 v = *(const f32x4*)(from[0] + k);
    f32x4 sum = {mul(v.x, share[0]), mul(v.y, share[0]), mul(v.z, share[0]), mul(v.w, share[0])};
    UNROLL for (i32 c = 1; c < 4; c++) {
      v = *(const f32x4*)(from[c] + k);
      sum = {add(sum.x, mul(v.x, share[c])), add(sum.y, mul(v.y, share[c])), add(sum.z, mul(v.z, share[c])),
             add(sum.w, mul(v.w, share[c]))};
    }
    *(f32x4*)(out + (i64)row * width + k) = sum;
  }
}
LUCE_EXPORT(positions)

// LayerNorm of rows x f32 [rows * group][WIDTH], `group` of them side by side in a row of the output (the merger's 2 x 2
// patches), zeros behind them. A warp takes a row of x and keeps it: grid (rows * group / 8), 256 threads, shared bytes
// layer_norm_shared. A sum is one fixed tree: four consecutive values in order, every 128th four, lanes. Rows leave through shared
// memory, so that cores of 8 rows x 8 values are written in one piece. Macro: WIDTH, a multiple of 8.
#ifdef WIDTH
#define FOURS ((WIDTH / 4 + WARP - 1) / WARP)   // of a lane
#define CHUNKS (WIDTH / 8)
LUCE_KERNEL(layer_norm, 32 * WARPS)(const f32* x, const f32* RESTRICT weight, const f32* RESTRICT bias, f32 eps, i32 rows, i32 group,
                                    u16* out, i32 out_rows, i32 depth) {
  u32x4* staged = (u32x4*)shared_memory();   // [row][CHUNKS], a row apart from the next by an odd number of chunks
  constexpr i32 pitch = CHUNKS | 1;
  pdl_wait();
  pdl_launch();
  i32 first = block_x() * WARPS, row = first + warp(), all = rows * group;
  if (row < all) {
    f32x4 v[FOURS];
    f32 sum = 0.0f, square = 0.0f, scale = div(1.0f, (f32)WIDTH);
    UNROLL for (i32 i = 0; i < FOURS; i++) {
      i32 k = 4 * (lane() + i * WARP);
      v[i] = k < WIDTH ? *(const f32x4*)(x + (i64)row * WIDTH + k) : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
      sum = add(sum, add(add(v[i].x, v[i].y), add(v[i].z, v[i].w)));
    }
    f32 mean = mul(warp_sum(sum), scale);
    UNROLL for (i32 i = 0; i < FOURS; i++) {
      if (4 * (lane() + i * WARP) >= WIDTH) continue;
      v[i] = {sub(v[i].x, mean), sub(v[i].y, mean), sub(v[i].z, mean), sub(v[i].w, mean)};
      square = fma_(v[i].w, v[i].w, fma_(v[i].z, v[i].z, fma_(v[i].y, v[i].y, fma_(v[i].x, v[i].x, square))));
    }
    f32 inverse = div(1.0f, sqrt_(add(mul(warp_sum(square), scale), eps)));
    UNROLL for (i32 i = 0; i < FOURS; i++) {
      i32 k = 4 * (lane() + i * WARP);
      if (k >= WIDTH) continue;
      f32x4 w = *(const f32x4*)(weight + k), b = *(const f32x4*)(bias + k);
      u32x2 both = {pack_activations(fma_(mul(v[i].x, inverse), w.x, b.x), fma_(mul(v[i].y, inverse), w.y, b.y)),
                    pack_activations(fma_(mul(v[i].z, inverse), w.z, b.z), fma_(mul(v[i].w, inverse), w.w, b.w))};
      *(u32x2*)((u8*)(staged + warp() * pitch) + k * 2) = both;
    }
  }
  sync_block();
  Activations to = {out, out_rows, out_rows, depth};
  i32 padding = (depth - group * WIDTH) / 8;   // chunks of zeros, behind the last row of a group
  for (i32 i = thread(); i < WARPS * (CHUNKS + padding); i += 32 * WARPS) {
    i32 mine = i % WARPS, chunk = i / WARPS, of = first + mine;
    if (of >= all || (chunk >= CHUNKS && of % group < group - 1)) continue;
    u32x4 v = {0u, 0u, 0u, 0u};
    if (chunk < CHUNKS) v = staged[mine * pitch + chunk];
    *(u32x4*)(to.at + activation_index(to, of / group, of % group * WIDTH + 8 * chunk)) = v;
  }
}
LUCE_EXPORT(layer_norm)
#endif
