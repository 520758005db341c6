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
#ifndef SCAN_BLOCKS
#define SCAN_BLOCKS 5
#endif

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

// What a thread finds in its eight ids, T the f32 logits themselves or f64 values. `draws`: with noise.
template <bool MODIFIED, class T>
DEVICE void scan(const Sample& s, const Values& values, const f32 (&logit)[8], i32 first, i32 ids, f32* groups, bool draws, Part& part,
                 u8* room) {
  T x[8], best = 0;
  u32 allowed = 0, best_id = ~0u;
  UNROLL
  for (i32 i = 0; i < 8; i++) {
    i32 id = first + (i / 4) * (CHUNK_IDS / 2) + i % 4;
    if (id >= ids) continue;
    x[i] = (T)logit[i];
    if (MODIFIED) {
      f64 v = (f64)logit[i];
      if (!values.modify(id, v)) continue;
      x[i] = (T)v;
    }
    allowed |= 1u << i;
    if (best_id == ~0u || x[i] > best) {
      best = x[i];
      best_id = (u32)id;
    }
  }
  if (groups) {
    f32 top = best_id == ~0u ? minus_infinity() : MODIFIED ? floor_f32((f64)best) : (f32)best;
    UNROLL
    for (i32 mask = 1; mask < 8; mask <<= 1) top = max_(top, shfl_xor(top, mask));
    if (lane() % 8 == 0) groups[thread() / 8] = top;
  }
  u64 key = best_id == ~0u ? 0 : key64((f64)best);
  block_best(key, best_id, room);
  part.best = key;
  part.best_id = (i32)best_id;
  part.score = 0;
  part.score_id = -1;
  if (!draws) return;

  // Gumbel-max: exact scores for the few ids that cheap bounds do not rule out.
  f32 inverse = (f32)div(1.0, s.temperature), above[8], below = minus_infinity();
  UNROLL
  for (i32 j = 0; j < 2; j++) {
    u32 words[4];
    philox((u32)(first + j * (CHUNK_IDS / 2)) >> 2, (u32)s.position, s.seed[0], s.seed[1], words);
    UNROLL
    for (i32 c = 0; c < 4; c++) {
      i32 i = 4 * j + c, zeros = leading_zeros(~words[c]);
      if (!(allowed >> i & 1u)) continue;
      f32 rough = (f32)x[i] * inverse, slack = abs_(rough) * 1e-6f + 1e-3f;
      below = max_(below, rough + gumbel_below(zeros) - slack);
      above[i] = rough + gumbel_above(zeros) + slack;
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
    if (!(allowed >> i & 1u) || !(above[i] >= below)) continue;
    i32 id = first + (i / 4) * (CHUNK_IDS / 2) + i % 4;
    u64 its = key64(add(scaled((f64)x[i], s.temperature), gumbel_of(id, s.position, s.seed[0], s.seed[1])));
    if (its > score) {  // ids ascend within a thread
      score = its;
      score_id = (u32)id;
    }
  }
  block_best(score, score_id, room);
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

// Grid (ceil(ids / CHUNK_IDS), samples or the bucket's), SCAN_THREADS threads, 128 bytes of shared memory.
// logits f32 [samples or the bucket's][stride], rows 16-byte aligned; masks u32 [.][ceil(ids / 32)], no bit set past `ids`.
// counts u32 [slots][ids] and counted i32 [slots] belong to the sampler; both zero when a slot is opened.
// parts [samples][chunks]; groups f32 [samples][2][chunks * CHUNK_GROUPS]: maxima of the values, of the logits; better
// Better [samples].
LUCE_KERNEL_RESIDENT(sampler_scan, SCAN_THREADS, SCAN_BLOCKS)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    const i32* history, i32 history_stride, u32* counts, const i32* counted, const f32* RESTRICT logits, i32 stride, i32 ids,
    Part* parts, f32* groups, Better* better) {
  u8* room = shared_memory();
  pdl_wait();
  pdl_launch();
  i32 r = block_y(), chunk = block_x(), chunks = grid_x(), words = (ids + 31) / 32;
  i32 begin = chunk * CHUNK_IDS, end = min_(ids, begin + CHUNK_IDS), first = begin + 4 * thread();
  const f32* row = logits + (i64)r * stride;
  f32 logit[8], top = minus_infinity();
  bool bad = false;
  UNROLL
  for (i32 j = 0; j < 2; j++) {  // before anything is known of the row
    i32 id = first + j * (CHUNK_IDS / 2);
    f32x4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (id < ids) v = *(const f32x4*)(row + id);
    logit[4 * j] = v.x; logit[4 * j + 1] = v.y; logit[4 * j + 2] = v.z; logit[4 * j + 3] = v.w;
  }
  if (r >= pass->samples) return;
  const Sample& s = samples[r];
  if (chunk == 0 && thread() == 0) better[r] = Better{0, 0, 0};
  if (s.flags & SAMPLE_PENALTIES) {
    update_counts(counts + (i64)s.slot * ids, history + (i64)s.slot * history_stride, counted[s.slot], s, begin, end);
    sync_block();
  }
  UNROLL
  for (i32 i = 0; i < 8; i++) {
    if (first + (i / 4) * (CHUNK_IDS / 2) + i % 4 >= ids) logit[i] = minus_infinity();
    else bad |= (as_u32(logit[i]) & 0x7f800000u) == 0x7f800000u;
    top = max_(top, logit[i]);
  }
  i64 all = (i64)chunks * CHUNK_GROUPS;
  f32* mine = groups + (i64)r * 2 * all + chunk * CHUNK_GROUPS;
  Part* part = parts + (i64)r * chunks + chunk;
  if (s.flags & SAMPLE_LOGPROBS) {
    f32 group = top;
    UNROLL
    for (i32 mask = 1; mask < 8; mask <<= 1) group = max_(group, shfl_xor(group, mask));
    if (lane() % 8 == 0) mine[all + thread() / 8] = group;
    f32* sums = (f32*)room;
    group = warp_max(group);
    if (lane() == 0) sums[warp()] = group;
    sync_block();
    f32 highest = warp_max(lane() < SCAN_THREADS / WARP ? sums[lane()] : minus_infinity()), sum = 0.0f;
    UNROLL
    for (i32 i = 0; i < 8; i++) sum = add(sum, exp_(sub(logit[i], highest)));
    sum = warp_sum(sum);
    sync_block();
    if (lane() == 0) sums[warp()] = sum;
    sync_block();
    sum = warp_sum(lane() < SCAN_THREADS / WARP ? sums[lane()] : 0.0f);
    sync_block();
    if (thread() == 0) part->top = highest, part->sum = sum;
  }
  u32* faulty = (u32*)(room + 120);
  if (thread() == 0) *faulty = 0;
  sync_block();
  if (ballot_(bad) && lane() == 0) atomic_or(faulty, 1u);  // read behind block_best's barriers
  bool filtered = is_filtered(s), draws = !(s.flags & SAMPLE_GREEDY) && (!filtered || checks_winner(s));
  Values values(s, row, lists, masks, words, counts, ids);
  Part found;
  if (values.modified) {
    if (mask_wins(s, lists, masks, words, room)) values.ends_end = values.ends;
    if (values.bias < values.bias_end) {
      values.bias = lower_bound(lists, values.bias, values.bias_end, begin);
      values.bias_end = lower_bound(lists, values.bias, values.bias_end, end);
    }
    scan<true, f64>(s, values, logit, first, ids, filtered ? mine : nullptr, draws, found, room);
  } else {
    scan<false, f32>(s, values, logit, first, ids, filtered ? mine : nullptr, draws, found, room);
  }
  if (thread() == 0) {
    part->best = found.best, part->best_id = found.best_id;
    part->score = found.score, part->score_id = found.score_id;
    part->bad = *faulty;
  }
}
LUCE_EXPORT(sampler_scan)

// What the chunks of a row come to together. Every thread gets it; `room`: 256 bytes.
struct Found {
  u64 best, score;
  u32 best_id, score_id;
  bool bad;
};
DEVICE Found found_in(const Part* parts, i32 chunks, bool draws, u8* room) {
  Found row = {0, 0, ~0u, ~0u, false};
  u32 bad = 0;
  for (i32 c = thread(); c < chunks; c += block_threads()) {  // ids ascend
    u64 best = parts[c].best, score = parts[c].score;
    i32 best_id = parts[c].best_id, score_id = parts[c].score_id;
    bad |= parts[c].bad;
    if (best_id >= 0 && best > row.best) row.best = best, row.best_id = (u32)best_id;
    if (score_id >= 0 && score > row.score) row.score = score, row.score_id = (u32)score_id;
  }
  u32* faulty = (u32*)(room + 248);
  if (thread() == 0) *faulty = 0;
  sync_block();
  if (bad) atomic_or(faulty, 1u);
  block_best(row.best, row.best_id, room);
  row.bad = *faulty != 0;
  if (draws) block_best(row.score, row.score_id, room);
  return row;
}

// The same grid and block, 256 bytes of shared memory. For rows whose filter is wide (checks_winner): the sum of all weights after
// min-p, and how many ids, of which weight, are better than the one that would be drawn without the filter.
LUCE_KERNEL(sampler_weights, SCAN_THREADS)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    const u32* counts, const f32* RESTRICT logits, i32 stride, i32 ids, const Part* parts, Better* better) {
  u8* room = shared_memory();
  pdl_wait();
  pdl_launch();
  i32 r = block_y(), chunks = grid_x(), words = (ids + 31) / 32;
  if (r >= pass->samples) return;
  const Sample& s = samples[r];
  if (!checks_winner(s) || only_min_p(s)) return;
  Values values(s, logits + (i64)r * stride, lists, masks, words, counts, ids);
  if (mask_wins(s, lists, masks, words, room)) values.ends_end = values.ends;
  Found row = found_in(parts + (i64)r * chunks, chunks, true, room);
  if (row.bad || row.best_id == ~0u) return;
  f64 best = scaled(from_key64(row.best), s.temperature), winner;
  if (!values.get((i32)row.score_id, winner)) return;
  u64 winner_key = key64(scaled(winner, s.temperature));
  f64 floor = s.flags & SAMPLE_MIN_P ? add(best, s.log_min_p) : minus_infinity64();
  u64 total = 0, before = 0, number = 0;
  bool weighs = s.flags & SAMPLE_TOP_P;
  NO_UNROLL
  for (i32 i = 0; i < 8; i++) {
    i32 id = block_x() * CHUNK_IDS + 4 * thread() + (i / 4) * (CHUNK_IDS / 2) + i % 4;
    f64 x;
    if (id >= ids || !values.get(id, x)) continue;
    x = scaled(x, s.temperature);
    if (!(x >= floor)) continue;
    u64 key = key64(x), its = weighs ? weight(sub(x, best)) : 0;
    bool ahead = key > winner_key || (key == winner_key && (u32)id < row.score_id);
    total += its;
    if (ahead) before += its, number++;
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

// Grid (samples or the bucket's), FINISH_THREADS threads, FINISH_SHARED bytes of shared memory (sampler_select.h); `chunks` of the
// other two, at most FINISH_THREADS. drawn[r] gets the result, the history the token; counted follows.
LUCE_KERNEL(sampler_finish, FINISH_THREADS)(const Pass* pass, const Sample* samples, const Adjust* lists, const u32* masks,
    i32* history, i32 history_stride, const u32* counts, i32* counted, const f32* RESTRICT logits, i32 stride, i32 ids, i32 chunks,
    const Part* parts, const f32* groups, const Better* better, Drawn* drawn) {
  pdl_wait();
  pdl_launch();
  i32 r = block_x(), words = (ids + 31) / 32;
  if (r >= pass->samples) return;
  Room room(shared_memory());
  const Sample& s = samples[r];
  Drawn* out = drawn + r;
  bool filtered = is_filtered(s), draws = !(s.flags & SAMPLE_GREEDY) && (!filtered || checks_winner(s));
  Found found = found_in(parts + (i64)r * chunks, chunks, draws, room.reduce);
  u32 token = found.best_id;
  i32 faults = found.bad ? FAULT_LOGITS : found.best_id == ~0u ? FAULT_MASK : 0;
  const f32* row = logits + (i64)r * stride;
  i64 all = (i64)chunks * CHUNK_GROUPS;
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
  // ln of the sum: chunk sums in f64, brought to the largest logit, in one fixed tree.
  const Part* part = parts + (i64)r * chunks + min_(thread(), chunks - 1);
  f32 my_top = thread() < chunks ? part->top : minus_infinity(), my_sum = part->sum;
  f32* tops = (f32*)room.reduce;
  f32 top = warp_max(my_top);
  sync_block();
  if (lane() == 0) tops[warp()] = top;
  sync_block();
  top = warp_max(lane() < FINISH_THREADS / WARP ? tops[lane()] : minus_infinity());
  f64 sum = thread() < chunks ? mul((f64)my_sum, exp64(sub((f64)my_top, (f64)top))) : 0.0;
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
