// The last step of a draw, by one block a row: the best ids of a row in their order, and what the filters leave of them.
//
// Maxima of groups of ids bound the k-th largest value from below, so a few hundred ids are read again and sorted; that is all
// for every row but those whose filters leave more than CANDIDATES ids. These go through the whole row a few times
// (draw_widely), with the same result.
#pragma once
#include "sampler.h"

#define FINISH_THREADS 512
#define CANDIDATES 2048
#define BINS 1024
#define ALL_PAIRS 256      // candidates that are compared each with each; more are sorted
#define FINISH_SHARED (512 + CANDIDATES * 16 + BINS * 12)

struct Room {
  u8* reduce;      // 448 bytes for reductions
  u32* counters;   // 4 words; as words, a boundary
  u64* keys;       // [CANDIDATES]
  u32* ids;
  u32* list;       // groups
  u64* bins;       // [BINS]
  u32* counts;
  METHOD Room(u8* at)
      : reduce(at), counters((u32*)(at + 448)), keys((u64*)(at + 512)), ids((u32*)(keys + CANDIDATES)), list(ids + CANDIDATES),
        bins((u64*)(list + CANDIDATES)), counts((u32*)(bins + BINS)) {}
};

// Integer weight of a value that is `shifted` <= 0 from the best one: floor(e^shifted 2^40).
DEVICE u64 weight(f64 shifted) {
  if (shifted < -27.8) return 0;
  return (u64)mul(exp64(shifted), 1099511627776.0);
}
// ceil(total * fraction / 2^64).
DEVICE u64 share(u64 total, u64 fraction) {
  u64 a = total >> 32, b = total & 0xffffffffu, c = fraction >> 32, d = fraction & 0xffffffffu;
  u64 low = b * d, middle = a * d + (low >> 32), cross = b * c + (middle & 0xffffffffu);
  u64 high = a * c + (middle >> 32) + (cross >> 32);
  return high + ((cross & 0xffffffffu) || (low & 0xffffffffu) ? 1 : 0);
}

// Sum over the threads before this one; `room`: 8 bytes a warp.
DEVICE u64 block_before(u64 v, u8* room) {
  u64 sum = v;
  for (i32 step = 1; step < WARP; step <<= 1) {
    u64 other = shfl(sum, lane() - step < 0 ? lane() : lane() - step);
    if (lane() >= step) sum += other;
  }
  u64* sums = (u64*)room;
  sync_block();
  if (lane() == WARP - 1) sums[warp()] = sum;
  sync_block();
  u64 before = warp_add(lane() < warp() ? sums[lane()] : 0);
  return before + sum - v;
}

// A row's own logits, for log-probabilities.
struct Logits {
  const f32* logits;
  METHOD bool get(i32 id, f64& x) const { return value(id, logits[id], x); }
  METHOD bool value(i32, f32 logit, f64& x) const {
    x = (f64)logit;
    return true;
  }
};

// Maxima of groups start + thread() + i * FINISH_THREADS, all loads at once.
DEVICE void load_groups(const f32* groups, i32 num_groups, i32 start, f32 (&eight)[8]) {
  UNROLL
  for (i32 i = 0; i < 8; i++) {
    i32 g = start + thread() + i * FINISH_THREADS;
    eight[i] = g < num_groups ? groups[g] : minus_infinity();
  }
}

// Something that at least k of the values reach, if there are so many: below the k-th largest of the maxima of larger groups.
DEVICE f32 reached(const f32* groups, i32 num_groups, i32 k, const Room& room) {
  f32 top = minus_infinity(), eight[8];
  for (i32 start = 0; start < num_groups; start += 8 * FINISH_THREADS) {
    load_groups(groups, num_groups, start, eight);
    UNROLL
    for (i32 i = 0; i < 8; i++) top = max_(top, eight[i]);
  }
  f32* tops = (f32*)room.keys;
  f32* found = (f32*)room.counters;
  i32 count = FINISH_THREADS;
  sync_block();
  if (thread() == 0) *found = minus_infinity();
  if (k <= FINISH_THREADS / 8) {  // a fourth of them is enough
    count /= 4;
    top = max_(top, shfl_xor(top, 1));
    top = max_(top, shfl_xor(top, 2));
    if (thread() % 4 == 0) tops[thread() / 4] = top;
  } else {
    tops[thread()] = top;
  }
  sync_block();
  if (thread() < count) {
    i32 above = 0, index = thread();
    top = tops[index];
    for (i32 i = 0; i < count; i += 4) {
      f32x4 v = *(const f32x4*)(tops + i);
      above += (v.x > top || (v.x == top && i < index)) + (v.y > top || (v.y == top && i + 1 < index)) +
               (v.z > top || (v.z == top && i + 2 < index)) + (v.w > top || (v.w == top && i + 3 < index));
    }
    if (above == k - 1) *found = next_below(top);
  }
  sync_block();
  return *found;
}

