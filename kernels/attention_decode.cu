// Attention of passes whose lanes have one row each: every (row, kv head, split) for itself, then the ordered merge.
// The tree is in attention.h. Macros: HEADS, KV_HEADS, HEAD_DIM.
#include "attention.h"

#define CONSUMERS 4                                   // warps that compute; one more fills the ring
#define CONSUMER_THREADS (CONSUMERS * 32)
#define THREADS (CONSUMER_THREADS + (HAS_BULK ? 32 : 0))
#define ROOM ((SHARED_LIMIT - EXCHANGE_BYTES - 1024) / TILE_BYTES)
#define STAGES (ROOM < 16 ? ROOM / 2 * 2 : 16)         // blocks in the ring, an even number
#define HALVES (GROUP > 8 ? 2 : 1)                    // rows g and g + 8 of a fragment that hold query heads
#define STEPS (HEAD_DIM / 16)                         // k16 steps of a score
#define COLUMNS (HEAD_DIM / 8 / CONSUMERS)            // groups of 8 dims that a warp sums values for
#define COLUMNS_AT_ONCE (COLUMNS % 4 == 0 ? 4 : COLUMNS % 2 == 0 ? 2 : 1)
#define TURNS (COLUMNS / COLUMNS_AT_ONCE)             // of those, for 32 keys
#define TILE_STEPS (TILE_KEYS / 16)
#define FRAGMENT_WORDS (2 * HALVES)                   // of 16 rows x 16, those with query heads
// What the warps tell each other of a tile: probabilities [step][word][lane], sums of 16 probabilities [step][row][column pair],
// maxima [warp][row].
#define PROBABILITY_WORDS (TILE_STEPS * FRAGMENT_WORDS * 32)
#define SUM_WORDS (TILE_STEPS * 8 * HALVES * 4)
#define TOP_WORDS (CONSUMERS * 8 * HALVES)
#define EXCHANGE_BYTES ((PROBABILITY_WORDS + SUM_WORDS + TOP_WORDS) * 4)
#if GROUP > 16
#error "attention_decode.cu: at most 16 query heads a kv head"
#endif
#if HAS_BULK
#define RING_BYTES (STAGES * TILE_BYTES)
#else
#define RING_BYTES 0
#endif

// The work list, (lane, kv head, split) in that order, kept across the lanes of a warp.
struct Work {
  i32 ends[2];  // items before the end of lanes lane() and lane() + 32
  i32 total;
};
DEVICE i32 lane_splits(const Pass* pass, const Lane* lanes, i32 i, i32 max_splits) {
  if (i >= pass->lanes) return 0;
  return max_(0, min_(splits_of(lanes[i].start + 1), max_splits));
}
DEVICE Work work_list(const Pass* pass, const Lane* lanes, i32 max_splits) {
  Work work;
  i32 before = 0;
  UNROLL for (i32 half = 0; half < 2; half++) {
    i32 end = KV_HEADS * lane_splits(pass, lanes, half * 32 + lane(), max_splits);
    UNROLL for (i32 delta = 1; delta < 32; delta *= 2) {
      i32 below = shfl(end, lane() >= delta ? lane() - delta : lane());
      if (lane() >= delta) end += below;
    }
    work.ends[half] = before + end;
    before += shfl(end, 31);
  }
  work.total = before;
  return work;
}
struct Item { i32 lane, kv_head, split; };
DEVICE Item item_at(const Work& work, i32 index, const Lane* lanes, i32 max_splits) {
  i32 i = popcount(ballot_(work.ends[0] <= index)) + popcount(ballot_(work.ends[1] <= index));
  i32 low = shfl(work.ends[0], (i - 1) & 31), high = shfl(work.ends[1], (i - 1) & 31);
  i32 inside = index - (i == 0 ? 0 : i <= 32 ? low : high);
  i32 splits = min_(splits_of(lanes[i].start + 1), max_splits);
  return {i, inside / splits, inside % splits};
}

// c += a b where only as many rows of a as there are query heads count.
DEVICE void multiply_heads(f32 (&c)[4], const u32 (&a)[FRAGMENT_WORDS], u32 b0, u32 b1) {
  const u32 whole[4] = {a[0], HALVES == 2 ? a[HALVES - 1] : 0, a[HALVES], HALVES == 2 ? a[FRAGMENT_WORDS - 1] : 0};
  multiply(c, whole, b0, b1);
}

