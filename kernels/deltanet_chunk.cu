// Gated DeltaNet for lanes of any length (chunk passes), in three grids: what depends on no state, for all 64-chunks at once
// (prepare); the chunks of a lane in order, the state in registers (scan); the gated norm of the rows (finish). Where heads are of
// 128, that norm follows the scan chunk by chunk (follow), on the multiprocessors that the scan leaves idle.
//
// A tile is a 64-chunk of a lane, from the lane's base on; tiles of a lane stand together, lanes in order. Rows of a tile before
// the lane's start come from the ring, rows past its end are absent (zeros). Workspace per tile:
//   heads  [tiles][HK] operands of the products with k, q and, for the fold, of k by columns (HEAD_BYTES)
//   pairs  [tiles][HV] Pairs
// and o, f32 [rows][HV DV], and counts, u32 [tiles][HV]: of warps that have made theirs of o.
#include "deltanet.h"
#include "wgmma_shared.h"

#define KEY_PITCH (DK + 8)
#define HEAD_BYTES (3 * CHUNK_ROWS * DK * 2)

struct Pairs {
  u32x2 w[6][2][2][WARP];          // of 16-row blocks (later, earlier): [later * (later - 1) / 2 + earlier][half][high, low]
  u32x2 p[10][2][2][WARP];         // [later * (later + 1) / 2 + earlier], the block itself too
  f32 inside[BLOCKS][16][16];      // W in a block: [earlier row][row], zeros up to the diagonal
  f32 gain[CHUNK_ROWS];            // e^G
  f32 tail[CHUNK_ROWS];            // e^(G_63 - G)
  f32 beta[CHUNK_ROWS];
  i64 decay[CHUNK_ROWS];           // G
};

