// Gated DeltaNet for lanes of any length (chunk passes), in three grids: what depends on no state, for all 64-chunks at once
// (prepare); the chunks of a lane in order, the state in registers (scan); the gated norm of the rows (finish).
//
// A tile is a 64-chunk of a lane, from the lane's base on; tiles of a lane stand together, lanes in order. Rows of a tile before
// the lane's start come from the ring, rows past its end are absent (zeros). Workspace per tile:
//   heads  [tiles][HK] operands of the products with k, q and, for the fold, of k by columns (HEAD_BYTES)
//   pairs  [tiles][HV] Pairs
//   v      f32 [tiles][HV][DV / 16][4][2][32][4], in the order of the sums
// and o, f32 [rows][HV DV].
#include "deltanet.h"

#define KEY_PITCH (DK + 8)
#define HEAD_BYTES (3 * CHUNK_ROWS * DK * 2)

struct Pairs {
  u32x2 w[6][2][2][WARP];          // of 16-row blocks (later, earlier): [later * (later - 1) / 2 + earlier][half][high, low]
  u32x2 p[10][2][2][WARP];         // [later * (later + 1) / 2 + earlier], the block itself too
  f32 inside[BLOCKS][16][16];      // W in a block: [row][earlier row], zeros from the diagonal on
  f32 gain[CHUNK_ROWS];            // e^G
  f32 tail[CHUNK_ROWS];            // e^(G_63 - G)
  f32 beta[CHUNK_ROWS];
  i64 decay[CHUNK_ROWS];           // G
};

DEVICE i32 lane_end(const Lane& lane) { return lane.start + lane.count; }
DEVICE i32 lane_tiles(const Lane& lane) { return (lane_end(lane) - 1) / CHUNK_ROWS - lane.base / CHUNK_ROWS + 1; }

struct Rows {             // of a lane, before the convolution
  const f32* x;           // the lane's first row
  const f32* window;      // the slot's ring
  i64 stride;
  i32 start;
};
// Where channel c of a position stands; null before position 0.
DEVICE const f32* channel_at(const Rows& rows, i32 position, i32 c) {
  if (position < 0) return nullptr;
  if (position >= rows.start) return rows.x + (i64)(position - rows.start) * rows.stride + c;
  return rows.window + (i64)(position % CONV_ROWS) * CHANNELS + c;
}
DEVICE f32 channel(const Rows& rows, i32 position, i32 c) {
  const f32* at = channel_at(rows, position, c);
  return at ? *at : 0.0f;
}
DEVICE f32x2 channel_pair(const Rows& rows, i32 position, i32 c) {
  const f32* at = channel_at(rows, position, c);
  return at ? *(const f32x2*)at : f32x2{0.0f, 0.0f};
}

struct Prepare {
  alignas(16) u16 keys[2][CHUNK_ROWS][KEY_PITCH];   // k, q
  i64 decays[RATIO][CHUNK_ROWS];
};

static_assert(sizeof(Prepare) <= SHARED_BYTES, "more shared memory than the launcher gives");

