// Bidirectional attention of the vision tower: all patches of one picture, keys in tiles of 64 in ascending order. A row's bits
// depend on its picture alone. Macros: HEADS; HEAD_DIM, a multiple of 8 up to 128.
//
// Of each head queries and keys stand in tiles of 64 rows, core matrices [row / 8][dim / 8][row % 8][dim % 8] of DEPTH dims (HEAD_DIM
// and zeros up to a multiple of 16); values in tiles of 64 keys, [key / 8][dim / 8][dim % 8][key % 8] of HEAD_DIM dims. Rows
// behind the last are zeros.
//
// The tree of a row: m = -infinity, O = 0, l = 0 (by column pair, key / 2 % 4); for each tile S = q k by k16 steps over the dims
// from zero, m' = max(m, S), a = 2^(c (m - m')), p = 2^(c S - c m') with c = log2(e) / sqrt(HEAD_DIM), l' = a l + (p added in ascending
// order from zero), O = a O, then O += p v by k16 steps over the keys, p rounded to bf16; y = O (1 / l).
#include "attention_core.h"

#if HEAD_DIM % 8 || HEAD_DIM > 128
#error "attention_vision.cu: HEAD_DIM is a multiple of 8 and at most 128"
#endif

#define DEPTH ((HEAD_DIM + 15) / 16 * 16)
#define WARPS 8
#define TILE_ROWS 64
#define KEY_BYTES (TILE_ROWS * DEPTH * 2)
#define VALUE_BYTES (TILE_ROWS * HEAD_DIM * 2)
#define STEPS (DEPTH / 16)
#define DIM_GROUPS (HEAD_DIM / 8)
#define THREADS (WARPS * 32)
#define PAIRS 4                                        // tiles of keys and values in the ring
#define RING_BYTES (PAIRS * (KEY_BYTES + VALUE_BYTES))
#define QUERY_BYTES (WARPS * 16 * DEPTH * 2)

// One warp for 8 rows of a head's queries, keys or values: bias, rotation of dims (j, j + HEAD_DIM / 2), tiles.
//   x     f32 [rows][stride]: queries, keys, values, each HEADS x HEAD_DIM; bias f32 [3 * HEADS * HEAD_DIM] or null
//   turn  (cosine, sine) [rows][HEAD_DIM / 2]
//   q, keys  bf16 [HEADS][tiles][64 * DEPTH]; values [HEADS][tiles][64 * HEAD_DIM]
// grid: enough blocks of 256 threads for tiles * 8 * 3 * HEADS warps.
LUCE_KERNEL(vision_inputs, WARPS * 32)(
    const f32* x, i32 rows, i32 stride, const f32* RESTRICT bias, const f32x2* RESTRICT turn, u8* RESTRICT q,
    u8* RESTRICT keys, u8* RESTRICT values) {
  i32 tiles = ceil_div(rows, TILE_ROWS), unit = block_x() * WARPS + warp();
  i32 group = unit / (3 * HEADS), part = unit % (3 * HEADS) / HEADS, head = unit % HEADS, tile = group / 8, first = group * 8;
  pdl_wait();
  pdl_launch();
  if (tile >= tiles) return;
  i32 at = (part * HEADS + head) * HEAD_DIM;
  if (part == 2) {
    u8* to = values + ((i64)head * tiles + tile) * VALUE_BYTES + group % 8 * (HEAD_DIM * 16);
    for (i32 dim = lane(); dim < HEAD_DIM; dim += 32) {
      f32 v[8], add_bias = bias ? bias[at + dim] : 0.0f;
      UNROLL for (i32 i = 0; i < 8; i++) v[i] = first + i < rows ? add(x[(i64)(first + i) * stride + at + dim], add_bias) : 0.0f;
      *(u32x4*)(to + dim * 16) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
    }
    return;
  }
  u8* to = (part ? keys : q) + ((i64)head * tiles + tile) * KEY_BYTES + group % 8 * (DEPTH * 16);
  for (i32 pair = lane(); pair < DEPTH - HEAD_DIM / 2; pair += 32) {
    i32 low = pair, high = pair + HEAD_DIM / 2;
    bool turns = pair < HEAD_DIM / 2;
    if (!turns) low = high;  // a dim behind the head's
    f32 low_bias = bias && turns ? bias[at + low] : 0.0f, high_bias = bias && turns ? bias[at + high] : 0.0f;
    UNROLL for (i32 i = 0; i < 8; i++) {
      f32 a = 0.0f, b = 0.0f;
      if (turns && first + i < rows) {
        const f32* from = x + (i64)(first + i) * stride + at;
        f32x2 angle = turn[(i64)(first + i) * (HEAD_DIM / 2) + pair];
        f32 u = add(from[low], low_bias), v = add(from[high], high_bias);
        a = fma_(u, angle.x, mul(-v, angle.y));
        b = fma_(v, angle.x, mul(u, angle.y));
      }
      if (turns) *(u16*)(to + low / 8 * CORE_BYTES + i * 16 + low % 8 * 2) = f32_to_bf16(a);
      *(u16*)(to + high / 8 * CORE_BYTES + i * 16 + high % 8 * 2) = f32_to_bf16(b);
    }
  }
}
LUCE_EXPORT(vision_inputs)

