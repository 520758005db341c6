// Weights of a matrix as the GEMMs read them. A matrix [N, K] is a run of row-blocks of 16 rows; a row-block is a run of records of
// 256 K in ascending order; both are padded with weights that are zero. luce/compute/packing.py writes them.
//
// A record holds 16 x 256 weights in the order of mma.m16n8k16's A operand (wgmma's too, four row-blocks to four warps), then
// their scales. g = lane / 4 is the row (and g + 8), t = lane % 4; a quarter is 64 K = four k16 steps:
//   BF16    [step 16][lane] four words: a0 a1 a2 a3, operands (operands.h), whatever they are
//   Q8_0    [block of 32 K, 8][lane] 16 bytes q + 128: two steps of a0 a1 a2 a3; then [g][block 8] f16 d of g and g + 8
//   Q4_0    [quarter][lane][step 4] words q + 8: byte i = values of (a0 a1), high nibbles (a2 a3); then d as in Q8_0
//   Q4_K    [quarter][lane][step 2][k half 2] words: nibbles of a half-word 0, 2 = row g, g + 8 of this step, 1, 3 = of the step
//           two on; then [g][sub-block 8][g, g + 8] bytes scale; [lane] four bytes minimum: (g: 2t, 2t + 1), (g + 8: ...);
//           [g] f16 d of g and g + 8, dmin of g and g + 8
//   Q5_K    as Q4_K, with [lane][quarter] words of fifth bits behind the nibbles
//   Q6_K    nibbles as Q4_K, of which 1 and 3 hold the upper four of six bits, 0 and 2 the lower; [quarter][lane][step 2] words
//           of the other two; [g][quarter][g, g + 8][step 4] bytes scale + 128; [g] d
//   IQ4_XS  [quarter][lane][step 4] words of eight codes, rotated (see iq4_bytes), bytes a0 a1 a2 a3; scales + 32 and d as in Q4_K and Q6_K
//
// What the tree takes (kernels/README.md), RN to operands: flat formats (BF16, Q8_0, Q4_0): w = RN(d q). Scaled ones: w = RN(sc q), and
// d stays outside. q enters as a subnormal number, for which a mask is enough, and one fma rounds sc q. In bf16 that is q 2^-133 (so
// are the eight bits of a byte: subnormal numbers and the first binade above are one run); weights come out times 2^-20 and d times 2^20.
// In f16 it is q 2^-24, as weights come out, and d times 2^24. All powers of two cancel exactly.
#pragma once
#include "device.h"
#include "formats.h"

#ifndef FORMAT
#error "FORMAT: the weights' format, FORMAT_..."
#endif

#define RECORD_DEPTH 256
#define ROW_BLOCK 16
#define SCALED (FORMAT == FORMAT_Q4_K || FORMAT == FORMAT_Q5_K || FORMAT == FORMAT_Q6_K || FORMAT == FORMAT_IQ4_XS)
#define MINIMA (FORMAT == FORMAT_Q4_K || FORMAT == FORMAT_Q5_K)
#define CHUNK_DEPTH 1024   // K of a chain that starts from zero (flat) or of a partial sum P (scaled)

DEVICE const u32& word_at(const u8* at) { return *(const u32*)at; }
DEVICE const u32x2& words2_at(const u8* at) { return *(const u32x2*)at; }
DEVICE const u32x4& words4_at(const u8* at) { return *(const u32x4*)at; }

// Both halves: RN(x s + n), where a half of x is at most 255 and stands for that number times 2^-133 (f16: 2^-24).
DEVICE u32 fma_fields(u32 x, u32 s, u32 n) {
#if OPERANDS == OPERANDS_F16
  return fma_f16x2(x, s, n);
#elif defined(__HIP__) || defined(__HIPCC_RTC__)  // flushes subnormal numbers
  f32 low = fma_((f32)(x & 0xffffu), mul(mul(bf16_low(s), 7.888609052e-31f), 1.164153218e-10f), bf16_low(n));
  f32 high = fma_((f32)(x >> 16), mul(mul(bf16_high(s), 7.888609052e-31f), 1.164153218e-10f), bf16_high(n));
  return pack_bf16(low, high);
#else
  return fma_bf16x2(x, s, n);
#endif
}
#define NOTHING 0x80008000u   // -0, -0
#define POWER_127 0x7f007f00u // 2^127 twice
#if OPERANDS == OPERANDS_F16
// Two bytes of x, those that `select` names, as whole numbers: (1,024 + byte) a + b.
DEVICE u32 whole_numbers(u32 x, u32 select, u32 a, u32 b) { return fma_f16x2(prmt(x, 0x64646464u, select), a, b); }
#define F16_ONE 0x3c003c00u
#endif

