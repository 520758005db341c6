// Gated DeltaNet, one row of each lane (step passes): convolution, gates, recurrence, gated norm in one block per value head and
// row. A warp holds 16 columns of the state in registers, read from memory once.
#include "deltanet.h"

#define KEY_PITCH (DK + 8)

struct Shared {
  alignas(16) u16 keys[2][DK];             // k, q
  alignas(16) u16 weights[2][2][CHUNK_ROWS];   // of W, P: high, low
  f32 raw[2][DK];
  f32 parts[2][KEY_PARTS];
  f32 near[2][CHUNK_ROWS];
  f32 w[CHUNK_ROWS];
  f32 v[DV];
  alignas(8) f32 out[DV];
  f32 squares[TILES];
  f32 tail[CHUNK_ROWS];
  i64 decays[CHUNK_ROWS];                  // G of the chunk's rows up to this one
  f32 beta, gain;
  alignas(16) u16 before[CHUNK_ROWS][KEY_PITCH];  // keys of the chunk, this row's too
  alignas(16) u16 chunk[CHUNK_ROWS][KEY_PITCH];   // keys of the chunk to fold
};

static_assert(sizeof(Shared) <= SHARED_BYTES, "more shared memory than the launcher gives");

// Key rows from a ring into shared memory, in the background.
DEVICE void fetch_keys(u16 (*to)[KEY_PITCH], const u16* ring, i32 rows) {
  for (i32 i = thread(); i < rows * (DK / 8); i += block_threads())
    cp_async16(&to[i / (DK / 8)][i % (DK / 8) * 8], ring + i * 8);
  cp_async_commit();
}

// Fold the chunk whose rows of u are in `rows`, and keep the new state.
DEVICE void fold_ring(Fragment (&s)[STEPS], Fragment (&rows)[BLOCKS], Shared& shared, const u16* keys, const i64* decays, f32x4* at) {
  fetch_keys(shared.chunk, keys, CHUNK_ROWS);
  for (i32 j = thread(); j < CHUNK_ROWS; j += block_threads())
    shared.tail[j] = decay_factor(decays[CHUNK_ROWS - 1] - decays[j]);
  cp_async_wait<0>();
  sync_block();
  i32 g = lane() / 4, t = lane() % 4;
  Operand u[BLOCKS];
  UNROLL for (i32 block = 0; block < BLOCKS; block++) {
    UNROLL for (i32 e = 0; e < 4; e++) {
      f32 tail = shared.tail[16 * block + 4 * t + e];
      rows[block][e / 2][e % 2] = mul(tail, rows[block][e / 2][e % 2]);
      rows[block][e / 2][2 + e % 2] = mul(tail, rows[block][e / 2][2 + e % 2]);
    }
    u[block] = operand(rows[block]);
  }
  fold(s, u, decay_factor(decays[CHUNK_ROWS - 1]), [&](i32 step, i32 half, i32 block) {
    const u16* k = &shared.chunk[16 * block + 4 * t][key_column(step, half, g)];
    return u32x2{k[0] | (u32)k[KEY_PITCH] << 16, k[2 * KEY_PITCH] | (u32)k[3 * KEY_PITCH] << 16};
  });
  store_state(at, s);
}

