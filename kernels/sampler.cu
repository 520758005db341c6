// Drawing tokens, in three kernels that a graph always launches: rows that have nothing to do in one of them leave it at once.
//
//   sampler_scan     every chunk of ids of every sample: faults, the best value, the drawn id of unfiltered rows, maxima of
//                    groups of ids, the parts of the log-probabilities' sum
//   sampler_weights  rows with wide filters: is the id that would be drawn without the filter among those that it leaves?
//   sampler_finish   one block a sample: top-k, top-p, min-p on the few ids that matter; token, log-probabilities, history
//
// A row's results depend on nothing but its own logits, parameters and history: chunks are fixed ranges of ids, sums of floats
// have one fixed tree, sums of integers none.
#include "sampler.h"
#include "sampler_select.h"

// Bring a slot's counts of this block's ids to the `position` tokens of its history, from the `counted` that they hold.
// A draw adds its token by leaving it to the next one; a draw that goes back takes the void ones out again.
// A prompt also holds ids that have no count: -1 for a picture's rows, ids past the tokenizer's.
DEVICE void update_counts(u32* counts, const i32* history, i32 counted, const Sample& s, i32 ids) {
  i32 from = min_(counted, s.position), to = max_(counted, s.position);
  for (i32 p = from + thread(); p < to; p += block_threads()) {
    i32 id = history[p];
    if (id < 0 || id >= ids || id / CHUNK_IDS % grid_x() != block_x()) continue;
    if (p < s.first_generated) {
      if (s.repetition != 1.0) atomic_or(counts + id, COUNT_PROMPT);
    } else {
      atomic_add(counts + id, counted < s.position ? 1u : ~0u);
    }
  }
}

// Place of a thread's value i of a chunk that begins at `begin`.
DEVICE i32 id_of(i32 begin, i32 i) { return begin + 4 * thread() + (i / 4) * (CHUNK_IDS / 2) + i % 4; }

// A thread's eight logits of a chunk; what the row does not have is minus infinity.
DEVICE void load_logits(const f32* row, i32 begin, i32 ids, f32 (&logit)[8]) {
  UNROLL
  for (i32 j = 0; j < 2; j++) {
    i32 id = id_of(begin, 4 * j);
    f32x4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (id < ids) v = *(const f32x4*)(row + id);
    logit[4 * j] = v.x; logit[4 * j + 1] = v.y; logit[4 * j + 2] = v.z; logit[4 * j + 3] = v.w;
    UNROLL
    for (i32 c = 0; c < 4; c++)
      if (id + c >= ids) logit[4 * j + c] = minus_infinity();
  }
}

// Largest of eight neighbouring lanes, one group of ids.
DEVICE f32 group_max(f32 top) {
  UNROLL
  for (i32 mask = 1; mask < 8; mask <<= 1) top = max_(top, shfl_xor(top, mask));
  return top;
}

// Values of a chunk: the f32 logits themselves, or f64 values where something is added to them. Bit i: value i may be drawn.
template <bool MODIFIED, class T>
DEVICE u32 values_of(const Values& values, const f32 (&logit)[8], i32 begin, i32 ids, T (&x)[8]) {
  u32 allowed = 0;
  UNROLL
  for (i32 i = 0; i < 8; i++) {
    i32 id = id_of(begin, i);
    if (id >= ids) continue;
    x[i] = (T)logit[i];
    if (MODIFIED) {
      f64 v;
      if (!values.value(id, logit[i], v)) continue;
      x[i] = (T)v;
    }
    allowed |= 1u << i;
  }
  return allowed;
}

// Bounds of value / temperature + noise of a chunk's ids; largest lower bound and upper bound.
struct Bounds { f32 below, above; };
template <class T>
DEVICE Bounds bounds_of(const Sample& s, f32 inverse, const T (&x)[8], u32 allowed, i32 begin, u32 (&words)[8], f32 (&above)[8]) {
  Bounds found = {minus_infinity(), minus_infinity()};
  UNROLL
  for (i32 j = 0; j < 2; j++) {
    u32 four[4];
    philox((u32)id_of(begin, 4 * j) >> 2, (u32)s.position, s.seed[0], s.seed[1], four);
    UNROLL
    for (i32 c = 0; c < 4; c++) {
      i32 i = 4 * j + c, zeros = leading_zeros(~four[c]);
      f32 rough = (f32)x[i] * inverse, slack = abs_(rough) * 1e-6f + 1e-3f;
      words[i] = four[c];
      above[i] = minus_infinity();
      if (!(allowed >> i & 1u)) continue;
      above[i] = rough + gumbel_above(zeros) + slack;
      found.below = max_(found.below, rough + gumbel_below(zeros) - slack);
      found.above = max_(found.above, above[i]);
    }
  }
  return found;
}