// Scores of 16 keys of each of BLOCKS blocks. Fragments of the next steps come in while these multiply.
template <int BLOCKS> DEVICE void score(f32 (&s)[2][2][4], const u32 (&a)[STEPS][FRAGMENT_WORDS], const u8* const (&tiles)[2]) {
  u32 b[2][2 * BLOCKS][4];
  auto take = [&](u32 (&to)[2 * BLOCKS][4], i32 step) {
    UNROLL for (i32 i = 0; i < 2 * BLOCKS; i++) {
      fragments(to[i], tiles[i / 2] + (warp() * 2 + i % 2) * GROUP_BYTES + step * 2 * CORE_BYTES + lane() * 16);
    }
  };
  take(b[0], 0);
  UNROLL for (i32 step = 0; step < STEPS; step += 2) {
    if (step + 2 < STEPS) take(b[(step / 2 + 1) % 2], step + 2);
    UNROLL for (i32 k = 0; k < 2; k++) {
      UNROLL for (i32 i = 0; i < 2 * BLOCKS; i++) {
        const u32(&words)[4] = b[step / 2 % 2][i];
        multiply_heads(s[i / 2][i % 2], a[step + k], words[2 * k], words[2 * k + 1]);
      }
    }
  }
}

#if HAS_BULK
// Keys and values of the items, tile by tile, into the ring. By one warp.
DEVICE void fill_ring(const Work& work, i32 from, i32 to, const u8* keys, const u8* values, const Lane* lanes,
                      const i32* tables, i32 blocks, i32 max_splits, u8* ring, u64* full, u64* empty) {
  i32 stage = 0;
  u32 round = 0;
  bool waited = false;
  for (i32 index = from; index < to; index++) {
    Item item = item_at(work, index, lanes, max_splits);
    i32 end = lanes[item.lane].start + 1, first = item.split * SPLIT_KEYS, count = min_(SPLIT_KEYS, end - first);
    i32 held = ceil_div(count, BLOCK_ROWS);
    i32 mine = lane() < held ? block_in_pool(tables[lanes[item.lane].table + first / BLOCK_ROWS + lane()], blocks) : 0;
    // Of a tile its blocks' keys, then their values.
    for (i32 part = 0; part < 2 * held; part++) {
      i32 pair = part / 4 * 2, both = min_(2, held - pair), in = part - 2 * pair, block = pair + in % both;
      u32 bytes = (u32)(ceil_div(min_(count - block * BLOCK_ROWS, BLOCK_ROWS), 8) * GROUP_BYTES);
      i64 at = tile_at(shfl(mine, block), item.kv_head);
      // Only the last key of a lane comes from this pass; what earlier passes wrote may be read before it.
      if (first + count == end && block == held - 1 && !waited) {
        pdl_wait();
        waited = true;
      }
      if (lane() == 0) {
        bar_wait(empty + stage, (round & 1u) ^ 1u);
        bar_expect(full + stage, bytes);
        bulk_load(ring + stage * TILE_BYTES, (in < both ? keys : values) + at, bytes, full + stage);
      }
      if (++stage == STAGES) {
        stage = 0;
        round++;
      }
    }
  }
}
#endif