// Unit keys and queries of the tile's rows into shared memory; a warp takes 8 rows in order.
DEVICE void prepare_keys(Prepare& shared, const Rows& rows, const f32x4* taps, const u16* ring, i32 chunk, i32 end, i32 key_head) {
  i32 first = chunk + warp() * 8;
  f32 before[2][KEY_PARTS][3];
  f32x4 tap[2][KEY_PARTS];
  UNROLL for (i32 which = 0; which < 2; which++)
    UNROLL for (i32 part = 0; part < KEY_PARTS; part++) {
      i32 c = part * WARP + lane(), column = (which ? 0 : HK * DK) + key_head * DK + c;
      bool there = c < DK && first + 8 > rows.start && first < end;
      UNROLL for (i32 i = 0; i < 3; i++) before[which][part][i] = there ? channel(rows, first - 3 + i, column) : 0.0f;
      tap[which][part] = there ? taps[column] : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
    }
  for (i32 i = 0; i < 8; i++) {
    i32 position = first + i, row = position - chunk;
    if (position >= end || position < rows.start) {
      UNROLL for (i32 part = 0; part < KEY_PARTS; part++) {
        i32 c = part * WARP + lane();
        if (c >= DK) continue;
        shared.keys[0][row][c] = position < rows.start ? ring[(i64)ring_row(position) * DK + c] : (u16)0;
        shared.keys[1][row][c] = 0;
        if (position < rows.start && first + 8 > rows.start && first < end)
          UNROLL for (i32 which = 0; which < 2; which++) {
            f32 now = channel(rows, position, (which ? 0 : HK * DK) + key_head * DK + c);
            before[which][part][0] = before[which][part][1], before[which][part][1] = before[which][part][2];
            before[which][part][2] = now;
          }
      }
      continue;
    }
    UNROLL for (i32 which = 0; which < 2; which++) {
      f32 y[KEY_PARTS], squares = 0.0f;
      UNROLL for (i32 part = 0; part < KEY_PARTS; part++) {
        i32 c = part * WARP + lane();
        y[part] = 0.0f;
        if (c < DK) {
          f32 now = channel(rows, position, (which ? 0 : HK * DK) + key_head * DK + c), (&old)[3] = before[which][part];
          y[part] = convolve(old[0], old[1], old[2], now, tap[which][part]);
          old[0] = old[1], old[1] = old[2], old[2] = now;
        }
        f32 sum = warp_sum(mul(y[part], y[part]));
        squares = part ? add(squares, sum) : sum;
      }
      f32 factor = unit_factor(squares);
      UNROLL for (i32 part = 0; part < KEY_PARTS; part++) {
        i32 c = part * WARP + lane();
        f32 unit = mul(y[part], factor);
        if (c < DK) shared.keys[which][row][c] = f32_to_bf16(which ? mul(unit, query_scale()) : unit);
      }
    }
  }
}

// v of the tile's rows for the key head's value heads: 16 columns and 16 rows a warp at a time.
DEVICE void prepare_v(const Rows& rows, const f32x4* taps, f32x4* v, i32 chunk, i32 end, i32 key_head) {
  i32 g = lane() / 4, t = lane() % 4;
  for (i32 task = warp(); task < RATIO * TILES * BLOCKS; task += block_threads() / WARP) {
    i32 block = task % BLOCKS, column = task / BLOCKS, head = key_head * RATIO + column / TILES, tile = column % TILES;
    i32 c = 2 * HK * DK + head * DV + 16 * tile + 2 * g, first = chunk + 16 * block + 4 * t;
    f32x2 at[7];
    bool there = first + 4 > rows.start && first < end;
    UNROLL for (i32 i = 0; i < 7; i++)
      at[i] = there && first + i - 3 < end ? channel_pair(rows, first + i - 3, c) : f32x2{0.0f, 0.0f};
    f32x4 even = taps[c], odd = taps[c + 1];
    f32 y[2][4];
    UNROLL for (i32 i = 0; i < 4; i++) {
      bool is_new = first + i >= rows.start && first + i < end;
      y[0][i] = is_new ? convolve(at[i].x, at[i + 1].x, at[i + 2].x, at[i + 3].x, even) : 0.0f;
      y[1][i] = is_new ? convolve(at[i].y, at[i + 1].y, at[i + 2].y, at[i + 3].y, odd) : 0.0f;
    }
    f32x4* to = v + (((i64)head * TILES + tile) * BLOCKS + block) * 2 * WARP + lane();
    to[0] = {y[0][0], y[0][1], y[1][0], y[1][1]};
    to[WARP] = {y[0][2], y[0][3], y[1][2], y[1][3]};
  }
}