// A block's chunks: begin, begin + step, ... ; see sampler_scan.
template <bool MODIFIED, class T>
DEVICE void scan(const Sample& s, const Values& values, const f32* row, i32 ids, bool filtered, bool draws, f32* groups, f32* raw_groups,
                 f32x2* sums, Part& part, u8* room) {
  f32* aboves = (f32*)(room + 256);   // [BLOCK_CHUNKS][SCAN_THREADS]
  const i32 step = grid_x() * CHUNK_IDS;
  const f32 inverse = draws ? (f32)div(1.0, s.temperature) : 0.0f;
  f32 logit[8], next[8], below = minus_infinity();
  T best = 0;
  u32 best_id = ~0u;
  bool bad = false;
  load_logits(row, block_x() * CHUNK_IDS, ids, next);
  NO_UNROLL
  for (i32 begin = block_x() * CHUNK_IDS, n = 0; begin < ids; begin += step, n++) {
    f32 top = minus_infinity();
    UNROLL
    for (i32 i = 0; i < 8; i++) {
      logit[i] = next[i];
      bad |= id_of(begin, i) < ids && (as_u32(logit[i]) & 0x7f800000u) == 0x7f800000u;
      top = max_(top, logit[i]);
    }
    load_logits(row, begin + step, ids, next);
    const i32 chunk = begin / CHUNK_IDS;
    if (s.flags & SAMPLE_LOGPROBS) {
      f32 group = group_max(top), sum = 0.0f;
      if (lane() % 8 == 0) raw_groups[chunk * CHUNK_GROUPS + thread() / 8] = group;
      group = warp_max(group);
      UNROLL
      for (i32 i = 0; i < 8; i++) sum = add(sum, exp_(sub(logit[i], group)));
      sum = warp_sum(group == minus_infinity() ? 0.0f : sum);
      if (lane() == 0) sums[chunk * CHUNK_WARPS + warp()] = f32x2{group, sum};
    }
    T x[8];
    const u32 allowed = values_of<MODIFIED>(values, logit, begin, ids, x);
    T mine = 0;
    u32 mine_id = ~0u;
    UNROLL
    for (i32 i = 0; i < 8; i++)
      if ((allowed >> i & 1u) && (mine_id == ~0u || x[i] > mine)) mine = x[i], mine_id = (u32)id_of(begin, i);
    if (filtered) {
      f32 group = group_max(mine_id == ~0u ? minus_infinity() : MODIFIED ? floor_f32((f64)mine) : (f32)mine);
      if (lane() % 8 == 0) groups[chunk * CHUNK_GROUPS + thread() / 8] = group;
    }
    if (mine_id != ~0u && (best_id == ~0u || mine > best)) best = mine, best_id = mine_id;  // ids ascend
    if (draws) {
      u32 words[8];
      f32 above[8];
      Bounds bounds = bounds_of(s, inverse, x, allowed, begin, words, above);
      below = max_(below, bounds.below);
      aboves[n * SCAN_THREADS + thread()] = bounds.above;
    }
  }
  part.bad = block_any(bad, room);
  u64 key = best_id == ~0u ? 0 : key64((f64)best), score = 0;
  u32 score_id = ~0u;
  block_best(key, best_id, room);
  part.best = key;
  part.best_id = (i32)best_id;
  if (draws) {
    // Exact scores for the few ids that the bounds do not rule out.
    f32* tops = (f32*)room;
    below = warp_max(below);
    sync_block();
    if (lane() == 0) tops[warp()] = below;
    sync_block();
    below = warp_max(lane() < SCAN_THREADS / WARP ? tops[lane()] : minus_infinity());
    const Scaling scaling(s.temperature);
    NO_UNROLL
    for (i32 begin = block_x() * CHUNK_IDS, n = 0; begin < ids; begin += step, n++) {
      if (!(aboves[n * SCAN_THREADS + thread()] >= below)) continue;
      load_logits(row, begin, ids, logit);
      T x[8];
      u32 words[8];
      f32 above[8];
      const u32 allowed = values_of<MODIFIED>(values, logit, begin, ids, x);
      bounds_of(s, inverse, x, allowed, begin, words, above);
      UNROLL
      for (i32 i = 0; i < 8; i++) {
        if (!(allowed >> i & 1u) || !(above[i] >= below)) continue;
        u64 its = key64(add(scaling((f64)x[i]), gumbel(words[i])));
        if (its > score) score = its, score_id = (u32)id_of(begin, i);  // ids ascend
      }
    }
    block_best(score, score_id, room);
  }
  part.score = score;
  part.score_id = (i32)score_id;
}

