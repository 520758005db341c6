// Copies and fills of many pieces in one launch, and the check that rows are finite.
#include "batch.h"

struct Piece {   // 24 bytes; all multiples of 16
  i64 to, from;  // bytes from the two bases
  i64 bytes;
};

// Grid (blocks for a piece, pieces). Pieces that are written overlap no others. Nothing is copied past `count`.
LUCE_KERNEL(copy_pieces, 1024)(const Piece* pieces, const i32* count, u8* to, const u8* from) {
  pdl_wait();
  if (block_y() >= *count) return;
  Piece piece = pieces[block_y()];
  i64 step = (i64)grid_x() * block_threads() * 16;
  for (i64 i = ((i64)block_x() * block_threads() + thread()) * 16; i < piece.bytes; i += step)
    *(u32x4*)(to + piece.to + i) = *(const u32x4*)(from + piece.from + i);
}
LUCE_EXPORT(copy_pieces)

// The same for setting every word: 0 clears, 0xffffffff is NaN as f32 and as bf16. `from` of the pieces is not used.
LUCE_KERNEL(fill_pieces, 1024)(const Piece* pieces, const i32* count, u8* to, u32 word) {
  pdl_wait();
  if (block_y() >= *count) return;
  Piece piece = pieces[block_y()];
  i64 step = (i64)grid_x() * block_threads() * 16;
  for (i64 i = ((i64)block_x() * block_threads() + thread()) * 16; i < piece.bytes; i += step)
    *(u32x4*)(to + piece.to + i) = u32x4{word, word, word, word};
}
LUCE_EXPORT(fill_pieces)

// faults[l] = FAULT_ROWS when the last row of lane l of x f32 [R][hidden] holds NaN or infinity, else 0. Grid (lanes or more).
// beside: the grid before, which does not write x, lets this one start when x is there.
LUCE_KERNEL(check_lanes, 1024)(const Pass* pass, const Lane* lanes, const f32* x, i32 hidden, i32* faults, i32 beside) {
  u32* bad = (u32*)shared_memory();
  pdl_launch();
  if (!beside) pdl_wait();
  i32 l = block_x();
  if (l >= pass->lanes) return;
  if (thread() == 0) *bad = 0;
  sync_block();
  const f32* row = x + (i64)(lanes[l].row + lanes[l].count - 1) * hidden;
  bool wrong = false;
  for (i32 k = thread(); k < hidden; k += block_threads()) wrong |= (as_u32(row[k]) & 0x7f800000u) == 0x7f800000u;
  if (wrong) atomic_or(bad, 1u);
  sync_block();
  if (thread() == 0) faults[l] = *bad ? FAULT_ROWS : 0;
  if (beside) pdl_wait();  // who waits for this grid waits for the one before, too
}
LUCE_EXPORT(check_lanes)