// G and what comes of it for one value head, by one warp: two rows a lane. Integer sums are the same in any order.
DEVICE void prepare_gates(Pairs& to, i64* shared, const i64* ring, const f32* ab, i64 stride, i32 chunk, i32 start, i32 end, i32 head,
                          f32 neg_exp_a, f32 dt_bias) {
  i64 sums[2];
  f32 betas[2];
  UNROLL for (i32 i = 0; i < 2; i++) {
    i32 position = chunk + 2 * lane() + i;
    sums[i] = 0, betas[i] = 0.0f;
    if (position >= start && position < end) {
      const f32* at = ab + (i64)(position - start) * stride;
      Gate found = gate(at[HV + head], at[head], neg_exp_a, dt_bias);
      sums[i] = found.decay, betas[i] = found.beta;
    }
  }
  sums[1] += sums[0];
  i64 total = sums[1];
  for (i32 delta = 1; delta < WARP; delta *= 2) {
    i64 other = (i64)shfl((u64)total, max_(lane() - delta, 0));
    if (lane() >= delta) total += other;
  }
  i64 before = start > chunk && start < chunk + CHUNK_ROWS ? ring[ring_row(start - 1)] : 0;
  sums[0] += before + total - sums[1], sums[1] = before + total;
  UNROLL for (i32 i = 0; i < 2; i++) {
    i32 position = chunk + 2 * lane() + i;
    if (position < start) sums[i] = ring[ring_row(position)];
  }
  i64 last = (i64)shfl((u64)sums[1], WARP - 1);
  UNROLL for (i32 i = 0; i < 2; i++) {
    i32 row = 2 * lane() + i;
    to.decay[row] = shared[row] = sums[i];
    to.gain[row] = decay_factor(sums[i]);
    to.tail[row] = decay_factor(last - sums[i]);
    to.beta[row] = betas[i];
  }
}

DEVICE u32x2 key_words(const Prepare& shared, i32 which, i32 row, i32 step, i32 t) {
  return *(const u32x2*)&shared.keys[which][row][key_place(step, t)];
}

// W (which = 0) or P (1) of one 16-row block with the blocks before it and itself.
DEVICE void prepare_pairs(const Prepare& shared, Pairs* pairs, i32 key_head, i32 which, i32 later) {
  i32 g = lane() / 4, t = lane() % 4;
  u32 rows[STEPS][4];
  UNROLL for (i32 step = 0; step < STEPS; step++) {
    u32x2 upper = key_words(shared, which, 16 * later + row_place(g, 0), step, t);
    u32x2 lower = key_words(shared, which, 16 * later + row_place(g, 1), step, t);
    rows[step][0] = upper.x, rows[step][1] = lower.x, rows[step][2] = upper.y, rows[step][3] = lower.y;
  }
  for (i32 earlier = 0; earlier <= later; earlier++) {
    f32 c[2][4] = {};
    UNROLL for (i32 step = 0; step < STEPS; step++)
      UNROLL for (i32 half = 0; half < 2; half++) {
        u32x2 k = key_words(shared, 0, 16 * earlier + row_place(g, half), step, t);
        product(c[half], rows[step], k.x, k.y);
      }
    for (i32 r = 0; r < RATIO; r++) {
      Pairs& to = pairs[key_head * RATIO + r];
      UNROLL for (i32 half = 0; half < 2; half++) {
        i32 i = 16 * later + row_place(g, half);
        f32 w[4];
        UNROLL for (i32 e = 0; e < 4; e++) {
          i32 j = 16 * earlier + 4 * t + e;
          w[e] = j < i + which ? mul(c[e / 2][2 * half + e % 2], decay_factor(shared.decays[r][i] - shared.decays[r][j])) : 0.0f;
        }
        if (which == 0 && earlier == later) {
          *(f32x4*)&to.inside[later][i % 16][4 * t] = {w[0], w[1], w[2], w[3]};
          continue;
        }
        u32x2 high, low;
        split_bf16(w[0], w[1], high.x, low.x);
        split_bf16(w[2], w[3], high.y, low.y);
        u32x2 (*at)[WARP] = which ? to.p[later * (later + 1) / 2 + earlier][half] : to.w[later * (later - 1) / 2 + earlier][half];
        at[0][lane()] = high, at[1][lane()] = low;
      }
    }
  }
}