// All ids whose value reaches `floor`, as keys of value / temperature, in no order. Their number, or -1: more than fit.
template <class T>
DEVICE i32 collect(const T& values, i32 ids, const f32* groups, i32 num_groups, f32 floor, const Scaling& scaling, const Room& room) {
  sync_block();
  if (thread() < 2) room.counters[thread()] = 0;
  sync_block();
  for (i32 start = 0; start < num_groups; start += 8 * FINISH_THREADS) {
    f32 eight[8];
    load_groups(groups, num_groups, start, eight);
    UNROLL
    for (i32 i = 0; i < 8; i++) {
      if (!(eight[i] >= floor) || eight[i] == minus_infinity()) continue;
      u32 at = atomic_add(room.counters, 1u);
      if (at < CANDIDATES) room.list[at] = (u32)(start + thread() + i * FINISH_THREADS);
    }
  }
  sync_block();
  i32 found = (i32)room.counters[0];
  if (found > CANDIDATES) return -1;
  // Half a group is a warp's load; four of them are under way at a time.
  for (i32 start = 4 * warp(); start < 2 * found; start += 4 * (FINISH_THREADS / WARP)) {
    i32 id[4];
    f32 logit[4];
    UNROLL
    for (i32 j = 0; j < 4; j++) {
      i32 i = start + j, g = i < 2 * found ? (i32)room.list[i / 2] : 0;
      id[j] = g / CHUNK_GROUPS * CHUNK_IDS + i % 2 * (CHUNK_IDS / 2) + g % CHUNK_GROUPS * (GROUP_IDS / 2) + lane();
      if (i >= 2 * found || id[j] >= ids) id[j] = -1;
      logit[j] = id[j] >= 0 ? values.logits[id[j]] : 0.0f;
    }
    UNROLL
    for (i32 j = 0; j < 4; j++) {
      f64 x;
      if (id[j] < 0 || !values.value(id[j], logit[j], x) || !(x >= (f64)floor)) continue;
      u32 at = atomic_add(room.counters + 1, 1u);
      if (at < CANDIDATES) {
        room.keys[at] = key64(scaling(x));
        room.ids[at] = (u32)id[j];
      }
    }
  }
  sync_block();
  i32 count = (i32)room.counters[1];
  return count > CANDIDATES ? -1 : count;
}

// Sort the first `count` candidates: largest key first, equal ones by lower id.
DEVICE void sort(i32 count, const Room& room) {
  i32 size = 2;
  while (size < count) size *= 2;
  for (i32 i = count + thread(); i < size; i += FINISH_THREADS) {
    room.keys[i] = 0;
    room.ids[i] = ~0u;
  }
  sync_block();
  for (i32 run = 2; run <= size; run *= 2)
    for (i32 step = run / 2; step > 0; step /= 2) {
      for (i32 p = thread(); p < size / 2; p += FINISH_THREADS) {
        i32 a = 2 * p - (p & (step - 1)), b = a + step;
        u64 ka = room.keys[a], kb = room.keys[b];
        u32 ia = room.ids[a], ib = room.ids[b];
        bool ordered = ka > kb || (ka == kb && ia <= ib);
        if (ordered != ((a & run) == 0)) {
          room.keys[a] = kb; room.keys[b] = ka;
          room.ids[a] = ib; room.ids[b] = ia;
        }
      }
      sync_block();
    }
}