// Keys or queries and, for the fold, keys by columns, each a second operand in core matrices (wgmma.h): the two halves of a k16 step of
// eights of rows; the halves of a 16-row block of eights of keys.
typedef u32 Keys[STEPS][2][2 * BLOCKS][WARP];
typedef u32 Columns[BLOCKS][2][2 * STEPS][WARP];
struct Heads {
  Keys k, q;
  Columns columns;
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
DEVICE f32x4 channel_four(const Rows& rows, i32 position, i32 c) {
  const f32* at = channel_at(rows, position, c);
  return at ? *(const f32x4*)at : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
}

struct Prepare {
  alignas(16) u16 keys[2][CHUNK_ROWS][KEY_PITCH];   // k, q
  i64 decays[RATIO][CHUNK_ROWS];
};

static_assert(sizeof(Prepare) <= SHARED_BYTES, "more shared memory than the launcher gives");

// Unit keys and queries of the tile's rows into shared memory; a warp takes 8 rows.
DEVICE void prepare_keys(Prepare& shared, const Rows& rows, const f32* taps, const u16* ring, i32 chunk, i32 end, i32 key_head) {
  i32 first = chunk + warp() * 8;
  bool there = 4 * lane() < DK, any = first + 8 > rows.start && first < end;
  UNROLL for (i32 which = 0; which < 2; which++) {
    i32 c = key_channel(key_head, which) + 4 * lane();
    f32x4 x[11], w[4];
    UNROLL for (i32 i = 0; i < 11; i++) {
      i32 position = first - 3 + i;
      x[i] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (there && any && position >= rows.start - 3 && position < end) x[i] = channel_four(rows, position, c);
    }
    UNROLL for (i32 i = 0; i < 4; i++) w[i] = there && any ? *(const f32x4*)(taps + i * CHANNELS + c) : f32x4{0.0f, 0.0f, 0.0f, 0.0f};
    UNROLL for (i32 i = 0; i < 8; i++) {
      i32 position = first + i;
      u32x2 unit = {0u, 0u};
      if (position >= rows.start && position < end) unit = unit_vector(convolve({x[i], x[i + 1], x[i + 2], x[i + 3]}, w), which);
      else if (!which && there && position < rows.start) unit = *(const u32x2*)(ring + (i64)ring_row(position) * DK + 4 * lane());
      if (there) *(u32x2*)&shared.keys[which][position - chunk][4 * lane()] = unit;
    }
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

// W and P of the rows of one 16-row block with those of another before it, or of itself.
DEVICE void prepare_pair(const Prepare& shared, Pairs* pairs, i32 key_head, i32 later, i32 earlier) {
  i32 g = lane() / 4, t = lane() % 4;
  f32 c[2][2][4] = {};   // k, q; rows 4t + 2 half + e of the earlier block
  UNROLL for (i32 step = 0; step < STEPS; step++) {
    u32x2 k[2] = {key_words(shared, 0, 16 * earlier + row_place(g, 0), step, t), key_words(shared, 0, 16 * earlier + row_place(g, 1), step, t)};
    UNROLL for (i32 which = 0; which < 2; which++) {
      u32x2 upper = key_words(shared, which, 16 * later + row_place(g, 0), step, t);
      u32x2 lower = key_words(shared, which, 16 * later + row_place(g, 1), step, t);
      u32 rows[4] = {upper.x, lower.x, upper.y, lower.y};
      UNROLL for (i32 half = 0; half < 2; half++) product(c[which][half], rows, k[half].x, k[half].y);
    }
  }
  for (i32 r = 0; r < RATIO; r++) {
    Pairs& to = pairs[key_head * RATIO + r];
    UNROLL for (i32 half = 0; half < 2; half++) {
      i32 i = 16 * later + row_place(g, half);
      f32 w[2][4];
      UNROLL for (i32 e = 0; e < 4; e++) {
        i32 j = 16 * earlier + 4 * t + e;
        f32 factor = decay_factor(j < i ? shared.decays[r][i] - shared.decays[r][j] : 0);
        w[0][e] = j < i ? mul(c[0][e / 2][2 * half + e % 2], factor) : 0.0f;
        w[1][e] = j <= i ? mul(c[1][e / 2][2 * half + e % 2], factor) : 0.0f;
      }
      UNROLL for (i32 which = 0; which < 2; which++) {
        if (which == 0 && earlier == later) {
          UNROLL for (i32 e = 0; e < 4; e++) to.inside[later][4 * t + e][i % 16] = w[0][e];
          continue;
        }
        u32x2 high, low;
        split_bf16(w[which][0], w[which][1], high.x, low.x);
        split_bf16(w[which][2], w[which][3], high.y, low.y);
        u32x2 (*at)[WARP] = which ? to.p[later * (later + 1) / 2 + earlier][half] : to.w[later * (later - 1) / 2 + earlier][half];
        at[0][lane()] = high, at[1][lane()] = low;
      }
    }
  }
}

// The rows of `x`, `gates` and the constants as in deltanet_step. Grid (HK, tiles), 256 threads, shared memory SHARED_BYTES.
LUCE_KERNEL_RESIDENT(deltanet_prepare, 256, 2)(
    const Pass* pass, const Lane* lanes, const f32* x, i32 x_stride, const f32* gates, i32 gates_stride, const f32* taps,
    const f32* neg_exp_a, const f32* dt_bias, const u16* k_state, const i64* g_state, const f32* conv_state, u8* heads, u8* pairs_at,
    u32* counts) {
  i32 key_head = block_x(), tile = block_y(), in_lane = tile, index = 0;
  pdl_launch();
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
  pdl_wait();
  if (thread() < RATIO) counts[tile * HV + key_head * RATIO + thread()] = 0;

  for (i32 r = warp(); r < RATIO; r += block_threads() / WARP) {
    i32 head = key_head * RATIO + r;
    prepare_gates(pairs[head], shared.decays[r], decay_ring((i64*)g_state, slot, head), gates + (i64)here.row * gates_stride, gates_stride,
                  chunk, here.start, end, head, neg_exp_a[head], dt_bias[head]);
  }
  prepare_keys(shared, rows, taps, key_ring((u16*)k_state, slot, key_head), chunk, end, key_head);
  sync_block();
  if (!folded)
    for (i32 pair = warp(); pair < 10; pair += block_threads() / WARP) {
      i32 later = pair < 1 ? 0 : pair < 3 ? 1 : pair < 6 ? 2 : 3;
      prepare_pair(shared, pairs, key_head, later, pair - later * (later + 1) / 2);
    }
  Heads& to = *(Heads*)(heads + ((i64)tile * HK + key_head) * HEAD_BYTES);
  for (i32 i = warp(); i < 2 * STEPS * 2 * BLOCKS; i += block_threads() / WARP) {
    i32 which = i / (STEPS * 2 * BLOCKS), step = i / (2 * BLOCKS) % STEPS, eight = i % (2 * BLOCKS);
    u32x2 words = key_words(shared, which, 16 * (eight / 2) + row_place(lane() / 4, eight % 2), step, lane() % 4);
    Keys& of = which ? to.q : to.k;
    of[step][0][eight][lane()] = words.x, of[step][1][eight][lane()] = words.y;
  }
  for (i32 i = warp(); i < BLOCKS * 2 * STEPS; i += block_threads() / WARP) {
    i32 block = i / (2 * STEPS), eight = i % (2 * STEPS);
    const u16* k = &shared.keys[0][16 * block + 4 * (lane() % 4)][key_column(eight / 2, eight % 2, lane() / 4)];
    to.columns[block][0][eight][lane()] = k[0] | (u32)k[KEY_PITCH] << 16;
    to.columns[block][1][eight][lane()] = k[2 * KEY_PITCH] | (u32)k[3 * KEY_PITCH] << 16;
  }
}
LUCE_EXPORT(deltanet_prepare)

// STAGES: copies of a tile's operands in shared memory, 2 (the next one comes in while one is worked on), 1, or 0: all from
// device memory, where shared memory is too small for one. PART_TILES: 16-column tiles of a block, two warps each.
#if !defined(STAGES) || !defined(PART_TILES)
#error "define STAGES, PART_TILES"
#endif
#define PARTS (TILES / PART_TILES)

struct Stage {
  Heads heads;
  Pairs pairs;
};
struct Shuttle {   // of a tile, between its warps
  f32x4 v[2][BLOCKS][2][WARP];    // of this chunk and the next
  u32x4 s[STEPS][2][WARP];        // S as operand: high, low
  u32x4 u[BLOCKS][2][WARP];
  alignas(16) u32 made;           // blocks of u that have been there, of all chunks
};
static_assert(STAGES * (sizeof(Stage) + 8) + PART_TILES * sizeof(Shuttle) <= SCAN_BYTES, "more shared memory than the launcher gives");

#if STAGES
// A stage on its way into shared memory; `arrived` counts it.
DEVICE void fetch_stage(Stage& to, const Heads* heads, const Pairs* pairs, u64* arrived) {
#if HAS_BULK
  if (thread()) return;
  bar_expect(arrived, sizeof(Heads) + sizeof(Pairs));
  bulk_load(&to.heads, heads, sizeof(Heads), arrived);
  bulk_load(&to.pairs, pairs, sizeof(Pairs), arrived);
#else
  for (i32 at = 16 * thread(); at < (i32)sizeof(Heads); at += 16 * block_threads()) cp_async16((u8*)&to.heads + at, (const u8*)heads + at);
  for (i32 at = 16 * thread(); at < (i32)sizeof(Pairs); at += 16 * block_threads()) cp_async16((u8*)&to.pairs + at, (const u8*)pairs + at);
  cp_async_commit();
#endif
}
DEVICE void wait_stage(u64* arrived, u32 phase) {
#if HAS_BULK
  bar_wait(arrived, phase);
#else
  cp_async_wait<0>();
#endif
}
#endif
// A tile's u of a block is there, told by one of its warps to the other: as a number or, with SHOW_ORDERS, by a barrier for each block.
// at: of the chunk; folded: chunks before it that make no u.
DEVICE void tell_made(Shuttle& mine, i32 at, i32 folded, i32 block) {
#if SHOW_ORDERS && HAS_BULK
  bar_arrive_warp(shown_bar(warp() % PART_TILES * BLOCKS + block));
#else
  sync_warp();
  if (lane() == 0) publish_(&mine.made, (u32)(BLOCKS * at + block + 1));
#endif
}
DEVICE void await_made(const Shuttle& mine, i32 at, i32 folded, i32 block) {
#if SHOW_ORDERS && HAS_BULK
  bar_wait(shown_bar(warp() % PART_TILES * BLOCKS + block), (u32)(at - folded) & 1);
#else
  await_(&mine.made, (u32)(BLOCKS * at + block + 1));
#endif
}
DEVICE void put_operand(u32x4 (&at)[2][WARP], const Operand& o) {
  at[0][lane()] = {o.high[0], o.high[1], o.high[2], o.high[3]};
  at[1][lane()] = {o.low[0], o.low[1], o.low[2], o.low[3]};
}
DEVICE Operand get_operand(const u32x4 (&at)[2][WARP]) {
  u32x4 high = at[0][lane()], low = at[1][lane()];
  return {{high.x, high.y, high.z, high.w}, {low.x, low.y, low.z, low.w}};
}

// Columns 2g, 2g + 1 of a tile, before the convolution: of the rows 4t - 3 .. 4t + 3 of a chunk's blocks. Absent ones are zeros.
struct ValueRows { f32x2 x[BLOCKS][7]; };
DEVICE void load_values(ValueRows& to, const Rows& rows, i32 chunk, i32 end, i32 c) {
  i32 t = lane() % 4, first = chunk + 4 * t - 3;
  if (chunk - 3 >= rows.start && chunk + CHUNK_ROWS <= end) {
    const f32* at = rows.x + (i64)(first - rows.start) * rows.stride + c;
    UNROLL for (i32 block = 0; block < BLOCKS; block++)
      UNROLL for (i32 i = 0; i < 7; i++) to.x[block][i] = *(const f32x2*)(at + (i64)(16 * block + i) * rows.stride);
    return;
  }
  UNROLL for (i32 block = 0; block < BLOCKS; block++)
    UNROLL for (i32 i = 0; i < 7; i++) {
      i32 position = first + 16 * block + i;
      bool there = position >= max_(rows.start - 3, 0) && position < end;
      const f32* at = position >= rows.start ? rows.x + (i64)(position - rows.start) * rows.stride
                                             : rows.window + (i64)(position % CONV_ROWS) * CHANNELS;
      f32x2 v = *(const f32x2*)((there ? at : rows.window) + c);
      to.x[block][i].x = there ? v.x : 0.0f, to.x[block][i].y = there ? v.y : 0.0f;
    }
}
// v of these rows; what is not new is zero.
DEVICE void convolve_values(f32x4 (&to)[BLOCKS][2][WARP], const ValueRows& rows, const f32x2 (&w)[4], i32 chunk, i32 start, i32 end) {
  UNROLL for (i32 block = 0; block < BLOCKS; block++) {
    i32 first = chunk + 16 * block + 4 * (lane() % 4);
    const f32x2 (&x)[7] = rows.x[block];
    f32 y[4][2];
    UNROLL for (i32 i = 0; i < 4; i++) {
      f32 even = convolve(x[i].x, x[i + 1].x, x[i + 2].x, x[i + 3].x, w[0].x, w[1].x, w[2].x, w[3].x);
      f32 odd = convolve(x[i].y, x[i + 1].y, x[i + 2].y, x[i + 3].y, w[0].y, w[1].y, w[2].y, w[3].y);
      bool is_new = first + i >= start && first + i < end;
      y[i][0] = is_new ? even : 0.0f, y[i][1] = is_new ? odd : 0.0f;
    }
    to[block][0][lane()] = {y[0][0], y[1][0], y[0][1], y[1][1]};
    to[block][1][lane()] = {y[2][0], y[3][0], y[2][1], y[3][1]};
  }
}

// The rows of a column of a block one by one. A row that is done is taken from all later ones at once: each is a sum in the order
// of rows, of which all but the last step is done before its turn. Rows before `old` are those of `ring`.
template <bool RING> DEVICE void solve(f32 (&u)[16], const f32 (&inside)[16][16], const f32* beta, i32 old, const f32* ring) {
  UNROLL for (i32 j = 0; j < 16; j++) {
    u[j] = mul(beta[j], u[j]);
    if (RING && j < old) u[j] = ring[(i64)j * DV];
    UNROLL for (i32 four = (j + 1) / 4; four < 4; four++) {
      f32x4 line = *(const f32x4*)&inside[j][4 * four];
      f32 w[4] = {line.x, line.y, line.z, line.w};
      UNROLL for (i32 e = 0; e < 4; e++)
        if (4 * four + e > j) u[4 * four + e] = fma_(-w[e], u[j], u[4 * four + e]);
    }
  }
}

// u of a block out of x. x holds what is left of x after earlier blocks and becomes u; rows before `old` are those of `ring`, from the
// block's first and the tile's first column on. A lane takes a column (two lanes the same one), so that W is the same for all of
// them; the columns pass through `room`.
DEVICE void substitute(Fragment& x, u32x4 (&room)[2][WARP], const f32 (&inside)[16][16], const f32* beta, i32 old, const f32* ring) {
  f32x4* cells = (f32x4*)room;  // [column][4 rows], without bank conflicts
  i32 g = lane() / 4, t = lane() % 4, column = lane() % 16;
  UNROLL for (i32 i = 0; i < 2; i++) cells[(2 * g + i) * 4 + (t ^ g % 4)] = {x[0][2 * i], x[0][2 * i + 1], x[1][2 * i], x[1][2 * i + 1]};
  sync_warp();
  f32 u[16], betas[16];
  UNROLL for (i32 four = 0; four < 4; four++) {
    f32x4 v = cells[column * 4 + (four ^ column / 2 % 4)], b = *(const f32x4*)(beta + 4 * four);
    u[4 * four] = v.x, u[4 * four + 1] = v.y, u[4 * four + 2] = v.z, u[4 * four + 3] = v.w;
    betas[4 * four] = b.x, betas[4 * four + 1] = b.y, betas[4 * four + 2] = b.z, betas[4 * four + 3] = b.w;
  }
  if (old > 0) solve<true>(u, inside, betas, old, ring + column);
  else solve<false>(u, inside, betas, 0, ring);
  sync_warp();
  if (lane() < 16)
    UNROLL for (i32 four = 0; four < 4; four++)
      cells[column * 4 + (four ^ column / 2 % 4)] = {u[4 * four], u[4 * four + 1], u[4 * four + 2], u[4 * four + 3]};
  sync_warp();
  UNROLL for (i32 i = 0; i < 2; i++) {
    f32x4 v = cells[(2 * g + i) * 4 + (t ^ g % 4)];
    x[0][2 * i] = v.x, x[0][2 * i + 1] = v.y, x[1][2 * i] = v.z, x[1][2 * i + 1] = v.w;
  }
  sync_warp();
}

// Are products with S and the fold those of four warps together? Else each warp makes its own: the same bits.
#define WARPGROUPS (HAS_WGMMA && STAGES && PART_TILES == 4 && DK % 64 == 0)

// S^T times the chunk's keys or queries, eights of rows beside each other: c[4 eight + element].
typedef f32 Eights[2 * BLOCKS * 4];
DEVICE void multiply_state(Eights& c, const Operand (&s)[STEPS], const Keys& k) {
#if WARPGROUPS
  TileDesc b = tile_desc<2 * BLOCKS * 128, 128>((const u8*)k);
  wgmma_hold(c);
  wgmma_fence();
  UNROLL for (i32 step = 0; step < STEPS; step++) {
    wgmma<64>(c, s[step].high, tile_step(b, step * sizeof(k[0])), step > 0);
    wgmma<64>(c, s[step].low, tile_step(b, step * sizeof(k[0])), 1);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_hold(c);
#else
  UNROLL for (i32 i = 0; i < 8 * BLOCKS; i++) c[i] = 0.0f;
  UNROLL for (i32 step = 0; step < STEPS; step++) {
    u32x2 b[2 * BLOCKS];
    UNROLL for (i32 i = 0; i < 2 * BLOCKS; i++) b[i] = {k[step][0][i][lane()], k[step][1][i][lane()]};
    far_products(*(f32(*)[2 * BLOCKS][4])&c, s[step], b);
  }
#endif
}

#if WARPGROUPS
// What a chunk adds to S of 64 keys from 64 part on, in the background; `u` its rows times e^(G_63 - G).
DEVICE void fold_part(f32 (&c)[32], const Operand (&u)[BLOCKS], const Columns& columns, i32 part) {
  TileDesc b = tile_desc<2 * STEPS * 128, 128>((const u8*)columns[0][0][8 * part]);
  wgmma_hold(c);
  wgmma_fence();
  UNROLL for (i32 block = 0; block < BLOCKS; block++) {
    wgmma<64>(c, u[block].high, tile_step(b, block * sizeof(columns[0])), block > 0);
    wgmma<64>(c, u[block].low, tile_step(b, block * sizeof(columns[0])), 1);
  }
  wgmma_commit();
}
#endif

// Two warps for each 16 columns of v: one goes from chunk to chunk with the state and decides how long a chunk takes, the other makes
// v of the next chunk and o of this one, in an order in which the two need the matrix units at different times:
//   leads     S^T k   u of the blocks, one by one                          S folded
//   follows   v       S^T q, then P u of each block that is there          o
// The first counts the blocks of u that are there (a barrier would not do: it may be two blocks ahead); they meet where the second has
// read S (`read`), whose place in shared memory may change then, and where a chunk begins.
//
// Grid (HV PARTS, lanes), 64 PART_TILES threads, shared memory SCAN_BYTES. A lane of no rows is one that is only to be folded up to its
// base_after.
LUCE_KERNEL_RESIDENT(deltanet_scan, 64 * PART_TILES, 1)(
    const Pass* pass, const Lane* lanes, const f32* x, i32 x_stride, const f32* taps, const f32* conv_state, const u8* heads,
    const u8* pairs_at, f32* s_state, u16* k_state, f32* u_state, i64* g_state, f32* o, u32* counts) {
  i32 head = block_x() / PARTS, part = block_x() % PARTS, key_head = head / RATIO, g = lane() / 4, t = lane() % 4;
  if (block_y() >= pass->lanes) return;
  i32 tile = 0;
  for (i32 i = 0; i < block_y(); i++) tile += lane_tiles(lanes[i]);
  const Lane here = lanes[block_y()];
  i32 slot = here.slot, start = here.start, end = lane_end(here), column = part * PART_TILES + warp() % PART_TILES;
  i32 folded = max_(start - here.base, 0) / CHUNK_ROWS;
  bool owner = part == 0 && head % RATIO == 0;
  Rows all = {x + (i64)here.row * x_stride, conv_state + (i64)slot * CONV_ROWS * CHANNELS, x_stride, start};
  i32 channel = value_channel(head) + 16 * column + 2 * g;
  Shuttle& mine = ((Shuttle*)(shared_memory() + STAGES * sizeof(Stage)))[warp() % PART_TILES];
  const i32 read = 1 + warp() % PART_TILES;
  Fragment s[STEPS];
  Operand far[STEPS];   // S as operand
  if (warp() < PART_TILES) {
    if (lane() == 0) {
      mine.made = 0;
#if SHOW_ORDERS && HAS_BULK
      for (i32 block = 0; block < BLOCKS; block++) bar_init(shown_bar(warp() * BLOCKS + block), WARP);
      bar_init_fence();
#endif
    }
    load_state(s, state_at(s_state, slot, head, column), here.base == 0);
    UNROLL for (i32 step = 0; step < STEPS; step++) put_operand(mine.s[step], far[step] = operand(s[step]));
  }
  pdl_wait();
  pdl_launch();   // not before: deltanet_follow counts on what the grid before this one has written
  auto heads_of = [&](i32 at) { return (const Heads*)(heads + ((i64)(tile + at) * HK + key_head) * HEAD_BYTES); };
  auto pairs_of = [&](i32 at) { return (const Pairs*)pairs_at + (i64)(tile + at) * HV + head; };
#if STAGES
  Stage* stages = (Stage*)shared_memory();
  u64* arrived = (u64*)(shared_memory() + STAGES * sizeof(Stage) + PART_TILES * sizeof(Shuttle));
#if HAS_BULK
  if (thread() == 0) {
    for (i32 i = 0; i < STAGES; i++) bar_init(arrived + i, 1);
    bar_init_fence();
  }
  sync_block();
#endif
  auto fetch = [&](i32 at) { fetch_stage(stages[at % STAGES], heads_of(at), pairs_of(at), arrived + at % STAGES); };
  fetch(0);
#endif
  // All warps begin a chunk together.
  auto meet = [&] { barrier_sync(PART_TILES + 1, 64 * PART_TILES); };
  auto begin = [&](i32 chunk, i32 at) {
#if STAGES
    if (STAGES == 1 && at) {
      meet();
      fetch(at);
    }
    wait_stage(arrived + at % STAGES, (u32)(at / STAGES & 1));
    meet();
    if (STAGES == 2 && chunk + CHUNK_ROWS < end) fetch(at + 1);
#else
    meet();
#endif
  };
#if STAGES
  auto keys_in = [&](i32 at) -> const Heads& { return stages[at % STAGES].heads; };
  auto pairs_in = [&](i32 at) -> const Pairs& { return stages[at % STAGES].pairs; };
#else
  auto keys_in = [&](i32 at) -> const Heads& { return *heads_of(at); };
  auto pairs_in = [&](i32 at) -> const Pairs& { return *pairs_of(at); };
#endif

  if (warp() >= PART_TILES) {
    f32x2 w[4];
    UNROLL for (i32 i = 0; i < 4; i++) w[i] = *(const f32x2*)(taps + i * CHANNELS + channel);
    ValueRows first;
    load_values(first, all, here.base, end, channel);
    convolve_values(mine.v[0], first, w, here.base, start, end);
    NO_UNROLL for (i32 chunk = here.base, at = 0; chunk < end || chunk < here.base_after; chunk += CHUNK_ROWS, at++) {
      begin(chunk, at);
      const Heads& keys = keys_in(at);
      const Pairs& pairs = pairs_in(at);
      i32 old = max_(start - chunk, 0);
      if (chunk + CHUNK_ROWS < end) {
        ValueRows values;
        load_values(values, all, chunk + CHUNK_ROWS, end, channel);
        convolve_values(mine.v[(at + 1) % 2], values, w, chunk + CHUNK_ROWS, start, end);
      }
      f32 q[8 * BLOCKS], sums[2 * BLOCKS][4] = {};
      Operand far[STEPS];
      if (old < CHUNK_ROWS)
        UNROLL for (i32 step = 0; step < STEPS; step++) far[step] = get_operand(mine.s[step]);
      barrier_arrive(read, 2 * WARP);
      if (old < CHUNK_ROWS) multiply_state(q, far, keys.q);
      if (chunk >= here.base_after) {   // keys and decays: prepare has read what they replace
        if (part == 0)
          for (i32 i = thread() - 32 * PART_TILES; i < CHUNK_ROWS; i += 32 * PART_TILES)
            if (chunk + i >= start && chunk + i < end) decay_ring(g_state, slot, head)[ring_row(chunk + i)] = pairs.decay[i];
        if (owner)
          for (i32 i = warp() - PART_TILES; i < BLOCKS * 2 * STEPS; i += PART_TILES) {
            i32 position = chunk + 16 * (i / (2 * STEPS)) + row_place(g, i / STEPS % 2);
            if (position >= start && position < end)
              *(u32x2*)(key_ring(k_state, slot, key_head) + (i64)ring_row(position) * DK + key_place(i % STEPS, t)) =
                  {keys.k[i % STEPS][0][i / STEPS][lane()], keys.k[i % STEPS][1][i / STEPS][lane()]};
          }
      }
      if (old >= CHUNK_ROWS) continue;
      UNROLL for (i32 earlier = 0; earlier < BLOCKS; earlier++) {
        await_made(mine, at, folded, earlier);
        Operand u = get_operand(mine.u[earlier]);
        UNROLL for (i32 later = earlier; later < BLOCKS; later++) {
          const u32x2 (&p)[2][2][WARP] = pairs.p[later * (later + 1) / 2 + earlier];
          u32x2 high[2] = {p[0][0][lane()], p[1][0][lane()]}, low[2] = {p[0][1][lane()], p[1][1][lane()]};
          near_products(*(f32(*)[2][4])&sums[2 * later], u, high, low);
        }
      }
      f32* to = o + (i64)(here.row + chunk - start) * (HV * DV) + head * DV + 16 * column + 2 * g;
      auto put = [&](bool whole) {
        UNROLL for (i32 i = 0; i < 2 * BLOCKS; i++)
          UNROLL for (i32 e = 0; e < 2; e++) {
            i32 row = 16 * (i / 2) + 4 * t + 2 * (i % 2) + e;
            if (!whole && (chunk + row < start || chunk + row >= end)) continue;
            f32 gain = pairs.gain[row];
            *(f32x2*)(to + (i64)row * (HV * DV)) = {fma_(gain, q[4 * i + e], sums[i][e]), fma_(gain, q[4 * i + 2 + e], sums[i][2 + e])};
          }
      };
      if (old == 0 && chunk + CHUNK_ROWS <= end) put(true);
      else put(false);
      sync_warp();
      if (lane() == 0) atomic_add_ordered(counts + (tile + at) * HV + head, 1u);
    }
    return;
  }

  f32x4* state = state_at(s_state, slot, head, column);
  f32* ring = u_ring(u_state, slot, head) + 16 * column;
  NO_UNROLL for (i32 chunk = here.base, at = 0; chunk < end || chunk < here.base_after; chunk += CHUNK_ROWS, at++) {
    begin(chunk, at);
    const Heads& keys = keys_in(at);
    const Pairs& pairs = pairs_in(at);
    i32 old = max_(start - chunk, 0);
    bool folds = chunk + CHUNK_ROWS < end || chunk < here.base_after;
    Operand tails[BLOCKS];   // u times e^(G_63 - G)
    auto scale = [&](Fragment& u, i32 block) {
      f32x4 four = *(const f32x4*)&pairs.tail[16 * block + 4 * t];
      f32 tail[4] = {four.x, four.y, four.z, four.w};
      UNROLL for (i32 e = 0; e < 4; e++) {
        u[e / 2][e % 2] = mul(tail[e], u[e / 2][e % 2]);
        u[e / 2][2 + e % 2] = mul(tail[e], u[e / 2][2 + e % 2]);
      }
      tails[block] = operand(u);
    };
    if (old >= CHUNK_ROWS) {
      UNROLL for (i32 block = 0; block < BLOCKS; block++) {
        Fragment u;
        load_u(u, ring + (i64)(ring_row(chunk) + 16 * block) * DV, 16);
        scale(u, block);
      }
    } else {
      f32 k[8 * BLOCKS], sums[2 * BLOCKS][4] = {};
      multiply_state(k, far, keys.k);
      UNROLL for (i32 block = 0; block < BLOCKS; block++) {
        Fragment f;
        f32x4 four = *(const f32x4*)&pairs.gain[16 * block + 4 * t];
        f32 gain[4] = {four.x, four.y, four.z, four.w};
        UNROLL for (i32 half = 0; half < 2; half++) {
          f32x4 v = mine.v[at % 2][block][half][lane()];
          f32 values[4] = {v.x, v.y, v.z, v.w};
          UNROLL for (i32 i = 0; i < 4; i++)
            f[half][i] = sub(fma_(-gain[2 * half + i % 2], k[8 * block + 4 * half + i], values[i]), sums[2 * block + half][i]);
        }
        substitute(f, mine.u[block], pairs.inside[block], &pairs.beta[16 * block], old - 16 * block,
                   ring + (i64)(ring_row(chunk) + 16 * block) * DV);
        Operand u = operand(f);
        put_operand(mine.u[block], u);
        tell_made(mine, at, folded, block);
        UNROLL for (i32 later = block + 1; later < BLOCKS; later++) {
          const u32x2 (&w)[2][2][WARP] = pairs.w[later * (later - 1) / 2 + block];
          u32x2 high[2] = {w[0][0][lane()], w[1][0][lane()]}, low[2] = {w[0][1][lane()], w[1][1][lane()]};
          near_products(*(f32(*)[2][4])&sums[2 * later], u, high, low);
        }
        if (chunk >= here.base_after)
          UNROLL for (i32 e = 0; e < 4; e++) {
            i32 position = chunk + 16 * block + 4 * t + e;
            if (position >= start && position < end) *(f32x2*)(ring + (i64)ring_row(position) * DV + 2 * g) = {f[e / 2][e % 2], f[e / 2][2 + e % 2]};
          }
        scale(f, block);
      }
    }
    barrier_sync(read, 2 * WARP);
    if (!folds) continue;
    f32 gain = pairs.gain[CHUNK_ROWS - 1];
    auto keep = [&](i32 step) { put_operand(mine.s[step], far[step] = operand(s[step])); };
#if WARPGROUPS
    constexpr i32 parts = DK / 64;
    f32 added[parts][32];
    UNROLL for (i32 part = 0; part < parts; part++) fold_part(added[part], tails, keys.columns, part);
    UNROLL for (i32 part = 0; part < parts; part++) {
      if (part + 1 < parts) wgmma_wait<1>();
      else wgmma_wait<0>();
      wgmma_hold(added[part]);
      UNROLL for (i32 step = 4 * part; step < 4 * part + 4; step++) {
        UNROLL for (i32 i = 0; i < 8; i++) {
          f32& v = s[step][i / 4][i % 4];
          v = fma_(gain, v, added[part][8 * (step % 4) + i]);
        }
        keep(step);
      }
    }
#else
    fold<STEPS % 4 ? 1 : 4>(s, tails, gain, [&](i32 step, i32 half, i32 block) {
      return u32x2{keys.columns[block][0][2 * step + half][lane()], keys.columns[block][1][2 * step + half][lane()]};
    });
    UNROLL for (i32 step = 0; step < STEPS; step++) keep(step);
#endif
    if (chunk + CHUNK_ROWS == here.base_after) store_state(state, s);
  }
}
LUCE_EXPORT(deltanet_scan)

#define KEPT_ROWS (CHUNK_ROWS + 3)   // of a lane, the last ones
DEVICE void keep_row(const Lane& here, i32 position, const f32* row, f32* conv_state) {
  if (position < lane_end(here) - KEPT_ROWS) return;
  f32* window = conv_state + ((i64)here.slot * CONV_ROWS + position % CONV_ROWS) * CHANNELS;
  for (i32 c = 4 * thread(); c < CHANNELS; c += 4 * block_threads()) *(f32x4*)(window + c) = *(const f32x4*)(row + c);
}

// out[row] = gated norm of o with z (columns CHANNELS on of x); and the rows before the convolution that a later lane may read go
// into the slot's window. Grid (rows), 256 threads: a warp for each OUTPUT_SPAN values.
#define FINISH_WARPS 8
LUCE_KERNEL(deltanet_finish, 32 * FINISH_WARPS)(
    const Pass* pass, const Row* rows, const Lane* lanes, const f32* x, i32 x_stride, const f32* o, const f32* norm, f32 eps,
    f32* conv_state, u16* out, i32 out_rows, i32 out_tile, i32 out_depth) {
  constexpr i32 rounds = (OUTPUT_SPAN / 4 + WARP - 1) / WARP, heads = OUTPUT_SPAN / DV;
  constexpr i32 together = (HV * DV / OUTPUT_SPAN + FINISH_WARPS - 1) / FINISH_WARPS < 3 ? 1 : 3;   // spans whose loads are under way at once
  i32 row = block_x(), spans = ceil_div(out_depth, OUTPUT_SPAN);
  pdl_launch();
  bool there = row < pass->rows;
  pdl_wait();
  if (!there) return;
  const f32* mine = x + (i64)row * x_stride;
  Activations to = {out, out_rows, out_tile, out_depth};
  for (i32 span = warp(); span < spans; span += FINISH_WARPS * together) {
    f32x4 values[together][rounds], z[together][rounds];
    UNROLL for (i32 n = 0; n < together; n++)
      UNROLL for (i32 i = 0; i < rounds; i++) {
        i32 at = 4 * (i * WARP + lane()), column = (span + n * FINISH_WARPS) * OUTPUT_SPAN + at;
        values[n][i] = z[n][i] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (at < OUTPUT_SPAN && column < HV * DV) {
          values[n][i] = *(const f32x4*)(o + (i64)row * (HV * DV) + column);
          z[n][i] = *(const f32x4*)(mine + CHANNELS + column);
        }
      }
    UNROLL for (i32 n = 0; n < together; n++) {
      i32 first = (span + n * FINISH_WARPS) * OUTPUT_SPAN;
      if (first >= out_depth) break;
      f32 sums[rounds];
      UNROLL for (i32 i = 0; i < rounds; i++) {
        f32x4 v = values[n][i];
        sums[i] = add(pair_square(v.x, v.y), pair_square(v.z, v.w));
        UNROLL for (i32 mask = 1; mask < 4; mask *= 2) sums[i] = add(sums[i], shfl_xor(sums[i], mask));
      }
      f32 factors[heads];
      UNROLL for (i32 head = 0; head < heads; head++) {
        UNROLL for (i32 tile = head * TILES; tile < head * TILES + TILES; tile++) {
          f32 sum = shfl(sums[tile / 8], tile % 8 * 4);
          factors[head] = tile == head * TILES ? sum : add(factors[head], sum);
        }
        factors[head] = output_factor(factors[head], eps);
      }
      UNROLL for (i32 i = 0; i < rounds; i++) {
        i32 at = 4 * (i * WARP + lane()), column = first + at;
        f32x4 v = values[n][i], gate = z[n][i];
        f32 y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (at < OUTPUT_SPAN && column < HV * DV) {
          f32 factor = heads == 1 || at < DV ? factors[0] : factors[heads - 1];
          f32x4 w = *(const f32x4*)(norm + column % DV);
          y[0] = gated(v.x, factor, w.x, gate.x), y[1] = gated(v.y, factor, w.y, gate.y);
          y[2] = gated(v.z, factor, w.z, gate.z), y[3] = gated(v.w, factor, w.w, gate.w);
        }
        store_activations<4>(to, row, output_column(column), y, at < OUTPUT_SPAN && column < out_depth);
      }
    }
  }
  const Lane here = lanes[rows[row].lane];
  keep_row(here, here.start + row - here.row, mine, conv_state);
}
LUCE_EXPORT(deltanet_finish)

#if DV == 128 && HV * DV % 256 == 0
// The same, one head of a tile a block, as soon as the scan has made its o: blocks start while the scan runs, all of whose blocks
// have started then. So most do not wait for its end; those of the last row of the grid do, for who waits for this grid, and keep
// the rows. Grid (HV, tiles + 1) or more tiles, 256 threads.
LUCE_KERNEL_RESIDENT(deltanet_follow, 256, 3)(
    const Pass* pass, const Lane* lanes, const f32* x, i32 x_stride, const f32* o, const u32* counts, const f32* norm, f32 eps,
    f32* conv_state, u16* out, i32 out_rows, i32 out_tile, i32 out_depth) {
  constexpr i32 rows = CHUNK_ROWS / 8;   // of a warp
  const i32 head = block_x(), tile = block_y();
  pdl_launch();
  if (tile == grid_y() - 1) {
    pdl_wait();
    for (i32 i = head; i < pass->lanes * KEPT_ROWS; i += HV) {
      const Lane here = lanes[i / KEPT_ROWS];
      const i32 position = lane_end(here) - 1 - i % KEPT_ROWS;
      if (position >= here.start) keep_row(here, position, x + (i64)(here.row + position - here.start) * x_stride, conv_state);
    }
    return;
  }
  i32 in_lane = tile, index = 0;
  for (; index < pass->lanes; index++) {
    i32 count = lane_tiles(lanes[index]);
    if (in_lane < count) break;
    in_lane -= count;
  }
  if (index == pass->lanes) return;
  const Lane here = lanes[index];
  const i32 chunk = here.base + in_lane * CHUNK_ROWS, end = lane_end(here), first = chunk + warp() * rows, column = head * DV + 4 * lane();
  if (chunk + CHUNK_ROWS <= here.start) return;   // only folded
  const i64 row = here.row + first - here.start;
  f32x4 z[rows], values[rows];
  UNROLL for (i32 i = 0; i < rows; i++) {
    z[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (first + i >= here.start && first + i < end) z[i] = *(const f32x4*)(x + (row + i) * x_stride + CHANNELS + column);
  }
  const f32x4 w = *(const f32x4*)(norm + 4 * lane());
  if (thread() == 0) await_device(counts + tile * HV + head, TILES);
  sync_block();
  UNROLL for (i32 i = 0; i < rows; i++) {
    values[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (first + i >= here.start && first + i < end) values[i] = *(const f32x4*)(o + (row + i) * (HV * DV) + column);
  }
  const Activations to = {out, out_rows, out_tile, out_depth};
  UNROLL for (i32 i = 0; i < rows; i++) {
    const f32x4 v = values[i], gate = z[i];
    f32 sum = add(pair_square(v.x, v.y), pair_square(v.z, v.w));
    UNROLL for (i32 mask = 1; mask < 4; mask *= 2) sum = add(sum, shfl_xor(sum, mask));
    f32 squares = shfl(sum, 0);
    UNROLL for (i32 part = 1; part < TILES; part++) squares = add(squares, shfl(sum, 4 * part));
    const f32 factor = output_factor(squares, eps);
    const f32 y[4] = {gated(v.x, factor, w.x, gate.x), gated(v.y, factor, w.y, gate.y), gated(v.z, factor, w.z, gate.z), gated(v.w, factor, w.w, gate.w)};
    store_activations<4>(to, (i32)(row + i), output_column(column), y, first + i >= here.start && first + i < end);
  }
}
LUCE_EXPORT(deltanet_follow)
#endif
