// Drawing tokens, in three kernels that a graph always launches: rows that have nothing to do in one of them leave it at once.
//
//   sampler_scan     every chunk of ids of every sample: faults, the best value, the drawn id of unfiltered rows, maxima of
//                    groups of ids, the parts of the log-probabilities' sum
//   sampler_weights  rows with top-p and without top-k: the sum of all weights
//   sampler_finish   one block a sample: top-k, top-p, min-p on the few ids that matter; token, log-probabilities, history
//
// A row's results depend on nothing but its own logits, parameters and history: chunks are fixed ranges of ids, sums of floats
// have one fixed tree, sums of integers none.
#include "sampler.h"
#include "sampler_select.h"

// Bring a slot's counts of ids in [first, end) to the `position` tokens of its history, from the `counted` that they hold.
// A draw adds its token by leaving it to the next one; a draw that goes back takes the void ones out again.
DEVICE void update_counts(u32* counts, const i32* history, i32 counted, const Sample& s, i32 first, i32 end) {
  i32 from = min_(counted, s.position), to = max_(counted, s.position);
  for (i32 p = from + thread(); p < to; p += block_threads()) {
    i32 id = history[p];
    if (id < first || id >= end) continue;
    if (p < s.first_generated) {
      if (s.repetition != 1.0) atomic_or(counts + id, COUNT_PROMPT);
    } else {
      atomic_add(counts + id, counted < s.position ? 1u : ~0u);
    }
  }
}

// The best value over a thread's ids, by the f32 logits themselves or by f64 values.
template <bool MODIFIED, class T>
DEVICE void scan_values(const Values& values, const f32 (&logit)[8], i32 first, i32 ids, T (&x)[8], u32& allowed) {
  allowed = 0;
  UNROLL
  for (i32 i = 0; i < 8; i++) {
    i32 id = first + (i / 4) * (CHUNK_IDS / 2) + i % 4;
    if (id >= ids) continue;
    if (MODIFIED) {
      f64 v = (f64)logit[i];
      if (!values.modify(id, v)) continue;
      x[i] = (T)v;
    } else {
      x[i] = (T)logit[i];
    }
    allowed |= 1u << i;
  }
}

