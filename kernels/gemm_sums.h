#pragma once

#if MINIMA && OWN_SUMS
// Sums of 32 of the activations in shared memory, where those of x would stand.
DEVICE void make_sums(const u8* xs, u16* sums, i32 records) {
  for (i32 i = thread(); i < records * 8 * ROWS; i += block_threads()) {
    const u8* at = xs + i * ROW_BYTES;  // [block of 32][row]
    // Eight threads that read at one time read all banks: each begins with another quarter. Its neighbour comes next, and the other two, so that
    // the sum is the same.
    const i32 first = i >> 1 & 3;
    u32x4 a = words4_at(at + first * 16), b = words4_at(at + (first ^ 1) * 16), c = words4_at(at + (first ^ 2) * 16), d = words4_at(at + (first ^ 3) * 16);
    f32 sum = sum_of_eights(sum_of_eight(a.x, b.x, c.x, d.x), sum_of_eight(a.y, b.y, c.y, d.y),
                            sum_of_eight(a.z, b.z, c.z, d.z), sum_of_eight(a.w, b.w, c.w, d.w));
    i32 block = i / ROWS, row = i % ROWS, of = block & 7;
    u16* to = sums + ((block >> 3) * ROWS + row) * 16 + (of >> 1) * 4 + (of & 1);
    split_sum(sum, to[0], to[2]);
  }
}
#endif