// The rows of `x`, `gates` and the constants as in deltanet_step. Grid (HK, tiles), 256 threads, shared memory SHARED_BYTES.
LUCE_KERNEL_RESIDENT(deltanet_prepare, 256, 2)(
    const Pass* pass, const Lane* lanes, const f32* x, i32 x_stride, const f32* gates, i32 gates_stride, const f32x4* taps,
    const f32* neg_exp_a, const f32* dt_bias, const u16* k_state, const i64* g_state, const f32* conv_state, u8* heads, u8* pairs_at,
    f32x4* v) {
  i32 key_head = block_x(), tile = block_y(), in_lane = tile, index = 0;
  pdl_launch();
  pdl_wait();
  for (; index < pass->lanes; index++) {
    i32 count = lane_tiles(lanes[index]);
    if (in_lane < count) break;
    in_lane -= count;
  }
  if (index == pass->lanes) return;
  Prepare& shared = *(Prepare*)shared_memory();
  const Lane here = lanes[index];
  i32 chunk = here.base + in_lane * CHUNK_ROWS, end = lane_end(here), slot = here.slot;
  Rows rows = {x + (i64)here.row * x_stride, conv_state + (i64)slot * CONV_ROWS * CHANNELS, x_stride, here.start};
  Pairs* pairs = (Pairs*)pairs_at + (i64)tile * HV;
  bool folded = here.start - chunk >= CHUNK_ROWS;   // all rows are in the ring: only to be folded

  prepare_keys(shared, rows, taps, key_ring((u16*)k_state, slot, key_head), chunk, end, key_head);
  for (i32 r = warp(); r < RATIO; r += block_threads() / WARP) {
    i32 head = key_head * RATIO + r;
    prepare_gates(pairs[head], shared.decays[r], decay_ring((i64*)g_state, slot, head), gates + (i64)here.row * gates_stride, gates_stride,
                  chunk, here.start, end, head, neg_exp_a[head], dt_bias[head]);
  }
  sync_block();
  if (!folded) {
    prepare_pairs(shared, pairs, key_head, warp() % 2, warp() / 2);
    prepare_v(rows, taps, v + (i64)tile * HV * TILES * BLOCKS * 2 * WARP, chunk, end, key_head);
  }
  u32x2* to = (u32x2*)(heads + ((i64)tile * HK + key_head) * HEAD_BYTES);
  for (i32 i = warp(); i < 2 * BLOCKS * 2 * STEPS; i += block_threads() / WARP) {   // k, then q: [block][half][step]
    i32 which = i / (BLOCKS * 2 * STEPS), block = i / (2 * STEPS) % BLOCKS, half = i / STEPS % 2, step = i % STEPS;
    to[i * WARP + lane()] = key_words(shared, which, 16 * block + row_place(lane() / 4, half), step, lane() % 4);
  }
  to += 2 * BLOCKS * 2 * STEPS * WARP;
  for (i32 i = warp(); i < STEPS * 2 * BLOCKS; i += block_threads() / WARP) {       // k by columns: [step][half][block]
    i32 step = i / (2 * BLOCKS), half = i / BLOCKS % 2, block = i % BLOCKS;
    const u16* k = &shared.keys[0][16 * block + 4 * (lane() % 4)][key_column(step, half, lane() / 4)];
    to[i * WARP + lane()] = {k[0] | (u32)k[KEY_PITCH] << 16, k[2 * KEY_PITCH] | (u32)k[3 * KEY_PITCH] << 16};
  }
}
LUCE_EXPORT(deltanet_prepare)

// STAGES: copies of a tile's operands in shared memory, 2 (the next one comes in while one is worked on), 1, or 0: all from
// device memory, where shared memory is too small for one.
#ifndef STAGES
#error "define STAGES"
#endif
#define PART_TILES (TILES % 4 == 0 ? 4 : TILES % 2 == 0 ? 2 : 1)   // warps of a block
#define PARTS (TILES / PART_TILES)

struct Heads { u32x2 k[BLOCKS][2][STEPS][WARP], q[BLOCKS][2][STEPS][WARP], columns[STEPS][2][BLOCKS][WARP]; };
struct Values { f32x4 v[PART_TILES][BLOCKS][2][WARP]; };
struct Stage {
  Heads heads;
  Pairs pairs;
  Values values;
};

static_assert(STAGES * sizeof(Stage) <= SCAN_BYTES, "more shared memory than the launcher gives");

DEVICE void copy_stage(void* to, const void* from, i32 bytes) {
  for (i32 at = 16 * thread(); at < bytes; at += 16 * block_threads()) cp_async16((u8*)to + at, (const u8*)from + at);
}

