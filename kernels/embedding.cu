// Input rows of a pass: embeddings from a table in its file's format, or encoded image rows copied in.
//
// FORMAT: one of formats.h.
#include "batch.h"
#include "record_values.h"
#ifndef FORMAT
#error "FORMAT"
#endif

struct Input {
  i32 id;         // of the token; -1: an image row
  const f32* image;
};

// Where row r comes from. A token id that comes with the row is put into the history, by one thread.
DEVICE Input input_of(const Row& row, const f32* images, i32 hidden, i32* history, i32 history_stride) {
  if (row.source <= SOURCE_IMAGE(0)) return {-1, images + (i64)SOURCE_IMAGE(row.source) * hidden};
  i32* fed = history + (i64)row.slot * history_stride + row.position;
  if (row.source == SOURCE_HISTORY) return {*fed, nullptr};
  if (thread() == 0) *fed = row.source;
  return {row.source, nullptr};
}

DEVICE void copy_row(f32* to, const f32* from, i32 hidden) {
  for (i32 k = 4 * thread(); k < hidden; k += 4 * block_threads()) *(f32x4*)(to + k) = *(const f32x4*)(from + k);
}

DEVICE void fail_row(f32* to, i32 hidden) {
  for (i32 k = thread(); k < hidden; k += block_threads()) to[k] = as_f32(0x7fc00000u);
}

// Row r of x f32 [R][hidden] from rows[r].source. Grid (R or the bucket's rows), any number of threads.
// table: [vocab] rows of the format; images f32 [.][hidden], may be x itself where row n is image row n; history i32
// [slots][history_stride].
// A row whose id is not in the table is filled with NaN: it fails alone. hidden is a multiple of 4 (and of the format's block).
LUCE_KERNEL(embedding, 1024)(const Pass* pass, const Row* rows, const u8* RESTRICT table, i32 vocab, i32 hidden,
                             const f32* images, i32* history, i32 history_stride, f32* x) {
  pdl_launch();
  pdl_wait();
  i32 r = block_x();
  if (r >= pass->rows) return;
  f32* to = x + (i64)r * hidden;
  Input input = input_of(rows[r], images, hidden, history, history_stride);
  if (input.image) return copy_row(to, input.image, hidden);
  if (input.id < 0 || input.id >= vocab) return fail_row(to, hidden);
  const u8* from = table + row_bytes<FORMAT>(hidden) * input.id;
  for (i32 k = 4 * thread(); k < hidden; k += 4 * block_threads()) {
    f32 v[4];
    decode4<FORMAT>(from, k, v);
    *(f32x4*)(to + k) = f32x4{v[0], v[1], v[2], v[3]};
  }
}
LUCE_EXPORT(embedding)

// The same from the records of a packed matrix [vocab, hidden], say the head of a tied model.
LUCE_KERNEL(embedding_packed, 1024)(const Pass* pass, const Row* rows, const u8* RESTRICT records, i32 vocab, i32 hidden,
                                    const f32* images, i32* history, i32 history_stride, f32* x) {
  pdl_launch();
  pdl_wait();
  i32 r = block_x();
  if (r >= pass->rows) return;
  f32* to = x + (i64)r * hidden;
  Input input = input_of(rows[r], images, hidden, history, history_stride);
  if (input.image) return copy_row(to, input.image, hidden);
  if (input.id < 0 || input.id >= vocab) return fail_row(to, hidden);
  const u8* from = records + (i64)(input.id / 16) * ceil_div(hidden, 256) * record_bytes<FORMAT>();
  for (i32 k = 2 * thread(); k < hidden; k += 2 * block_threads()) {
    f32 v[2];
    decode_pair<FORMAT>(from + k / 256 * record_bytes<FORMAT>(), input.id % 16, k % 256, v);
    *(f32x2*)(to + k) = f32x2{v[0], v[1]};
  }
}
LUCE_EXPORT(embedding_packed)
