// What the two prefill kernels share: 64 rows (tokens x heads that share keys) a block, tiles of 128 keys in ascending order.
//
// Eight warps compute, one fills the ring. Warp (r, h) has rows 16 r .. 16 r + 15: it makes the scores of half h (a block) of a
// tile's keys and sums half h of the dims, so that the split's sums and the running total of all splits both stay in
// registers. Warps of the same rows exchange their maxima, and all probabilities go through shared memory.
#pragma once
#include "attention.h"

#define TILE_HEADS (GROUP % 2 == 0 ? 2 : 1)
#define QUERY_TILE (64 / TILE_HEADS)            // tokens of a Tile
#define CONSUMERS 8
#define CONSUMER_THREADS (CONSUMERS * 32)
#define STEPS (HEAD_DIM / 16)
#define DIM_GROUPS (HEAD_DIM / 16)              // groups of 8 dims in half of them
#define QUERY_BYTES (64 * HEAD_DIM * 2)         // core matrices, [row / 8][dim / 8][row % 8][dim % 8]
#define PROBABILITY_BYTES (64 * TILE_KEYS * 2)  // core matrices, [row / 8][key / 8][row % 8][key % 8]
#define MAXIMA_BYTES (CONSUMERS * 16 * 4)
#define STAGED_ROWS (HAS_BULK ? 64 : 32)        // at the end, at once
#define STAGED_BYTES (STAGED_ROWS * HEAD_DIM * 4)
#define AT_ONCE (HEAD_DIM % 256 == 0 ? 4 : HEAD_DIM % 128 == 0 ? 2 : 1)

// The rows of a block.
struct Rows {
  Lane place;
  i32 token, tokens;  // of the lane
  i32 head, kv_head;  // first query head
  i32 first, end;     // positions
  const i32* table;
};
DEVICE Rows block_rows(const Tile& tile, const Lane* lanes, const i32* tables, i32 head) {
  Rows rows;
  rows.place = lanes[tile.lane];
  rows.token = tile.first;
  rows.tokens = min_(QUERY_TILE, rows.place.count - rows.token);
  rows.head = head;
  rows.kv_head = head / GROUP;
  rows.first = rows.place.start + rows.token;
  rows.end = rows.first + rows.tokens;
  rows.table = tables + rows.place.table;
  return rows;
}

// Tells `bad` when a block or a place of a row does not lie in the pool.
DEVICE void check_rows(const Rows& rows, const Row* pass_rows, i32 blocks, u32* bad) {
  if (!in_pool(rows.table, thread(), CONSUMER_THREADS, rows.end, blocks)) atomic_or(bad, 1u);
  if (thread() >= rows.tokens) return;
  if ((u32)pass_rows[rows.place.row + rows.token + thread()].kv >= (u32)blocks * BLOCK_ROWS) atomic_or(bad, 1u);
}

// Queries into shared memory; rows that there are not are zeros.
DEVICE void load_queries(const Rows& rows, const u16* q, u8* queries) {
  for (i32 i = thread(); i < 64 * HEAD_DIM / 8; i += CONSUMER_THREADS) {
    i32 row = i / (HEAD_DIM / 8), chunk = i % (HEAD_DIM / 8), at = row % QUERY_TILE;
    u8* to = queries + (row / 8 * (HEAD_DIM / 8) + chunk) * CORE_BYTES + row % 8 * 16;
    if (at < rows.tokens) {
      i64 pass_row = rows.place.row + rows.token + at;
      cp_async16(to, q + (pass_row * HEADS + rows.head + row / QUERY_TILE) * HEAD_DIM + chunk * 8);
    } else {
      *(u32x4*)to = {0, 0, 0, 0};
    }
  }
  cp_async_commit();
  cp_async_wait<0>();
}