// u of a block out of x: rows one by one. x holds what is left of x after earlier blocks and becomes u; rows before `old` are given
// in `ring`.
DEVICE void substitute(Fragment& x, const Fragment& ring, const f32 (&inside)[16][16], const f32* beta, i32 old) {
  i32 t = lane() % 4;
  f32 b[4];
  UNROLL for (i32 e = 0; e < 4; e++) b[e] = beta[4 * t + e];
  UNROLL for (i32 turn = 0; turn < 4; turn++) {
    f32 w[4][4];   // W of this lane's rows with the rows of the turn
    UNROLL for (i32 e = 0; e < 4; e++) {
      f32x4 line = *(const f32x4*)&inside[4 * t + e][4 * turn];
      w[e][0] = line.x, w[e][1] = line.y, w[e][2] = line.z, w[e][3] = line.w;
    }
    // Its own four rows, for the lanes whose turn it is (others throw the result away).
    f32 own[2][4], all[2][4];
    UNROLL for (i32 i = 0; i < 2; i++) {
      UNROLL for (i32 e = 0; e < 4; e++) own[i][e] = x[e / 2][2 * i + e % 2];
      UNROLL for (i32 e = 0; e < 4; e++) {
        own[i][e] = 4 * t + e < old ? ring[e / 2][2 * i + e % 2] : mul(b[e], own[i][e]);
        UNROLL for (i32 later = 1; later < 4; later++)
          if (later > e) own[i][later] = fma_(-w[later][e], own[i][e], own[i][later]);
      }
      UNROLL for (i32 e = 0; e < 4; e++) all[i][e] = shfl(own[i][e], (lane() & ~3) | turn);
      UNROLL for (i32 e = 0; e < 4; e++) {
        f32 left = x[e / 2][2 * i + e % 2];
        UNROLL for (i32 j = 0; j < 4; j++) left = fma_(-w[e][j], all[i][j], left);
        x[e / 2][2 * i + e % 2] = t == turn ? own[i][e] : t > turn ? left : x[e / 2][2 * i + e % 2];
      }
    }
  }
}

