// What the sampler's kernels share: the values that a row draws from, keys in their order, and reductions.
//
// luce/sampling/sampler.py says what is drawn; the kernels follow it step by step in f64. What may differ from numpy: exp and
// ln are within one unit in the last place of the true value there and here, so scores that lie within some 1e-15 of each
// other may change places, and a nucleus whose sum misses its target by less than 2^-40 may have one id more or less.
// Log-probabilities agree to 1e-6. Logits below the normal numbers of f32 may count as zero.
#pragma once
#include "batch.h"
#include "philox.h"

#define CHUNK_IDS 2048   // ids that a block of the scans takes at once, 8 a thread
#define BLOCK_CHUNKS 8   // most chunks of a block
#define SCAN_THREADS 256
#define GROUP_IDS 64     // ids whose maximum is kept for the last kernel: 4 at each of 8 neighbouring threads, twice
#define CHUNK_GROUPS (CHUNK_IDS / GROUP_IDS)
#define CHUNK_WARPS (SCAN_THREADS / 32)
#define SCAN_SHARED (256 + BLOCK_CHUNKS * SCAN_THREADS * 4)

struct Part {  // 32 bytes: what a block of the scan finds in a row
  u64 best;    // key of the largest value, and its lowest id; -1 where none may be drawn
  u64 score;   // key of the largest value / temperature + noise, and its id; -1 where none is drawn
  i32 best_id, score_id;
  u32 bad;     // a logit is NaN or infinite
  u32 reserved;
};

struct Better {  // 24 bytes, of a row: see sampler_weights
  u64 total, before, number;
};

DEVICE f32 minus_infinity() { return as_f32(0xff800000u); }
DEVICE f64 minus_infinity64() { return as_f64(0xfff0000000000000ull); }

// Unsigned keys in the order of the numbers; both zeros are one.
DEVICE u64 key64(f64 x) {
  u64 bits = as_u64(add(x, 0.0));
  return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}
DEVICE f64 from_key64(u64 key) { return as_f64(key >> 63 ? key & 0x7fffffffffffffffull : ~key); }
DEVICE f32 next_below(f32 x) {
  u32 bits = as_u32(x);
  if (bits == 0xff800000u) return x;
  if ((bits & 0x7fffffffu) == 0) return as_f32(0x80800000u);  // past the subnormals, which may be flushed
  return as_f32(bits >> 31 ? bits + 1 : bits - 1);
}
// The largest f32 at or below x.
DEVICE f32 floor_f32(f64 x) {
  f32 near = (f32)x;
  return (f64)near > x ? next_below(near) : near;
}

DEVICE bool is_filtered(const Sample& s) {
  return !(s.flags & SAMPLE_GREEDY) && (s.top_k > 0 || (s.flags & (SAMPLE_TOP_P | SAMPLE_MIN_P)));
}
// Rows whose filter, as a rule, leaves so much that the id drawn without it is worth a look: if the filter leaves that id, it is the
// one that is drawn with it.
#define NUCLEUS_IDS 384   // ids that top-p without top-k is expected to leave; more are found, too
DEVICE bool only_min_p(const Sample& s) { return s.top_k == 0 && !(s.flags & SAMPLE_TOP_P); }
DEVICE bool checks_winner(const Sample& s) {
  if (s.flags & SAMPLE_GREEDY) return false;
  return s.top_k == 0 ? (s.flags & (SAMPLE_TOP_P | SAMPLE_MIN_P)) != 0 : s.top_k > NUCLEUS_IDS && !(s.flags & SAMPLE_TOP_P);
}
DEVICE bool is_modified(const Sample& s) {
  return (s.flags & (SAMPLE_MASK | SAMPLE_PENALTIES)) || s.num_bias > 0 || s.num_ends > 0;
}

// First entry of list[from .. to) whose id is not below `id`.
DEVICE i32 lower_bound(const Adjust* list, i32 from, i32 to, i32 id) {
  while (from < to) {
    i32 middle = (from + to) / 2;
    if (list[middle].id < id) from = middle + 1;
    else to = middle;
  }
  return from;
}

#define COUNT_PROMPT 0x80000000u   // in a slot's counts: the id stands in the prompt; the rest counts generated ones

// The values of a row: its logits with bias and penalties, without what may not be drawn.
struct Values {
  const f32* logits;
  const Adjust* lists;
  const u32* mask;     // null: anything
  const u32* counts;   // null: no penalties
  i32 bias, bias_end, ends, ends_end;
  f64 repetition, presence, frequency;
  bool modified;

