// What weight products multiply: 16 bits, of which a model's engine says (OPERANDS) whether they are bf16 or f16. Included by device.h.
//
// f16 has three bits more and a range that ends at 65,504. So an activation is held as a sixteenth of itself and a weight as its sixteenfold
// (of a scaled format: times 2^-24, records.h); all powers of two cancel exactly. There is a number for activations up to a million, and
// for weights up to 4,094 (of a flat format).
#pragma once

#define OPERANDS_BF16 0
#define OPERANDS_F16 1
#ifndef OPERANDS
#define OPERANDS OPERANDS_F16
#endif

#if OPERANDS == OPERANDS_F16
#define OPERAND_TYPE "f16"
#define OPERAND_UNIT 16.0f
DEVICE u32 pack_operands(f32 low, f32 high) { return pack_f16(low, high); }
DEVICE f32 operand_to_f32(u16 h) { return f16_to_f32(h); }
DEVICE f32 operand_low(u32 pair) { return f16_to_f32((u16)pair); }
DEVICE f32 operand_high(u32 pair) { return f16_to_f32((u16)(pair >> 16)); }
DEVICE f32 divide_unit(f32 v) { return mul(v, 1.0f / OPERAND_UNIT); }
DEVICE f32 times_unit(f32 v) { return mul(v, OPERAND_UNIT); }
#if HAS_MMA
DEVICE void mma_operands(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { mma_f16(c, a0, a1, a2, a3, b0, b1); }
DEVICE u32 fma_operands(u32 a, u32 b, u32 c) { return fma_f16x2(a, b, c); }
#endif

#elif OPERANDS == OPERANDS_BF16
#define OPERAND_TYPE "bf16"
#define OPERAND_UNIT 1.0f
DEVICE u32 pack_operands(f32 low, f32 high) { return pack_bf16(low, high); }
DEVICE f32 operand_to_f32(u16 h) { return bf16_to_f32(h); }
DEVICE f32 operand_low(u32 pair) { return bf16_low(pair); }
DEVICE f32 operand_high(u32 pair) { return bf16_high(pair); }
DEVICE f32 divide_unit(f32 v) { return v; }
DEVICE f32 times_unit(f32 v) { return v; }
#if HAS_MMA
DEVICE void mma_operands(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { mma_bf16(c, a0, a1, a2, a3, b0, b1); }
// a * b + c on both halves, one rounding each.
DEVICE u32 fma_operands(u32 a, u32 b, u32 c) { return fma_bf16x2(a, b, c); }
#endif

#else
#error "OPERANDS: OPERANDS_BF16 or OPERANDS_F16"
#endif

DEVICE u16 f32_to_operand(f32 v) { return (u16)pack_operands(v, 0.0f); }
// An activation as it is held: of v the number next to v / OPERAND_UNIT.
DEVICE u32 pack_activations(f32 low, f32 high) { return pack_operands(divide_unit(low), divide_unit(high)); }
DEVICE u16 f32_to_activation(f32 v) { return (u16)pack_activations(v, 0.0f); }