// Grid (HV PARTS, lanes), 32 PART_TILES threads, shared memory SCAN_BYTES. A lane of no rows is one that is only
// to be folded up to its base_after.
LUCE_KERNEL_RESIDENT(deltanet_scan, 32 * PART_TILES, 1)(
    const Pass* pass, const Lane* lanes, const u8* heads, const u8* pairs_at, const f32x4* v, f32* s_state, u16* k_state, f32* u_state,
    i64* g_state, f32* o) {
  i32 head = block_x() / PARTS, part = block_x() % PARTS, key_head = head / RATIO, g = lane() / 4, t = lane() % 4;
  pdl_launch();
  if (block_y() >= pass->lanes) return;
  i32 tile = 0;
  for (i32 i = 0; i < block_y(); i++) tile += lane_tiles(lanes[i]);
  const Lane here = lanes[block_y()];
  i32 slot = here.slot, start = here.start, end = lane_end(here), column = part * PART_TILES + warp();
  bool owner = part == 0 && head % RATIO == 0;
  f32x4* state = state_at(s_state, slot, head, column);
  f32* ring = u_ring(u_state, slot, head) + 16 * column;
  Fragment s[STEPS];
  load_state(s, state, here.base == 0);
  pdl_wait();

  auto heads_of = [&](i32 at) { return (const Heads*)(heads + ((i64)(tile + at) * HK + key_head) * HEAD_BYTES); };
  auto pairs_of = [&](i32 at) { return (const Pairs*)pairs_at + (i64)(tile + at) * HV + head; };
  auto values_of = [&](i32 at) { return (const Values*)(v + ((i64)(tile + at) * HV + head) * TILES * BLOCKS * 2 * WARP) + part; };
#if STAGES
  Stage* stages = (Stage*)shared_memory();
  auto fetch = [&](i32 at) {
    Stage& to = stages[at % STAGES];
    copy_stage(&to.heads, heads_of(at), sizeof(Heads));
    copy_stage(&to.pairs, pairs_of(at), sizeof(Pairs));
    copy_stage(&to.values, values_of(at), sizeof(Values));
    cp_async_commit();
  };
  fetch(0);
#endif
  NO_UNROLL for (i32 chunk = here.base, at = 0; chunk < end || chunk < here.base_after; chunk += CHUNK_ROWS, at++) {
#if STAGES
    if (STAGES == 1 && at) {
      sync_block();
      fetch(at);
    }
    cp_async_wait<0>();
    sync_block();
    if (STAGES == 2 && chunk + CHUNK_ROWS < end) fetch(at + 1);
    const Heads& keys = stages[at % STAGES].heads;
    const Pairs& pairs = stages[at % STAGES].pairs;
    const Values& values_now = stages[at % STAGES].values;
#else
    const Heads& keys = *heads_of(at);
    const Pairs& pairs = *pairs_of(at);
    const Values& values_now = *values_of(at);
#endif
    bool last = chunk + CHUNK_ROWS >= end, keep = chunk >= here.base_after;
    i32 old = max_(start - chunk, 0);
    Fragment rows[BLOCKS];
    if (old >= CHUNK_ROWS) {
      UNROLL for (i32 block = 0; block < BLOCKS; block++)
        load_u(rows[block], ring + (i64)(ring_row(chunk) + 16 * block) * DV, 16);
    } else {
      f32 k[BLOCKS][2][4] = {}, q[BLOCKS][2][4] = {};
      UNROLL for (i32 step = 0; step < STEPS; step++) {
        Operand part_s = operand(s[step]);
        UNROLL for (i32 block = 0; block < BLOCKS; block++)
          UNROLL for (i32 half = 0; half < 2; half++) {
            u32x2 b = keys.k[block][half][step][lane()];
            far_product(k[block][half], part_s, b.x, b.y);
            b = keys.q[block][half][step][lane()];
            far_product(q[block][half], part_s, b.x, b.y);
          }
      }
      Operand u[BLOCKS];
      UNROLL for (i32 block = 0; block < BLOCKS; block++) {
        Fragment& f = rows[block];
        Fragment from_ring = {};
        if (old > 16 * block) load_u(from_ring, ring + (i64)(ring_row(chunk) + 16 * block) * DV, old - 16 * block);
        f32 gain[4];
        UNROLL for (i32 e = 0; e < 4; e++) gain[e] = pairs.gain[16 * block + 4 * t + e];
        UNROLL for (i32 half = 0; half < 2; half++) {
          f32x4 mine = values_now.v[warp()][block][half][lane()];
          f32 sums[4] = {}, values[4] = {mine.x, mine.y, mine.z, mine.w};
          UNROLL for (i32 earlier = 0; earlier < block; earlier++) {
            const u32x2 (&w)[2][WARP] = pairs.w[block * (block - 1) / 2 + earlier][half];
            near_product(sums, u[earlier], w[0][lane()], w[1][lane()]);
          }
          UNROLL for (i32 i = 0; i < 4; i++)
            f[half][i] = sub(fma_(-gain[2 * half + i % 2], k[block][half][i], values[i]), sums[i]);
        }
        substitute(f, from_ring, pairs.inside[block], &pairs.beta[16 * block], old - 16 * block);
        u[block] = operand(f);
        UNROLL for (i32 half = 0; half < 2; half++) {
          f32 sums[4] = {};
          UNROLL for (i32 earlier = 0; earlier <= block; earlier++) {
            const u32x2 (&p)[2][WARP] = pairs.p[block * (block + 1) / 2 + earlier][half];
            near_product(sums, u[earlier], p[0][lane()], p[1][lane()]);
          }
          UNROLL for (i32 e = 0; e < 2; e++) {
            i32 position = chunk + 16 * block + 4 * t + 2 * half + e;
            if (position < start || position >= end) continue;
            f32 out[2] = {fma_(gain[2 * half + e], q[block][half][e], sums[e]), fma_(gain[2 * half + e], q[block][half][2 + e], sums[2 + e])};
            *(f32x2*)(o + (i64)(here.row + position - start) * (HV * DV) + head * DV + 16 * column + 2 * g) = {out[0], out[1]};
            if (keep) *(f32x2*)(ring + (i64)ring_row(position) * DV + 2 * g) = {f[half][e], f[half][2 + e]};
          }
        }
      }
    }
    if (keep) {   // keys and decays: prepare has read what they replace
      if (part == 0)
        for (i32 i = thread(); i < CHUNK_ROWS; i += block_threads())
          if (chunk + i >= start && chunk + i < end) decay_ring(g_state, slot, head)[ring_row(chunk + i)] = pairs.decay[i];
      if (owner)
        for (i32 i = warp(); i < BLOCKS * 2 * STEPS; i += PART_TILES) {
          i32 position = chunk + 16 * (i / (2 * STEPS)) + row_place(g, i / STEPS % 2);
          if (position >= start && position < end)
            *(u32x2*)(key_ring(k_state, slot, key_head) + (i64)ring_row(position) * DK + key_place(i % STEPS, t)) =
                (&keys.k[0][0][0])[i][lane()];
        }
    }
    if (!last || chunk < here.base_after) {
      Operand u[BLOCKS];
      UNROLL for (i32 block = 0; block < BLOCKS; block++) {
        UNROLL for (i32 e = 0; e < 4; e++) {
          f32 tail = pairs.tail[16 * block + 4 * t + e];
          rows[block][e / 2][e % 2] = mul(tail, rows[block][e / 2][e % 2]);
          rows[block][e / 2][2 + e % 2] = mul(tail, rows[block][e / 2][2 + e % 2]);
        }
        u[block] = operand(rows[block]);
      }
      fold(s, u, pairs.gain[CHUNK_ROWS - 1], [&](i32 step, i32 half, i32 block) { return keys.columns[step][half][block][lane()]; });
      if (chunk + CHUNK_ROWS == here.base_after) store_state(state, s);
    }
  }
}
LUCE_EXPORT(deltanet_scan)