#if HAS_BULK
// Keys and values of a tile into its place in the ring, once everybody is through with what stood there. By one thread.
DEVICE void fetch(const u8* keys, const u8* values, i32 tile, u8* ring, u64* full, u64* empty) {
  i32 slot = tile % PAIRS;
  u32 waited = (u32)(tile / PAIRS & 1) ^ 1u;
  u8* to = ring + slot * (KEY_BYTES + VALUE_BYTES);
  bar_wait(empty + slot, waited);
  bar_expect(full + 2 * slot, KEY_BYTES);
  bulk_load(to, keys + (i64)tile * KEY_BYTES, KEY_BYTES, full + 2 * slot);
  bar_expect(full + 2 * slot + 1, VALUE_BYTES);
  bulk_load(to + KEY_BYTES, values + (i64)tile * VALUE_BYTES, VALUE_BYTES, full + 2 * slot + 1);
}
#endif

// Mean of the values f32 [rows][HEADS * HEAD_DIM]. grid (blocks of 128 rows, HEADS); threads and shared bytes: vision_attention_shape.
LUCE_KERNEL_RESIDENT(vision_attention, THREADS, 2)(const u8* q, const u8* keys, const u8* values, i32 rows, f32* RESTRICT y) {
  i32 tiles = ceil_div(rows, TILE_ROWS), head = block_y();
  keys += (i64)head * tiles * KEY_BYTES;
  values += (i64)head * tiles * VALUE_BYTES;
  pdl_launch();
#if HAS_BULK
  u8* queries = shared_memory();
  u8* ring = queries + QUERY_BYTES;
  u64* full = (u64*)(ring + RING_BYTES);
  u64* empty = full + 2 * PAIRS;
  if (thread() == 0) {
    for (i32 i = 0; i < 2 * PAIRS; i++) bar_init(full + i, 1);
    for (i32 i = 0; i < PAIRS; i++) bar_init(empty + i, WARPS);
    bar_init_fence();
    pdl_wait();
    for (i32 i = 0; i < min_(2, tiles); i++) fetch(keys, values, i, ring, full, empty);
  }
  sync_block();
#endif
  pdl_wait();
  const i32 g = lane() / 4, t = lane() % 4, first = block_x() * (WARPS * 16) + warp() * 16;
  const f32 c = score_scale();
  // A warp behind the last tile only keeps the ring going.
  i32 from = min_(first, tiles * TILE_ROWS - 16);
  const u8* mine = q + ((i64)head * tiles + from / TILE_ROWS) * KEY_BYTES + from % TILE_ROWS / 8 * (DEPTH * 16);
#if HAS_BULK
  for (i32 i = lane(); i < DEPTH * 2; i += 32) cp_async16(queries + warp() * (DEPTH * 32) + i * 16, mine + i * 16);
  cp_async_commit();
  cp_async_wait<0>();
  sync_warp();
  mine = queries + warp() * (DEPTH * 32);
#endif
  f32 most[2] = {MINUS_INFINITY, MINUS_INFINITY}, sum[2] = {}, o[DIM_GROUPS][4] = {};
  NO_UNROLL for (i32 tile = 0; tile < tiles; tile++) {
#if HAS_BULK
    i32 slot = tile % PAIRS;
    u32 phase = (u32)(tile / PAIRS & 1);
    const u8* tile_keys = ring + slot * (KEY_BYTES + VALUE_BYTES);
    const u8* tile_values = tile_keys + KEY_BYTES;
    if (thread() == 0 && tile + 2 < tiles) fetch(keys, values, tile + 2, ring, full, empty);
    sync_warp();
    bar_wait(full + 2 * slot, phase);
#else
    const u8* tile_keys = keys + (i64)tile * KEY_BYTES;
    const u8* tile_values = values + (i64)tile * VALUE_BYTES;
#endif
    f32 s[8][4] = {};
    UNROLL for (i32 step = 0; step < STEPS; step++) {
      u32 a[4];
      fragments(a, mine + lane() / 8 % 2 * (DEPTH * 16) + (2 * step + lane() / 16) * CORE_BYTES + lane() % 8 * 16);
      UNROLL for (i32 i = 0; i < 8; i += 2) {
        u32 b[4];
        fragments(b, tile_keys + (i + lane() / 16) * (DEPTH * 16) + (2 * step + lane() / 8 % 2) * CORE_BYTES + lane() % 8 * 16);
        multiply(s[i], a, b[0], b[1]);
        multiply(s[i + 1], a, b[2], b[3]);
      }
    }
    if ((tile + 1) * TILE_ROWS > rows) {
      UNROLL for (i32 i = 0; i < 32; i++) {
        if (tile * TILE_ROWS + i / 4 * 8 + 2 * t + i % 2 >= rows) s[i / 4][i % 4] = MINUS_INFINITY;
      }
    }
    f32 factors[2];
    UNROLL for (i32 half = 0; half < 2; half++) {
      f32 top = larger(s[0][2 * half], s[0][2 * half + 1]), added = 0.0f;
      UNROLL for (i32 i = 1; i < 8; i++) top = larger(top, larger(s[i][2 * half], s[i][2 * half + 1]));
      f32 next = larger(most[half], quad_max(top)), offset = -mul(next, c);
      factors[half] = rescale(most[half], next, c);
      most[half] = next;
      UNROLL for (i32 i = 0; i < 8; i++) {
        UNROLL for (i32 k = 2 * half; k < 2 * half + 2; k++) {
          s[i][k] = probability(s[i][k], c, offset);
          added = add(added, s[i][k]);
        }
      }
      sum[half] = fma_(sum[half], factors[half], added);
    }
    if (ballot_(factors[0] != 1.0f || factors[1] != 1.0f)) {
      UNROLL for (i32 i = 0; i < DIM_GROUPS; i++) {
        UNROLL for (i32 k = 0; k < 4; k++) o[i][k] = mul(o[i][k], factors[k / 2]);
      }
    }
#if HAS_BULK
    bar_wait(full + 2 * slot + 1, phase);
#endif
    UNROLL for (i32 pairs = 0; pairs < 2; pairs++) {
      u32 p[2][4];
      UNROLL for (i32 k = 0; k < 2; k++) {
        UNROLL for (i32 i = 0; i < 4; i++) {
          const f32(&v)[4] = s[pairs * 4 + 2 * k + i / 2];
          p[k][i] = pack_bf16(v[i % 2 * 2], v[i % 2 * 2 + 1]);
        }
      }
      UNROLL for (i32 i = 0; i < DIM_GROUPS; i++) {
        u32 b[4];
        fragments(b, tile_values + (pairs * 4 + lane() / 8) * (HEAD_DIM * 16) + i * CORE_BYTES + lane() % 8 * 16);
        multiply(o[i], p[0], b[0], b[1]);
        multiply(o[i], p[1], b[2], b[3]);
      }
    }
#if HAS_BULK
    sync_warp();
    if (lane() == 0) bar_arrive(empty + slot);
#endif
  }
  UNROLL for (i32 half = 0; half < 2; half++) {
    i32 row = first + half * 8 + g;
    f32 scale = div(1.0f, quad_sum(sum[half]));
    if (row >= rows) continue;
    f32* to = y + ((i64)row * HEADS + head) * HEAD_DIM + 2 * t;
    UNROLL for (i32 i = 0; i < DIM_GROUPS; i++) *(f32x2*)(to + i * 8) = {mul(o[i][2 * half], scale), mul(o[i][2 * half + 1], scale)};
  }
}
LUCE_EXPORT(vision_attention)

// Threads and shared bytes of vision_attention, rows of a block, DEPTH.
LUCE_KERNEL(vision_attention_shape, 32)(i32* found) {
  if (thread() == 0) {
    found[0] = THREADS;
    found[1] = HAS_BULK ? QUERY_BYTES + RING_BYTES + 3 * PAIRS * 8 : 0;
    found[2] = WARPS * 16;
    found[3] = DEPTH;
  }
}
LUCE_EXPORT(vision_attention_shape)
