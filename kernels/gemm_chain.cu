// Weight products for few rows, one after another, in one grid whose CTAs all run at once: what the next product reads waits for
// every CTA's part of the one before (a count in device memory), but its weights do not. They are on their way through the rings while
// sums meet and activations are fetched, so that no product's start or end leaves the memory idle.
//
// The work is dealt out as in gemm_cluster.cu: a cluster takes whole row-blocks over a slice of K, its CTAs share that in chunks of 1,024, a unit
// is a chunk of a row-block, MERGERS warps add up. Warps number a CTA's units, and mergers their row-blocks' turns, through all
// operations, so that rings, places of partial sums and their barriers go on from one to the next. One more warp makes a small float32
// product of the activations (the gates of the DeltaNet) while the others multiply.
//
// None of that touches the tree: which warp, CTA or slice a unit falls to changes no bit.
#include "gemm_epilogue.h"
#include "matvec.h"

#ifndef WARPS
#error "WARPS: of a CTA, that multiply"
#endif
#ifndef MERGERS
#define MERGERS 1           // warps that add up
#endif
#ifndef GATES
#define GATES 0             // small products' rows of a cluster, at most, for which there is a warp then
#endif
#define ALL_WARPS (WARPS + MERGERS + (GATES > 0))
#define GATE_ROWS (ROWS < 8 ? ROWS : 8)
#ifndef STAGES
#error "STAGES: of a warp's ring"
#endif
#ifndef SLOTS
#error "SLOTS: row-blocks whose partial sums can be on the way to a CTA"
#endif
#ifndef OPERATIONS
#error "OPERATIONS: 3 or 4"
#endif
#define SOURCE_SUMMED 0     // x: activations with sums of 32, if the format has minima
#define SOURCE_BARE 1       // x: activations without those
#define SOURCE_NORM 2       // x: f32 rows whose RMS norm is multiplied
#define SOURCE_ROWS 3       // the same, which one CTA a row makes for all
#ifndef NORM
#define NORM 0              // pieces of 256 values a warp whose norm it makes
#endif

#if HAS_BULK
#include "gemm_norm.h"
#include "gemm_ring.h"
#include "gemm_units.h"
#define OWN_SUMS 1
#include "gemm_sums.h"

struct Operation {
  const u8 *w, *x;
  u8* y;
  const f32 *scale, *gates;
  f32* gates_y;
  i32 row_blocks, records, n, stride, slice, epilogue, source, gate_rows, gate_stride;
  // this CTA's part
  i32 from_chunk, chunks, all_chunks, first_chunk, width, first_block, blocks;
  u32 divisor;
  i32 units_end, turns_end;  // behind those of this and the operations before
};

static_assert(sizeof(Operation) == 128, "luce/compute/gemm_chain.py reckons with it");

// An operation as the launch says it. w, x, y: by source and epilogue. n: rows of W of which something is written; stride: floats of a
// row of y, or the depth of the activations that SWIGLU writes. slice: chunks of a cluster. gates f32 [gate_rows][records 256].
#define OPERATION(i)                                                                                                                \
  const u8 *w##i, const u8 *x##i, u8 *y##i, const f32 *scale##i, const f32 *gates##i, f32 *gates_y##i, i32 row_blocks##i, i32 records##i, \
      i32 n##i, i32 stride##i, i32 slice##i, i32 epilogue##i, i32 source##i, i32 gate_rows##i, i32 gate_stride##i
