// Attention of passes with lanes of any length, by warpgroup products (sm_90a): the same bits as attention_prefill.cu, faster.
// The tree is in attention.h. Macros: HEADS, KV_HEADS, HEAD_DIM (128 or 256).
//
// Computing warpgroup h makes the scores of block h of a tile and sums half h of the dims. While a tile's probabilities are
// made, the products with the values of the tile before run.
#include "attention_prefill.h"
#include "wgmma_shared.h"

#define THREADS (CONSUMER_THREADS + 128)
#define ROOM ((SHARED_LIMIT - 1024 - QUERY_BYTES - 2 * PROBABILITY_BYTES) / TILE_BYTES)
#define STAGES (ROOM < 10 ? ROOM : 10)
#define HALF_DIMS (HEAD_DIM / 2)
#if HEAD_DIM != 128 && HEAD_DIM != 256
#error "attention_prefill_wgmma.cu: HEAD_DIM is 128 or 256"
#endif
struct Ring { u8* at; u64* full; u64* empty; };

// Order in the ring: keys of tiles 0 and 1, values of 0, keys of 2, values of 1, ... Every tile but the last has two blocks.
DEVICE i32 keys_turn(i32 tile) { return tile == 0 ? 0 : 4 * tile - 2; }
DEVICE i32 blocks_of(i32 tile, i32 end) { return end - tile * TILE_KEYS > BLOCK_ROWS ? 2 : 1; }
DEVICE i32 values_turn(i32 tile, i32 end) {
  bool last = (tile + 1) * TILE_KEYS >= end;
  return 4 * tile + (last ? blocks_of(tile, end) : 2 + blocks_of(tile + 1, end));
}

// By one warp.
DEVICE void fill_ring(const Rows& rows, const u8* keys, const u8* values, i32 blocks, const Ring& ring) {
  i32 turn = 0, all = ceil_div(rows.end, BLOCK_ROWS);
  bool waited = false;
  auto push = [&](const u8* pool, i32 id, i32 block) {
    i32 stage = turn % STAGES;
    u32 round = (u32)(turn / STAGES), bytes = (u32)(ceil_div(min_(rows.end - block * BLOCK_ROWS, BLOCK_ROWS), 8) * GROUP_BYTES);
    turn++;
    // Keys from the lane's start on come from this pass; what earlier passes wrote may be read before it.
    if ((block + 1) * BLOCK_ROWS > rows.place.start && !waited) {
      pdl_wait();
      waited = true;
    }
    if (lane() == 0) {
      bar_wait(ring.empty + stage, (round & 1u) ^ 1u);
      bar_expect(ring.full + stage, bytes);
      bulk_load(ring.at + stage * TILE_BYTES, pool + tile_at(id, rows.kv_head), bytes, ring.full + stage);
    }
  };
  i32 tiles = ceil_div(rows.end, TILE_KEYS), ids[2] = {};
  for (i32 tile = 0; tile <= tiles; tile++) {
    // Keys of the tile, then values of the one before.
    UNROLL for (i32 part = 0; part < 2; part++) {
      i32 of = tile - part;
      if (of < 0 || of == tiles) continue;
      i32 first = 2 * of;
      if (first % 32 == 0 && first + lane() < all) ids[part] = block_in_pool(rows.table[first + lane()], blocks);
      for (i32 block = first; block < min_(first + 2, all); block++) push(part ? values : keys, shfl(ids[part], block % 32), block);
    }
  }
}

// Values of a block behind its first `count` keys become zeros.
DEVICE void clear_values(u8* block, i32 count) {
  i32 first = count / 8;
  for (i32 i = thread(); i < (8 - first) * HEAD_DIM; i += CONSUMER_THREADS) {
    u32x4* at = (u32x4*)(block + first * GROUP_BYTES + i * 16);
    i32 left = count - (first + i / HEAD_DIM) * 8;
    u32x4 v = left > 0 ? *at : u32x4{0, 0, 0, 0};
    *at = {v.x & pair_mask(0, left), v.y & pair_mask(2, left), v.z & pair_mask(4, left), v.w & pair_mask(6, left)};
  }
}