// How many of the first `count` sorted candidates have a key at or above `floor`.
DEVICE i32 count_from(u64 floor, i32 count, const Room& room) {
  i32 low = 0, high = count;
  while (low < high) {
    i32 middle = (low + high) / 2;
    if (room.keys[middle] >= floor) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Of `count` sorted candidates, the smallest number of first ones whose measures reach `target`; count + 1 if all do not.
// A candidate's measure is its weight, or 1.
DEVICE i32 count_reaching(u64 target, i32 count, bool weighted, f64 best, const Room& room) {
  i32 each = ceil_div(max_(count, 1), FINISH_THREADS), first = thread() * each;
  u64 mine = 0;
  for (i32 i = first; i < min_(count, first + each); i++) mine += weighted ? weight(sub(from_key64(room.keys[i]), best)) : 1;
  u64 sum = block_before(mine, room.reduce);
  sync_block();
  if (thread() == 0) room.counters[2] = (u32)count + 1;
  sync_block();
  if (sum < target && sum + mine >= target)
    for (i32 i = first;; i++) {
      sum += weighted ? weight(sub(from_key64(room.keys[i]), best)) : 1;
      if (sum >= target) {
        room.counters[2] = (u32)i + 1;
        break;
      }
    }
  sync_block();
  return (i32)room.counters[2];
}

// The end of a set of best ids: those with a larger key, and of the ids with this key those up to `id`.
struct Boundary {
  u64 key;
  i32 id;
  METHOD bool holds(u64 its, i32 other) const { return its > key || (its == key && other <= id); }
};

// Values of a row over temperature, as keys.
template <class T> struct Keys {
  const T& values;
  const Scaling& scaling;
  i32 ids;
  METHOD bool get(i32 id, u64& key) const { return value(id, values.logits[id], key); }
  METHOD bool value(i32 id, f32 logit, u64& key) const {
    f64 x;
    if (!values.value(id, logit, x)) return false;
    key = key64(scaling(x));
    return true;
  }
  // f(id, key) for every id of the row, by the whole block.
  template <class F> METHOD void each(F f) const {
    NO_UNROLL
    for (i32 start = 4 * thread(); start < ids; start += 16 * FINISH_THREADS) {
      f32x4 v[4];
      UNROLL
      for (i32 j = 0; j < 4; j++) {
        i32 id = start + j * 4 * FINISH_THREADS;
        v[j] = id < ids ? *(const f32x4*)(values.logits + id) : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
      }
      NO_UNROLL
      for (i32 i = 0; i < 16; i++) {
        i32 j = i / 4, c = i % 4, id = start + j * 4 * FINISH_THREADS + c;
        f32x4 four = j == 0 ? v[0] : j == 1 ? v[1] : j == 2 ? v[2] : v[3];
        u64 key;
        if (id < ids && value(id, c == 0 ? four.x : c == 1 ? four.y : c == 2 ? four.z : four.w, key)) f(id, key);
      }
    }
  }
};

// Which of BINS bins of a histogram, best first, brings a sum that is `above` before them to `target`; above and the number of
// its entries follow.
DEVICE i32 bin_reaching(u64 target, u64& above, i32& count, const Room& room) {
  sync_block();
  i32 bin = 2 * thread();
  u64 first = room.bins[bin], second = room.bins[bin + 1];
  u64 before = above + block_before(first + second, room.reduce);
  sync_block();
  if (before < target && before + first + second >= target) {
    bool later = before + first < target;
    room.counters[0] = (u32)(later ? bin + 1 : bin);
    *(u64*)(room.counters + 2) = later ? before + first : before;
  }
  sync_block();
  bin = (i32)room.counters[0];
  above = *(u64*)(room.counters + 2);
  count = (i32)room.counts[bin];
  return bin;
}
DEVICE void clear_bins(const Room& room) {
  sync_block();
  for (i32 i = thread(); i < BINS; i += FINISH_THREADS) {
    room.bins[i] = 0;
    room.counts[i] = 0;
  }
  sync_block();
}
DEVICE i32 bin_of(f64 place) { return place < (f64)BINS ? (i32)place : BINS - 1; }

// The smallest set of best ids within `limit` whose measures reach `target`, which all together do; `best` is the largest value.
// Bins of equal width over `span` from the best, then of one of these, leave few enough to sort, unless very many are
// nearly equal: then bins of keys.
template <class T>
DEVICE Boundary boundary_reaching(u64 target, const Keys<T>& keys, Boundary limit, bool weighted, f64 best, f64 span, const Room& room) {
  const f64 scale = div((f64)BINS, span);
  u64 above = 0, low = limit.key, high = key64(best);
  i32 chosen[2] = {-1, -1}, count = 0;
  auto inside = [&](i32 id, u64 key) {  // of the bins chosen so far
    if (key < low || key > high || !limit.holds(key, id)) return false;
    if (chosen[0] < 0) return true;
    f64 place = mul(sub(best, from_key64(key)), scale);
    if (bin_of(place) != chosen[0]) return false;
    return chosen[1] < 0 || bin_of(mul(sub(place, (f64)chosen[0]), (f64)BINS)) == chosen[1];
  };
  auto measure = [&](u64 key) -> u64 { return weighted ? weight(sub(from_key64(key), best)) : 1; };
  auto fill = [&](i32 bin, u64 key) {
    u64 its = measure(key);
    atomic_add(room.counts + bin, 1u);
    if (its) atomic_add(room.bins + bin, its);
  };
  for (i32 level = 0; level < 2; level++) {
    clear_bins(room);
    keys.each([&](i32 id, u64 key) {
      if (!inside(id, key)) return;
      f64 place = mul(sub(best, from_key64(key)), scale);
      fill(level == 0 ? bin_of(place) : bin_of(mul(sub(place, (f64)chosen[0]), (f64)BINS)), key);
    });
    i32 bin = bin_reaching(target, above, count, room);
    if (level == 0) chosen[0] = bin;
    else chosen[1] = bin;
    if (count <= CANDIDATES) break;
  }
  if (count > CANDIDATES) {  // the keys that there are
    u64 most = 0, least = 0;
    u32 nobody = 0;
    keys.each([&](i32 id, u64 key) {
      if (!inside(id, key)) return;
      most = max_(most, key);
      least = max_(least, ~key);
    });
    block_best(most, nobody, room.reduce);
    block_best(least, nobody, room.reduce);
    low = ~least;
    high = most;
  }
  while (count > CANDIDATES && low < high) {
    i32 shift = 0;
    while ((high - low) >> shift >= BINS) shift++;
    clear_bins(room);
    keys.each([&](i32 id, u64 key) {
      if (inside(id, key)) fill((i32)((high - key) >> shift), key);
    });
    i32 bin = bin_reaching(target, above, count, room);
    high -= (u64)bin << shift;
    low = max_(low, high - (((u64)1 << shift) - 1));
  }
  if (count <= CANDIDATES) {
    sync_block();
    if (thread() == 0) room.counters[0] = 0;
    sync_block();
    keys.each([&](i32 id, u64 key) {
      if (!inside(id, key)) return;
      u32 at = atomic_add(room.counters, 1u);
      room.keys[at] = key;
      room.ids[at] = (u32)id;
    });
    sync_block();
    sort(count, room);
    i32 last = count_reaching(target - above, count, weighted, best, room) - 1;
    Boundary end = {room.keys[last], (i32)room.ids[last]};
    sync_block();
    return end;
  }
  // Too many ids with one and the same key: so many of them as are needed, lowest ids first.
  u64 each = measure(low), needed = (target - above + each - 1) / each, key;
  for (i32 first = 0; first < keys.ids; first += FINISH_THREADS) {
    i32 id = first + thread();
    u64 mine = id < keys.ids && keys.get(id, key) && key == low && limit.holds(key, id) ? 1 : 0;
    u64 before = block_before(mine, room.reduce), all = block_add(mine, room.reduce);
    if (all < needed) {
      needed -= all;
      continue;
    }
    sync_block();
    if (mine && before + 1 == needed) room.counters[0] = (u32)id;
    sync_block();
    i32 last = (i32)room.counters[0];
    sync_block();
    return {low, last};
  }
  return limit;
}

// The largest value within `limit`, and by how much the smallest is less, or a little more. The number of ids.
template <class T> DEVICE u64 span_of(const Keys<T>& keys, Boundary limit, f64& best, f64& span, const Room& room) {
  u64 most = 0, least = 0, count = 0;
  u32 nobody = 0;
  keys.each([&](i32 id, u64 key) {
    if (!limit.holds(key, id)) return;
    most = max_(most, key);
    least = max_(least, ~key);
    count++;
  });
  block_best(most, nobody, room.reduce);
  block_best(least, nobody, room.reduce);
  best = from_key64(most);
  span = add(sub(best, from_key64(~least)), 1e-300);
  return block_add(count, room.reduce);
}

// Place of a key among the first `count` candidates, and the sum of room.bins of those before it. Up to 3 more are read and not
// counted.
DEVICE i32 rank_of(u64 key, u32 id, i32 count, u64& before, const Room& room) {
  i32 rank = 0;
  before = 0;
  for (i32 start = 0; start < count; start += 4) {
    u64 keys[4], sums[4];
    u32 ids[4];
    UNROLL
    for (i32 j = 0; j < 4; j++) keys[j] = room.keys[start + j], ids[j] = room.ids[start + j], sums[j] = room.bins[start + j];
    UNROLL
    for (i32 j = 0; j < 4; j++) {
      bool ahead = start + j < count && (keys[j] > key || (keys[j] == key && ids[j] < id));
      rank += ahead;
      before += ahead ? sums[j] : 0;
    }
  }
  return rank;
}

// The k most likely ids into room.ids, most likely first.
DEVICE void most_likely(const Logits& logits, i32 ids, const f32* groups, i32 num_groups, i32 k, const Room& room) {
  const Scaling one(1.0);
  f32 floor = reached(groups, num_groups, k, room);
  i32 count = collect(logits, ids, groups, num_groups, floor, one, room);
  if (count >= 0 && count <= ALL_PAIRS) {
    i32 rank = k;
    u32 id = 0;
    u64 unused;
    if (thread() < count) {
      id = room.ids[thread()];
      rank = rank_of(room.keys[thread()], id, count, unused, room);
    }
    sync_block();
    if (rank < k) room.ids[rank] = id;
    sync_block();
    return;
  }
  if (count < 0) {  // a crowd of equal logits
    Keys<Logits> keys = {logits, one, ids};
    f64 best, span;
    span_of(keys, Boundary{0, ids}, best, span, room);
    Boundary end = boundary_reaching((u64)k, keys, Boundary{0, ids}, false, best, span, room);
    if (thread() == 0) room.counters[0] = 0;
    sync_block();
    keys.each([&](i32 id, u64 key) {
      if (!end.holds(key, id)) return;
      u32 at = atomic_add(room.counters, 1u);
      room.keys[at] = key;
      room.ids[at] = (u32)id;
    });
    count = k;
    sync_block();
  }
  sort(count, room);
}

// Of all ids that the filters leave, however many, the one with the largest value / temperature + noise. `total`: see sampler_weights.
DEVICE_CALL i32 draw_widely(const Sample& s, const Values& values, i32 ids, u64 best_key, u64 floor, u64 total, const Room& room) {
  const Scaling scaling(s.temperature);
  const Keys<Values> keys = {values, scaling, ids};
  f64 best = from_key64(best_key);
  Boundary end = {floor, ids};
  if (s.top_k > 0) {
    f64 span;
    u64 count = span_of(keys, end, best, span, room);
    if ((u64)s.top_k < count) end = boundary_reaching((u64)s.top_k, keys, end, false, best, span, room);
    if (s.flags & SAMPLE_TOP_P) {
      total = 0;
      keys.each([&](i32 id, u64 key) {
        if (end.holds(key, id)) total += weight(sub(from_key64(key), best));
      });
      total = block_add(total, room.reduce);
    }
  }
  if (s.flags & SAMPLE_TOP_P) end = boundary_reaching(share(total, s.top_p), keys, end, true, best, 28.0, room);
  // Twice over the ids: bounds of all, then exact scores of those that they do not rule out.
  f32 below = minus_infinity();
  auto bounds = [&](i32 id, u64 key, f32& low, f32& high) {
    u32 words[4];
    philox((u32)id >> 2, (u32)s.position, s.seed[0], s.seed[1], words);
    i32 zeros = leading_zeros(~word_of(words, id));
    f32 rough = (f32)from_key64(key), slack = abs_(rough) * 1e-6f + 1e-3f;
    low = rough + gumbel_below(zeros) - slack;
    high = rough + gumbel_above(zeros) + slack;
  };
  keys.each([&](i32 id, u64 key) {
    if (!end.holds(key, id)) return;
    f32 low, high;
    bounds(id, key, low, high);
    below = max_(below, low);
  });
  u64 score = key64((f64)below);
  u32 token = ~0u;
  block_best(score, token, room.reduce);
  below = (f32)from_key64(score);
  score = 0;
  keys.each([&](i32 id, u64 key) {
    if (!end.holds(key, id)) return;
    f32 low, high;
    bounds(id, key, low, high);
    if (!(high >= below)) return;
    u64 its = key64(add(from_key64(key), gumbel_of(id, s.position, s.seed[0], s.seed[1])));
    if (its > score || (its == score && (u32)id < token)) {
      score = its;
      token = (u32)id;
    }
  });
  block_best(score, token, room.reduce);
  return (i32)token;
}

// Is `token`, drawn without the filter, among the ids that it leaves? `top`: key of the best value.
DEVICE bool winner_stays(const Sample& s, const Values& values, i32 token, u64 top, const Better& better) {
  f64 x;
  const Scaling scaling(s.temperature);
  values.get(token, x);
  if ((s.flags & SAMPLE_MIN_P) && !(scaling(x) >= add(scaling(from_key64(top)), s.log_min_p))) return false;
  if (only_min_p(s)) return true;
  return s.top_k > 0 ? better.number < (u64)s.top_k : better.before < share(better.total, s.top_p);
}

// The drawn id of a row with top-k, top-p or min-p. `top`: key of the best value; `total`: see sampler_weights.
DEVICE i32 draw_filtered(const Sample& s, const Values& values, i32 ids, const f32* groups, i32 num_groups, u64 top, u64 total, const Room& room) {
  const Scaling scaling(s.temperature);
  f64 best = scaling(from_key64(top));
  u64 best_key = key64(best), floor = 0;
  f32 from = minus_infinity(), likely = minus_infinity();
  if (s.flags & SAMPLE_MIN_P) {
    f64 least = add(best, s.log_min_p), unscaled = mul(least, s.temperature);
    floor = key64(least);
    from = next_below(floor_f32(sub(unscaled, mul(unscaled < 0.0 ? -unscaled : unscaled, 1e-12))));
  }
  const bool nucleus = s.flags & SAMPLE_TOP_P;
  i32 wanted = s.top_k > 0 ? s.top_k : nucleus ? NUCLEUS_IDS : 0;
  if (wanted > 0 && wanted <= NUCLEUS_IDS) likely = reached(groups, num_groups, wanted, room);
  bool whole = likely <= from || s.top_k > 0;  // all that min-p leaves, or top-k, is collected
  i32 count = collect(values, ids, groups, num_groups, max_(from, likely), scaling, room);
  if (count < 0) return draw_widely(s, values, ids, best_key, floor, total, room);
  u64 score = 0;
  u32 token = ~0u;
  if (count <= ALL_PAIRS) {
    u64 key = 0, mine = 0, before;
    u32 id = ~0u;
    bool kept = false;
    if (thread() < count) {
      key = room.keys[thread()];
      id = room.ids[thread()];
      kept = key >= floor;
      if (nucleus && kept) mine = weight(sub(from_key64(key), best));
      room.bins[thread()] = mine;
    }
    sync_block();
    if (kept) kept = rank_of(key, id, count, before, room) < s.top_k || s.top_k == 0;
    if (nucleus) {
      u64 sum = block_add(kept ? mine : 0, room.reduce), target = share(whole ? sum : total, s.top_p);
      if (sum < target) return draw_widely(s, values, ids, best_key, floor, total, room);
      kept = kept && before < target;
    }
    if (kept) {
      score = key64(add(from_key64(key), gumbel_of((i32)id, s.position, s.seed[0], s.seed[1])));
      token = id;
    }
  } else {
    sort(count, room);
    i32 kept = count_from(floor, count, room);
    if (s.top_k > 0) kept = min_(kept, s.top_k);
    if (nucleus) {
      if (whole) {
        total = 0;
        for (i32 i = thread(); i < kept; i += FINISH_THREADS) total += weight(sub(from_key64(room.keys[i]), best));
        total = block_add(total, room.reduce);
      }
      i32 enough = count_reaching(share(total, s.top_p), kept, true, best, room);
      if (enough > kept) return draw_widely(s, values, ids, best_key, floor, total, room);
      kept = enough;
    }
    for (i32 i = thread(); i < kept; i += FINISH_THREADS) {
      u64 its = key64(add(from_key64(room.keys[i]), gumbel_of((i32)room.ids[i], s.position, s.seed[0], s.seed[1])));
      if (its > score || (its == score && room.ids[i] < token)) {
        score = its;
        token = room.ids[i];
      }
    }
  }
  block_best(score, token, room.reduce);
  return (i32)token;
}
