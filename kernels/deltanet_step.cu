// Gated DeltaNet, one row of each lane (step passes): convolution, gates, recurrence, gated norm in one block per value head and
// row. A warp holds 16 columns of the state in registers, read from memory once; all that an earlier pass left is under way before
// the row itself is there.
#include "deltanet.h"

#define KEY_PITCH (DK + 8)
#define WARPS TILES
#ifndef U_PITCH
#error "define U_PITCH: floats from one row of u in shared memory to the next, 20 (fewer bank conflicts) or 16 (64 KiB are enough)"
#endif
#define VALUE_TASKS ((DV + 127) / 128)
#define TASKS (3 + VALUE_TASKS)   // of a warp: k, q, gates, 128 channels of v each

struct Shared {
  alignas(16) f32x4 taps[2 + VALUE_TASKS][4][WARP], window[2 + VALUE_TASKS][3][WARP];   // of k, q, v
  alignas(16) f32 u[TILES][CHUNK_ROWS][U_PITCH];  // rows of the chunk before this one
  alignas(16) u16 before[CHUNK_ROWS][KEY_PITCH];  // their keys and this row's; at first keys of a chunk to fold
  alignas(16) u16 keys[2][DK];                    // k, q
  alignas(16) u16 weights[2][2][CHUNK_ROWS];      // of W, P: high, low
  alignas(16) f32 v[DV], out[DV];
  f32 w[CHUNK_ROWS];                              // W
  f32 factors[CHUNK_ROWS];                        // e^(G_i - G_j)
  f32 squares[TILES];
  f32 beta, gain;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "more shared memory than the launcher gives");

// Key rows from a ring into shared memory, in the background.
DEVICE void fetch_keys(u16 (*to)[KEY_PITCH], const u16* ring, i32 rows) {
  for (i32 i = thread(); i < rows * (DK / 8); i += block_threads())
    cp_async16(&to[i / (DK / 8)][i % (DK / 8) * 8], ring + i * 8);
}

// Fold a chunk that stands in the rings, and keep the new state.
DEVICE void fold_ring(Fragment (&s)[STEPS], Shared& shared, const f32* ring, const u16* keys, const i64* decays, f32x4* state) {
  cp_async_commit();
  cp_async_wait<0>();
  sync_block();   // what was under way to the same place is there
  fetch_keys(shared.before, keys, CHUNK_ROWS);
  cp_async_commit();
  i32 g = lane() / 4, t = lane() % 4;
  i64 last = decays[CHUNK_ROWS - 1];
  Operand u[BLOCKS];
  UNROLL for (i32 block = 0; block < BLOCKS; block++) {
    Fragment rows;
    load_u(rows, ring + 16 * block * DV, 16);
    UNROLL for (i32 e = 0; e < 4; e++) {
      f32 tail = decay_factor(last - decays[16 * block + 4 * t + e]);
      rows[e / 2][e % 2] = mul(tail, rows[e / 2][e % 2]);
      rows[e / 2][2 + e % 2] = mul(tail, rows[e / 2][2 + e % 2]);
    }
    u[block] = operand(rows);
  }
  cp_async_wait<0>();
  sync_block();
  fold<1>(s, u, decay_factor(last), [&](i32 step, i32 half, i32 block) {
    const u16* k = &shared.before[16 * block + 4 * t][key_column(step, half, g)];
    return u32x2{k[0] | (u32)k[KEY_PITCH] << 16, k[2 * KEY_PITCH] | (u32)k[3 * KEY_PITCH] << 16};
  });
  store_state(state, s);
  sync_block();   // before other keys come
}