#if FORMAT == FORMAT_BF16
#define RECORD_BYTES 8192
struct Scales {};
DEVICE void load_scales(const u8*, i32, Scales&) {}
// The words of a quarter, and what becomes of them: A operands of its four k16 steps.
struct Codes { u32x4 q[4]; };
DEVICE void load_codes(const u8* record, i32 lane, i32 quarter, Codes& codes) {
  UNROLL
  for (int i = 0; i < 4; i++) codes.q[i] = words4_at(record + (quarter * 4 + i) * 512 + lane * 16);
}
DEVICE void make_weights(const Codes& codes, const Scales&, i32, i32, u32 (&a)[4][4]) {
  UNROLL
  for (int i = 0; i < 4; i++) {
    u32x4 v = codes.q[i];
    a[i][0] = v.x, a[i][1] = v.y, a[i][2] = v.z, a[i][3] = v.w;
  }
}

#elif FORMAT == FORMAT_Q8_0 || FORMAT == FORMAT_Q4_0
#define FLAT_WEIGHT_BYTES (FORMAT == FORMAT_Q8_0 ? 4096 : 2048)
#define RECORD_BYTES (FLAT_WEIGHT_BYTES + 256)
struct Scales { u32x4 d[2]; };
DEVICE void load_scales(const u8* record, i32 lane, Scales& s) {
  const u8* at = record + FLAT_WEIGHT_BYTES + (lane >> 2) * 32;
  s.d[0] = words4_at(at);
  s.d[1] = words4_at(at + 16);
}
#if OPERANDS == OPERANDS_F16
#define FLAT_MIDDLE (FORMAT == FORMAT_Q8_0 ? 0xe480e480u : 0xe408e408u)  // -1,024 - 128, -1,024 - 8
// Four bytes b of w, two of row g and two of g + 8, to RN(16 d (b - middle)); d: 16 d of a row, twice.
DEVICE void flat_rows(u32 w, u32 d0, u32 d1, u32& upper, u32& lower) {
  upper = fma_f16x2(whole_numbers(w, 0x4140u, F16_ONE, FLAT_MIDDLE), d0, NOTHING);
  lower = fma_f16x2(whole_numbers(w, 0x4342u, F16_ONE, FLAT_MIDDLE), d1, NOTHING);
}
#else
// Four bytes b of w, two of row g and two of g + 8, to RN_bf16(d (b - middle)): 32768 + b is exact, c = -(32768 + middle) d too.
DEVICE void flat_rows(u32 w, f32 d0, f32 c0, f32 d1, f32 c1, u32& upper, u32& lower) {
  f32 f0 = fma_(d0, as_f32(prmt(w, 0x47000000u, 0x7604u)), c0), f1 = fma_(d0, as_f32(prmt(w, 0x47000000u, 0x7614u)), c0);
  f32 f2 = fma_(d1, as_f32(prmt(w, 0x47000000u, 0x7624u)), c1), f3 = fma_(d1, as_f32(prmt(w, 0x47000000u, 0x7634u)), c1);
  upper = pack_bf16(f0, f1);
  lower = pack_bf16(f2, f3);
}
#endif
#if FORMAT == FORMAT_Q8_0
struct Codes { u32x4 q[2]; };
#else
struct Codes { u32x4 q; };
#endif
DEVICE void load_codes(const u8* record, i32 lane, i32 quarter, Codes& codes) {
#if FORMAT == FORMAT_Q8_0
  codes.q[0] = words4_at(record + quarter * 1024 + lane * 16);
  codes.q[1] = words4_at(record + quarter * 1024 + 512 + lane * 16);
#else
  codes.q = words4_at(record + quarter * 512 + lane * 16);
#endif
}
DEVICE void make_weights(const Codes& codes, const Scales& s, i32, i32 quarter, u32 (&a)[4][4]) {
  u32x4 four = s.d[quarter >> 1];
#if FORMAT == FORMAT_Q4_0
  const u32x4 q = codes.q;
#endif
  UNROLL
  for (int block = 0; block < 2; block++) {
    u32 pair = quarter & 1 ? (block ? four.w : four.z) : (block ? four.y : four.x);
#if OPERANDS == OPERANDS_F16
    const u32 both = fma_f16x2(pair, 0x4c004c00u, NOTHING), d0 = low_twice(both), d1 = high_twice(both);  // 16 d
    auto rows = [&](u32 w, u32& upper, u32& lower) { flat_rows(w, d0, d1, upper, lower); };
#else
    const f32 middle = FORMAT == FORMAT_Q8_0 ? -32896.0f : -32776.0f;
    f32 d0 = f16_to_f32((u16)pair), d1 = f16_to_f32((u16)(pair >> 16)), c0 = mul(middle, d0), c1 = mul(middle, d1);
    auto rows = [&](u32 w, u32& upper, u32& lower) { flat_rows(w, d0, c0, d1, c1, upper, lower); };
#endif
    u32 w[4];
#if FORMAT == FORMAT_Q8_0
    const u32x4 q = codes.q[block];
    w[0] = q.x, w[1] = q.y, w[2] = q.z, w[3] = q.w;
    UNROLL
    for (int i = 0; i < 2; i++) {
      // a word holds a0 and a1: its first two bytes are of row g, the others of g + 8
      rows(w[2 * i], a[2 * block + i][0], a[2 * block + i][1]);
      rows(w[2 * i + 1], a[2 * block + i][2], a[2 * block + i][3]);
    }
#else
    w[0] = block ? q.z : q.x, w[1] = block ? q.w : q.y;
    UNROLL
    for (int i = 0; i < 2; i++) {
      rows(w[i] & 0x0f0f0f0fu, a[2 * block + i][0], a[2 * block + i][1]);
      rows(w[i] >> 4 & 0x0f0f0f0fu, a[2 * block + i][2], a[2 * block + i][3]);
    }
#endif
  }
}

