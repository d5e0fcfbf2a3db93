// What the attention kernels are told: a step's segments as lists of jobs, made once a step by
// attention_plan.cc and read by every layer. Plain data, the same on host and device.
//
// The structure depends on the model and on absolute positions only, never on the split or the
// neighbours: work is cut at block boundaries, a block is folded from zero and added once, and the
// parts of a row's sum (attention_parts.cuh) stand at fixed places. That is what makes prefill,
// decoding and any mixture of them give the same bits.
#pragma once

#include <cstdint>

namespace polysketch::cuda {

// A place in device memory that repeats for every head and every layer.
struct Place {
  uint64_t base = 0;  // an address on the device, or an offset in a block of a KV cache
  int64_t head = 0;   // bytes from one head to the next
  int64_t layer = 0;  // bytes from one layer to the next
};

// Keys and values of tokens that follow one another.
struct TokenArrays {
  Place far_keys, near_keys, values;
};

// Rows of the packed batch, rounded to T, to tokens first, first + 1, ...
struct StoreJob {
  TokenArrays to;
  // KV kinds: the table of the state instead, and the block.
  uint8_t* const* table = nullptr;
  int64_t block = 0;
  int32_t row = 0;
  int32_t count = 0;
  int32_t first = 0;
};

// The first `count` tokens of a block buffer to a workspace.
struct CopyJob {
  TokenArrays from, to;
  int32_t count = 0;
};

// One full block: its sum, from zero, to a partial [features][d] and [features].
struct FoldJob {
  TokenArrays from;
  int64_t partial = 0;  // index
};

// The partials of a segment, in order, each added once to its state. Before each is added the state
// goes, as a reader sees it, to a snapshot; not when `snapshots` is negative.
struct ScanJob {
  Place sums, weights;  // S and z
  int64_t partial = 0;
  int64_t snapshots = -1;
  int32_t count = 0;
};

// Queries of tokens in one block.
struct AttendJob {
  TokenArrays keys;  // of this block
  uint8_t* const* table = nullptr;
  Place sums, weights;  // the far state at the block's start
  int64_t block = 0;    // of the queries; KV kinds read all blocks up to it
  int64_t partial = 0;  // few rows: where the parts' results go, in rows
  int32_t row = 0;
  int32_t count = 0;
  int32_t place = 0;  // of the first query in its block
  int32_t past = 0;   // 1: there is a far state; 0: nothing is behind the block
};

}  // namespace polysketch::cuda