// The probabilities of a tile whose scores `s` are there, of keys of block h; halfway, `meanwhile`. Returns whether the tile starts a
// split. `pair`: barrier of the two warps with the same queries.
template <class Meanwhile>
DEVICE bool weigh(const Rows& rows, Softmax& softmax, f32 (&s)[32], i32 tile, i32 h, i32 pair, f32* maxima, u8* probabilities,
                  const Meanwhile& meanwhile) {
  i32 key = tile * TILE_KEYS;
  bool starts_split = tile > 0 && tile % SPLIT_TILES == 0;
  f32 tops[2];
  if (key + TILE_KEYS > rows.first + 1) softmax_hide(softmax, s, key + h * BLOCK_ROWS);
  softmax_tops(s, maxima, tops);
  meet(pair, 64);
  if (starts_split) softmax_end_split(softmax);
  softmax_tile(softmax, 0, s, tops, maxima);
  meanwhile();
  softmax_tile(softmax, 1, s, tops, maxima);
  store_probabilities(s, probabilities + tile % 2 * PROBABILITY_BYTES);
  return starts_split;
}

// Arguments and grid as attention_prefill's; threads and shared bytes: attention_prefill_wgmma_shape.
LUCE_KERNEL(attention_prefill_wgmma, THREADS)(
    const u16* q, const u16* keys, const u16* values, const Pass* pass, const Row* pass_rows, const Lane* lanes,
    const Tile* tiles, const i32* tables, i32 blocks, const f32* x, i32 stride, u16* y, i32 y_rows, i32 y_tile,
    i32 y_depth) {
  u8* queries = shared_memory();
  u8* probabilities = queries + QUERY_BYTES;  // two buffers
  u8* ring_at = probabilities + 2 * PROBABILITY_BYTES;
  f32* maxima = (f32*)(ring_at + STAGES * TILE_BYTES);
  u64* bars = (u64*)((u8*)maxima + MAXIMA_BYTES);
  Ring ring = {ring_at, bars, bars + STAGES};
  u32* bad = (u32*)(bars + 2 * STAGES);
  pdl_launch();
  i32 index = pass->tiles - 1 - block_y();  // long ones first
  if (index < 0) return;
  Rows rows = block_rows(tiles[index], lanes, tables, block_x() * TILE_HEADS);
  if (thread() == 0) {
    *bad = 0;
    for (i32 i = 0; i < STAGES; i++) {
      bar_init(ring.full + i, 1);
      bar_init(ring.empty + i, CONSUMERS);
    }
    bar_init_fence();
  }
  sync_block();
  if (warp() >= CONSUMERS) {
    registers_shrink<40>();
    if (warp() == CONSUMERS) fill_ring(rows, (const u8*)keys, (const u8*)values, blocks, ring);
    return;
  }
  registers_grow<232>();
  check_rows(rows, pass_rows, blocks, bad);
  pdl_wait();
  load_queries(rows, q, queries);
  proxy_fence();
  meet(5, CONSUMER_THREADS);

  const i32 h = shfl(warp() / 4, 0), pair = 1 + warp() % 4, all = shfl(ceil_div(rows.end, TILE_KEYS), 0);
  const TileDesc query_desc = tile_desc<CORE_BYTES, GROUP_BYTES>(queries);
  const TileDesc probability_desc = tile_desc<CORE_BYTES, TILE_KEYS / 8 * CORE_BYTES>(probabilities);
  Softmax softmax = softmax_start(rows);
  f32 o[DIM_GROUPS * 4] = {}, total[DIM_GROUPS * 4] = {}, s[32] = {};
  auto place = [&](i32 turn) { return ring.at + turn % STAGES * TILE_BYTES; };
  auto wait_full = [&](i32 turn) { bar_wait(ring.full + turn % STAGES, (u32)(turn / STAGES) & 1u); };
  auto release = [&](i32 turn, i32 count) {
    sync_warp();
    if (lane() == 0) {
      for (i32 i = 0; i < count; i++) bar_arrive(ring.empty + (turn + i) % STAGES);
    }
  };
  // Starts the scores of a tile. Where there is no second block, they are some numbers, which are hidden.
  auto score = [&](f32 (&to)[32], i32 tile) {
    if (h < blocks_of(tile, rows.end)) wait_full(keys_turn(tile) + h);
    TileDesc key_desc = tile_desc<CORE_BYTES, GROUP_BYTES>(place(keys_turn(tile) + h));
    wgmma_hold(to);
    wgmma_fence();
    UNROLL for (i32 step = 0; step < STEPS; step++) {
      wgmma_shared<64>(to, tile_step(query_desc, step * 2 * CORE_BYTES), tile_step(key_desc, step * 2 * CORE_BYTES), step > 0);
    }
    wgmma_commit();
  };
  auto sum_values = [&](i32 tile, i32 turn) {
    TileDesc a = tile_step(probability_desc, (u32)(tile % 2) * PROBABILITY_BYTES);
    TileDesc value_desc[2];
    UNROLL for (i32 block = 0; block < 2; block++) {
      value_desc[block] = tile_step(tile_desc<GROUP_BYTES, CORE_BYTES>(place(turn + block)), (u32)h * DIM_GROUPS * CORE_BYTES);
    }
    wgmma_hold(o);
    wgmma_fence();
    UNROLL for (i32 step = 0; step < TILE_KEYS / 16; step++) {
      wgmma_shared<HALF_DIMS>(o, tile_step(a, step * 2 * CORE_BYTES), tile_step(value_desc[step / 4], step % 4 * 2 * GROUP_BYTES), 1);
    }
    wgmma_commit();
  };
  score(s, 0);
  wgmma_wait<0>();
  wgmma_hold(s);
  release(keys_turn(0), blocks_of(0, rows.end));
  weigh(rows, softmax, s, 0, h, pair, maxima, probabilities, [] {});
  NO_UNROLL for (i32 tile = 0; tile + 1 < all; tile++) {
    i32 turn = values_turn(tile, rows.end);
    proxy_fence();
    meet(5, CONSUMER_THREADS);
    score(s, tile + 1);
    wait_full(turn);
    wait_full(turn + 1);
    sum_values(tile, turn);
    wgmma_wait<1>();
    wgmma_hold(s);
    release(keys_turn(tile + 1), blocks_of(tile + 1, rows.end));
    bool starts_split = weigh(rows, softmax, s, tile + 1, h, pair, maxima, probabilities, [&] {
      wgmma_wait<0>();
      wgmma_hold(o);
      release(turn, 2);
    });
    if (starts_split) {
      merge_split(softmax, o, total);
    } else {
      rescale_split(softmax, o);
    }
  }
  i32 held = blocks_of(all - 1, rows.end), turn = values_turn(all - 1, rows.end);
  for (i32 block = 0; block < held; block++) wait_full(turn + block);
  // What stands where values are missing must be numbers.
  if (rows.end % BLOCK_ROWS) clear_values(place(turn + held - 1), rows.end % BLOCK_ROWS);
  if (held == 1) clear_values(place(turn + 1), 0);
  proxy_fence();
  meet(5, CONSUMER_THREADS);
  sum_values(all - 1, turn);
  wgmma_wait<0>();
  wgmma_hold(o);
  softmax_end_split(softmax);
  merge_split(softmax, o, total);
  Activations out = {y, y_rows, y_tile, y_depth};
  meet(5, CONSUMER_THREADS);
  finish_rows(rows, softmax, total, maxima, (f32*)queries, *bad, x, stride, out);
}
LUCE_EXPORT(attention_prefill_wgmma)

// Threads and shared bytes of attention_prefill_wgmma, tokens of a Tile, heads of a block.
LUCE_KERNEL(attention_prefill_wgmma_shape, 32)(i32* found) {
  if (thread() == 0) {
    found[0] = THREADS;
    found[1] = QUERY_BYTES + 2 * PROBABILITY_BYTES + STAGES * TILE_BYTES + MAXIMA_BYTES + 16 * STAGES + 16;
    found[2] = QUERY_TILE;
    found[3] = TILE_HEADS;
  }
}
LUCE_EXPORT(attention_prefill_wgmma_shape)
