// Queries, keys and values of the vision tower as its attention takes them. Macros: HEADS; HEAD_DIM, a multiple of 8 up to 128.
//
// [tile][head] of 64 rows: queries, keys, values. Queries and keys as core matrices [row / 8][dim / 8][row % 8][dim % 8] of DEPTH dims,
// those of a head and zeros up to a multiple of 16, which nobody writes; values [row / 8][dim / 8][dim % 8][row % 8] of HEAD_DIM dims.
// The dims of queries and keys stand in pairs that turn together: dim i of a head at place 2 i, dim i + HEAD_DIM / 2 behind it.
#pragma once
#include "device.h"

#if !defined(HEADS) || !defined(HEAD_DIM)
#error "define HEADS, HEAD_DIM"
#endif
#if HEAD_DIM % 8 || HEAD_DIM > 128 || HEADS * HEAD_DIM % 16
#error "HEAD_DIM is a multiple of 8 and at most 128, HEADS HEAD_DIM one of 16"
#endif

#define WIDTH (HEADS * HEAD_DIM)
#define DEPTH ((HEAD_DIM + 15) / 16 * 16)
#define TILE_ROWS 64
#define KEY_BYTES (TILE_ROWS * DEPTH * 2)
#define VALUE_BYTES (TILE_ROWS * HEAD_DIM * 2)
#define HEAD_BYTES (2 * KEY_BYTES + VALUE_BYTES)
#ifndef CORE_BYTES
#define CORE_BYTES 128  // a core matrix: 8 rows of 8 bf16
#endif