// A thread's part of the softmax of two rows (g and g + 8 of its warp): its half of the keys.
struct Softmax {
  f32 c;
  i32 position[2];
  f32 split_most[2], split_sum[2], most[2], sum[2];
  f32 factors[2];       // what the split's sums take on with this tile
  MergeFactors merge[2];
};
DEVICE Softmax softmax_start(const Rows& rows) {
  Softmax s;
  s.c = score_scale();
  UNROLL for (i32 half = 0; half < 2; half++) {
    i32 row = warp() % 4 * 16 + half * 8 + lane() / 4;
    s.position[half] = rows.first + min_(row % QUERY_TILE, rows.tokens - 1);
    s.split_most[half] = s.most[half] = MINUS_INFINITY;
    s.split_sum[half] = s.sum[half] = 0.0f;
  }
  return s;
}
// Hides the keys after the rows' positions; `key` is the first of this half.
DEVICE void softmax_hide(const Softmax& s, f32 (&scores)[32], i32 key) {
  UNROLL for (i32 i = 0; i < 32; i++) {
    if (key + i / 4 * 8 + lane() % 4 * 2 + i % 2 > s.position[i / 2 % 2]) scores[i] = MINUS_INFINITY;
  }
}
// Maxima of this half of the keys, for the warp of the other.
DEVICE void softmax_tops(const f32 (&scores)[32], f32* maxima, f32 (&tops)[2]) {
  UNROLL for (i32 half = 0; half < 2; half++) {
    f32 v = larger(scores[2 * half], scores[2 * half + 1]);
    UNROLL for (i32 i = 1; i < 8; i++) v = larger(v, larger(scores[4 * i + 2 * half], scores[4 * i + 2 * half + 1]));
    tops[half] = quad_max(v);
    if (lane() % 4 == 0) maxima[warp() * 16 + half * 8 + lane() / 4] = tops[half];
  }
}
// Scores of rows g (half 0) or g + 8 become probabilities; `tops` of this half of the keys and `maxima` of the other.
DEVICE void softmax_tile(Softmax& s, i32 half, f32 (&scores)[32], const f32 (&tops)[2], const f32* maxima) {
  {
    f32 next = larger(s.split_most[half], larger(tops[half], maxima[(warp() ^ 4) * 16 + half * 8 + lane() / 4]));
    f32 offset = -mul(next, s.c), added = 0.0f;
    s.factors[half] = rescale(s.split_most[half], next, s.c);
    s.split_most[half] = next;
    UNROLL for (i32 step = 0; step < 4; step++) {
      f32 step_sum = 0.0f;
      UNROLL for (i32 i = 0; i < 4; i++) {
        f32& v = scores[8 * step + i / 2 * 4 + 2 * half + i % 2];
        v = probability(v, s.c, offset);
        step_sum = add(step_sum, v);
      }
      added = add(added, step_sum);
    }
    s.split_sum[half] = fma_(s.split_sum[half], s.factors[half], added);
  }
}
DEVICE void store_probabilities(const f32 (&scores)[32], u8* probabilities) {
  i32 r = warp() % 4, h = warp() / 4;
  UNROLL for (i32 half = 0; half < 2; half++) {
    UNROLL for (i32 i = 0; i < 8; i++) {
      *(u32*)(probabilities + ((2 * r + half) * (TILE_KEYS / 8) + h * 8 + i) * CORE_BYTES + lane() * 4) =
          pack_bf16(scores[4 * i + 2 * half], scores[4 * i + 2 * half + 1]);
    }
  }
}
// The split is over: how its sums join the total; the next one starts.
DEVICE void softmax_end_split(Softmax& s) {
  UNROLL for (i32 half = 0; half < 2; half++) {
    s.merge[half] = merge_factors(s.most[half], s.split_most[half], s.c);
    s.sum[half] = fma_(quad_sum(s.split_sum[half]), s.merge[half].b, mul(s.sum[half], s.merge[half].a));
    s.split_most[half] = MINUS_INFINITY;
    s.split_sum[half] = 0.0f;
  }
}
DEVICE void rescale_split(const Softmax& s, f32 (&o)[DIM_GROUPS * 4]) {
  if (!ballot_(s.factors[0] != 1.0f || s.factors[1] != 1.0f)) return;
  UNROLL for (i32 i = 0; i < DIM_GROUPS * 4; i++) o[i] = mul(o[i], s.factors[i / 2 % 2]);
}
DEVICE void merge_split(const Softmax& s, f32 (&o)[DIM_GROUPS * 4], f32 (&total)[DIM_GROUPS * 4]) {
  UNROLL for (i32 i = 0; i < DIM_GROUPS * 4; i++) {
    total[i] = fma_(o[i], s.merge[i / 2 % 2].b, mul(total[i], s.merge[i / 2 % 2].a));
    o[i] = 0.0f;
  }
}