  METHOD Values(const Sample& s, const f32* row, const Adjust* all, const u32* masks, i32 words, const u32* all_counts, i32 ids)
      : logits(row), lists(all), mask(s.flags & SAMPLE_MASK ? masks + (i64)s.mask * words : nullptr),
        counts(s.flags & SAMPLE_PENALTIES ? all_counts + (i64)s.slot * ids : nullptr),
        bias(s.bias), bias_end(s.bias + s.num_bias), ends(s.ends), ends_end(s.ends + s.num_ends),
        repetition(s.repetition), presence(s.presence), frequency(s.frequency), modified(is_modified(s)) {}

  METHOD bool allowed(i32 id) const {
    if (mask && !(mask[id >> 5] >> (id & 31) & 1u)) return false;
    if (ends < ends_end) {
      i32 at = lower_bound(lists, ends, ends_end, id);
      if (at < ends_end && lists[at].id == id) return false;
    }
    return true;
  }
  // x, the value of `id` before temperature; false where it may not be drawn.
  METHOD bool get(i32 id, f64& x) const { return value(id, logits[id], x); }
  METHOD bool value(i32 id, f32 logit, f64& x) const {
    x = (f64)logit;
    return !modified || modify(id, x);
  }
  METHOD bool modify(i32 id, f64& x) const {
    if (!allowed(id)) return false;
    if (bias < bias_end) {
      i32 at = lower_bound(lists, bias, bias_end, id);
      if (at < bias_end && lists[at].id == id) x = add(x, lists[at].add);
    }
    if (counts) {
      u32 word = counts[id];
      if (word) {
        if (repetition != 1.0) x = x > 0.0 ? div(x, repetition) : mul(x, repetition);
        u32 count = word & ~COUNT_PROMPT;
        if (count) x = sub(x, add(mul(frequency, (f64)count), presence));
      }
    }
    return true;
  }
};

// x / temperature, correctly rounded, for many x: by the rounded reciprocal and one step that mends the quotient (Markstein).
struct Scaling {
  f64 temperature, inverse;
  bool plain;  // the step is proved for all divisors but those whose mantissa is all ones
  METHOD Scaling(f64 by) : temperature(by), inverse(div(1.0, by)), plain((as_u64(by) & 0xfffffffffffffull) == 0xfffffffffffffull) {}
  METHOD f64 operator()(f64 x) const {
    if (plain) return div(x, temperature);
    f64 q = mul(x, inverse);
    return fma_(fma_(-q, temperature, x), inverse, q);
  }
};

// The larger (value, then lower id) of all lanes, in every lane. -1 as an unsigned id is the highest.
DEVICE void warp_best(u64& key, u32& id) {
  for (i32 mask = 16; mask > 0; mask >>= 1) {
    u64 other = shfl_xor(key, mask);
    u32 its = (u32)shfl((u32)id, lane() ^ mask);
    if (other > key || (other == key && its < id)) {
      key = other;
      id = its;
    }
  }
}
// The same for a block; `room`: 12 bytes a warp (8-byte aligned). Every thread gets the result.
DEVICE void block_best(u64& key, u32& id, u8* room) {
  i32 warps = block_threads() / WARP;
  u64* keys = (u64*)room;
  u32* its = (u32*)(keys + warps);
  warp_best(key, id);
  sync_block();
  if (lane() == 0) {
    keys[warp()] = key;
    its[warp()] = id;
  }
  sync_block();
  key = lane() < warps ? keys[lane()] : 0;
  id = lane() < warps ? its[lane()] : ~0u;
  warp_best(key, id);
}
DEVICE u64 warp_add(u64 v) {
  for (i32 mask = 16; mask > 0; mask >>= 1) v += shfl_xor(v, mask);
  return v;
}
// Does any thread of the block say so? `room`: 4 bytes.
DEVICE bool block_any(bool v, u8* room) {
  u32* found = (u32*)room;
  sync_block();
  if (thread() == 0) *found = 0;
  sync_block();
  if (ballot_(v) && lane() == 0) atomic_or(found, 1u);
  sync_block();
  return *found != 0;
}
// Sum over a block, in every thread; `room`: 8 bytes a warp.
DEVICE u64 block_add(u64 v, u8* room) {
  u64* sums = (u64*)room;
  v = warp_add(v);
  sync_block();
  if (lane() == 0) sums[warp()] = v;
  sync_block();
  return warp_add(lane() < block_threads() / WARP ? sums[lane()] : 0);
}
