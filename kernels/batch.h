// One pass over the layers: what the host tells the kernels about its rows. The Python twin, field by field, is
// luce/engines/qwen35/device/descriptors.py (a test compares sizes and offsets).
//
// A pass is a batch of R rows (tokens) of several lanes. A lane is a run of consecutive positions of one slot; its rows
// stand together, lanes in ascending order of `row`. There are two kinds of pass:
//   step   every lane has one row, R <= 64. Launched from a CUDA graph for a bucket of m >= R rows: grids and pointers are
//          those of the bucket, so a kernel reads `pass->rows` and leaves rows, lanes and samples past the counts alone.
//   chunk  lanes of any length (prefill); launched eagerly with grids that fit, R up to the row buffers' height.
// All of it stands in one device buffer that one copy fills before the pass: header, rows, lanes, samples, lists. Kernels
// get pointers to these parts.
//
// What holds for every kernel (tests plant NaN to check it):
// - Scratch rows at or past `pass->rows` may be read and computed on (padded tiles) but hold anything; nothing of them
//   may reach state, keys, values, or another row.
// - State past the committed position holds anything: ring rows at or past a lane's `start` (void rows, an earlier
//   owner's), keys and values at or past the end of a lane's rows. Kernels mask these by index, never by value: a
//   probability of zero times NaN is NaN, so values past the lane's end are taken as zeros. What stands before position 0
//   (convolution, ring, S) is zero by index too: nobody clears a slot's state. `base == 0` means S is zero.
// - Which rows stand beside each other, and where, never changes a row's bits.
#pragma once
#include "device.h"

#define CHUNK_ROWS 64   // rows between two places where the DeltaNet state may be folded
#define RING_ROWS 128   // ring rows of a slot (k, u, G): position t stands at t mod 128
#define CONV_ROWS 72    // rows kept before convolution, of a slot: position t stands at t mod 72
#define BLOCK_ROWS 64   // tokens of a KV block
#define STEP_ROWS 64    // most rows of a step pass

struct Pass {           // 16 bytes
    i32 rows;           // R
    i32 lanes;
    i32 samples;
    i32 tiles;          // of queries, chunk passes only: see Tile
};

#define SOURCE_HISTORY (-1)   // the id that stands in the slot's history at the row's position (sampled before)
#define SOURCE_IMAGE(n) (-2 - (n))   // row n of the image rows f32 [.][hidden] (its own inverse)

struct Row {            // 32 bytes
    i32 slot;
    i32 position;       // absolute, in tokens
    i32 source;         // >= 0: token id, which is also put into the history; else SOURCE_HISTORY or SOURCE_IMAGE(n)
    i32 lane;
    i32 t, h, w;        // M-RoPE positions
    i32 kv;             // row of the KV pool that the key and value go to: block * BLOCK_ROWS + position % BLOCK_ROWS
};

struct Lane {           // 32 bytes
    i32 slot;
    i32 start;          // position of the first row: rows of the slot before it are committed
    i32 count;
    i32 row;            // first row in the pass
    i32 base;           // S of the slot stands at this multiple of 64 before the pass, ring rows base .. start - 1 follow
    i32 base_after;     // S stands at this multiple of 64 afterwards. Lanes of up to 64 rows: start / 64 * 64; longer ones: the last
                        // multiple of 64 before their end. The pass folds the chunks from base to base_after into S, in order.
                        // Rows at or past base_after + 64 (at most one chunk of them, in lanes of up to 64 rows) read a provisional
                        // state, S folded once more, which is not kept
    i32 table;          // where the slot's block table begins in the block tables: block of position p is
                        // tables[table + p / BLOCK_ROWS]; covers the lane's end
    i32 reserved;
};

struct Tile {           // 8 bytes: up to QUERY_TILE (the attention kernel's) consecutive rows of one lane
    i32 lane;
    i32 first;          // row in the lane
};

#define SAMPLE_GREEDY 1     // argmax, lowest id of equal ones; temperature, filters and seed do not take part
#define SAMPLE_MASK 2       // `mask` names a row of the masks
#define SAMPLE_PENALTIES 4  // repetition, presence or frequency differs from 1, 0, 0
#define SAMPLE_TOP_P 8      // `top_p` takes part
#define SAMPLE_LOGPROBS 16  // `logprobs` of the most likely ids are wanted, and that of the drawn one
#define SAMPLE_MIN_P 32     // `log_min_p` takes part

struct Sample {         // 112 bytes: one token to draw (luce/sampling/sampler.py says what the steps are, and in float64)
    i32 row;            // row of the pass whose logits are drawn from
    i32 slot;
    i32 position;       // absolute position that the token will stand at; it is put into the history there
    u32 flags;
    f64 temperature;    // > 0
    f64 log_min_p;      // ln(min_p)
    u64 top_p;          // ceil(top_p * 2^64), a fixed-point fraction: kept is the smallest set of most likely ids whose integer
                        // weights sum to at least ceil(total * top_p / 2^64)
    i32 top_k;          // 0: off
    i32 logprobs;       // most likely ids wanted, 0..20
    u32 seed[2];        // low, high word of the Philox key
    f64 repetition;
    f64 presence;
    f64 frequency;
    i32 first_generated;// ids of the history before it are prompt, from it to position - 1 generated
    i32 bias;           // first entry in the lists (Adjust), ascending by id, of ids with a bias
    i32 num_bias;
    i32 ends;           // first entry in the lists, ascending by id, of ids that may not be drawn yet (min_tokens; `add`
    i32 num_ends;       // unused), unless the mask then leaves nothing
    i32 mask;           // row of the masks u32 [.][ceil(ids / 32)], bit i % 32 of word i / 32: may id i be drawn?
    i32 reserved[2];
};

struct Adjust {         // 16 bytes
    f64 add;
    i32 id;
    i32 reserved;
};

#define TOP_LOGPROBS 20

struct Drawn {          // 192 bytes: the result of a Sample, in its place
    i32 token;
    i32 faults;         // 0; else the row's hidden values or logits were not finite, or nothing could be drawn: token is 0 then
    f32 logprob;        // log-softmax of the unprocessed logits
    i32 num_top;
    i32 top_ids[TOP_LOGPROBS];
    f32 top_logprobs[TOP_LOGPROBS];
    i32 reserved[4];
};

#define FAULT_LOGITS 1      // a logit of a real id is NaN or infinite
#define FAULT_MASK 2        // the mask allows nothing
#define FAULT_ROWS 4        // a lane's last hidden row is NaN or infinite

// history i32 [slots][history_stride]: the ids fed so far by position, and the one sampled for the next. The host puts the prompt
// there when a slot is opened; embedding and sampler keep it up. Entries at or past the position in hand hold anything.
