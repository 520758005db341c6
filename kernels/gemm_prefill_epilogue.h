// What becomes of a tile's totals: `t` are those of a thread, in wgmma's order. Part of gemm_prefill.cu.
#pragma once

// Where this warpgroup's totals are.
DEVICE f32* my_place(const Plan& plan) { return plan.totals + (SPLIT ? 0 : warp() / 4 * PLACE); }

#if EPILOGUE == EPILOGUE_SWIGLU
// Gate and up of one k lie in one thread. Four warps hold the 32 k of one sum, a row-block's 8 k each.
DEVICE void epilogue(const f32 (&t)[ACC], const Shape& s, const Plan& plan, Tile tile, void* out, i32 stride, i32 out_k) {
  i32 block = tile.weights * TILE_BLOCKS + warp() % TILE_BLOCKS, g = lane() >> 2, odd = g & 1;
  if (block * 8 >= out_k) return;  // all of the warpgroup
  Activations to = {(u16*)out, s.rows, s.rows, out_k};
  i32 token0 = tile.tokens * TOKENS, mine = (lane() & 3) * 2 + odd;
  bool inside = 2 * (block * 8 + g) < s.n;
  f32 h[TOKENS / 4];
  bool plain = true;
  UNROLL for (i32 i = 0; i < TOKENS / 4; i++) {
    bool one;
    h[i] = mul(silu_in_range(t[i / 2 * 4 + i % 2], one), t[i / 2 * 4 + i % 2 + 2]);
    plain = plain && one;
  }
  if (!plain)
    UNROLL for (i32 i = 0; i < TOKENS / 4; i++) h[i] = mul(silu_(t[i / 2 * 4 + i % 2]), t[i / 2 * 4 + i % 2 + 2]);
  f32 sums[TOKENS / 8];
  UNROLL for (i32 j = 0; j < TOKENS / 8; j++) {
    f32 first = inside ? h[2 * j] : 0.0f, second = inside ? h[2 * j + 1] : 0.0f;
    // A lane holds two tokens of one k; its neighbour the same two of the next k. Each takes one token and both k.
    f32 other = shfl_xor(odd ? first : second, 4);
    u32 both = odd ? pack_activations(other, second) : pack_activations(first, other);
    i32 token = token0 + 8 * j + mine;
    if (token < s.live) *(u32*)(to.at + activation_index(to, token, block * 8 + (g & ~1))) = both;
    sums[j] = add(operand_low(both), operand_high(both));
  }
  // Halves of the tokens go to the lane that holds the other k: four k, then eight.
  bool second_pair = g & 2, second_half = g & 4;
  f32 pairs[TOKENS / 16], eights[TOKENS / 32];
  UNROLL for (i32 j = 0; j < TOKENS / 16; j++) {
    f32 other = shfl_xor(second_pair ? sums[2 * j] : sums[2 * j + 1], 8);
    pairs[j] = add(second_pair ? sums[2 * j + 1] : sums[2 * j], other);
  }
  UNROLL for (i32 j = 0; j < TOKENS / 32; j++) {
    f32 other = shfl_xor(second_half ? pairs[2 * j] : pairs[2 * j + 1], 16);
    eights[j] = add(second_half ? pairs[2 * j + 1] : pairs[2 * j], other);
  }
  f32* shared = my_place(plan) + TOTAL_SHARED * 128 * ACC;
  barrier_sync(1 + warp() / 4, 128);  // the tile before has been read
  UNROLL for (i32 j = 0; j < TOKENS / 32; j++)
    shared[(warp() & 3) * TOKENS + 8 * (4 * j + 2 * second_half + second_pair) + mine] = eights[j];
  barrier_sync(1 + warp() / 4, 128);
  for (i32 token = thread() & 127; token < TOKENS && token0 + token < s.live; token += 128) {
    f32 sum = add(add(shared[token], shared[TOKENS + token]), add(shared[2 * TOKENS + token], shared[3 * TOKENS + token]));
    store_activation_sum(to, token0 + token, block / 4, sum);
  }
}
#elif STORE == 0
DEVICE void epilogue(const f32 (&t)[ACC], const Shape& s, const Plan& plan, Tile tile, void* out, i32 stride, i32 out_k) {
  i32 row = (tile.weights * TILE_BLOCKS + warp() % TILE_BLOCKS) * 16 + (lane() >> 2), token0 = tile.tokens * TOKENS + (lane() & 3) * 2;
  f32* y = (f32*)out + row + (i64)token0 * stride;
  bool low = row < s.n, high = row + 8 < s.n;
  UNROLL for (i32 j = 0; j < TOKENS / 8; j += 4, y += (i64)32 * stride) {
    f32 v[16];
    UNROLL for (i32 i = 0; i < 16; i++) v[i] = t[4 * j + i];
#if EPILOGUE == EPILOGUE_ADD
    f32 old[16];  // all loads before the first store
    UNROLL for (i32 i = 0; i < 16; i++) {
      i32 token = 8 * (i >> 2) + (i & 1);
      old[i] = token0 + 8 * j + token < s.live && (i & 2 ? high : low) ? y[(i64)token * stride + (i & 2) * 4] : 0.0f;
    }
    UNROLL for (i32 i = 0; i < 16; i++) v[i] = add(old[i], v[i]);
#endif
    UNROLL for (i32 i = 0; i < 16; i++) {
      i32 token = 8 * (i >> 2) + (i & 1);
      if (token0 + 8 * j + token < s.live && (i & 2 ? high : low)) y[(i64)token * stride + (i & 2) * 4] = v[i];
    }
  }
}
#else
// Rows of the output pass through shared memory, in the place of the totals, and leave in the background.
DEVICE void epilogue(const f32 (&t)[ACC], const Shape& s, const Plan& plan, Tile tile, void* out, i32 stride, i32 out_k) {
  i32 row0 = (tile.weights * (TILE_BLOCKS / 4) + (SPLIT ? 0 : warp() / 4)) * 64, token0 = tile.tokens * TOKENS;
  f32* staged = my_place(plan);
  f32* at = staged + (lane() & 3) * 2 * STAGED_ROW + (warp() & 3) * 16 + (lane() >> 2);
  if (!TOTAL_SHARED || s.chunks == 1) bulk_store_wait();
  barrier_sync(1 + warp() / 4, 128);  // totals have been read, or the rows before have left
  UNROLL for (i32 j = 0; j < TOKENS / 8; j++)
    UNROLL for (i32 i = 0; i < 4; i++) at[(8 * j + (i & 1)) * STAGED_ROW + (i & 2) * 4] = t[4 * j + i];
  proxy_fence();
  barrier_sync(1 + warp() / 4, 128);
  i32 count = min_(64, s.n - row0), whole = ((u64)out | (u64)stride << 2) & 15 ? 0 : count & ~3;
  if (count > 0)
    for (i32 token = thread() & 127; token < TOKENS && token0 + token < s.live; token += 128) {
      f32* to = (f32*)out + (i64)(token0 + token) * stride + row0;
      const f32* from = staged + token * STAGED_ROW;
#if EPILOGUE == EPILOGUE_ADD
      if (whole) bulk_store_add(to, from, (u32)whole * 4);
      for (i32 i = whole; i < count; i++) to[i] = add(to[i], from[i]);
#else
      if (whole) bulk_store(to, from, (u32)whole * 4);
      for (i32 i = whole; i < count; i++) to[i] = from[i];
#endif
    }
  bulk_store_commit();
}
#endif
