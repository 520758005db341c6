// What becomes of a row-block's sums where products have few rows: `t` are a lane's values, as take_partial (gemm_tile.h) adds them up.
#pragma once
#include "activation.h"
#include "gemm_tile.h"

#define EPILOGUE_STORE 0    // y = product
#define EPILOGUE_ADD 1      // y = add(y, product)
#define EPILOGUE_SWIGLU 2   // h = silu(gate) up, as activations: a row-block is 8 rows of the gate and the same 8 of up

// Rows f32 [.][stride] of products, of which those below `rows` and their first `n` values are written. `first`: of the row-block's sums.
struct ProductRows {
  f32* y;
  i32 stride, rows, n, first;
};

// Calls `each(v, at)` with every value that is written and its place.
template <class Each> DEVICE void each_product(const ProductRows& to, i32 block, i32 lane, const Each& each) {
  UNROLL
  for (int v = 0; v < MERGED; v++) {
    i32 row, index;
    merged_place(v, lane, row, index);
    row += to.first;
    index += block * ROW_BLOCK;
    if (lane < PARTIAL && row < to.rows && index < to.n) each(v, to.y + (i64)row * to.stride + index);
  }
}
DEVICE void finish_rows(const f32 (&t)[MERGED], const ProductRows& to, i32 block, bool onto, i32 lane) {
  each_product(to, block, lane, [&](int v, f32* at) { *at = onto ? add(*at, t[v]) : t[v]; });
}
// What is there now. The loads wait for no product.
DEVICE void load_rows(f32 (&old)[MERGED], const ProductRows& from, i32 block, i32 lane) {
  UNROLL
  for (int v = 0; v < MERGED; v++) old[v] = 0.0f;
  each_product(from, block, lane, [&](int v, f32* at) { old[v] = *at; });
}
// The same as finish_rows, where what was there has been loaded.
DEVICE void finish_rows(const f32 (&t)[MERGED], const f32 (&old)[MERGED], const ProductRows& to, i32 block, bool onto, i32 lane) {
  each_product(to, block, lane, [&](int v, f32* at) { *at = onto ? add(old[v], t[v]) : t[v]; });
}

// Of gate and up, n rows together.
DEVICE void finish_swiglu(const f32 (&t)[MERGED], const Activations& h, i32 block, i32 rows, i32 n, i32 lane) {
  UNROLL
  for (int v = 0; v < MERGED; v++) {
    i32 row, index;
    merged_place(v, lane, row, index);
#if ROWS <= 2
    f32 up = shfl_xor(t[v], 8 * ROWS);
#elif ROWS == 4
    f32 up = t[v | 1];
#else
    f32 up = t[v | 2];
#endif
    i32 k = block * 8 + index;
    if (index < 8 && lane < PARTIAL && row < rows && 2 * k < n) h.at[activation_index(h, row, k)] = f32_to_activation(mul(silu_(t[v]), up));
  }
}
// Zeros behind them, up to the depth of h, by thread `first` of `threads`.
DEVICE void pad_swiglu(const Activations& h, i32 rows, i32 n, i32 first, i32 threads) {
  const i32 from = n / 2, pad = h.depth - from;
  NO_UNROLL
  for (i32 i = first; i < pad * rows; i += threads) h.at[activation_index(h, i / pad, from + i % pad)] = 0;
}
