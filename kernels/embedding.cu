// Input rows of a pass: embeddings from a table in its file's format, or encoded image rows copied in.
//
// FORMAT: one of formats.h.
#include "batch.h"
#include "formats.h"
#ifndef FORMAT
#error "FORMAT"
#endif

// Row r of x f32 [R][hidden] from rows[r].source. Grid (R or the bucket's rows), any number of threads.
// table: [vocab] rows of the format; images f32 [.][hidden]; history i32 [slots][history_stride].
// A token id that comes with the row is put into the history. A row whose id is not in the table is filled with NaN: it
// fails alone. hidden is a multiple of 4 (and of the format's block).
LUCE_KERNEL(embedding, 1024)(const Pass* pass, const Row* rows, const u8* RESTRICT table, i32 vocab, i32 hidden,
                             const f32* RESTRICT images, i32* history, i32 history_stride, f32* RESTRICT x) {
  pdl_wait();
  i32 r = block_x();
  if (r >= pass->rows) return;
  Row row = rows[r];
  f32* to = x + (i64)r * hidden;
  if (row.source <= SOURCE_IMAGE(0)) {
    const f32* from = images + (i64)SOURCE_IMAGE(row.source) * hidden;
    for (i32 k = 4 * thread(); k < hidden; k += 4 * block_threads()) *(f32x4*)(to + k) = *(const f32x4*)(from + k);
    return;
  }
  i32* fed = history + (i64)row.slot * history_stride + row.position;
  i32 id = row.source;
  if (id == SOURCE_HISTORY) id = *fed;
  else if (thread() == 0) *fed = id;
  bool known = id >= 0 && id < vocab;
  const u8* from = table + row_bytes<FORMAT>(hidden) * (known ? id : 0);
  for (i32 k = 4 * thread(); k < hidden; k += 4 * block_threads()) {
    f32 v[4];
    decode4<FORMAT>(from, k, v);
    if (!known) v[0] = v[1] = v[2] = v[3] = as_f32(0x7fc00000u);
    *(f32x4*)(to + k) = f32x4{v[0], v[1], v[2], v[3]};
  }
}
LUCE_EXPORT(embedding)