// x: rows f32 of `x_stride`: q | k | v (CHANNELS), z (HV DV); gates: rows f32 of `gates_stride`: b (HV), a (HV).
// taps f32 [CHANNELS][4], last = current row; out: activations of HV DV values a row. Where DV is no multiple of 32, o f32
// [rows][HV DV] is written instead, for deltanet_finish. Grid (HV, rows), 2 DV threads, shared memory SHARED_BYTES.
LUCE_KERNEL_RESIDENT(deltanet_step, 2 * DV, 2)(
    const Pass* pass, const Lane* lanes, const f32* x, i32 x_stride, const f32* gates, i32 gates_stride, const f32x4* taps,
    const f32* neg_exp_a, const f32* dt_bias, const f32* norm, f32 eps, f32* s_state, u16* k_state, f32* u_state, i64* g_state,
    f32* conv_state, f32* o_rows, u16* out, i32 out_rows, i32 out_tile, i32 out_depth) {
  i32 head = block_x(), row = block_y(), key_head = head / RATIO, tile = warp(), g = lane() / 4, t = lane() % 4;
  pdl_launch();
  if (row >= pass->rows) return;
  Shared& shared = *(Shared*)shared_memory();
  const Lane here = lanes[row];
  i32 slot = here.slot, position = here.start, place = position % CHUNK_ROWS;
  bool folds = here.base_after > here.base, owner = head % RATIO == 0;
  // What earlier steps left may be read before the grid in front is over.
  i32 chunk = folds ? here.base : position - place, count = folds ? CHUNK_ROWS : place;
  f32x4* state = state_at(s_state, slot, head, tile);
  Fragment s[STEPS], u[BLOCKS];
  load_state(s, state, here.base == 0);
  f32* ring = u_ring(u_state, slot, head) + 16 * tile;
  UNROLL for (i32 block = 0; block < BLOCKS; block++)
    load_u(u[block], ring + (i64)(ring_row(chunk) + 16 * block) * DV, count - 16 * block);
  u16* keys = key_ring(k_state, slot, key_head);
  i64* decays = decay_ring(g_state, slot, head);
  fetch_keys(shared.before, keys + ring_row(position - place) * DK, place);
  if (folds) {
    fold_ring(s, u, shared, keys + ring_row(chunk) * DK, decays + ring_row(chunk), state);
    UNROLL for (i32 block = 0; block < BLOCKS; block++)
      load_u(u[block], ring + (i64)(ring_row(position - place) + 16 * block) * DV, place - 16 * block);
  }

  pdl_wait();
  // Convolution: squares of 32 channels of k or q a warp, then v; gates by the last warp.
  const f32* mine = x + (i64)row * x_stride;
  f32* window = conv_state + (i64)slot * CONV_ROWS * CHANNELS;
  auto channel = [&](i32 c, bool keep) {
    f32 before[3], now = mine[c];
    UNROLL for (i32 i = 0; i < 3; i++) {
      i32 at = position - 3 + i;
      before[i] = at < 0 ? 0.0f : window[(i64)(at % CONV_ROWS) * CHANNELS + c];
    }
    if (keep) window[(i64)(position % CONV_ROWS) * CHANNELS + c] = now;
    return convolve(before[0], before[1], before[2], now, taps[c]);
  };
  i32 warps = block_threads() / WARP;
  for (i32 part = warp(); part < 2 * KEY_PARTS; part += warps) {
    i32 which = part / KEY_PARTS, c = part % KEY_PARTS * WARP + lane();
    f32 y = c < DK ? channel((which ? 0 : HK * DK) + key_head * DK + c, owner) : 0.0f;
    if (c < DK) shared.raw[which][c] = y;
    f32 squares = warp_sum(mul(y, y));
    if (lane() == 0) shared.parts[which][part % KEY_PARTS] = squares;
  }
  for (i32 c = thread(); c < DV; c += block_threads()) shared.v[c] = channel(2 * HK * DK + head * DV + c, true);
  if (thread() == block_threads() - 1) {
    const f32* ab = gates + (i64)row * gates_stride;
    Gate found = gate(ab[HV + head], ab[head], neg_exp_a[head], dt_bias[head]);
    i64 before = place ? decays[ring_row(position - 1)] : 0;
    decays[ring_row(position)] = before + found.decay;
    shared.decays[place] = before + found.decay;
    shared.gain = decay_factor(before + found.decay);
    shared.beta = found.beta;
  }
  for (i32 j = thread(); j < place; j += block_threads()) shared.decays[j] = decays[ring_row(position - place) + j];
  sync_block();
  for (i32 i = thread(); i < 2 * DK; i += block_threads()) {
    i32 which = i / DK, c = i % DK;
    f32 squares = shared.parts[which][0];
    for (i32 part = 1; part < KEY_PARTS; part++) squares = add(squares, shared.parts[which][part]);
    f32 y = mul(shared.raw[which][c], unit_factor(squares));
    u16 rounded = f32_to_bf16(which ? mul(y, query_scale()) : y);
    shared.keys[which][c] = rounded;
    if (!which) shared.before[place][c] = rounded;
    if (!which && owner) keys[(i64)ring_row(position) * DK + c] = rounded;
  }
  cp_async_wait<0>();
  sync_block();

  // Column 0 of the products belongs to k, column 1 to q; lanes with t = 0 hold both.
  u32x2 mine_keys[STEPS];
  f32 far[4] = {};
  UNROLL for (i32 step = 0; step < STEPS; step++) {
    mine_keys[step] = {0u, 0u};
    if (g < 2) mine_keys[step] = *(const u32x2*)&shared.keys[g][key_place(step, t)];
  }
  for (i32 part = warp(); part <= place / 16; part += warps) {
    f32 c[4] = {};
    UNROLL for (i32 step = 0; step < STEPS; step++) {
      u32x2 rows[2] = {};   // g and g + 8 of the block, as far as there are any
      UNROLL for (i32 lower = 0; lower < 2; lower++) {
        i32 j = 16 * part + g + 8 * lower;
        if (j <= place) rows[lower] = *(const u32x2*)&shared.before[j][key_place(step, t)];
      }
      u32 a[4] = {rows[0].x, rows[1].x, rows[0].y, rows[1].y};
      product(c, a, mine_keys[step].x, mine_keys[step].y);
    }
    if (t == 0) {
      i32 j = 16 * part + g;
      shared.near[0][j] = c[0], shared.near[1][j] = c[1], shared.near[0][j + 8] = c[2], shared.near[1][j + 8] = c[3];
    }
  }
  UNROLL for (i32 step = 0; step < STEPS; step++) far_product(far, operand(s[step]), mine_keys[step].x, mine_keys[step].y);
  sync_block();
  for (i32 j = thread(); j < CHUNK_ROWS; j += block_threads()) {
    f32 weight[2] = {0.0f, 0.0f};
    if (j <= place) {
      f32 factor = decay_factor(shared.decays[place] - shared.decays[j]);
      weight[0] = j < place ? mul(shared.near[0][j], factor) : 0.0f;
      weight[1] = mul(shared.near[1][j], factor);
    }
    shared.w[j] = weight[0];
    UNROLL for (i32 which = 0; which < 2; which++) {
      u32 high, low;
      split_bf16(weight[which], 0.0f, high, low);
      shared.weights[which][0][j] = (u16)high, shared.weights[which][1][j] = (u16)low;
    }
  }
  sync_block();

  i32 last = place / 16, inside = place % 16;
  f32 sums[4] = {};
  Fragment rows = {};
  auto weights = [&](i32 low, i32 block) {
    u32x2 found = {0u, 0u};
    if (g < 2) found = *(const u32x2*)&shared.weights[g][low][16 * block + 4 * t];
    return found;
  };
  UNROLL for (i32 block = 0; block < BLOCKS; block++) {
    if (block < last) near_product(sums, operand(u[block]), weights(0, block), weights(1, block));
    if (block == last) UNROLL for (i32 i = 0; i < 8; i++) rows[i / 4][i % 4] = u[block][i / 4][i % 4];
  }
  f32 gain = shared.gain, beta = shared.beta, mine_u[2];
  UNROLL for (i32 i = 0; i < 2; i++)
    mine_u[i] = sub(fma_(-gain, far[2 * i], shared.v[16 * tile + 2 * g + i]), sums[2 * i]);
  UNROLL for (i32 j = 0; j < 15; j++) {
    f32 w = shared.w[16 * last + j];
    UNROLL for (i32 i = 0; i < 2; i++) {
      f32 other = shfl(rows[j % 4 / 2][2 * i + j % 2], (lane() & ~3) | j / 4);
      if (j < inside) mine_u[i] = fma_(-w, other, mine_u[i]);
    }
  }
  UNROLL for (i32 i = 0; i < 2; i++) mine_u[i] = shfl(mul(beta, mine_u[i]), lane() & ~3);
  if (t == 0) *(f32x2*)(ring + (i64)ring_row(position) * DV + 2 * g) = {mine_u[0], mine_u[1]};
  UNROLL for (i32 e = 0; e < 4; e++)
    if (4 * t + e == inside) rows[e / 2][e % 2] = mine_u[0], rows[e / 2][2 + e % 2] = mine_u[1];
  near_product(sums, operand(rows), weights(0, last), weights(1, last));

  f32 o[2] = {fma_(gain, far[1], sums[1]), fma_(gain, far[3], sums[3])};
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
  f32 z = mine[CHANNELS + head * DV + thread()], value[1] = {gated(shared.out[thread()], output_factor(total, eps), norm[thread()], z)};
  store_activations<1>(to, row, head * DV + thread(), value);
  value[0] = 0.0f;
  if (head == HV - 1)
    for (i32 k = HV * DV + thread(); k < out_depth; k += DV) store_activations<1>(to, row, k, value);
#endif
}
LUCE_EXPORT(deltanet_step)