// One split's part of a query head: O unnormalised, m, and l by halves.
//   q        bf16 [rows][HEADS][HEAD_DIM]
//   keys, values  pools of `blocks` blocks; tables i32, see Lane
//   parts    f32 [rows][HEADS][max_splits][HEAD_DIM]
//   marks    (m, l of the first half, l of the second, unused) [rows][HEADS][max_splits]
// Lanes longer than max_splits splits are read that far only: the caller chooses it for the longest.
// grid: as many blocks as the device holds at once (any number works); threads and shared bytes: attention_decode_shape.
LUCE_KERNEL(attention_decode, THREADS)(
    const u16* q, const u16* keys, const u16* values, const Pass* pass, const Lane* lanes, const i32* tables,
    i32 blocks, f32* parts, f32x4* marks, i32 max_splits) {
  u8* shared = shared_memory();
  u32* probabilities = (u32*)(shared + RING_BYTES);
  f32* step_sums = (f32*)(probabilities + PROBABILITY_WORDS);
  f32* tops = step_sums + SUM_WORDS;
  Work work = work_list(pass, lanes, max_splits);
  i32 from = (i32)((i64)work.total * block_x() / grid_x()), to = (i32)((i64)work.total * (block_x() + 1) / grid_x());
  pdl_launch();
#if HAS_BULK
  u64* full = (u64*)(shared + RING_BYTES + EXCHANGE_BYTES);
  u64* empty = full + STAGES;
  if (thread() == 0) {
    for (i32 i = 0; i < STAGES; i++) {
      bar_init(full + i, 1);
      bar_init(empty + i, CONSUMERS);
    }
    bar_init_fence();
  }
  sync_block();
  if (warp() == CONSUMERS) {
    fill_ring(work, from, to, (const u8*)keys, (const u8*)values, lanes, tables, blocks, max_splits, shared, full, empty);
    return;
  }
  i32 stage = 0;
  u32 phase = 0;
#endif
  Lane place = {};
  Item item = {};
  i32 tile = 0;
  // The keys or values of a block of the tile, and the end of the use of as many as there are. The ring has an even number of
  // stages, and of every tile as many keys as values stand in it: a pair of blocks never wraps.
  auto piece = [&](i32 block, const u16* pool) -> const u8* {
#if HAS_BULK
    bar_wait(full + stage + block, phase);
    return shared + (stage + block) * TILE_BYTES;
#else
    i32 id = tables[place.table + (item.split * SPLIT_KEYS + tile * TILE_KEYS) / BLOCK_ROWS + block];
    return (const u8*)pool + tile_at(block_in_pool(id, blocks), item.kv_head);
#endif
  };
  auto release = [&](i32 count) {
#if HAS_BULK
    sync_warp();
    if (lane() == 0) {
      for (i32 i = 0; i < count; i++) bar_arrive(empty + stage + i);
    }
    stage += count;
    if (stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
#endif
  };
  pdl_wait();
  const f32 c = score_scale();
  const i32 g = lane() / 4, t = lane() % 4;
  i32 held_lane = -1, held_head = -1;
  u32 a[STEPS][FRAGMENT_WORDS];
  for (i32 index = from; index < to; index++) {
    item = item_at(work, index, lanes, max_splits);
    place = lanes[item.lane];
    if (item.lane != held_lane || item.kv_head != held_head) {
      held_lane = item.lane, held_head = item.kv_head;
      UNROLL for (i32 half = 0; half < HALVES; half++) {
        i32 head = half * 8 + g;
        const u32* from_q = (const u32*)(q + ((i64)place.row * HEADS + item.kv_head * GROUP + head) * HEAD_DIM) + t;
        UNROLL for (i32 step = 0; step < STEPS; step++) {
          a[step][half] = head < GROUP ? from_q[step * 8] : 0;
          a[step][HALVES + half] = head < GROUP ? from_q[step * 8 + 4] : 0;
        }
      }
    }
    i32 first = item.split * SPLIT_KEYS, count = min_(SPLIT_KEYS, place.start + 1 - first);
    i32 tiles = ceil_div(count, TILE_KEYS);
    f32 most[HALVES], sums[HALVES][2], o[COLUMNS][4] = {};
    UNROLL for (i32 half = 0; half < HALVES; half++) {
      most[half] = MINUS_INFINITY;
      sums[half][0] = sums[half][1] = 0.0f;
    }
    NO_UNROLL for (tile = 0; tile < tiles; tile++) {
      i32 left = count - tile * TILE_KEYS;  // keys from the tile's start on
      i32 held = left > BLOCK_ROWS ? 2 : 1;
      // Each warp makes the scores and probabilities of 16 keys of each block.
      f32 s[2][2][4] = {};
      const u8* tile_keys[2] = {piece(0, keys), nullptr};
      if (held == 2) {
        tile_keys[1] = piece(1, keys);
        score<2>(s, a, tile_keys);
      } else {
        score<1>(s, a, tile_keys);
      }
      release(held);
      if (left < TILE_KEYS) {
        UNROLL for (i32 i = 0; i < 16; i++) {
          i32 key = i / 8 * BLOCK_ROWS + (warp() * 2 + i / 4 % 2) * 8 + 2 * t + i % 2;
          if (key >= left) s[i / 8][i / 4 % 2][i % 4] = MINUS_INFINITY;
        }
      }
      UNROLL for (i32 half = 0; half < HALVES; half++) {
        f32 top = MINUS_INFINITY;
        UNROLL for (i32 i = 0; i < 8; i++) top = larger(top, s[i / 4][i / 2 % 2][2 * half + i % 2]);
        top = quad_max(top);
        if (t == 0) tops[warp() * 8 * HALVES + half * 8 + g] = top;
      }
      meet(1, CONSUMER_THREADS);
      f32 factors[HALVES];
      UNROLL for (i32 half = 0; half < HALVES; half++) {
        f32 next = most[half];
        UNROLL for (i32 w = 0; w < CONSUMERS; w++) next = larger(next, tops[w * 8 * HALVES + half * 8 + g]);
        f32 offset = -mul(next, c);
        factors[half] = rescale(most[half], next, c);
        most[half] = next;
        UNROLL for (i32 block = 0; block < 2; block++) {
          i32 step = block * 4 + warp();
          f32 added = 0.0f;
          UNROLL for (i32 i = 0; i < 2; i++) {
            f32(&v)[4] = s[block][i];
            UNROLL for (i32 k = 2 * half; k < 2 * half + 2; k++) {
              v[k] = probability(v[k], c, offset);
              added = add(added, v[k]);
            }
            probabilities[(step * FRAGMENT_WORDS + i * HALVES + half) * 32 + lane()] = pack_bf16(v[2 * half], v[2 * half + 1]);
          }
          step_sums[(step * 8 * HALVES + half * 8 + g) * 4 + t] = added;
        }
      }
      meet(1, CONSUMER_THREADS);
      if (warp() == 0) {
        UNROLL for (i32 half = 0; half < HALVES; half++) {
          UNROLL for (i32 side = 0; side < 2; side++) {
            f32 added = 0.0f;
            UNROLL for (i32 i = 0; i < 4; i++) added = add(added, step_sums[((side * 4 + i) * 8 * HALVES + half * 8 + g) * 4 + t]);
            sums[half][side] = fma_(sums[half][side], factors[half], added);
          }
        }
      }
      u32 p[TILE_STEPS][FRAGMENT_WORDS];
      UNROLL for (i32 i = 0; i < TILE_STEPS * FRAGMENT_WORDS; i++) {
        p[i / FRAGMENT_WORDS][i % FRAGMENT_WORDS] = probabilities[i * 32 + lane()];
      }
      UNROLL for (i32 i = 0; i < COLUMNS; i++) {
        UNROLL for (i32 k = 0; k < 2 * HALVES; k++) o[i][k] = mul(o[i][k], factors[k / 2]);
      }
      UNROLL for (i32 block = 0; block < 2; block++) {
        if (block == held) break;
        const u8* tile_values = piece(block, values);
        i32 visible_keys = left - block * BLOCK_ROWS;
        u32 b[2][COLUMNS_AT_ONCE][4];
        auto take = [&](u32 (&to)[COLUMNS_AT_ONCE][4], i32 turn) {
          i32 pairs = turn / TURNS, first_column = turn % TURNS * COLUMNS_AT_ONCE;
          UNROLL for (i32 i = 0; i < COLUMNS_AT_ONCE; i++) {
            fragments(to[i], tile_values + (pairs * 4 + lane() / 8) * GROUP_BYTES +
                                 (warp() * COLUMNS + first_column + i) * CORE_BYTES + lane() % 8 * 16);
          }
        };
        take(b[0], 0);
        UNROLL for (i32 turn = 0; turn < 2 * TURNS; turn++) {
          i32 pairs = turn / TURNS, first_column = turn % TURNS * COLUMNS_AT_ONCE;
          if (turn + 1 < 2 * TURNS) take(b[(turn + 1) % 2], turn + 1);
          u32 visible[4] = {~0u, ~0u, ~0u, ~0u};
          if (visible_keys < BLOCK_ROWS) {
            UNROLL for (i32 k = 0; k < 4; k++) visible[k] = pair_mask(pairs * 32 + k * 8 + 2 * t, visible_keys);
          }
          UNROLL for (i32 k = 0; k < 2; k++) {
            UNROLL for (i32 i = 0; i < COLUMNS_AT_ONCE; i++) {
              const u32(&words)[4] = b[turn % 2][i];
              multiply_heads(o[first_column + i], p[block * 4 + pairs * 2 + k], words[2 * k] & visible[2 * k],
                             words[2 * k + 1] & visible[2 * k + 1]);
            }
          }
        }
      }
      release(held);
    }
    UNROLL for (i32 half = 0; half < HALVES; half++) {
      i32 head = half * 8 + g;
      f32 low = quad_sum(sums[half][0]), high = quad_sum(sums[half][1]);
      if (head < GROUP) {
        i64 at = ((i64)place.row * HEADS + item.kv_head * GROUP + head) * max_splits + item.split;
        f32* to_o = parts + at * HEAD_DIM + warp() * COLUMNS * 8 + 2 * t;
        UNROLL for (i32 i = 0; i < COLUMNS; i++) *(f32x2*)(to_o + i * 8) = {o[i][2 * half], o[i][2 * half + 1]};
        if (warp() == 0 && t == 0) marks[at] = {most[half], low, high, 0.0f};
      }
    }
  }
}
LUCE_EXPORT(attention_decode)

// Threads and shared bytes of attention_decode, keys of a split.
LUCE_KERNEL(attention_decode_shape, 32)(i32* found) {
  if (thread() == 0) {
    found[0] = THREADS;
    found[1] = RING_BYTES + EXCHANGE_BYTES + 16 * STAGES;
    found[2] = SPLIT_KEYS;
  }
}
LUCE_EXPORT(attention_decode_shape)

#define AHEAD 16  // splits whose parts are on their way at once

// Splits in ascending order, the gate, and the row of the output product.
//   x  f32 [rows][stride], where the gates stand (attention_inputs); y: see activation.h, K = HEADS * HEAD_DIM
// grid (lanes or more, HEADS), HEAD_DIM threads; shared: 16 * HEAD_DIM + 64 bytes.
LUCE_KERNEL(attention_merge, HEAD_DIM)(
    const f32* parts, const f32x4* marks, const Pass* pass, const Row* rows, const Lane* lanes,
    const i32* tables, i32 blocks, i32 max_splits, const f32* x, i32 stride, u16* y, i32 y_rows, i32 y_tile, i32 y_depth) {
  i32 i = block_x(), head = block_y(), dim = thread();
  f32x4* steps = (f32x4*)shared_memory();  // of a split (a, b, l of the first half, l of the second)
  f32* tops = (f32*)(steps + HEAD_DIM);
  u32* bad = (u32*)(tops + HEAD_DIM / 32);
  pdl_launch();
  if (i >= pass->lanes) return;
  i32 row = lanes[i].row, end = lanes[i].start + 1, splits = min_(splits_of(end), max_splits);
  if (thread() == 0) *bad = (u32)rows[row].kv >= (u32)blocks * BLOCK_ROWS;
  sync_block();
  if (!in_pool(tables + lanes[i].table, thread(), block_threads(), end, blocks)) atomic_or(bad, 1u);
  pdl_wait();
  f32 gate = x[(i64)row * stride + (2 * head + 1) * HEAD_DIM + dim];
  const f32 c = score_scale();
  i64 at = ((i64)row * HEADS + head) * max_splits;
  f32 most = MINUS_INFINITY, total = 0.0f, low = 0.0f, high = 0.0f, part[AHEAD];
  // As many splits at once as there are threads: one thread makes the factors of one split.
  for (i32 chunk = 0; chunk < splits; chunk += HEAD_DIM) {
    i32 count = min_(HEAD_DIM, splits - chunk);
    const f32* from = parts + (at + chunk) * HEAD_DIM + dim;
    UNROLL for (i32 k = 0; k < AHEAD; k++) part[k] = from[(i64)min_(k, count - 1) * HEAD_DIM];
    f32x4 mark = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
    if (thread() < count) mark = marks[at + chunk + thread()];
    f32 until = mark.x;  // the maximum up to this split, first within the warp
    UNROLL for (i32 delta = 1; delta < 32; delta *= 2) until = larger(until, shfl(until, lane() >= delta ? lane() - delta : lane()));
    f32 before = shfl(until, lane() > 0 ? lane() - 1 : 0);
    if (lane() == 0) before = MINUS_INFINITY;
    if (lane() == 31) tops[warp()] = until;
    sync_block();
    for (i32 w = 0; w < HEAD_DIM / 32; w++) {
      if (w < warp()) before = larger(before, tops[w]);
    }
    before = larger(before, most);
    until = larger(before, mark.x);
    steps[thread()] = {rescale(before, until, c), rescale(mark.x, until, c), mark.y, mark.z};
    UNROLL for (i32 w = 0; w < HEAD_DIM / 32; w++) most = larger(most, tops[w]);
    sync_block();
    // Behind the last split the factors are 1 and 0: any finite part will do.
    for (i32 first = 0; first < count; first += AHEAD) {
      f32 later[AHEAD];
      UNROLL for (i32 k = 0; k < AHEAD; k++) later[k] = from[(i64)min_(first + AHEAD + k, count - 1) * HEAD_DIM];
      UNROLL for (i32 k = 0; k < AHEAD; k++) {
        f32x4 step = steps[first + k];
        total = fma_(part[k], step.y, mul(total, step.x));
        low = fma_(step.z, step.y, mul(low, step.x));
        high = fma_(step.w, step.y, mul(high, step.x));
        part[k] = later[k];
      }
    }
    sync_block();
  }
  Activations out = {y, y_rows, y_tile, y_depth};
  f32 v[1] = {*bad ? NOT_A_NUMBER : gated(mean_of(total, scale_of(low, high)), gate)};
  store_activations(out, row, head * HEAD_DIM + dim, v);
  if (head == HEADS - 1) pad_activations(out, row, dim, HEAD_DIM);
}
LUCE_EXPORT(attention_merge)
