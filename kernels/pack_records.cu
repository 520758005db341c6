// Rows of a file's format into records, as luce/compute/packing.py makes them, bit for bit: a model's weights are laid out on the
// device that reads them.
//
// SOURCE: the rows' format, one of formats.h. Records hold the same format, or operands (operands.h) for f32, f16 and bf16.
#include "formats.h"
#include "numbers.h"

#ifndef SOURCE
#error "SOURCE: FORMAT_F32, FORMAT_BF16, ..."
#endif
#define PACK_THREADS 128
#if SOURCE == FORMAT_Q8_0
#define BLOCK_BYTES 34
#define BLOCK_DEPTH 32
#define NEUTRAL 128u
#elif SOURCE == FORMAT_Q4_0
#define BLOCK_BYTES 18
#define BLOCK_DEPTH 32
#define NEUTRAL 8u
#elif SOURCE == FORMAT_Q6_K
#define BLOCK_BYTES 210
#define BLOCK_DEPTH 256
#define NEUTRAL 32u
#else
#define BLOCK_BYTES (SOURCE == FORMAT_Q4_K ? 144 : SOURCE == FORMAT_Q5_K ? 176 : 136)
#define BLOCK_DEPTH 256
#define NEUTRAL 0u
#endif

// The 16 rows x 256 k of one record. Rows and k that are not there are the weight zero, with scales of zero.
struct Tile {
  const u8* first;   // rows of the block, or the first 8 of them
  const u8* second;  // the other 8, or null
  i64 row_bytes;
  i32 rows, other_rows, depth, start;  // rows that are there, from first and from second; k that are there; first k

