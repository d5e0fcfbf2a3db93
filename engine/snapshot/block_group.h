// Blocks of a saved state that are stored apart from the rest of a snapshot: consecutive full
// blocks (state_layout.h), written once.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_buffer.h"
#include "base/status.h"
#include "engine/snapshot/content_hash.h"
#include "engine/snapshot/state_encoding.h"
#include "engine/snapshot/state_layout.h"

namespace polysketch {

struct BlockGroup {
  std::array<uint64_t, 2> id{};  // random: of the entry that holds it
  int64_t blocks = 0;
  StateEncoding encoding = StateEncoding::kF32;
  int64_t bytes = 0;   // encoded
  ContentHash hash{};  // of the values that the encoding keeps, before compression

  bool operator==(const BlockGroup&) const = default;
};

// How a snapshot whose blocks are stored apart is read.
struct BlockReader {
  const StateLayout* layout = nullptr;
  // The encoded bytes of a group.
  std::function<Result<ByteBuffer>(const BlockGroup& group)> read;
};

// The section of a snapshot that names the groups, in order.
std::string BlockGroupBytes(const std::vector<BlockGroup>& groups);
// DATA_LOSS for bytes that BlockGroupBytes does not write.
Result<std::vector<BlockGroup>> ReadBlockGroups(std::string_view section);

// Sums that do not overflow for groups that ReadBlockGroups returns.
int64_t CountBlocks(const std::vector<BlockGroup>& groups);
int64_t CountBytes(const std::vector<BlockGroup>& groups);
std::vector<int64_t> BlocksOfEach(const std::vector<BlockGroup>& groups);

// Reads the values of all groups and places them beside those of the rest. `rest`:
// layout.RestBytes(position) bytes of values; the groups have layout.FullBlocks(position) blocks.
// DATA_LOSS for a group of other bytes.
Result<ByteBuffer> JoinState(int64_t position, const ByteBuffer& rest,
                             const std::vector<BlockGroup>& groups, const BlockReader& reader);

}  // namespace polysketch
