// What the weight GEMMs for few rows share: products of 16 weights' rows with ROWS activations, and where their sums stand.
//
// A warp multiplies a row-block of records.h with TILES tiles of 8 activations (columns of mma.m16n8k16). With fewer than
// 8 rows the other columns repeat some and nobody looks at them.
#pragma once
#include "records.h"

#ifndef ROWS
#error "ROWS: height of the step layout, 1, 2, 4, 8, 16, 32 or 64"
#endif
#define TILES (ROWS < 8 ? 1 : ROWS / 8)
#define ROW_BYTES 64        // of a row's 32 activations
#define SUM_BYTES 32        // of a row's sums of a record

typedef f32 Tile[TILES][4];

// A lane's place in 32 activations of all rows, and in a record's sums.
DEVICE i32 lane_row(i32 lane) { return (lane >> 2) % (ROWS < 8 ? ROWS : 8); }
DEVICE i32 lane_activations(i32 lane) { return lane_row(lane) * ROW_BYTES + (lane & 3) * 16; }
DEVICE i32 lane_sums(i32 lane) { return lane_row(lane) * SUM_BYTES + (lane & 3) * 8; }

DEVICE void multiply_step(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  mma_operands(c, a[0], a[1], a[2], a[3], b0, b1);
}

// Activations of 32 K (the lane's place in them): B operands of two k16 steps. Lanes of columns that do not exist keep what they have,
// which spares shared memory.
DEVICE void load_activations(u32x4 (&b)[TILES], const u8* x) {
#if ROWS < 8
  if (lane() < 4 * ROWS) b[0] = words4_at(x);
#else
  UNROLL
  for (int i = 0; i < TILES; i++) b[i] = words4_at(x + i * 8 * ROW_BYTES);
#endif
}
// c += two steps' weights x their activations.
DEVICE void multiply_pair(Tile& c, const u32 (&a)[4][4], int pair, const u32x4 (&b)[TILES]) {
  UNROLL
  for (int i = 0; i < TILES; i++) multiply_step(c[i], a[2 * pair], b[i].x, b[i].y);
  UNROLL
  for (int i = 0; i < TILES; i++) multiply_step(c[i], a[2 * pair + 1], b[i].z, b[i].w);
}
// c += a quarter's weights x its activations (the lane's place in them).
DEVICE void multiply(Tile& c, const u32 (&a)[4][4], const u8* x) {
  UNROLL
  for (int pair = 0; pair < 2; pair++) {
    u32x4 b[TILES] = {};
    load_activations(b, x + pair * ROWS * ROW_BYTES);
    multiply_pair(c, a, pair, b);
  }
}

DEVICE void clear(Tile& c) {
  UNROLL
  for (int i = 0; i < TILES; i++) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0.0f;
}

#if SCALED
// p = fma(d, c, p), then the minima times the sums of activations (hi, lo of blocks 2t, 2t + 1; unused without minima).
DEVICE void add_record(Tile& p, const Tile& c, const u8* record, const u32x2 (&sums)[TILES], i32 lane) {
  f32 d0, d1;
  load_row_scales(record, lane, d0, d1);
  UNROLL
  for (int i = 0; i < TILES; i++) {
    p[i][0] = fma_(d0, c[i][0], p[i][0]);
    p[i][1] = fma_(d0, c[i][1], p[i][1]);
    p[i][2] = fma_(d1, c[i][2], p[i][2]);
    p[i][3] = fma_(d1, c[i][3], p[i][3]);
  }
#if MINIMA
  u32 m[4];
  load_minima(record, lane, m);
  UNROLL
  for (int i = 0; i < TILES; i++) multiply_step(p[i], m, sums[i].x, sums[i].y);
#endif
}
#endif

// A partial sum in memory: only the columns that exist.
#define PARTIAL (ROWS < 8 ? 16 * ROWS : 128 * TILES)   // floats
#define MERGED ((PARTIAL + 31) / 32)                   // values that a lane merges
struct Stores {
  template <class T> METHOD void put(f32* to, T value) const { *(T*)to = value; }
};
template <class S> DEVICE void put_partial(const S& stores, f32* to, const Tile& t, i32 lane) {
#if ROWS == 1
  if ((lane & 3) == 0) stores.put(to + (lane >> 2), t[0][0]), stores.put(to + 8 + (lane >> 2), t[0][2]);
#elif ROWS == 2
  if ((lane & 3) == 0) {
    stores.put(to + (lane >> 2) * 2, f32x2{t[0][0], t[0][1]});
    stores.put(to + 16 + (lane >> 2) * 2, f32x2{t[0][2], t[0][3]});
  }
#elif ROWS == 4
  if ((lane & 3) < 2) {
    i32 at = (lane >> 2) * 4 + (lane & 3) * 2;
    stores.put(to + at, f32x2{t[0][0], t[0][1]});
    stores.put(to + 32 + at, f32x2{t[0][2], t[0][3]});
  }
#else
  UNROLL
  for (int i = 0; i < TILES; i++) stores.put(to + i * 128 + lane * 4, f32x4{t[i][0], t[i][1], t[i][2], t[i][3]});
#endif
}
DEVICE void put_partial(f32* to, const Tile& t, i32 lane) { put_partial(Stores{}, to, t, lane); }
// Adds a partial's values of this lane. Lanes past the values (ROWS == 1) repeat others.
DEVICE void take_partial(f32 (&sums)[MERGED], const f32* from, i32 lane) {
#if ROWS < 8
  UNROLL
  for (int v = 0; v < MERGED; v++) sums[v] = add(sums[v], from[(v * 32 + lane) % PARTIAL]);
#else
  UNROLL
  for (int i = 0; i < TILES; i++) {
    f32x4 part = *(const f32x4*)(from + i * 128 + lane * 4);
    sums[4 * i] = add(sums[4 * i], part.x);
    sums[4 * i + 1] = add(sums[4 * i + 1], part.y);
    sums[4 * i + 2] = add(sums[4 * i + 2], part.z);
    sums[4 * i + 3] = add(sums[4 * i + 3], part.w);
  }
#endif
}
// Which activation (row) and which of the 16 weights' rows (n) a lane's merged value v is.
DEVICE void merged_place(int v, i32 lane, i32& row, i32& n) {
#if ROWS < 8
  i32 at = (v * 32 + lane) % PARTIAL, in = at % (8 * ROWS);
  n = at / (8 * ROWS) * 8 + in / ROWS;
  row = in % ROWS;
#else
  row = (v >> 2) * 8 + 2 * (lane & 3) + (v & 1);
  n = (lane >> 2) + (v >> 1 & 1) * 8;
#endif
}
