#pragma once

#if MINIMA && OWN_SUMS
// Sums of 32 of the activations in shared memory, where those of x would stand.
DEVICE void make_sums(const u8* xs, u16* sums, i32 records) {
  for (i32 i = thread(); i < records * 8 * ROWS; i += block_threads()) {
    const u8* at = xs + i * ROW_BYTES;  // [block of 32][row]
    u32x4 a = words4_at(at), b = words4_at(at + 16), c = words4_at(at + 32), d = words4_at(at + 48);
    f32 sum = sum_of_eights(sum_of_eight(a.x, b.x, c.x, d.x), sum_of_eight(a.y, b.y, c.y, d.y),
                            sum_of_eight(a.z, b.z, c.z, d.z), sum_of_eight(a.w, b.w, c.w, d.w));
    i32 block = i / ROWS, row = i % ROWS, of = block & 7;
    u16* to = sums + ((block >> 3) * ROWS + row) * 16 + (of >> 1) * 4 + (of & 1);
    split_sum(sum, to[0], to[2]);
  }
}
#endif