// Does the mask allow nothing but ids that are held back? Then it comes first, and they may be drawn.
DEVICE bool mask_wins(const Sample& s, const Adjust* lists, const u32* masks, i32 words, u8* room) {
  if (!(s.flags & SAMPLE_MASK) || s.num_ends == 0) return false;
  const u32* mask = masks + (i64)s.mask * words;
  u64 left = 0;
  for (i32 i = thread(); i < words; i += block_threads()) left += (u64)popcount(mask[i]);
  left = block_add(left, room);
  for (i32 i = s.ends; i < s.ends + s.num_ends; i++) left -= mask[lists[i].id >> 5] >> (lists[i].id & 31) & 1u;
  return left == 0;
}

// Grid (blocks of a row, samples or the bucket's), SCAN_THREADS threads, SCAN_SHARED bytes of shared memory. A block takes every
// grid_x-th chunk of CHUNK_IDS ids, at most BLOCK_CHUNKS; how many blocks a row has changes no bit.
// logits f32 [samples or the bucket's][stride], rows 16-byte aligned; masks u32 [.][ceil(ids / 32)], no bit set past `ids`.
// counts u32 [slots][ids] and counted i32 [slots] belong to the sampler; both zero when a slot is opened.
// With chunks = ceil(ids / CHUNK_IDS): parts [samples][chunks], of which the first blocks are used; groups f32 [samples][2][chunks *
// CHUNK_GROUPS]: maxima of the values, of the logits; sums f32x2 [samples][chunks * CHUNK_WARPS]: largest logit of a warp's ids and sum of
// e^(logit - largest); better Better [samples].
LUCE_KERNEL_RESIDENT(sampler_scan, SCAN_THREADS, 4)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    const i32* history, i32 history_stride, u32* counts, const i32* counted, const f32* logits, i32 stride, i32 ids,
    Part* parts, f32* groups, f32x2* sums, Better* better) {
  u8* room = shared_memory();
  pdl_launch();
  pdl_wait();
  const i32 r = block_y(), chunks = ceil_div(ids, CHUNK_IDS), words = (ids + 31) / 32;
  if (r >= pass->samples) return;
  const Sample& s = samples[r];
  const f32* row = logits + (i64)r * stride;
  if (block_x() == 0 && thread() == 0) better[r] = Better{0, 0, 0};
  if (s.flags & SAMPLE_PENALTIES) {
    update_counts(counts + (i64)s.slot * ids, history + (i64)s.slot * history_stride, counted[s.slot], s, ids);
    sync_block();
  }
  const i64 all = (i64)chunks * CHUNK_GROUPS;
  f32* mine = groups + (i64)r * 2 * all;
  f32x2* its_sums = sums + (i64)r * chunks * CHUNK_WARPS;
  const bool filtered = is_filtered(s), draws = !(s.flags & SAMPLE_GREEDY) && (!filtered || checks_winner(s));
  Values values(s, row, lists, masks, words, counts, ids);
  Part found = {};
  if (values.modified) {
    if (mask_wins(s, lists, masks, words, room)) values.ends_end = values.ends;
    scan<true, f64>(s, values, row, ids, filtered, draws, mine, mine + all, its_sums, found, room);
  } else {
    scan<false, f32>(s, values, row, ids, filtered, draws, mine, mine + all, its_sums, found, room);
  }
  if (thread() == 0) parts[(i64)r * chunks + block_x()] = found;
}
LUCE_EXPORT(sampler_scan)