// Where 8 dims of a row stand, so that neither rows nor dims meet in a bank.
DEVICE i32 turned(i32 dims, i32 row) { return dims ^ (row & (HEAD_DIM % 64 == 0 ? 7 : 3)); }

// The end of all rows: gates, and the activations of the output product, by way of `staged`, STAGED_BYTES of shared memory that
// nobody uses any more: f32 [row][8 dims, in places turned by the row][dim].
DEVICE void finish_rows(const Rows& rows, const Softmax& s, const f32 (&total)[DIM_GROUPS * 4], f32* maxima, f32* staged, bool bad,
                        const f32* x, i32 stride, const Activations& out) {
  i32 g = lane() / 4, t = lane() % 4, r = warp() % 4, h = warp() / 4;
  if (t == 0) {
    maxima[warp() * 16 + g] = s.sum[0];
    maxima[warp() * 16 + 8 + g] = s.sum[1];
  }
  meet(5, CONSUMER_THREADS);
  f32 scales[2];
  UNROLL for (i32 half = 0; half < 2; half++) {
    scales[half] = bad ? NOT_A_NUMBER : scale_of(maxima[r * 16 + half * 8 + g], maxima[(r + 4) * 16 + half * 8 + g]);
  }
  for (i32 from = 0; from < 64; from += STAGED_ROWS) {
    if (16 * r / STAGED_ROWS * STAGED_ROWS == from) {
      UNROLL for (i32 half = 0; half < 2; half++) {
        f32* row = staged + (16 * r - from + 8 * half + g) * HEAD_DIM + 2 * t;
        UNROLL for (i32 i = 0; i < DIM_GROUPS; i++) {
          *(f32x2*)(row + turned(h * DIM_GROUPS + i, g) * 8) = {mean_of(total[4 * i + 2 * half], scales[half]),
                                                                mean_of(total[4 * i + 2 * half + 1], scales[half])};
        }
      }
    }
    meet(5, CONSUMER_THREADS);
    // A thread has 8 dims of a row at a time; gates of AT_ONCE of them are on their way together.
    for (i32 base = thread(); base < STAGED_ROWS * HEAD_DIM / 8; base += AT_ONCE * CONSUMER_THREADS) {
      f32x4 gates[AT_ONCE][2];
      UNROLL for (i32 k = 0; k < AT_ONCE; k++) {
        i32 row = (base + k * CONSUMER_THREADS) / (HEAD_DIM / 8) + from, chunk = (base + k * CONSUMER_THREADS) % (HEAD_DIM / 8);
        i64 pass_row = rows.place.row + rows.token + min_(row % QUERY_TILE, rows.tokens - 1);
        const f32x4* gate = (const f32x4*)(x + pass_row * stride + (2 * (rows.head + row / QUERY_TILE) + 1) * HEAD_DIM + chunk * 8);
        gates[k][0] = gate[0], gates[k][1] = gate[1];
      }
      UNROLL for (i32 k = 0; k < AT_ONCE; k++) {
        i32 row = (base + k * CONSUMER_THREADS) / (HEAD_DIM / 8) + from, chunk = (base + k * CONSUMER_THREADS) % (HEAD_DIM / 8);
        const f32x4* mean = (const f32x4*)(staged + (row - from) * HEAD_DIM + turned(chunk, row) * 8);
        f32 v[8];
        UNROLL for (i32 i = 0; i < 2; i++) {
          v[4 * i] = gated(mean[i].x, gates[k][i].x), v[4 * i + 1] = gated(mean[i].y, gates[k][i].y);
          v[4 * i + 2] = gated(mean[i].z, gates[k][i].z), v[4 * i + 3] = gated(mean[i].w, gates[k][i].w);
        }
        i32 at = row % QUERY_TILE, pass_row = rows.place.row + rows.token + at;
        store_activations(out, pass_row, (rows.head + row / QUERY_TILE) * HEAD_DIM + chunk * 8, v, at < rows.tokens);
      }
    }
    meet(5, CONSUMER_THREADS);
  }
  if (rows.head + TILE_HEADS == HEADS) {
    for (i32 at = 0; at < rows.tokens; at++) {
      pad_activations(out, rows.place.row + rows.token + at, thread(), CONSUMER_THREADS);
    }
  }
}
