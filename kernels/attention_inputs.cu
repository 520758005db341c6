// What stands before attention: query and key norms, the rotation by M-RoPE positions, the write of keys and values.
//
// Macros: HEADS, KV_HEADS, HEAD_DIM; ROTARY, the leading dims that turn, in pairs (j, j + ROTARY / 2); SECTION_H and SECTION_W,
// pairs that turn by the second and third position: pair j by h where j % 3 == 1 and j < 3 SECTION_H, by w where j % 3 == 2
// and j < 3 SECTION_W, else by t.
#include "attention.h"

#if !defined(ROTARY) || !defined(SECTION_H) || !defined(SECTION_W)
#error "attention_inputs.cu needs ROTARY, SECTION_H, SECTION_W"
#endif

#define WARPS 8
#define PART (HEAD_DIM / 32)                // dims of a lane
#define UNITS (HEADS + 2 * KV_HEADS)        // heads of a row: queries, keys, values

DEVICE i32 axis_of(i32 pair) {
  i32 axis = pair % 3;
  return (axis == 1 && pair < 3 * SECTION_H) || (axis == 2 && pair < 3 * SECTION_W) ? axis : 0;
}

DEVICE void load_part(f32 (&y)[PART], const f32* x) {
#if PART % 4 == 0
  UNROLL for (i32 i = 0; i < PART; i += 4) {
    f32x4 v = *(const f32x4*)(x + i);
    y[i] = v.x, y[i + 1] = v.y, y[i + 2] = v.z, y[i + 3] = v.w;
  }
#else
  UNROLL for (i32 i = 0; i < PART; i++) y[i] = x[i];
#endif
}

// PART values as bf16 at `to`, PART * 2 bytes aligned.
DEVICE void store_part(u16* to, const f32 (&y)[PART]) {
#if PART == 8
  *(u32x4*)to = {pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3]), pack_bf16(y[4], y[5]), pack_bf16(y[6], y[7])};
#elif PART % 2 == 0
  UNROLL for (i32 i = 0; i < PART; i += 2) *(u32*)(to + i) = pack_bf16(y[i], y[i + 1]);
#else
  UNROLL for (i32 i = 0; i < PART; i++) to[i] = f32_to_bf16(y[i]);
#endif
}

// One warp for each head of a row.
//   x       f32 [rows][stride]: of each row HEADS x (query, gate) x HEAD_DIM, then KV_HEADS keys, KV_HEADS values
//   q_norm, k_norm  f32 [HEAD_DIM], the factors themselves (1 + weight); eps is added to the mean of squares
//   rope    (cosine, sine) [positions][ROTARY / 2]
//   q       bf16 [rows][HEADS][HEAD_DIM], normalised and turned, not scaled
//   keys, values  the layer's pools of `blocks` blocks; a row whose place is not in them writes nothing there
// Positions past the table turn as its last one does: the host has checked them.
// grid: enough blocks of 256 threads for a warp a head; shared: 32 * HEAD_DIM bytes.
LUCE_KERNEL(attention_inputs, WARPS * 32)(
    const f32* x, i32 stride, const f32* RESTRICT q_norm, const f32* RESTRICT k_norm, const f32x2* RESTRICT rope,
    i32 positions, const Pass* pass, const Row* rows, u16* RESTRICT q, u16* RESTRICT keys, u16* RESTRICT values, i32 blocks,
    f32 eps) {
  i32 unit = block_x() * WARPS + warp(), row = unit / UNITS, head = unit % UNITS;
  pdl_launch();
  if (row >= pass->rows) return;
  Row place = rows[row];
  bool is_query = head < HEADS, is_value = head >= HEADS + KV_HEADS;
  i32 kv_head = is_value ? head - HEADS - KV_HEADS : head - HEADS;
  i32 first = lane() * PART;
  bool inside = (u32)place.kv < (u32)blocks * BLOCK_ROWS;
  i32 turns[3] = {place.t, place.h, place.w};
  UNROLL for (i32 i = 0; i < 3; i++) turns[i] = max_(0, min_(turns[i], positions - 1));
  const f32* norm = is_query ? q_norm : k_norm;
  f32 y[PART], w[PART];
  f32x2 angles[PART] = {};
  load_part(w, norm + first);
  UNROLL for (i32 i = 0; i < PART; i++) {
    i32 pair = (first + i) % (ROTARY / 2), axis = axis_of(pair);
    if (first + i < ROTARY) angles[i] = rope[(i64)(axis == 0 ? turns[0] : axis == 1 ? turns[1] : turns[2]) * (ROTARY / 2) + pair];
  }
  pdl_wait();
  load_part(y, x + (i64)row * stride + (is_query ? 2 * head : HEADS + head) * HEAD_DIM + first);
  if (is_value) {
    if (!inside) return;
    u8* tile = (u8*)values + tile_at(place.kv / BLOCK_ROWS, kv_head);
    UNROLL for (i32 i = 0; i < PART; i++) *(u16*)(tile + value_at(place.kv % BLOCK_ROWS, first + i)) = f32_to_bf16(y[i]);
    return;
  }
  f32 squares = 0.0f;
  UNROLL for (i32 i = 0; i < PART; i++) squares = fma_(y[i], y[i], squares);
  f32 unit_length = div(1.0f, sqrt_(add(div(warp_sum(squares), (f32)HEAD_DIM), eps)));
  f32* turned = (f32*)shared_memory() + warp() * HEAD_DIM;
  UNROLL for (i32 i = 0; i < PART; i++) turned[first + i] = y[i] = mul(mul(y[i], unit_length), w[i]);
  sync_warp();
  UNROLL for (i32 i = 0; i < PART; i++) {
    i32 d = first + i, half = ROTARY / 2;
    if (d >= ROTARY) continue;
    f32 other = d < half ? -turned[d + half] : turned[d - half];
    y[i] = fma_(y[i], angles[i].x, mul(other, angles[i].y));
  }
  if (is_query) {
    store_part(q + ((i64)row * HEADS + head) * HEAD_DIM + first, y);
  } else if (inside) {
    store_part((u16*)((u8*)keys + tile_at(place.kv / BLOCK_ROWS, kv_head) + key_at(place.kv % BLOCK_ROWS, first)), y);
  }
}
LUCE_EXPORT(attention_inputs)