#elif FORMAT == FORMAT_Q4_K || FORMAT == FORMAT_Q5_K
#define K_SCALES (FORMAT == FORMAT_Q4_K ? 2048 : 2560)
#define RECORD_BYTES (K_SCALES + 320)
#if FORMAT == FORMAT_Q4_K
struct Scales { u32x4 sc; };
#else
struct Scales { u32x4 sc, top; };
#endif
DEVICE void load_scales(const u8* record, i32 lane, Scales& s) {
  s.sc = words4_at(record + K_SCALES + (lane >> 2) * 16);
#if FORMAT == FORMAT_Q5_K
  s.top = words4_at(record + 2048 + lane * 16);
#endif
}
struct Codes { u32x4 q; };
DEVICE void load_codes(const u8* record, i32 lane, i32 quarter, Codes& codes) { codes.q = words4_at(record + quarter * 512 + lane * 16); }
DEVICE void make_weights(const Codes& codes, const Scales& s, i32 lane, i32 quarter, u32 (&a)[4][4]) {
  const u32x4 q = codes.q;
  u32 sc = quarter == 0 ? s.sc.x : quarter == 1 ? s.sc.y : quarter == 2 ? s.sc.z : s.sc.w;
  // sc of rows g and g + 8 in the first and the second sub-block. In bf16: 128 + sc, then sc 2^113.
#if OPERANDS == OPERANDS_F16
  u32 first = whole_numbers(sc, 0x4140u, F16_ONE, 0xe400e400u);
#else
  u32 first = fma_bf16x2(prmt(sc, 0x43434343u, 0x4140u), 0x78007800u, 0xfb80fb80u);
#endif
  u32 s0 = low_twice(first), s1 = high_twice(first);
#if FORMAT == FORMAT_Q4_K
  // the second sub-block's nibbles stand four bits higher: sc / 16
#if OPERANDS == OPERANDS_F16
  u32 second = whole_numbers(sc, 0x4342u, 0x2c002c00u, 0xd400d400u);
#else
  u32 second = fma_bf16x2(prmt(sc, 0x43434343u, 0x4342u), 0x76007600u, 0xf980f980u);
#endif
  u32 t0 = low_twice(second), t1 = high_twice(second);
  UNROLL
  for (int i = 0; i < 4; i++) {
    u32 w = i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w, high = w >> 8;
    int step = i >> 1, half = i & 1;
    a[step][2 * half] = fma_fields(w & 0x000f000fu, s0, NOTHING);
    a[step + 2][2 * half] = fma_fields(w & 0x00f000f0u, t0, NOTHING);
    a[step][2 * half + 1] = fma_fields(high & 0x000f000fu, s1, NOTHING);
    a[step + 2][2 * half + 1] = fma_fields(high & 0x00f000f0u, t1, NOTHING);
  }
#else
#if OPERANDS == OPERANDS_F16
  u32 second = whole_numbers(sc, 0x4342u, F16_ONE, 0xe400e400u);
#else
  u32 second = fma_bf16x2(prmt(sc, 0x43434343u, 0x4342u), 0x78007800u, 0xfb80fb80u);
#endif
  u32 t0 = low_twice(second), t1 = high_twice(second);
  u32 top = quarter == 0 ? s.top.x : quarter == 1 ? s.top.y : quarter == 2 ? s.top.z : s.top.w;
  UNROLL
  for (int i = 0; i < 4; i++) {
    u32 w = i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w;
    int step = i >> 1, half = i & 1;
    UNROLL
    for (int n = 0; n < 4; n++) {
      int at = 4 * i + n;  // the fifth bit stands at (4 + at) % 16
      u32 bit = (at <= 11 ? top >> at : top << (16 - at)) & 0x00100010u;
      u32 x = and_or(w >> 4 * n, 0x000f000fu, bit);
      a[step + 2 * (n & 1)][2 * half + (n >> 1)] = fma_fields(x, n == 0 ? s0 : n == 1 ? t0 : n == 2 ? s1 : t1, NOTHING);
    }
  }
#endif
}
// A operand of the minima's step: -dmin m of the eight sub-blocks, twice.
DEVICE void load_minima(const u8* record, i32 lane, u32 (&a)[4]) {
  u32 m = word_at(record + K_SCALES + 128 + lane * 4), dmin = words2_at(record + K_SCALES + 256 + (lane >> 2) * 8).y;
  f32 e0 = times_unit(-f16_to_f32((u16)dmin)), e1 = times_unit(-f16_to_f32((u16)(dmin >> 16)));
  f32 c0 = mul(e0, -8388608.0f), c1 = mul(e1, -8388608.0f);  // 2^23 + m is exact
  a[0] = a[2] = pack_operands(fma_(e0, as_f32(prmt(m, 0x4b000000u, 0x7650u)), c0), fma_(e0, as_f32(prmt(m, 0x4b000000u, 0x7651u)), c0));
  a[1] = a[3] = pack_operands(fma_(e1, as_f32(prmt(m, 0x4b000000u, 0x7652u)), c1), fma_(e1, as_f32(prmt(m, 0x4b000000u, 0x7653u)), c1));
}