#define TAKE(i)                                                                                                                       \
  if (thread() == i)                                                                                                                  \
    ops[i] = {w##i, x##i, y##i, scale##i, gates##i, gates_y##i, row_blocks##i, records##i, n##i, stride##i, slice##i, epilogue##i, source##i, \
              gate_rows##i, gate_stride##i, 0, 0, 0, 0, 0, 0, 0, 0u, 0, 0};

#if OPERATIONS == 3
#define ALL_OPERATIONS OPERATION(0), OPERATION(1), OPERATION(2)
#define TAKE_ALL TAKE(0) TAKE(1) TAKE(2)
#else
#define ALL_OPERATIONS OPERATION(0), OPERATION(1), OPERATION(2), OPERATION(3)
#define TAKE_ALL TAKE(0) TAKE(1) TAKE(2) TAKE(3)
#endif

#define COPY_STEP (ALL_WARPS * WARP * 16)
// Copies `bytes`, a multiple of 16, by all threads, each with so many copies under way: loads before the first store, since the compiler, which
// does not know where they go, keeps them in order.
template <i32 COPIES> DEVICE void copy_in(u8* to, const u8* from, i32 bytes) {
  NO_UNROLL
  for (i32 at = thread() * 16; at < bytes; at += COPIES * COPY_STEP) {
    u32x4 some[COPIES] = {};
    UNROLL
    for (i32 i = 0; i < COPIES; i++)
      if (at + i * COPY_STEP < bytes) some[i] = *(const u32x4*)(from + at + i * COPY_STEP);
    UNROLL
    for (i32 i = 0; i < COPIES; i++)
      if (at + i * COPY_STEP < bytes) *(u32x4*)(to + at + i * COPY_STEP) = some[i];
  }
}

// counts: twice OPERATIONS, then one for each row-block of a sliced operation, zero before and after; parts: scratch for slices. Of the first
// `rows` rows of x something is written. normed: room for the activations of SOURCE_ROWS. x_bytes: of activations in shared memory; gate_bytes: of a CTA's chunks of a row of the
// gates, which the last operation alone may have; slices: the most chunks of one; hidden: width of a norm.
LUCE_KERNEL_CLUSTER(gemm_chain, ALL_WARPS * WARP, 1, CLUSTER)
(u32* counts, f32* parts, u8* normed, i32 rows, i32 x_bytes, i32 gate_bytes, i32 slices, i32 hidden, f32 eps, ALL_OPERATIONS) {
  const i32 lane = ::lane(), warp = ::warp(), rank = cluster_rank();

  // shared memory, behind the table of values, the same in every CTA of a cluster
  u8* memory = shared_memory() + TABLE_BYTES;
  u8* xs = memory + WARPS * STAGES * STAGE_BYTES;
  u8* sums = xs + x_bytes;
  [[maybe_unused]] u8* gate = sums + (MINIMA ? x_bytes / 16 : 0);  // of a row of the small product's weights, this CTA's chunks
  [[maybe_unused]] f32* gate_parts = (f32*)(gate + gate_bytes);    // sums of chunks [row of the cluster][chunk 8][ROWS]
  f32* partials = gate_parts + GATES * 8 * ROWS;
  f32* room = partials + SLOTS * slices * PARTIAL;
  Operation* ops = (Operation*)(room + (NORM ? 32 * ROWS : 0));
  u64 *bars = (u64*)(ops + OPERATIONS), *arrivals = bars + WARPS * STAGES;  // of partial sums at a slot
  u64* go = arrivals + SLOTS;                                 // the operation before is written
  [[maybe_unused]] u64 *gate_bar = go + 1, *gate_arrivals = go + 2;
  u32* merged = (u32*)(go + 3);                               // turns of [home][slot] that are over
  shared_ends(merged + CLUSTER * SLOTS);

  TAKE_ALL
  if (thread() < OPERATIONS) {
    Operation& op = ops[thread()];
    const i32 all = grid_x() / CLUSTER;
    i32 place = block_x() / CLUSTER;
    if (thread() & 1) place = all - 1 - place;  // who has a row-block more has none more in the next
    op.all_chunks = ceil_div(op.records, 4);
    const Slice k = slice_of(op.slice, op.all_chunks, place, all);
    const i32 chunks = k.chunks;
    op.from_chunk = k.from, op.chunks = chunks;
    op.first_block = (i32)((u32)(op.row_blocks * k.nth) / (u32)k.of);
    op.blocks = (i32)((u32)(op.row_blocks * (k.nth + 1)) / (u32)k.of) - op.first_block;
    op.first_chunk = split_at(rank, 0, chunks), op.width = split_at(rank + 1, CLUSTER - 1, chunks) - op.first_chunk;
    op.divisor = divisor_of(chunks);
    op.units_end = units_in(op.blocks, chunks, rank), op.turns_end = ceil_div(op.blocks, CLUSTER);
  }
  sync_block();
  if (thread() == 0) {
    NO_UNROLL
    for (i32 o = 1; o < OPERATIONS; o++) ops[o].units_end += ops[o - 1].units_end, ops[o].turns_end += ops[o - 1].turns_end;
  }
  sync_block();
  const i32 all_turns = ops[OPERATIONS - 1].turns_end;

  auto records_of = [&](const Operation& op, i32 chunk) { return min_(4, op.records - (op.from_chunk + chunk) * 4); };

  Ring ring = {memory + warp * (STAGES * STAGE_BYTES), bars + warp * STAGES, STAGES};
  i32 load_unit = warp, load_op = 0;
  auto next_load = [&] {
    if (load_op == OPERATIONS) return;
    while (load_unit >= ops[load_op].units_end)
      if (++load_op == OPERATIONS) return;
    const Operation& op = ops[load_op];
    i32 nth, chunk;
    unit_at(load_unit - (load_op ? ops[load_op - 1].units_end : 0), op.chunks, op.divisor, rank, nth, chunk);
    ring.from = op.w + ((i64)(op.first_block + nth) * op.records + (op.from_chunk + chunk) * 4) * RECORD_BYTES;
    ring.left = records_of(op, chunk) * PIECES;
    load_unit += WARPS;
  };
  // Turn `turn` (of all operations) at this CTA: the place of its partial sums waits for so many bytes, or for none where a cluster's last
  // turn has fewer row-blocks than CTAs.
  auto expect = [&](i32 turn) {
    if (turn >= all_turns) return;
    i32 o = 0;
    while (turn >= ops[o].turns_end) o++;
    const i32 nth = rank + (turn - (o ? ops[o - 1].turns_end : 0)) * CLUSTER;
    bar_expect(arrivals + turn % SLOTS, nth < ops[o].blocks ? (u32)(ops[o].chunks * PARTIAL * 4) : 0u);
  };
  if (warp < WARPS && lane == 0) fill_ring(ring, next_load);
  if (warp == WARPS && lane == 0) {
    bar_init(go, 1);
    NO_UNROLL
    for (i32 i = 0; i < SLOTS; i++) {
      bar_init(arrivals + i, 1);
      expect(i);
    }
    NO_UNROLL
    for (i32 i = 0; i < CLUSTER * SLOTS; i++) merged[i] = 0;
    bar_init_fence();
  }
#if GATES
  // A row of the small product is a cluster's, its chunks are dealt to the CTAs, which hold them; their sums meet in the first CTA.
  const Operation& last = ops[OPERATIONS - 1];
  const i32 clusters = grid_x() / CLUSTER, gate_from = split_at(rank, 0, last.all_chunks), gate_to = split_at(rank + 1, 0, last.all_chunks);
  auto load_gate = [&](i32 out) {  // lane 0
    if (out >= last.gate_rows || gate_from == gate_to) return;
    const i32 depth = last.records * RECORD_DEPTH, k = gate_from * CHUNK_DEPTH, bytes = (min_(depth, gate_to * CHUNK_DEPTH) - k) * 4;
    bar_expect(gate_bar, (u32)bytes);
    bulk_load(gate, last.gates + (i64)out * depth + k, (u32)bytes, gate_bar);
  };
  if (warp == WARPS + MERGERS && lane == 0) {
    i32 count = 0;
    for (i32 out = block_x() / CLUSTER; out < last.gate_rows; out += clusters) count++;
    bar_init(gate_bar, 1);
    bar_init(gate_arrivals, 1);
    bar_expect(gate_arrivals, (u32)(count * last.all_chunks * ROWS * 4));
    bar_init_fence();
    load_gate(block_x() / CLUSTER);
  }
#endif
#if TABLE
  make_table();
#endif
  sync_block();
#if CLUSTER > 1
  cluster_arrive();
  cluster_wait();
#endif

  Values values = {};
  i32 unit = warp, turn = warp - WARPS;
  u32 go_phase = 0;
  NO_UNROLL
  for (i32 o = 0; o < OPERATIONS; o++) {
    const Operation& op = ops[o];
    [[maybe_unused]] const i32 depth = op.records * RECORD_DEPTH;
    const i32 first_unit = o ? ops[o - 1].units_end : 0;
    auto await_all = [&](const u32* count, u32 arrivals) {
      if (warp == WARPS && lane == 0) {
        grid_wait(count, arrivals);
        bar_arrive(go);
      }
      bar_wait(go, go_phase);
      go_phase ^= 1;
    };
    auto before = [&] {  // what this operation reads is there
      if (o == 0) {
        pdl_wait();
        return;
      }
      await_all(counts + o, (u32)(grid_x() * (ALL_WARPS - WARPS)));
      if (SHOW_ORDERS) sync_block();  // who multiplied has read the activations: by way of its sums, and of device memory
    };
    // With which chunk the activations in shared memory begin. Those of a norm are all kept: each CTA makes it of all anyway.
    const i32 xs_first = op.source == SOURCE_NORM ? 0 : op.from_chunk + op.first_chunk;
    const i32 held = op.source == SOURCE_NORM ? op.records : min_(op.width * 4, op.records - xs_first * 4);
#if NORM
    if (op.source == SOURCE_NORM)
      norm_activations(before, (const f32*)op.x, op.scale, eps, hidden, rows, op.records, xs_first * 4, held,
                       {(u16*)xs, ROWS, 0, x_bytes / (2 * ROWS)}, 0, room);
#endif
    const u8* from = op.x;
    if (op.source == SOURCE_ROWS) {
      from = normed;
      before();
#if NORM
      NO_UNROLL
      for (i32 row = block_x(); row < rows; row += grid_x())
        norm_activations([] {}, (const f32*)op.x + (i64)row * hidden, op.scale, eps, hidden, 1, op.records, 0, op.records,
                         {(u16*)normed, ROWS, 0, depth}, row, room);
#endif
      if (thread() == 0 && block_x() < rows) grid_arrive(counts + OPERATIONS + o);
      await_all(counts + OPERATIONS + o, (u32)min_(rows, grid_x()));
    }
    if (op.source != SOURCE_NORM) {
      if (op.source != SOURCE_ROWS) before();
      const i32 bytes = held * (RECORD_DEPTH * ROWS * 2);
#if MINIMA
      // The first sums before the activations, so that their way is part of those'.
      const u8* its_sums = from + (i64)depth * ROWS * 2 + (i64)xs_first * (CHUNK_DEPTH * ROWS / 8);
      const i32 sums_bytes = op.source == SOURCE_BARE ? 0 : bytes / 16, all_threads = COPY_STEP;
      u32x4 some = {};
      if (thread() * 16 < sums_bytes) some = *(const u32x4*)(its_sums + thread() * 16);
#endif
      copy_in<ROWS <= 2 ? 4 : 8>(xs, from + (i64)xs_first * (CHUNK_DEPTH * ROWS * 2), bytes);
#if MINIMA
      if (thread() * 16 < sums_bytes) *(u32x4*)(sums + thread() * 16) = some;
      if (all_threads < sums_bytes) copy_in<1>(sums + all_threads, its_sums + all_threads, sums_bytes - all_threads);
      if (op.source == SOURCE_BARE) {
        sync_block();
        make_sums(xs, (u16*)sums, held);
      }
#endif
      sync_block();
    }
    if (o == OPERATIONS - 1) pdl_launch();

    if (warp < WARPS) {
      const u8* my_x = xs + lane_activations(lane) + (op.from_chunk - xs_first) * (CHUNK_DEPTH * ROWS * 2);
      const u8* my_sums = sums + lane_sums(lane) + (op.from_chunk - xs_first) * (CHUNK_DEPTH * ROWS / 8);
      const i32 first_turn = o ? ops[o - 1].turns_end : 0, end = op.units_end;
      NO_UNROLL
      for (; unit < end; unit += WARPS) {
        i32 nth, chunk;
        unit_at(unit - first_unit, op.chunks, op.divisor, rank, nth, chunk);
        Tile p[1];
        multiply_unit(p, ring, records_of(op, chunk) * PIECES, my_x + chunk * (CHUNK_DEPTH * ROWS * 2),
                      my_sums + chunk * (CHUNK_DEPTH * ROWS / 8), values, lane, next_load);
        // To the row-block's home, once the turn whose place it takes is over.
        const i32 home = nth % CLUSTER, its = first_turn + nth / CLUSTER, slot = its % SLOTS;
        await_cluster(merged + home * SLOTS + slot, (u32)(its / SLOTS));
        ClusterStores stores;
        stores.open(arrivals + slot, home);
        put_partial(stores, partials + (slot * slices + chunk) * PARTIAL, p[0], lane);
      }
    } else if (warp < WARPS + MERGERS) {
      const i32 first_turn = o ? ops[o - 1].turns_end : 0;
      NO_UNROLL
      for (; turn < op.turns_end; turn += MERGERS) {
        const i32 nth = rank + (turn - first_turn) * CLUSTER, block = op.first_block + nth, slot = turn % SLOTS;
        const u32 turns = (u32)(turn / SLOTS);  // of this slot
        f32 old[MERGED], t[MERGED];
        UNROLL
        for (int v = 0; v < MERGED; v++) old[v] = t[v] = 0.0f;
        if (op.epilogue == EPILOGUE_ADD && nth < op.blocks) {  // before the products are there
          UNROLL
          for (int v = 0; v < MERGED; v++) {
            i32 row, index;
            merged_place(v, lane, row, index);
            index += block * ROW_BLOCK;
            if (row < rows && index < op.n) old[v] = ((const f32*)op.y)[(i64)row * op.stride + index];
          }
        }
        await_cluster(merged + rank * SLOTS + slot, turns);  // else the barrier may be two phases behind, and its parity the same
        bar_wait(arrivals + slot, turns & 1);
        const f32* from = partials + slot * slices * PARTIAL;
        auto free_slot = [&] {  // what was loaded from it has been used
          sync_warp();
          if (lane == 0 && turn + SLOTS < all_turns) {  // else nobody waits for it
            expect(turn + SLOTS);
            publish_cluster(merged + rank * SLOTS + slot, turns + 1);
          }
        };
        if (nth >= op.blocks) {
          free_slot();
          continue;
        }
        if (op.chunks < op.all_chunks) {  // on to device memory; the last slice of the row-block adds up
          f32 *mine = parts + (i64)block * op.all_chunks * PARTIAL, *to = mine + op.from_chunk * PARTIAL;
          for (i32 i = lane * 4; i < op.chunks * PARTIAL; i += WARP * 4) *(f32x4*)(to + i) = *(const f32x4*)(from + i);
          free_slot();
          sync_warp();
          u32 others = 0;
          if (lane == 0) others = atomic_add_ordered(counts + 2 * OPERATIONS + block, (u32)op.chunks);
          if (shfl(others, 0) + (u32)op.chunks != (u32)op.all_chunks) continue;
          sync_warp();
          _Pragma("unroll 8")
          for (i32 chunk = 0; chunk < op.all_chunks; chunk++) take_partial(t, (const f32*)mine + chunk * PARTIAL, lane);
          if (lane == 0) counts[2 * OPERATIONS + block] = 0;
        } else {
          _Pragma("unroll 4")
          for (i32 chunk = 0; chunk < op.chunks; chunk++) take_partial(t, from + chunk * PARTIAL, lane);
        }
        if (op.epilogue == EPILOGUE_SWIGLU) finish_swiglu(t, {(u16*)op.y, ROWS, 0, op.stride}, block, rows, op.n, lane);
        else finish_rows(t, old, {(f32*)op.y, op.stride, rows, op.n, 0}, block, op.epilogue == EPILOGUE_ADD, lane);
        if (op.chunks == op.all_chunks) free_slot();
      }
      if (op.epilogue == EPILOGUE_SWIGLU && block_x() == 0 && warp == WARPS)
        pad_swiglu({(u16*)op.y, ROWS, 0, op.stride}, rows, op.n, lane, WARP);
    }
#if GATES
    else if (o == OPERATIONS - 1) {
      const Activations x = {(u16*)xs - (i64)xs_first * (CHUNK_DEPTH * ROWS), ROWS, 0, depth};
      ClusterStores stores;
      stores.open(gate_arrivals, 0);
      u32 gate_phase = 0;
      i32 nth = 0;
      NO_UNROLL
      for (i32 out = block_x() / CLUSTER; out < op.gate_rows; out += clusters, nth++) {
        if (gate_from < gate_to) bar_wait(gate_bar, gate_phase);
        gate_phase ^= 1;
        NO_UNROLL
        for (i32 chunk = gate_from; chunk < gate_to; chunk++) {
          NO_UNROLL
          for (i32 from = 0; from < ROWS; from += GATE_ROWS) {
            f32 sums[GATE_ROWS][1];
            matvec_chunk<4>(x, from, (const f32*)gate - (i64)gate_from * CHUNK_DEPTH, 0, 1, chunk, sums);
            UNROLL
            for (int r = 0; r < GATE_ROWS; r++)
              if (lane == r) stores.put(gate_parts + (nth * 8 + chunk) * ROWS + from + r, sums[r][0]);
          }
        }
        sync_warp();
        if (lane == 0) load_gate(out + clusters);
      }
      if (rank == 0 && nth > 0) {
        bar_wait(gate_arrivals, 0);
        i32 index = 0;
        for (i32 out = block_x() / CLUSTER; out < op.gate_rows; out += clusters, index++) {
          f32 sum = 0.0f;
          if (lane < rows) {
            for (i32 chunk = 0; chunk < op.all_chunks; chunk++) sum = add(sum, gate_parts[(index * 8 + chunk) * ROWS + lane]);
            op.gates_y[(i64)lane * op.gate_stride + out] = sum;
          }
        }
      }
    }
#endif
    if (o + 1 < OPERATIONS && warp >= WARPS) {
      sync_warp();
      if (lane == 0) grid_arrive(counts + o + 1);
    }
  }
  // The last CTA to come leaves the counts as they were.
  sync_block();
  if (thread() == 0 && atomic_add_ordered(counts, 1u) == (u32)grid_x() - 1) {
    NO_UNROLL
    for (i32 o = 0; o < 2 * OPERATIONS; o++) counts[o] = 0;
  }
#if CLUSTER > 1
  // Nobody leaves while others reach into its memory.
  if (warp < WARPS) cluster_arrive();
  else cluster_arrive_stored();
  cluster_wait();
#endif
}
#else
LUCE_KERNEL(gemm_chain, 32)(const u8*) { trap("gemm_chain needs bulk copies; gemm_plain is for this device"); }
#endif
LUCE_EXPORT(gemm_chain)