  // Row i of the block; null: there is none.
  METHOD const u8* row(i32 i) const {
    if (second && i >= 8) return i - 8 < other_rows ? second + (i - 8) * row_bytes : nullptr;
    return i < rows ? first + i * row_bytes : nullptr;
  }
  // The file's block that k of the record lies in.
  METHOD const u8* block(i32 i, i32 k) const {
    const u8* at = start + k < depth ? row(i) : nullptr;
    return at ? at + (i64)((start + k) / BLOCK_DEPTH) * BLOCK_BYTES : nullptr;
  }
  // The whole number that the file holds, as luce/compute/weight_fields.py has it.
  METHOD u32 code(i32 i, i32 k) const {
#if SOURCE == FORMAT_F32 || SOURCE == FORMAT_F16 || SOURCE == FORMAT_BF16
    const u8* at = start + k < depth ? row(i) : nullptr;
    if (!at) return 0;
    k += start;
#if SOURCE == FORMAT_BF16 && OPERANDS == OPERANDS_BF16
    return ((const u16*)at)[k];
#elif SOURCE == FORMAT_BF16
    return f32_to_operand(times_unit(bf16_to_f32(((const u16*)at)[k])));
#else
    return f32_to_operand(times_unit(SOURCE == FORMAT_F16 ? f16_to_f32(((const u16*)at)[k]) : ((const f32*)at)[k]));
#endif
#else
    const u8* b = block(i, k);
    if (!b) return NEUTRAL;
    if (SOURCE == FORMAT_Q8_0) return b[2 + k % 32] ^ 128u;
    if (SOURCE == FORMAT_Q4_0) return k % 32 < 16 ? b[2 + k % 16] & 15u : b[2 + k % 16] >> 4;
    if (SOURCE == FORMAT_IQ4_XS) {
      u32 byte = b[8 + k / 32 * 16 + k % 16];
      return k % 32 < 16 ? byte & 15u : byte >> 4;
    }
    if (SOURCE == FORMAT_Q6_K) {
      u32 byte = b[k / 128 * 64 + k % 64], top = b[128 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3u;
      return (k % 128 < 64 ? byte & 15u : byte >> 4) | top << 4;
    }
    u32 byte = b[(SOURCE == FORMAT_Q4_K ? 16 : 48) + k / 64 * 32 + k % 32], low = k % 64 < 32 ? byte & 15u : byte >> 4;
    return SOURCE == FORMAT_Q5_K ? low | (b[16 + k % 32] >> (k / 32) & 1u) << 4 : low;
#endif
  }
  // f16 bits of the scale of the block that k lies in, or what stands `at` bytes into it.
  METHOD u16 half(i32 i, i32 k, i32 at) const {
    const u8* b = block(i, k);
    return b ? load_u16(b + at) : (u16)0;
  }
  // Scale (or minimum) of sub-block j of the record.
  METHOD u8 scale(i32 i, i32 j, bool minimum) const {
    const i32 width = SOURCE == FORMAT_Q6_K ? 16 : 32;
    const u8* b = block(i, j * width);
    if (SOURCE == FORMAT_Q6_K) return b ? b[192 + j] ^ 128 : 128;
    if (SOURCE == FORMAT_IQ4_XS) {
      if (!b) return 32;
      return (u8)((b[4 + j / 2] >> (4 * (j % 2)) & 15u) | ((u32)load_u16(b + 2) >> (2 * j) & 3u) << 4);
    }
    if (!b) return 0;
    u32 its, least;
    k_scale(b + 4, j, its, least);
    return (u8)(minimum ? least : its);
  }
};

// Numbers are taken apart from the last dimension on: the order of packing.py's arrays.
DEVICE i32 part(i32& rest, i32 size) {
  i32 found = rest % size;
  rest /= size;
  return found;
}

// 16 bits of codes by one nibble each: sub-block and row half (Q4_K, Q5_K, Q6_K). `at`: [quarter 4][g 8][t 4][step 2][k half 2][pair 2].
DEVICE u16 nibbles(const Tile& tile, i32 at) {
  const i32 pair = part(at, 2), half = part(at, 2), step = part(at, 2), t = part(at, 4), g = part(at, 8), quarter = at;
  u32 word = 0;
  for (i32 below = 0; below < 2; below++)
    for (i32 sub = 0; sub < 2; sub++) {
      u32 code = tile.code(8 * below + g, 64 * quarter + 32 * sub + 16 * step + 8 * half + 2 * t + pair);
      u32 nibble = SOURCE == FORMAT_Q6_K && sub ? code >> 2 : code & 15u;
      word |= nibble << (8 * below + 4 * sub);
    }
  return (u16)word;
}

// Byte of [g 8][sub-block 8][row half 2] scales.
DEVICE u8 scale_byte(const Tile& tile, i32 at) {
  const i32 below = part(at, 2), j = part(at, 8), g = at;
  return tile.scale(8 * below + g, j, false);
}

// Word `at` (16 bits) of the record.
DEVICE u16 word_of(const Tile& tile, i32 at) {
#if SOURCE == FORMAT_F32 || SOURCE == FORMAT_F16 || SOURCE == FORMAT_BF16
  const i32 pair = part(at, 2), below = part(at, 2), half = part(at, 2), t = part(at, 4), g = part(at, 8), step = at;
  return (u16)tile.code(8 * below + g, 16 * step + 8 * half + 2 * t + pair);
#elif SOURCE == FORMAT_Q8_0
  if (at < 2048) {  // [block 8][g 8][t 4][step 2][k half 2][row half 2][pair 2] bytes
    const i32 below = part(at, 2), half = part(at, 2), step = part(at, 2), t = part(at, 4), g = part(at, 8);
    const i32 k = 32 * at + 16 * step + 8 * half + 2 * t;
    return (u16)(tile.code(8 * below + g, k) | tile.code(8 * below + g, k + 1) << 8);
  }
  at -= 2048;
  const i32 below = part(at, 2), j = part(at, 8), g = at;
  return tile.half(8 * below + g, 32 * j, 0);
#elif SOURCE == FORMAT_Q4_0
  if (at < 1024) {  // [quarter 4][g 8][t 4][step 4][row half 2][pair 2] bytes
    const i32 below = part(at, 2), step = part(at, 4), t = part(at, 4), g = part(at, 8), i = 8 * below + g;
    const i32 k = 64 * at + 16 * step + 2 * t;
    return (u16)(tile.code(i, k) | tile.code(i, k + 8) << 4 | tile.code(i, k + 1) << 8 | tile.code(i, k + 9) << 12);
  }
  at -= 1024;
  const i32 below = part(at, 2), j = part(at, 8), g = at;
  return tile.half(8 * below + g, 32 * j, 0);
#elif SOURCE == FORMAT_IQ4_XS
  if (at < 1024) {  // [quarter 4][g 8][t 4][step 4] words of 32 bits: [k half][row half][pair] nibbles
    const i32 half = part(at, 2), step = part(at, 4), t = part(at, 4), g = part(at, 8), quarter = at;
    u32 word = 0;
    for (i32 below = 0; below < 2; below++)
      for (i32 pair = 0; pair < 2; pair++) {
        u32 code = tile.code(8 * below + g, 64 * quarter + 16 * step + 8 * half + 2 * t + pair);
        word |= (code >> 1 | (code & 1u) << 3) << (8 * below + 4 * pair);
      }
    return (u16)word;
  }
  at -= 1024;
  if (at < 64) return (u16)(scale_byte(tile, 2 * at) | (u32)scale_byte(tile, 2 * at + 1) << 8);
  at -= 64;
  const i32 below = part(at, 2), g = at;
  return tile.half(8 * below + g, 0, 0);
#elif SOURCE == FORMAT_Q6_K
  if (at < 1024) return nibbles(tile, at);
  at -= 1024;
  if (at < 512) {  // [quarter 4][g 8][t 4][step 2][pair 2]: the other two bits
    const i32 pair = part(at, 2), step = part(at, 2), t = part(at, 4), g = part(at, 8), quarter = at;
    u32 word = 0;
    for (i32 half = 0; half < 2; half++)
      for (i32 below = 0; below < 2; below++)
        for (i32 sub = 0; sub < 2; sub++) {
          u32 code = tile.code(8 * below + g, 64 * quarter + 32 * sub + 16 * step + 8 * half + 2 * t + pair);
          word |= (sub ? code & 3u : code >> 4) << (((sub ? 2 : 4) + 4 * (2 * half + below)) % 16);
        }
    return (u16)word;
  }
  at -= 512;
  if (at < 128) {  // [g 8][quarter 4][row half 2][step 4] scales
    at *= 2;
    const i32 step = part(at, 4), below = part(at, 2), quarter = part(at, 4), i = 8 * below + at;
    return (u16)(tile.scale(i, 4 * quarter + step, false) | (u32)tile.scale(i, 4 * quarter + step + 1, false) << 8);
  }
  at -= 128;
  const i32 below = part(at, 2), g = at;
  return tile.half(8 * below + g, 0, 208);
#else  // Q4_K, Q5_K
  if (at < 1024) return nibbles(tile, at);
  at -= 1024;
#if SOURCE == FORMAT_Q5_K
  if (at < 256) {  // [g 8][t 4][quarter 4] words of 32 bits, one for each pair half: the top bits
    const i32 pair = part(at, 2), quarter = part(at, 4), t = part(at, 4), g = at;
    u32 word = 0;
    for (i32 step = 0; step < 2; step++)
      for (i32 half = 0; half < 2; half++)
        for (i32 below = 0; below < 2; below++)
          for (i32 sub = 0; sub < 2; sub++) {
            u32 code = tile.code(8 * below + g, 64 * quarter + 32 * sub + 16 * step + 8 * half + 2 * t + pair);
            word |= (code >> 4) << ((4 + 4 * (2 * step + half) + 2 * below + sub) % 16);
          }
    return (u16)word;
  }
  at -= 256;
#endif
  if (at < 64) return (u16)(scale_byte(tile, 2 * at) | (u32)scale_byte(tile, 2 * at + 1) << 8);
  at -= 64;
  if (at < 64) {  // [g 8][4][row half 2][2] minima
    const i32 below = part(at, 2), two = part(at, 4), i = 8 * below + at;
    return (u16)(tile.scale(i, 2 * two, true) | (u32)tile.scale(i, 2 * two + 1, true) << 8);
  }
  at -= 64;
  const i32 below = part(at, 2), which = part(at, 2), g = at;  // [g 8][d, dmin][row half 2]
  return tile.half(8 * below + g, 0, 2 * which);
#endif
}

// Rows from `first`, row_bytes each, into records [row-blocks][records][record_words 16-bit words]. With `second` a row-block is 8
// rows of each in turn. rows: of each of them; depth: a row's weights. Grid (records of a row-block, row-blocks), PACK_THREADS threads.
LUCE_KERNEL(pack_records, PACK_THREADS)(const u8* first, const u8* second, i64 row_bytes, i32 rows, i32 depth, u16* out, i32 record_words) {
  const i32 r = block_x(), b = block_y(), each = second ? 8 : 16;
  const Tile tile = {first + (i64)b * each * row_bytes, second ? second + (i64)b * each * row_bytes : nullptr, row_bytes,
                     rows - b * each, rows - b * each, depth, 256 * r};
  u16* to = out + ((i64)b * grid_x() + r) * record_words;
  for (i32 at = thread(); at < record_words; at += PACK_THREADS) to[at] = word_of(tile, at);
}
LUCE_EXPORT(pack_records)
