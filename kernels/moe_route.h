// Which experts a row goes through, by a warp.
#pragma once
#include "moe.h"

// A logit's place among a row's: no two keys are equal, and NaN has one, too.
DEVICE u64 choice_key(f32 logit, i32 expert) {
  u32 bits = as_u32(add(logit, 0.0f));
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (u64)bits << 32 | (u32)(0x7fffffff - expert);
}

// The best `used` of a row's logits, by a warp: lane i gets the key of rank i. Each lane keeps its own in order, so that only heads
// are compared.
#ifndef ROUTE_KEYS
#define ROUTE_KEYS 16      // keys of a lane: up to 512 experts
#endif
DEVICE u64 best_of(const f32* row, i32 experts, i32 used) {
  u64 keys[ROUTE_KEYS], mine = 0;
  UNROLL
  for (i32 i = 0; i < ROUTE_KEYS; i++) {
    i32 e = lane() + WARP * i;
    keys[i] = e < experts ? choice_key(row[e], e) : 0;
  }
  const i32 held = ceil_div(experts, WARP);
  // Largest first. An odd-even sort: the same steps whatever the keys, and few of them for 8.
  for (i32 round = 0; round < held; round++) {
    UNROLL
    for (i32 i = 0; i + 1 < ROUTE_KEYS; i++) {
      if ((i ^ round) & 1) continue;
      u64 a = keys[i], b = keys[i + 1];
      keys[i] = max_(a, b);
      keys[i + 1] = min_(a, b);
    }
  }
  for (i32 rank = 0; rank < used; rank++) {
    // No two keys are equal: the largest upper half, then the largest lower one of those.
    const u32 high = most_of_warp((u32)(keys[0] >> 32)), low = most_of_warp((u32)(keys[0] >> 32) == high ? (u32)keys[0] : 0u);
    const u64 best = (u64)high << 32 | low;
    if (lane() == rank) mine = best;
    if (keys[0] == best) {
      UNROLL
      for (i32 i = 0; i + 1 < ROUTE_KEYS; i++) keys[i] = keys[i + 1];
      keys[ROUTE_KEYS - 1] = 0;
    }
  }
  return mine;
}

// Lane i gets the expert and the weight of rank i, behind the last rank those of the shared expert. Largest logit first, the lower index
// first among equals; weights are the softmax over them.
struct Choice {
  i32 expert;
  f32 weight;
};
DEVICE Choice choose(const f32* row, i32 experts, i32 used) {
  f32 logit = row[experts];
  const u64 key = best_of(row, experts, used);
  if (lane() < used) {
    u32 bits = (u32)(key >> 32);
    logit = as_f32(bits >> 31 ? bits & 0x7fffffffu : ~bits);
  }
  const f32 w = exp_(sub(logit, shfl(logit, 0)));
  f32 total = shfl(w, 0);
  for (i32 rank = 1; rank < used; rank++) total = add(total, shfl(w, rank));
  return {lane() < used ? 0x7fffffff - (i32)(u32)key : experts, lane() < used ? div(w, total) : sigmoid_(logit)};
}
DEVICE void route_row(const f32* row, i32 experts, i32 used, i32* chosen, f32* weights) {
  const Choice found = choose(row, experts, used);
  if (lane() > used) return;
  chosen[lane()] = found.expert;
  weights[lane()] = found.weight;
}

// All that moe_choose finds out of a pass's only row.
struct Alone {
  ExpertTile tiles[MAX_RANKS];
  i32 place[MAX_RANKS];    // of a rank
  f32 weights[MAX_RANKS];
};
DEVICE void route_alone(Alone& to, const f32* row, i32 experts, i32 used) {
  const Choice found = choose(row, experts, used);
  i32 position = 0;
  for (i32 rank = 0; rank <= used; rank++) position += shfl(found.expert, rank) < found.expert;
  if (lane() > used) return;
  to.tiles[position] = {found.expert, position, 1, 0};
  to.place[lane()] = position;
  to.weights[lane()] = found.weight;
}