// What the blocks of a row come to together. Every thread gets it; `room`: 256 bytes.
struct Found {
  u64 best, score;
  u32 best_id, score_id;
  bool bad;
};
DEVICE Found found_in(const Part* parts, i32 blocks, bool draws, u8* room) {
  Found row = {0, 0, ~0u, ~0u, false};
  bool bad = false;
  for (i32 c = thread(); c < blocks; c += block_threads()) {
    const Part part = parts[c];
    bad |= part.bad != 0;
    u32 best_id = (u32)part.best_id, score_id = (u32)part.score_id;
    if (part.best > row.best || (part.best == row.best && best_id < row.best_id)) row.best = part.best, row.best_id = best_id;
    if (part.score > row.score || (part.score == row.score && score_id < row.score_id)) row.score = part.score, row.score_id = score_id;
  }
  row.bad = block_any(bad, room);
  block_best(row.best, row.best_id, room);
  if (draws) block_best(row.score, row.score_id, room);
  return row;
}

// The same grid and block, 256 bytes of shared memory. For rows whose filter is wide (checks_winner): the sum of all weights after
// min-p, and how many ids, of which weight, are better than the one that would be drawn without the filter.
LUCE_KERNEL(sampler_weights, SCAN_THREADS)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    const u32* counts, const f32* logits, i32 stride, i32 ids, const Part* parts, Better* better) {
  u8* room = shared_memory();
  pdl_launch();
  pdl_wait();
  const i32 r = block_y(), chunks = ceil_div(ids, CHUNK_IDS), words = (ids + 31) / 32;
  if (r >= pass->samples) return;
  const Sample& s = samples[r];
  if (!checks_winner(s) || only_min_p(s)) return;
  const f32* logits_row = logits + (i64)r * stride;
  Values values(s, logits_row, lists, masks, words, counts, ids);
  if (mask_wins(s, lists, masks, words, room)) values.ends_end = values.ends;
  const Found row = found_in(parts + (i64)r * chunks, grid_x(), true, room);
  if (row.bad || row.best_id == ~0u) return;
  const Scaling scaling(s.temperature);
  f64 best = scaling(from_key64(row.best)), winner;
  if (!values.get((i32)row.score_id, winner)) return;
  const u64 winner_key = key64(scaling(winner));
  const f64 floor = s.flags & SAMPLE_MIN_P ? add(best, s.log_min_p) : minus_infinity64();
  u64 total = 0, before = 0, number = 0;
  const bool weighs = s.flags & SAMPLE_TOP_P;
  NO_UNROLL
  for (i32 begin = block_x() * CHUNK_IDS; begin < ids; begin += grid_x() * CHUNK_IDS) {
    f32 logit[8];
    load_logits(logits_row, begin, ids, logit);
    UNROLL
    for (i32 i = 0; i < 8; i++) {
      i32 id = id_of(begin, i);
      f64 x;
      if (id >= ids || !values.value(id, logit[i], x)) continue;
      x = scaling(x);
      if (!(x >= floor)) continue;
      u64 key = key64(x), its = weighs ? weight(sub(x, best)) : 0;
      bool ahead = key > winner_key || (key == winner_key && (u32)id < row.score_id);
      total += its;
      if (ahead) before += its, number++;
    }
  }
  total = block_add(total, room);
  before = block_add(before, room);
  number = block_add(number, room);
  if (thread() > 0) return;
  if (total) atomic_add(&better[r].total, total);
  if (before) atomic_add(&better[r].before, before);
  if (number) atomic_add(&better[r].number, number);
}
LUCE_EXPORT(sampler_weights)

// Sum over the block by one fixed tree, in every thread; `room`: 8 bytes a warp.
DEVICE f64 block_sum64(f64 sum, u8* room) {
  u64* sums = (u64*)room;
  for (i32 mask = 16; mask > 0; mask >>= 1) sum = add(sum, as_f64(shfl_xor(as_u64(sum), mask)));
  sync_block();
  if (lane() == 0) sums[warp()] = as_u64(sum);
  sync_block();
  sum = lane() < FINISH_THREADS / WARP ? as_f64(sums[lane()]) : 0.0;
  for (i32 mask = 16; mask > 0; mask >>= 1) sum = add(sum, as_f64(shfl_xor(as_u64(sum), mask)));
  return sum;
}