template <bool MODIFIED, class T>
DEVICE void scan(const Sample& s, const Values& values, const f32 (&logit)[8], i32 first, i32 ids, f32* groups, Part& part, u8* room) {
  T x[8];
  u32 allowed, best_id = ~0u;
  scan_values<MODIFIED, T>(values, logit, first, ids, x, allowed);
  T best = 0;
  UNROLL
  for (i32 i = 0; i < 8; i++)
    if ((allowed >> i & 1u) && (best_id == ~0u || x[i] > best)) {
      best = x[i];
      best_id = (u32)(first + (i / 4) * (CHUNK_IDS / 2) + i % 4);
    }
  bool filtered = is_filtered(s);
  if (filtered) {
    f32 top = best_id == ~0u ? minus_infinity() : MODIFIED ? floor_f32((f64)best) : (f32)best;
    UNROLL
    for (i32 mask = 1; mask < 8; mask <<= 1) top = max_(top, shfl_xor(top, mask));
    if (lane() % 8 == 0) groups[thread() / 8] = top;
  }
  u64 key = best_id == ~0u ? 0 : key64((f64)best);
  block_best(key, best_id, room);
  part.best = best_id == ~0u ? minus_infinity64() : from_key64(key);
  part.best_id = (i32)best_id;
  part.score = minus_infinity64();
  part.score_id = -1;
  if (filtered || (s.flags & SAMPLE_GREEDY)) return;

  // Gumbel-max: exact scores for the few ids that cheap bounds do not rule out.
  f32 inverse = (f32)div(1.0, s.temperature), rough[8], below = minus_infinity();
  i32 zeros[8];
  UNROLL
  for (i32 j = 0; j < 2; j++) {
    u32 words[4];
    philox((u32)(first + j * (CHUNK_IDS / 2)) >> 2, (u32)s.position, s.seed[0], s.seed[1], words);
    UNROLL
    for (i32 c = 0; c < 4; c++) {
      i32 i = 4 * j + c;
      zeros[i] = leading_zeros(~words[c]);
      rough[i] = allowed >> i & 1u ? mul((f32)x[i], inverse) : minus_infinity();
      if (allowed >> i & 1u) below = max_(below, rough[i] + gumbel_below(zeros[i]) - (abs_(rough[i]) * 1e-6f + 1e-3f));
    }
  }
  f32* tops = (f32*)room;
  below = warp_max(below);
  sync_block();
  if (lane() == 0) tops[warp()] = below;
  sync_block();
  below = warp_max(lane() < block_threads() / WARP ? tops[lane()] : minus_infinity());
  u64 score = 0;
  u32 score_id = ~0u;
  UNROLL
  for (i32 i = 0; i < 8; i++) {
    if (!(allowed >> i & 1u) || !(rough[i] + gumbel_above(zeros[i]) + (abs_(rough[i]) * 1e-6f + 1e-3f) >= below)) continue;
    i32 id = first + (i / 4) * (CHUNK_IDS / 2) + i % 4;
    u64 its = key64(add(scaled((f64)x[i], s.temperature), gumbel_of(id, s.position, s.seed[0], s.seed[1])));
    if (its > score) {  // ids ascend within a thread
      score = its;
      score_id = (u32)id;
    }
  }
  block_best(score, score_id, room);
  part.score = score_id == ~0u ? minus_infinity64() : from_key64(score);
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

// Grid (ceil(ids / CHUNK_IDS), samples or the bucket's), SCAN_THREADS threads, 128 bytes of shared memory.
// logits f32 [samples][stride], rows 16-byte aligned; masks u32 [.][ceil(ids / 32)], no bit set past `ids`.
// counts u32 [slots][ids] and counted i32 [slots] belong to the sampler; both zero when a slot is opened.
// parts [samples][chunks]; groups f32 [samples][2][chunks * CHUNK_GROUPS]: maxima of the values, of the logits; totals u64 [samples].
LUCE_KERNEL(sampler_scan, SCAN_THREADS)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    const i32* history, i32 history_stride, u32* counts, const i32* counted, const f32* RESTRICT logits, i32 stride, i32 ids,
    Part* parts, f32* groups, u64* totals) {
  u8* room = shared_memory();
  pdl_wait();
  pdl_launch();
  i32 r = block_y(), chunk = block_x(), chunks = grid_x(), words = (ids + 31) / 32;
  if (r >= pass->samples) return;
  Sample s = samples[r];
  if (chunk == 0 && thread() == 0) totals[r] = 0;
  i32 begin = chunk * CHUNK_IDS, end = min_(ids, begin + CHUNK_IDS), first = begin + 4 * thread();
  if (s.flags & SAMPLE_PENALTIES) {
    update_counts(counts + (i64)s.slot * ids, history + (i64)s.slot * history_stride, counted[s.slot], s, begin, end);
    sync_block();
  }
  const f32* row = logits + (i64)r * stride;
  f32 logit[8], top = minus_infinity();
  u32 bad = 0;
  UNROLL
  for (i32 j = 0; j < 2; j++) {
    i32 id = first + j * (CHUNK_IDS / 2);
    f32x4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (id < ids) v = *(const f32x4*)(row + id);
    logit[4 * j] = v.x; logit[4 * j + 1] = v.y; logit[4 * j + 2] = v.z; logit[4 * j + 3] = v.w;
    UNROLL
    for (i32 c = 0; c < 4; c++) {
      if (id + c >= ids) logit[4 * j + c] = minus_infinity();
      else bad += (as_u32(logit[4 * j + c]) & 0x7f800000u) == 0x7f800000u;
      top = max_(top, logit[4 * j + c]);
    }
  }
  Part part = {};
  part.bad = (u32)block_add(bad, room);
  i64 all = (i64)chunks * CHUNK_GROUPS;
  f32* mine = groups + (i64)r * 2 * all + chunk * CHUNK_GROUPS;
  if (part.bad == 0) {
    if (s.flags & SAMPLE_LOGPROBS) {
      f32 group = top;
      UNROLL
      for (i32 mask = 1; mask < 8; mask <<= 1) group = max_(group, shfl_xor(group, mask));
      if (lane() % 8 == 0) mine[all + thread() / 8] = group;
      f32* sums = (f32*)room;
      group = warp_max(group);
      sync_block();
      if (lane() == 0) sums[warp()] = group;
      sync_block();
      part.top = warp_max(lane() < SCAN_THREADS / WARP ? sums[lane()] : minus_infinity());
      f32 sum = 0.0f;
      UNROLL
      for (i32 i = 0; i < 8; i++) sum = add(sum, exp_(sub(logit[i], part.top)));
      sum = warp_sum(sum);
      sync_block();
      if (lane() == 0) sums[warp()] = sum;
      sync_block();
      part.sum = warp_sum(lane() < SCAN_THREADS / WARP ? sums[lane()] : 0.0f);
    }
    Values values(s, row, lists, masks, words, counts, ids);
    if (mask_wins(s, lists, masks, words, room)) values.ends_end = values.ends;
    if (values.bias < values.bias_end) {
      values.bias = lower_bound(lists, values.bias, values.bias_end, begin);
      values.bias_end = lower_bound(lists, values.bias, values.bias_end, end);
    }
    if (values.modified) scan<true, f64>(s, values, logit, first, ids, mine, part, room);
    else scan<false, f32>(s, values, logit, first, ids, mine, part, room);
  }
  if (thread() == 0) parts[(i64)r * chunks + chunk] = part;
}
LUCE_EXPORT(sampler_scan)