#elif FORMAT == FORMAT_Q6_K
#define RECORD_BYTES 3360
struct Scales { u32x2 sc[4]; };
DEVICE void load_scales(const u8* record, i32 lane, Scales& s) {
  const u8* at = record + 3072 + (lane >> 2) * 32;
  u32x4 first = words4_at(at), second = words4_at(at + 16);
  s.sc[0] = {first.x, first.y}, s.sc[1] = {first.z, first.w}, s.sc[2] = {second.x, second.y}, s.sc[3] = {second.z, second.w};
}
// Scales s 2^113 (or 2^111 where the field stands two bits higher) and -32 s 2^-20 of two steps, from their bytes. In f16: s (or s / 4)
// and -32 s 2^-24.
DEVICE void q6_scales(u32 bytes, int steps, u32& s, u32& n) {
#if OPERANDS == OPERANDS_F16
  s = steps ? whole_numbers(bytes, 0x4342u, 0x34003400u, 0xdc80dc80u) : whole_numbers(bytes, 0x4140u, F16_ONE, 0xe480e480u);
  n = fma_f16x2(s, steps ? 0x80808080u : 0x80208020u, NOTHING);
#else
  u32 small = fma_fields(prmt(bytes, 0u, steps ? 0x4342u : 0x4140u), POWER_127, 0xc000c000u);  // s 2^-6
  s = fma_bf16x2(small, steps ? 0x7a007a00u : 0x7b007b00u, NOTHING);
  n = fma_bf16x2(small, 0xbb00bb00u, NOTHING);
#endif
}
struct Codes {
  u32x4 q;
  u32x2 top;
};
DEVICE void load_codes(const u8* record, i32 lane, i32 quarter, Codes& codes) {
  codes.q = words4_at(record + quarter * 512 + lane * 16);
  codes.top = words2_at(record + 2048 + quarter * 256 + lane * 8);
}
DEVICE void make_weights(const Codes& codes, const Scales& s, i32, i32 quarter, u32 (&a)[4][4]) {
  const u32x4 q = codes.q;
  const u32x2 top = codes.top;
  u32 two[4], less[4];  // row g: steps 0 and 1, 2 and 3; row g + 8
  UNROLL
  for (int i = 0; i < 4; i++) q6_scales(i < 2 ? s.sc[quarter].x : s.sc[quarter].y, i & 1, two[i], less[i]);
  UNROLL
  for (int step = 0; step < 2; step++) {
    auto its = [&](u32 both) { return step ? high_twice(both) : low_twice(both); };
    u32 s0 = its(two[0]), n0 = its(less[0]), t0 = its(two[1]), m0 = its(less[1]), high = step ? top.y : top.x;
    u32 s1 = its(two[2]), n1 = its(less[2]), t1 = its(two[3]), m1 = its(less[3]);
    UNROLL
    for (int half = 0; half < 2; half++) {
      u32 w = step == 0 ? (half ? q.y : q.x) : (half ? q.w : q.z), w8 = w >> 8;
      u32 h0 = half ? high >> 8 : high, h1 = half ? high >> 12 : high >> 4, h1_low = half ? high << 4 : h1;
      a[step][2 * half] = fma_fields(and_or(w, 0x000f000fu, h0 & 0x00300030u), s0, n0);
      a[step + 2][2 * half] = fma_fields(and_or(w, 0x00f000f0u, h0 & 0x000c000cu), t0, m0);
      a[step][2 * half + 1] = fma_fields(and_or(w8, 0x000f000fu, h1_low & 0x00300030u), s1, n1);
      a[step + 2][2 * half + 1] = fma_fields(and_or(w8, 0x00f000f0u, h1 & 0x000c000cu), t1, m1);
    }
  }
}