// ln of the sum of e^logit of a row: the warps' sums in f64, brought to the largest logit, in one fixed tree.
DEVICE f64 normaliser_of(const f32x2* sums, i32 count, u8* room) {
  f32 top = minus_infinity();
  for (i32 i = thread(); i < count; i += FINISH_THREADS) top = max_(top, sums[i].x);
  f32* tops = (f32*)room;
  top = warp_max(top);
  sync_block();
  if (lane() == 0) tops[warp()] = top;
  sync_block();
  top = warp_max(lane() < FINISH_THREADS / WARP ? tops[lane()] : minus_infinity());
  f64 sum = 0.0;
  for (i32 i = thread(); i < count; i += FINISH_THREADS) {
    f32x2 part = sums[i];
    sum = add(sum, mul((f64)part.y, exp64(max_(sub((f64)part.x, (f64)top), -800.0))));
  }
  return add((f64)top, log64(block_sum64(sum, room)));
}

// Grid (samples or the bucket's), FINISH_THREADS threads, FINISH_SHARED bytes of shared memory (sampler_select.h); `blocks` of a row of
// the other two. drawn[r] gets the result, the history the token; counted follows.
LUCE_KERNEL_RESIDENT(sampler_finish, FINISH_THREADS, 1)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    i32* history, i32 history_stride, const u32* counts, i32* counted, const f32* logits, i32 stride, i32 ids, i32 blocks,
    const Part* parts, const f32* groups, const f32x2* sums, const Better* better, Drawn* drawn) {
  pdl_launch();
  pdl_wait();
  const i32 r = block_x(), chunks = ceil_div(ids, CHUNK_IDS), words = (ids + 31) / 32;
  if (r >= pass->samples) return;
  Room room(shared_memory());
  const Sample& s = samples[r];
  Drawn* out = drawn + r;
  const bool filtered = is_filtered(s), draws = !(s.flags & SAMPLE_GREEDY) && (!filtered || checks_winner(s));
  const Found found = found_in(parts + (i64)r * chunks, blocks, draws, room.reduce);
  u32 token = found.best_id;
  const i32 faults = found.bad ? FAULT_LOGITS : found.best_id == ~0u ? FAULT_MASK : 0;
  const f32* row = logits + (i64)r * stride;
  const i64 all = (i64)chunks * CHUNK_GROUPS;
  const f32* its = groups + (i64)r * 2 * all;
  if (!faults && draws) token = found.score_id;
  if (!faults && filtered) {
    Values values(s, row, lists, masks, words, counts, ids);
    if (mask_wins(s, lists, masks, words, room.reduce)) values.ends_end = values.ends;
    if (!draws || !winner_stays(s, values, (i32)token, found.best, better[r]))
      token = (u32)draw_filtered(s, values, ids, its, (i32)all, found.best, better[r].total, room);
  }
  if (thread() == 0) {
    history[(i64)s.slot * history_stride + s.position] = faults ? 0 : (i32)token;
    if (s.flags & SAMPLE_PENALTIES) counted[s.slot] = s.position;
    out->token = faults ? 0 : (i32)token;
    out->faults = faults;
    out->num_top = 0;
  }
  if (!(s.flags & SAMPLE_LOGPROBS) || faults) return;
  const f64 normaliser = normaliser_of(sums + (i64)r * chunks * CHUNK_WARPS, chunks * CHUNK_WARPS, room.reduce);
  if (thread() == 0) out->logprob = (f32)sub((f64)row[token], normaliser);
  const i32 wanted = min_(min_(s.logprobs, TOP_LOGPROBS), ids);
  if (wanted <= 0) return;
  most_likely(Logits{row}, ids, its + all, (i32)all, wanted, room);
  if (thread() < wanted) {
    i32 id = (i32)room.ids[thread()];
    out->top_ids[thread()] = id;
    out->top_logprobs[thread()] = (f32)sub((f64)row[id], normaliser);
  }
  if (thread() == 0) out->num_top = wanted;
}
LUCE_EXPORT(sampler_finish)

// Zero a slot's counts, before its first draw with penalties. Any grid.
LUCE_KERNEL(sampler_clear, 1024)(u32* counts, i32* counted, i32 slot, i32 ids) {
  pdl_wait();
  u32* mine = counts + (i64)slot * ids;
  for (i32 i = block_x() * block_threads() + thread(); i < ids; i += grid_x() * block_threads()) mine[i] = 0;
  if (block_x() == 0 && thread() == 0) counted[slot] = 0;
}
LUCE_EXPORT(sampler_clear)