// The same grid and block. totals[r] = sum of the weights of a row with top-p and without top-k, after min-p.
LUCE_KERNEL(sampler_weights, SCAN_THREADS)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    const u32* counts, const f32* RESTRICT logits, i32 stride, i32 ids, const Part* parts, u64* totals) {
  u8* room = shared_memory();
  pdl_wait();
  pdl_launch();
  i32 r = block_y(), chunks = grid_x(), words = (ids + 31) / 32;
  if (r >= pass->samples) return;
  Sample s = samples[r];
  if (!(s.flags & SAMPLE_TOP_P) || (s.flags & SAMPLE_GREEDY) || s.top_k > 0) return;
  Values values(s, logits + (i64)r * stride, lists, masks, words, counts, ids);
  if (mask_wins(s, lists, masks, words, room)) values.ends_end = values.ends;
  u64 key = 0, weights = 0;
  u32 bad = 0;
  for (i32 c = thread(); c < chunks; c += block_threads()) {
    const Part& part = parts[(i64)r * chunks + c];
    bad += part.bad;
    if (part.best_id >= 0) key = max_(key, key64(part.best));
  }
  u32 nobody = 0;
  block_best(key, nobody, room);
  if (block_add(bad, room) || key == 0) return;
  f64 best = scaled(from_key64(key), s.temperature);
  f64 floor = s.flags & SAMPLE_MIN_P ? add(best, s.log_min_p) : minus_infinity64();
  UNROLL
  for (i32 i = 0; i < 8; i++) {
    i32 id = block_x() * CHUNK_IDS + 4 * thread() + (i / 4) * (CHUNK_IDS / 2) + i % 4;
    f64 x;
    if (id >= ids || !values.get(id, x)) continue;
    x = scaled(x, s.temperature);
    if (x >= floor) weights += weight(sub(x, best));
  }
  weights = block_add(weights, room);
  if (thread() == 0 && weights) atomic_add(totals + r, weights);
}
LUCE_EXPORT(sampler_weights)