#elif FORMAT == FORMAT_IQ4_XS
#define RECORD_BYTES 2208
struct Scales { u32x4 sc; };
DEVICE void load_scales(const u8* record, i32 lane, Scales& s) { s.sc = words4_at(record + 2048 + (lane >> 2) * 16); }
#ifndef TABLE
#define TABLE 0  // of the eight bytes of two words of codes, how many are looked up in a table in shared memory: by 0, 2, 4, 6 or 8
#endif
#define TABLE_BYTES (TABLE ? 32768 : 0)  // at the beginning of shared memory
#if TABLE
// For each byte of two codes their values, once for each lane, so that no two lanes ask the same bank: subnormal numbers v 2^-133.
DEVICE void make_table() {
  for (i32 i = thread(); i < TABLE_BYTES / 16; i += block_threads()) {
    u32 word = 0;
    UNROLL
    for (i32 pair = 0; pair < 2; pair++) {
      const u32 code = (u32)i >> (3 + 4 * pair) & 15u;
      const i32 value = iq4_value((code << 1 & 15u) | code >> 3);
      word |= (value < 0 ? 0x8000u | (u32)-value : (u32)value) << (16 * pair);
    }
    *(u32x4*)(shared_memory() + i * 16) = {word, word, word, word};
  }
}
// Of byte `at` of the codes.
DEVICE u32 in_table(u32 codes, int at, i32 lane) { return word_at(shared_memory() + dot_bytes(codes, 128u << (8 * at), 4u * (u32)lane)); }
#endif
// Values + 128 of the four codes in the low half-word, a byte each. A code is the index into
// the sorted table, rotated right by one: the top bit says which of two neighbours is meant. Two tables of eight bytes; a
// selector whose top bit is set makes prmt repeat the byte's sign, and the tables are such that the exclusive or of both looks is the
// value either way.
DEVICE u32 iq4_bytes(u32 codes, u32 flipped) {
#if defined(__HIP__) || defined(__HIPCC_RTC__)  // no such mode
  (void)flipped;
  u32 even = prmt(0x6a4f2d01u, 0xd9b59981u, codes & 0x7777u), odd = prmt(0x765d3f18u, 0xf1c5a68du, codes & 0x7777u);
  return prmt(even, odd, 0x3210u | (codes >> 1 & 0x4444u));
#else
  return prmt(0x6a4f2d01u, 0xd9b59981u, codes) ^ prmt(0x765d3f18u, 0x0e3a5972u, flipped);
#endif
}
struct Codes { u32x4 q; };
DEVICE void load_codes(const u8* record, i32 lane, i32 quarter, Codes& codes) { codes.q = words4_at(record + quarter * 512 + lane * 16); }
DEVICE void make_weights(const Codes& codes, const Scales& s, i32 lane, i32 quarter, u32 (&a)[4][4]) {
  const u32x4 q = codes.q;
  u32 sc = quarter == 0 ? s.sc.x : quarter == 1 ? s.sc.y : quarter == 2 ? s.sc.z : s.sc.w;
  UNROLL
  for (int block = 0; block < 2; block++) {
#if OPERANDS == OPERANDS_F16
    u32 both = whole_numbers(sc, block ? 0x4342u : 0x4140u, F16_ONE, 0xe420e420u);  // 1,024 + b - 1,056
    u32 less = fma_f16x2(both, 0x80808080u, NOTHING);                               // -128 sc 2^-24
#else
    u32 both = fma_bf16x2(prmt(sc, 0x43434343u, block ? 0x4342u : 0x4140u), 0x78007800u, 0xfba0fba0u);  // (128 + b - 160) 2^113
    u32 less = fma_bf16x2(both, 0x80808080u, NOTHING);                                                   // -128 sc 2^-20
#endif
    u32 s0 = low_twice(both), s1 = high_twice(both), n0 = low_twice(less), n1 = high_twice(less);
    UNROLL
    for (int i = 0; i < 2; i++) {
      u32 w = block == 0 ? (i ? q.y : q.x) : (i ? q.w : q.z), flipped = w ^ 0x88888888u;
      UNROLL
      for (int half = 0; half < 2; half++) {
        u32 (&to)[4] = a[2 * block + i];
#if TABLE
        if (4 * i + 2 * half < TABLE) {
          to[2 * half] = fma_fields(in_table(w, 2 * half, lane), s0, 0);
          to[2 * half + 1] = fma_fields(in_table(w, 2 * half + 1, lane), s1, 0);
          continue;
        }
#endif
        u32 bytes = half ? iq4_bytes(w >> 16, flipped >> 16) : iq4_bytes(w, flipped);
        to[2 * half] = fma_fields(prmt(bytes, 0, 0x4140u), s0, n0);
        to[2 * half + 1] = fma_fields(prmt(bytes, 0, 0x4342u), s1, n1);
      }
    }
  }
}
#else
#error "FORMAT: no such format of records"
#endif

#ifndef TABLE_BYTES
#define TABLE_BYTES 0
#endif

DEVICE void load_weights(const u8* record, const Scales& s, i32 lane, i32 quarter, u32 (&a)[4][4]) {
  Codes codes;
  load_codes(record, lane, quarter, codes);
  make_weights(codes, s, lane, quarter, a);
}

#if SCALED
#define RECORD_D (MINIMA ? RECORD_BYTES - 64 : RECORD_BYTES - 32)
#define ROW_SCALE (OPERANDS == OPERANDS_F16 ? 268435456.0f : 1048576.0f)  // with activations' sixteenth: 2^24 16
// d of rows g and g + 8 times the power of two that weights lack.
DEVICE void load_row_scales(const u8* record, i32 lane, f32& d0, f32& d1) {
#if MINIMA
  u32 d = words2_at(record + RECORD_D + (lane >> 2) * 8).x;
#else
  u32 d = word_at(record + RECORD_D + (lane >> 2) * 4);
#endif
  d0 = mul(f16_to_f32((u16)d), ROW_SCALE);
  d1 = mul(f16_to_f32((u16)(d >> 16)), ROW_SCALE);
}
#endif