// x: rows f32 of `x_stride` (a multiple of 4): q | k | v (CHANNELS), z (HV DV); gates: rows f32 of `gates_stride`: b (HV), a (HV).
// out: activations of HV DV values a row. Where DV is no multiple of 32, o f32 [rows][HV DV] is written instead, for
// deltanet_finish. Grid (HV, rows), 2 DV threads, shared memory SHARED_BYTES.
LUCE_KERNEL_RESIDENT(deltanet_step, 2 * DV, 2)(
    const Pass* pass, const Lane* lanes, const f32* x, i32 x_stride, const f32* gates, i32 gates_stride, const f32* taps,
    const f32* neg_exp_a, const f32* dt_bias, const f32* norm, f32 eps, f32* s_state, u16* k_state, f32* u_state, i64* g_state,
    f32* conv_state, f32* o_rows, u16* out, i32 out_rows, i32 out_tile, i32 out_depth) {
  i32 head = block_x(), row = block_y(), key_head = head / RATIO, tile = warp(), g = lane() / 4, t = lane() % 4;
  pdl_launch();
  const Lane here = lanes[row];
  if (row >= pass->rows) return;
  Shared& shared = *(Shared*)shared_memory();
  i32 slot = here.slot, position = here.start, place = position % CHUNK_ROWS;
  bool folds = here.base_after > here.base, owner = head % RATIO == 0;

  // What earlier passes left.
  f32x4* state = state_at(s_state, slot, head, tile);
  Fragment s[STEPS];
  load_state(s, state, here.base == 0);
  f32* window = conv_state + (i64)slot * CONV_ROWS * CHANNELS;
  auto first_channel = [&](i32 task) {   // of the lane; negative where it has none
    i32 c = task < 2 ? key_channel(key_head, task) : value_channel(head) + (task - 2) * 128, size = task < 2 ? DK : DV - (task - 2) * 128;
    return 4 * lane() < size ? c + 4 * lane() : -1;
  };
  for (i32 task = warp(); task < 2 + VALUE_TASKS; task += WARPS) {
    i32 c = first_channel(task);
    if (c < 0) continue;
    UNROLL for (i32 i = 0; i < 4; i++) cp_async16(&shared.taps[task][i][lane()], taps + i * CHANNELS + c);
    UNROLL for (i32 i = 0; i < 3; i++) {
      i32 at = position - 3 + i;
      if (at < 0) shared.window[task][i][lane()] = {0.0f, 0.0f, 0.0f, 0.0f};
      else cp_async16(&shared.window[task][i][lane()], window + (i64)(at % CONV_ROWS) * CHANNELS + c);
    }
  }
  cp_async_commit();
  f32* ring = u_ring(u_state, slot, head) + 16 * tile;
  f32* rows = ring + (i64)ring_row(position - place) * DV;
  for (i32 i = lane(); i < 4 * place; i += WARP) cp_async16(&shared.u[tile][i / 4][i % 4 * 4], rows + i / 4 * DV + i % 4 * 4);
  u16* keys = key_ring(k_state, slot, key_head);
  i64* decays = decay_ring(g_state, slot, head);
  fetch_keys(shared.before, keys + ring_row(position - place) * DK, place);
  if (folds) {   // once in 64 steps; the keys in hand make room and come again
    fold_ring(s, shared, ring + (i64)ring_row(here.base) * DV, keys + ring_row(here.base) * DK, decays + ring_row(here.base), state);
    fetch_keys(shared.before, keys + ring_row(position - place) * DK, place);
  }
  cp_async_commit();

  [[maybe_unused]] const f32 scale = thread() < DV ? norm[thread()] : 0.0f;
  pdl_wait();
  const f32* mine = x + (i64)row * x_stride;
  [[maybe_unused]] const f32 z = thread() < DV ? mine[CHANNELS + head * DV + thread()] : 0.0f;  // for the end
  for (i32 task = warp(); task < TASKS; task += WARPS) {
    if (task == 2 + VALUE_TASKS) {   // gates, and the factors of the chunk's rows: two a lane
      i64 ours[2] = {0, 0}, chunk = place ? decays[ring_row(position - 1)] : 0;
      UNROLL for (i32 i = 0; i < 2; i++)
        if (lane() + WARP * i < place) ours[i] = decays[ring_row(position - place) + lane() + WARP * i];
      const f32* ab = gates + (i64)row * gates_stride;
      Gate found = gate(ab[HV + head], ab[head], neg_exp_a[head], dt_bias[head]);
      chunk += found.decay;
      UNROLL for (i32 i = 0; i < 2; i++) {
        i32 j = lane() + WARP * i;
        shared.factors[j] = j <= place ? decay_factor(j < place ? chunk - ours[i] : 0) : 0.0f;
      }
      if (lane() == 0) {
        decays[ring_row(position)] = chunk;
        shared.gain = decay_factor(chunk);
        shared.beta = found.beta;
      }
      continue;
    }
    i32 c = first_channel(task);
    f32x4 y = {0.0f, 0.0f, 0.0f, 0.0f};
    if (c >= 0) {
      f32x4 now = *(const f32x4*)(mine + c);
      if (owner || task >= 2) *(f32x4*)(window + (i64)(position % CONV_ROWS) * CHANNELS + c) = now;
      cp_async_wait<1>();
      f32x4 (&w)[4][WARP] = shared.taps[task], (&b)[3][WARP] = shared.window[task];
      y = convolve({b[0][lane()], b[1][lane()], b[2][lane()], now}, {w[0][lane()], w[1][lane()], w[2][lane()], w[3][lane()]});
    }
    if (task >= 2) {
      if (c >= 0) *(f32x4*)&shared.v[(task - 2) * 128 + 4 * lane()] = y;
      continue;
    }
    u32x2 unit = unit_vector(y, task);
    if (c < 0) continue;
    *(u32x2*)&shared.keys[task][4 * lane()] = unit;
    if (task) continue;
    *(u32x2*)&shared.before[place][4 * lane()] = unit;
    if (owner) *(u32x2*)(keys + (i64)ring_row(position) * DK + 4 * lane()) = unit;
  }
  cp_async_wait<0>();
  sync_block();

  // Column 0 of the products belongs to k, column 1 to q; lanes with t = 0 hold both.
  i32 last = place / 16, inside = place % 16;
  f32 far[1][4] = {};
  auto mine_keys = [&](i32 step) { return g < 2 ? *(const u32x2*)&shared.keys[g][key_place(step, t)] : u32x2{0u, 0u}; };
  auto near = [&](f32 (&c)[4], i32 part, i32 step, u32x2 k) {
    u32x2 j[2] = {};   // rows g and g + 8 of the block, as far as there are any
    UNROLL for (i32 lower = 0; lower < 2; lower++)
      if (16 * part + g + 8 * lower <= place) j[lower] = *(const u32x2*)&shared.before[16 * part + g + 8 * lower][key_place(step, t)];
    u32 a[4] = {j[0].x, j[1].x, j[0].y, j[1].y};
    product(c, a, k.x, k.y);
  };
  auto weigh = [&](const f32 (&c)[4], i32 part) {
    if (t) return;
    UNROLL for (i32 lower = 0; lower < 2; lower++) {
      i32 j = 16 * part + g + 8 * lower;
      f32 factor = shared.factors[j], w = j < place ? mul(c[2 * lower], factor) : 0.0f, p = j <= place ? mul(c[2 * lower + 1], factor) : 0.0f;
      u32 high, low;
      split_bf16(w, p, high, low);
      shared.w[j] = w;
      shared.weights[0][0][j] = (u16)high, shared.weights[1][0][j] = (u16)(high >> 16);
      shared.weights[0][1][j] = (u16)low, shared.weights[1][1][j] = (u16)(low >> 16);
    }
  };
  if (tile <= last) {
    f32 c[4] = {};
    UNROLL for (i32 step = 0; step < STEPS; step++) {
      u32x2 k[1] = {mine_keys(step)};
      near(c, tile, step, k[0]);
      far_products(far, operand(s[step]), k);
    }
    weigh(c, tile);
  } else {
    UNROLL for (i32 step = 0; step < STEPS; step++) {
      u32x2 k[1] = {mine_keys(step)};
      far_products(far, operand(s[step]), k);
    }
  }
  for (i32 part = tile + WARPS; part <= last; part += WARPS) {   // fewer warps than blocks
    f32 c[4] = {};
    UNROLL for (i32 step = 0; step < STEPS; step++) near(c, part, step, mine_keys(step));
    weigh(c, part);
  }
  sync_block();

  f32 sums[1][4] = {};
  auto load_rows = [&](Fragment& f, i32 block) {
    UNROLL for (i32 e = 0; e < 4; e++) {
      i32 j = 16 * block + 4 * t + e;
      f32x2 v = {0.0f, 0.0f};
      if (j < place) v = *(const f32x2*)&shared.u[tile][j][2 * g];
      f[e / 2][e % 2] = v.x, f[e / 2][2 + e % 2] = v.y;
    }
  };
  auto add_block = [&](const Fragment& f, i32 block) {
    u32x2 high[1] = {}, low[1] = {};
    if (g < 2) {
      high[0] = *(const u32x2*)&shared.weights[g][0][16 * block + 4 * t];
      low[0] = *(const u32x2*)&shared.weights[g][1][16 * block + 4 * t];
    }
    near_products(sums, operand(f), high, low);
  };
  Fragment f;
  for (i32 block = 0; block < last; block++) {
    load_rows(f, block);
    add_block(f, block);
  }
  load_rows(f, last);
  f32 gain = shared.gain, beta = shared.beta, mine_u[2];
  UNROLL for (i32 i = 0; i < 2; i++)
    mine_u[i] = sub(fma_(-gain, far[0][2 * i], shared.v[16 * tile + 2 * g + i]), sums[0][2 * i]);
  for (i32 j = 0; j < inside; j++) {
    f32 w = shared.w[16 * last + j];
    f32x2 other = *(const f32x2*)&shared.u[tile][16 * last + j][2 * g];
    mine_u[0] = fma_(-w, other.x, mine_u[0]);
    mine_u[1] = fma_(-w, other.y, mine_u[1]);
  }
  UNROLL for (i32 i = 0; i < 2; i++) mine_u[i] = shfl(mul(beta, mine_u[i]), lane() & ~3);
  if (t == 0) *(f32x2*)(ring + (i64)ring_row(position) * DV + 2 * g) = {mine_u[0], mine_u[1]};
  UNROLL for (i32 e = 0; e < 4; e++)
    if (4 * t + e == inside) f[e / 2][e % 2] = mine_u[0], f[e / 2][2 + e % 2] = mine_u[1];
  add_block(f, last);

  f32 o[2] = {fma_(gain, far[0][1], sums[0][1]), fma_(gain, far[0][3], sums[0][3])};
#if DV % 32
  if (t == 0) *(f32x2*)(o_rows + ((i64)row * HV + head) * DV + 16 * tile + 2 * g) = {o[0], o[1]};
#else
  f32 squares = pair_square(o[0], o[1]);
  UNROLL for (i32 mask = 4; mask < WARP; mask *= 2) squares = add(squares, shfl_xor(squares, mask));
  if (lane() == 0) shared.squares[tile] = squares;
  if (t == 0) *(f32x2*)&shared.out[16 * tile + 2 * g] = {o[0], o[1]};
  sync_block();
  if (thread() >= DV) return;   // whole warps
  f32 total = shared.squares[0];
  for (i32 i = 1; i < TILES; i++) total = add(total, shared.squares[i]);
  Activations to = {out, out_rows, out_tile, out_depth};
  f32 value[1] = {gated(shared.out[thread()], output_factor(total, eps), scale, z)};
  store_activations<1>(to, row, output_column(head * DV + thread()), value);
  value[0] = 0.0f;
  if (head == HV - 1)
    for (i32 k = HV * DV + thread(); k < out_depth; k += DV) store_activations<1>(to, row, k, value);
#endif
}
LUCE_EXPORT(deltanet_step)