// Grid (samples or the bucket's), FINISH_THREADS threads, FINISH_SHARED bytes of shared memory (sampler_select.h); `chunks` of the
// other two, at most FINISH_THREADS. drawn[r] gets the result, the history the token; counted follows.
LUCE_KERNEL(sampler_finish, FINISH_THREADS)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    i32* history, i32 history_stride, const u32* counts, i32* counted, const f32* RESTRICT logits, i32 stride, i32 ids, i32 chunks,
    const Part* parts, const f32* groups, const u64* totals, Drawn* drawn) {
  pdl_wait();
  pdl_launch();
  i32 r = block_x(), words = (ids + 31) / 32;
  if (r >= pass->samples) return;
  Room room(shared_memory());
  Sample s = samples[r];
  Drawn* out = drawn + r;
  Part part = {};
  part.best_id = part.score_id = -1;
  part.top = minus_infinity();
  if (thread() < chunks) part = parts[(i64)r * chunks + thread()];
  u64 best = part.best_id < 0 ? 0 : key64(part.best), score = part.score_id < 0 ? 0 : key64(part.score);
  u32 token = (u32)part.best_id, best_id = token, score_id = (u32)part.score_id;
  bool bad = block_add(part.bad, room.reduce) != 0;
  block_best(best, best_id, room.reduce);
  block_best(score, score_id, room.reduce);
  token = best_id;
  i32 faults = bad ? FAULT_LOGITS : best_id == ~0u ? FAULT_MASK : 0;
  const f32* row = logits + (i64)r * stride;
  i64 all = (i64)chunks * CHUNK_GROUPS;
  const f32* its = groups + (i64)r * 2 * all;
  if (!faults && !(s.flags & SAMPLE_GREEDY)) {
    if (!is_filtered(s)) {
      token = score_id;
    } else {
      Values values(s, row, lists, masks, words, counts, ids);
      if (mask_wins(s, lists, masks, words, room.reduce)) values.ends_end = values.ends;
      token = (u32)draw_filtered(s, values, ids, its, (i32)all, best, totals[r], room);
    }
  }
  if (thread() == 0) {
    history[(i64)s.slot * history_stride + s.position] = faults ? 0 : (i32)token;
    if (s.flags & SAMPLE_PENALTIES) counted[s.slot] = s.position;
    out->token = faults ? 0 : (i32)token;
    out->faults = faults;
    out->num_top = 0;
  }
  if (!(s.flags & SAMPLE_LOGPROBS) || faults) return;
  // ln of the sum: chunk sums in f64, brought to the largest logit, in one fixed tree.
  f32* tops = (f32*)room.reduce;
  f32 top = warp_max(part.top);
  sync_block();
  if (lane() == 0) tops[warp()] = top;
  sync_block();
  top = warp_max(lane() < FINISH_THREADS / WARP ? tops[lane()] : minus_infinity());
  f64 sum = thread() < chunks ? mul((f64)part.sum, exp64(sub((f64)part.top, (f64)top))) : 0.0;
  for (i32 mask = 16; mask > 0; mask >>= 1) sum = add(sum, as_f64(shfl_xor(as_u64(sum), mask)));
  u64* sums = (u64*)room.reduce;
  sync_block();
  if (lane() == 0) sums[warp()] = as_u64(sum);
  sync_block();
  sum = lane() < FINISH_THREADS / WARP ? as_f64(sums[lane()]) : 0.0;
  for (i32 mask = 16; mask > 0; mask >>= 1) sum = add(sum, as_f64(shfl_xor(as_u64(sum), mask)));
  f64 normaliser = add((f64)top, log64(sum));
  if (thread() == 0) out->logprob = (f32)sub((f64)row[token], normaliser);
  i32 wanted = min_(min_(s.logprobs, TOP_LOGPROBS), ids);
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
