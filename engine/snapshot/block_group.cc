#include "engine/snapshot/block_group.h"

#include <algorithm>
#include <utility>

#include "engine/snapshot/fields.h"

namespace polysketch {
namespace {

// More than any state has, and few enough that sums do not overflow.
constexpr int64_t kLargestSum = int64_t{1} << 56;

template <typename Fields, typename Group, typename Encoding>
void Visit(Fields& fields, Group& group, Encoding& encoding) {
  fields(group.id, group.blocks, encoding, group.bytes, group.hash);
}

}  // namespace

std::string BlockGroupBytes(const std::vector<BlockGroup>& groups) {
  FieldWriter fields;
  fields.Each(groups, [&](const BlockGroup& group) {
    const auto encoding = static_cast<uint32_t>(group.encoding);
    Visit(fields, group, encoding);
  });
  return std::move(fields).Take();
}

Result<std::vector<BlockGroup>> ReadBlockGroups(std::string_view section) {
  FieldReader fields(section);
  std::vector<BlockGroup> groups;
  int64_t blocks = 0, bytes = 0;
  bool fit = true;
  fields.Each(groups, [&](BlockGroup& group) {
    uint32_t encoding = 0;
    Visit(fields, group, encoding);
    fit = fit && group.blocks > 0 && group.blocks <= kLargestSum - blocks && group.bytes >= 0 &&
          group.bytes <= kLargestSum - bytes &&
          encoding <= static_cast<uint32_t>(StateEncoding::kBf16Zstd);
    if (!fit) return;
    blocks += group.blocks;
    bytes += group.bytes;
    group.encoding = static_cast<StateEncoding>(encoding);
  });
  if (fit && fields.Finished() && !groups.empty()) return groups;
  return DataLoss("snapshot: blocks: expected groups of blocks, found other fields");
}

int64_t CountBlocks(const std::vector<BlockGroup>& groups) {
  int64_t blocks = 0;
  for (const BlockGroup& group : groups) blocks += group.blocks;
  return blocks;
}

int64_t CountBytes(const std::vector<BlockGroup>& groups) {
  int64_t bytes = 0;
  for (const BlockGroup& group : groups) bytes += group.bytes;
  return bytes;
}

std::vector<int64_t> BlocksOfEach(const std::vector<BlockGroup>& groups) {
  std::vector<int64_t> blocks;
  blocks.reserve(groups.size());
  for (const BlockGroup& group : groups) blocks.push_back(group.blocks);
  return blocks;
}

Result<ByteBuffer> JoinState(int64_t position, const ByteBuffer& rest,
                             const std::vector<BlockGroup>& groups, const BlockReader& reader) {
  const StateLayout& layout = *reader.layout;
  const std::vector<StatePiece> pieces = layout.Pieces(position, BlocksOfEach(groups));
  ByteBuffer state(layout.StateBytes(position));
  StateLayout::Join(pieces, groups.size(), rest, state);
  for (size_t i = 0; i < groups.size(); ++i) {
    const BlockGroup& group = groups[i];
    PS_ASSIGN_OR_RETURN(const ByteBuffer encoded, reader.read(group));
    PS_ASSIGN_OR_RETURN(const ByteBuffer values,
                        DecodeState(AsText(encoded), static_cast<uint32_t>(group.encoding),
                                    static_cast<uint64_t>(group.blocks) * layout.block_bytes()));
    ContentHasher hasher;
    KeptValues(values, group.encoding, [&](std::string_view kept) { hasher.Add(kept); });
    if (hasher.Hash() != group.hash) {
      return DataLoss("snapshot: blocks: the checksum of ", HashText(group.id), " is wrong");
    }
    StateLayout::Join(pieces, i, values, state);
  }
  return state;
}

}  // namespace polysketch
