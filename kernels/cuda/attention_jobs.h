// The inputs of the attention kernels besides activations: the segments of a step as lists of jobs,
// made once a step by attention_plan.cc and read in every layer. Plain data, the same on the host
// and on the device.
//
// The boundaries of jobs depend on the model and on absolute positions only, never on the split
// into segments or on other sequences: work is cut at block boundaries, a block is folded from zero
// and added once, and the parts of a row's sum (attention_parts.cuh) have fixed boundaries. So
// prefill, decoding and any mixture of both compute the same bits.
#pragma once

#include <cstdint>

namespace polysketch::cuda {

// An array that every head of every layer has. `base` is a device address, or an offset in a block
// of a KV cache; the strides are in bytes.
struct HeadArray {
  uint64_t base = 0;
  int64_t head_stride = 0;
  int64_t layer_stride = 0;
};

// Keys and values of consecutive tokens; with a decay gate also G, the sums of their log decays from
// the start of each block.
struct TokenArrays {
  HeadArray far_keys, near_keys, values, decay_sums;
};

// The far state: S, z, and what queries read of S, under StateFormat::kQ8 its copy (mx_int8.h), else S.
struct FarSums {
  HeadArray sums, weights, read;
};

// Stores rows [row, row + count) of the batch, in the format of the state, as tokens first, first + 1, ...
// The far keys of the first `sinks` are zeros, since no sum has those of a window's sinks.
struct StoreJob {
  TokenArrays to;
  // KV kinds: the block table of the state, and the place in it of the block that `to` is in.
  uint8_t* const* table = nullptr;
  int64_t place = 0;
  int32_t row = 0;
  int32_t count = 0;
  int32_t first = 0;
  int32_t sinks = 0;
};

// What a kernel stores in the place of StoreTokens (attention_state.cuh) in a step of one token of each
// sequence: the keys and values of the jobs, in layer `layer` of their group. It sets the counters of
// the attention kernels to zero.
struct StoredStep {
  const StoreJob* jobs = nullptr;  // one for each token
  int64_t tokens = 0;
  int32_t layer = 0;
  int32_t counter_count = 0;
  int32_t* counters = nullptr;
};

// Copies the first `count` tokens of a block buffer to the workspace.
struct CopyJob {
  TokenArrays from, to;
  int32_t count = 0;
};

// Sums one full block from zero into partial sums [features][d] and [features]. With a decay gate the
// block's G_b is stored beside them.
struct FoldJob {
  TokenArrays from;
  int64_t partial = 0;  // index of the partial sums
};

// Adds the partial sums of a segment to its state, each once, in order. Before every `period`-th addition,
// from the first one on, the state is copied, as queries read it, to the next snapshot, unless `snapshots`
// is negative.
struct ScanJob {
  FarSums state;
  int64_t partial = 0;     // first index
  int64_t snapshots = -1;  // first index
  int32_t count = 0;
  int32_t period = 1;
};

// FoldJob and ScanJob in one: adds `count` full blocks of consecutive tokens to a state, which may be
// none.
struct WalkJob {
  TokenArrays from;  // of the first block
  FarSums state;
  int64_t snapshots = 0;  // first index, before each block and after the last; -1: none
  int32_t count = 0;      // blocks
};

// Computes the queries of tokens in one block.
struct AttendJob {
  TokenArrays keys;  // of this block
  uint8_t* const* table = nullptr;
  HeadArray sums, weights;   // what the queries read of S, and z
  int32_t row = 0;           // first row of the batch
  int32_t count = 0;         // rows
  int32_t block_offset = 0;  // offset of the first token in its block
  int32_t past = 0;          // 1 if there is a far state
  // The walk that stores the far state, or -1, and how many states it has stored by then.
  int32_t walk = -1;
  int32_t stored = 0;
  int64_t partial = 0;  // few rows: where the results of the parts are stored, in rows
  int32_t block = 0;    // of the queries, in the table; 0 without one
  // The parts of 64 keys that some row attends to, counted from the first token of the block, with a
  // table of the sequence: those before `sink_parts`, and those from `first_part` on to the queries'
  // own.
  int32_t sink_parts = 0;
  int32_t first_part = 0;
  // Of a window: blocks of sinks, blocks after them that the table does not have, and the tokens
  // before the first row's that this row attends to, without sinks (-1: no window).
  int32_t sink_blocks = 0;
  int32_t dropped = 0;
  int32_t reach = -1;
};

}  // namespace polysketch::cuda