// out[row] = gated norm of o with z (columns CHANNELS on of x); and the rows before the convolution that a later lane may read go
// into the slot's window. Grid (ceil(out_depth / OUTPUT_SPAN / 8), rows), 256 threads: a warp for each OUTPUT_SPAN values.
LUCE_KERNEL(deltanet_finish, 256)(const Pass* pass, const Row* rows, const Lane* lanes, const f32* x, i32 x_stride, const f32* o,
                                  const f32* norm, f32 eps, f32* conv_state, u16* out, i32 out_rows, i32 out_tile, i32 out_depth) {
  i32 span = block_x() * (block_threads() / WARP) + warp(), row = block_y();
  pdl_launch();
  pdl_wait();
  if (row >= pass->rows) return;
  const f32* mine = x + (i64)row * x_stride;
  const Lane here = lanes[rows[row].lane];
  i32 position = here.start + row - here.row;
  if (position >= lane_end(here) - CHUNK_ROWS - 3) {
    f32* window = conv_state + ((i64)here.slot * CONV_ROWS + position % CONV_ROWS) * CHANNELS;
    for (i32 c = block_x() * block_threads() + thread(); c < CHANNELS; c += grid_x() * block_threads()) window[c] = mine[c];
  }
  constexpr i32 rounds = (OUTPUT_SPAN / 2 + WARP - 1) / WARP, heads = OUTPUT_SPAN / DV;
  i32 first = span * OUTPUT_SPAN;   // column
  f32x2 values[rounds];
  f32 sums[rounds];
  UNROLL for (i32 i = 0; i < rounds; i++) {
    i32 at = 2 * (i * WARP + lane());
    values[i] = {0.0f, 0.0f};
    if (at < OUTPUT_SPAN && first + at < HV * DV) values[i] = *(const f32x2*)(o + (i64)row * (HV * DV) + first + at);
    sums[i] = pair_square(values[i].x, values[i].y);
    UNROLL for (i32 mask = 1; mask < 8; mask *= 2) sums[i] = add(sums[i], shfl_xor(sums[i], mask));
  }
  f32 factors[heads];
  UNROLL for (i32 head = 0; head < heads; head++) {
    f32 total = 0.0f;
    UNROLL for (i32 tile = head * TILES; tile < head * TILES + TILES; tile++) {
      f32 sum = shfl(sums[tile / 4], tile % 4 * 8);
      total = tile == head * TILES ? sum : add(total, sum);
    }
    factors[head] = output_factor(total, eps);
  }
  Activations to = {out, out_rows, out_tile, out_depth};
  UNROLL for (i32 i = 0; i < rounds; i++) {
    i32 at = 2 * (i * WARP + lane()), column = first + at;
    f32 y[2] = {0.0f, 0.0f};
    if (at < OUTPUT_SPAN && column < HV * DV) {
      f32 factor = heads == 1 || at < DV ? factors[0] : factors[heads - 1];
      f32x2 z = *(const f32x2*)(mine + CHANNELS + column);
      y[0] = gated(values[i].x, factor, norm[column % DV], z.x), y[1] = gated(values[i].y, factor, norm[column % DV + 1], z.y);
    }
    store_activations<2>(to, row, column, y, at < OUTPUT_SPAN && column < out_depth);
  }
}
LUCE_EXPORT(deltanet_finish)
