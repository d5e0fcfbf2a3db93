#include "engine/snapshot/snapshot_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/snapshot/fields.h"
#include "engine/snapshot/generation_bytes.h"
#include "engine/snapshot/state_encoding.h"

namespace polysketch {
namespace {

constexpr std::string_view kSnapshotMagic = "PSKSNAP\n";
// Version 2: the state has the sums of a decay gate. Files without them keep version 1, so that
// earlier servers read them.
constexpr uint32_t kVersion = 1, kGateVersion = 2;
// Version 3: full blocks of the state are stored apart.
constexpr uint32_t kBlocksVersion = 3;
constexpr size_t kHeaderBytes = 32;  // magic, version, sections, size of the file, checksum
constexpr size_t kEntryBytes = 40;   // of the section table
constexpr size_t kMaxSections = 4;

enum SectionKind : uint32_t {
  kBinding = 1,
  kSequence = 2,
  kState = 3,
  kGeneration = 4,
  kBlocks = 5,
};

struct ReadSection {
  uint32_t kind = 0;
  uint32_t encoding = 0;      // StateEncoding of kState, else 0
  uint64_t decoded_size = 0;  // of `bytes` without the encoding
  std::string_view bytes;
};

uint64_t Checksum(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

template <typename Fields, typename Binding>
void VisitBinding(Fields& fields, Binding& binding) {
  fields(binding.model, binding.tokenizer, binding.numerics);
}

std::string BindingBytes(const SnapshotBinding& binding) {
  FieldWriter fields;
  VisitBinding(fields, binding);
  return std::move(fields).Take();
}

// A name out of a file, for an error that travels in a header and that terminals show.
std::string Shown(std::string_view name) {
  const bool short_text =
      name.size() <= 200 && std::ranges::all_of(name, [](char c) { return c >= 0x20 && c < 0x7f; });
  return short_text ? StrCat("\"", name, "\"") : StrCat("a name of ", name.size(), " bytes");
}

Status CheckBinding(std::string_view bytes, const SnapshotBinding& expected) {
  FieldReader fields(bytes);
  SnapshotBinding found;
  VisitBinding(fields, found);
  if (!fields.Finished()) return DataLoss("snapshot: binding: expected other fields");
  if (found.model != expected.model) {
    return FailedPrecondition("snapshot: expected one of model ", HashText(expected.model),
                              ", found one of ", HashText(found.model))
        .WithReason(Reason::kModelMismatch);
  }
  if (found.tokenizer != expected.tokenizer) {
    return FailedPrecondition("snapshot: expected one of tokenizer ", HashText(expected.tokenizer),
                              ", found one of ", HashText(found.tokenizer))
        .WithReason(Reason::kModelMismatch);
  }
  if (found.numerics != expected.numerics) {
    return FailedPrecondition("snapshot: expected the numeric format \"", expected.numerics,
                              "\", found ", Shown(found.numerics))
        .WithReason(Reason::kModelMismatch);
  }
  return Status();
}

// position: tokens in the state. seen: TokenSet::words.
template <typename Fields, typename Position, typename S, typename Words>
void VisitSequence(Fields& fields, Position& position, S& snapshot, Words& seen) {
  fields(position, snapshot.pending, snapshot.history.tail, seen);
}

std::string SequenceBytes(const Snapshot& snapshot) {
  FieldWriter fields;
  const int64_t position = snapshot.position();
  VisitSequence(fields, position, snapshot, snapshot.history.seen.words());
  return std::move(fields).Take();
}

Status ReadSequence(std::string_view bytes, int64_t* position, Snapshot* snapshot) {
  FieldReader fields(bytes);
  std::vector<uint64_t> seen;
  VisitSequence(fields, *position, *snapshot, seen);
  if (!fields.Finished()) return DataLoss("snapshot: sequence: expected other fields");
  snapshot->history.seen = TokenSet::FromWords(std::move(seen));
  if (*position >= 0) return Status();
  return InvalidArgument("snapshot: position: expected 0 or more, found ", *position);
}

struct SectionTable {
  uint32_t version = 0;
  std::string_view bytes;
};

// Returns the section table after its checksum was verified.
Result<SectionTable> ReadTable(std::string_view file) {
  if (file.size() < kHeaderBytes || !file.starts_with(kSnapshotMagic)) {
    return DataLoss("snapshot: expected the beginning of one, found ", file.size(),
                    " bytes of something else");
  }
  FieldReader header(file.substr(kSnapshotMagic.size()));
  uint32_t version = 0, count = 0;
  uint64_t size = 0, checksum = 0;
  header(version, count, size, checksum);
  if (version < kVersion || version > kBlocksVersion) {
    return FailedPrecondition("snapshot: expected version ", kVersion, " to ", kBlocksVersion,
                              ", found ", version)
        .WithReason(Reason::kModelMismatch);
  }
  if (size != file.size()) {
    return DataLoss("snapshot: expected ", size, " bytes, found ", file.size());
  }
  if (count > kMaxSections || kHeaderBytes + count * kEntryBytes > file.size()) {
    return DataLoss("snapshot: expected at most ", kMaxSections, " sections, found ", count);
  }
  const std::string_view table = file.substr(kHeaderBytes, count * kEntryBytes);
  std::string covered(file.substr(0, kHeaderBytes - sizeof(checksum)));
  covered += table;
  if (Checksum(covered) != checksum) return DataLoss("snapshot: the header's checksum is wrong");
  return SectionTable{version, table};
}

struct ReadFile {
  bool whole = true;  // no block is stored apart
  std::vector<ReadSection> sections;
};

Status CheckOrder(const ReadFile& file) {
  const std::vector<ReadSection>& sections = file.sections;
  bool ordered = sections.size() == 4 || (file.whole && sections.size() == 3);
  for (size_t i = 0; i < sections.size(); ++i) {
    const ReadSection& section = sections[i];
    const bool plain = section.encoding == 0 && section.decoded_size == section.bytes.size();
    const uint32_t kind = i == 3 && !file.whole ? kBlocks : kBinding + static_cast<uint32_t>(i);
    ordered = ordered && section.kind == kind && (plain || section.kind == kState);
  }
  if (ordered) return Status();
  return DataLoss(
      "snapshot: expected the sections binding, sequence, state and perhaps generation or blocks, "
      "found others");
}

Result<ReadFile> ReadSections(std::string_view file) {
  PS_ASSIGN_OR_RETURN(const SectionTable table, ReadTable(file));
  ReadFile read = {table.version != kBlocksVersion,
                   std::vector<ReadSection>(table.bytes.size() / kEntryBytes)};
  uint64_t next = kHeaderBytes + table.bytes.size();
  FieldReader fields(table.bytes);
  for (ReadSection& section : read.sections) {
    uint64_t offset = 0, size = 0, checksum = 0;
    fields(section.kind, section.encoding, offset, size, section.decoded_size, checksum);
    if (offset != next || size > file.size() - offset) {
      return DataLoss("snapshot: section ", section.kind, " does not follow the one before it");
    }
    section.bytes = file.substr(offset, size);
    if (Checksum(section.bytes) != checksum) {
      return DataLoss("snapshot: the checksum of section ", section.kind, " is wrong");
    }
    next += size;
  }
  if (next != file.size()) return DataLoss("snapshot: bytes after the last section");
  PS_RETURN_IF_ERROR(CheckOrder(read));
  return read;
}

// The values of the state section.
struct StateValues {
  size_t bytes = 0;
  std::function<void(const StateWriter& write)> write;
};

std::string EncodeFile(uint32_t version, const Snapshot& snapshot, const SnapshotBinding& binding,
                       StateEncoding encoding, const StateValues& state, SectionKind last,
                       const std::string* last_bytes) {
  // The state is written into the file at once: no second copy is made of it.
  const size_t sections = last_bytes == nullptr ? 3 : 4;
  const size_t table_begin = kHeaderBytes;
  std::string file(table_begin + sections * kEntryBytes, '\0');
  FieldWriter table;
  const auto add = [&](SectionKind kind, StateEncoding coded, uint64_t decoded_size,
                       const auto& write) {
    const uint64_t offset = file.size();
    write();
    const std::string_view bytes = std::string_view(file).substr(offset);
    table(static_cast<uint32_t>(kind), static_cast<uint32_t>(coded), offset, uint64_t{bytes.size()},
          decoded_size, Checksum(bytes));
  };
  const auto add_bytes = [&](SectionKind kind, const std::string& bytes) {
    add(kind, StateEncoding::kF32, bytes.size(), [&] { file += bytes; });
  };
  add_bytes(kBinding, BindingBytes(binding));
  add_bytes(kSequence, SequenceBytes(snapshot));
  add(kState, encoding, state.bytes,
      [&] { EncodeState(state.write, state.bytes, encoding, &file); });
  if (last_bytes != nullptr) add_bytes(last, *last_bytes);
  const std::string entries = std::move(table).Take();
  FieldWriter header(kSnapshotMagic);
  header(version, static_cast<uint32_t>(sections), uint64_t{file.size()});
  std::string head = std::move(header).Take();
  FieldWriter checksum;
  checksum(Checksum(head + entries));
  head += std::move(checksum).Take();
  file.replace(0, head.size(), head);
  file.replace(table_begin, entries.size(), entries);
  return file;
}

// Reads the state of which the blocks are in `groups`.
Result<ByteBuffer> ReadBlocksAndRest(int64_t position, const ReadSection& rest,
                                     const std::vector<BlockGroup>& groups, size_t max_bytes,
                                     const BlockReader& reader) {
  const StateLayout& layout = *reader.layout;
  const int64_t blocks = layout.FullBlocks(position);
  if (blocks != CountBlocks(groups)) {
    return DataLoss("snapshot: blocks: expected ", blocks, " of ", position, " tokens, found ",
                    CountBlocks(groups));
  }
  // The first bound keeps the second sum from overflowing.
  if (static_cast<uint64_t>(blocks) > max_bytes / layout.block_bytes() ||
      layout.StateBytes(position) > max_bytes) {
    return InvalidArgument("snapshot: state: expected at most ", max_bytes, " bytes, found ",
                           blocks, " blocks of ", layout.block_bytes(), " and a rest");
  }
  if (rest.decoded_size != layout.RestBytes(position)) {
    return DataLoss("snapshot: state: expected ", layout.RestBytes(position),
                    " bytes beside the blocks, found ", rest.decoded_size);
  }
  PS_ASSIGN_OR_RETURN(const ByteBuffer values,
                      DecodeState(rest.bytes, rest.encoding, rest.decoded_size));
  return JoinState(position, values, groups, reader);
}

}  // namespace

std::string EncodeSnapshot(const Snapshot& snapshot, const SnapshotBinding& binding,
                           StateEncoding encoding) {
  static const SavedState kEmpty;
  const SavedState& state = snapshot.state ? *snapshot.state : kEmpty;
  const std::string generation =
      snapshot.generation ? GenerationBytes(*snapshot.generation) : std::string();
  return EncodeFile(binding.decay_gate ? kGateVersion : kVersion, snapshot, binding, encoding,
                    {state.saved_bytes(), [&](const StateWriter& write) { state.Write(write); }},
                    kGeneration, snapshot.generation ? &generation : nullptr);
}

std::string EncodeSnapshot(const Snapshot& snapshot, const SnapshotBinding& binding,
                           StateEncoding encoding, const ByteBuffer& rest,
                           const std::vector<BlockGroup>& groups) {
  PS_CHECK(!snapshot.generation && !groups.empty());
  const std::string blocks = BlockGroupBytes(groups);
  return EncodeFile(kBlocksVersion, snapshot, binding, encoding,
                    {rest.size(), [&](const StateWriter& write) { write(rest); }}, kBlocks,
                    &blocks);
}

Result<Snapshot> DecodeSnapshot(std::string_view bytes, const SnapshotBinding& binding,
                                const DecodeLimits& limits, const BlockReader* blocks) {
  PS_ASSIGN_OR_RETURN(const ReadFile file, ReadSections(bytes));
  const std::vector<ReadSection>& sections = file.sections;
  PS_RETURN_IF_ERROR(CheckBinding(sections[0].bytes, binding));
  if (!file.whole && (blocks == nullptr || !blocks->layout->has_blocks())) {
    return FailedPrecondition("snapshot: expected one with its whole state, found version ",
                              kBlocksVersion, ", whose blocks are entries of a store")
        .WithReason(Reason::kModelMismatch);
  }
  Snapshot snapshot;
  int64_t position = 0;
  PS_RETURN_IF_ERROR(ReadSequence(sections[1].bytes, &position, &snapshot));
  if (file.whole && sections.size() == 4) {
    PS_ASSIGN_OR_RETURN(snapshot.generation, ReadGeneration(sections[3].bytes));
  }
  const ReadSection& state = sections[2];
  const size_t max_bytes = position == 0 ? 0 : limits.max_state_bytes;
  if (state.decoded_size > max_bytes) {
    return InvalidArgument("snapshot: state: expected at most ", max_bytes, " bytes, found ",
                           state.decoded_size);
  }
  auto saved = std::make_shared<SavedState>();
  saved->position = position;
  if (file.whole) {
    PS_ASSIGN_OR_RETURN(saved->bytes, DecodeState(state.bytes, state.encoding, state.decoded_size));
  } else {
    PS_ASSIGN_OR_RETURN(const std::vector<BlockGroup> groups, ReadBlockGroups(sections[3].bytes));
    PS_ASSIGN_OR_RETURN(saved->bytes,
                        ReadBlocksAndRest(position, state, groups, max_bytes, *blocks));
  }
  if (position > 0) snapshot.state = std::move(saved);
  PS_RETURN_IF_ERROR(CheckSnapshot(snapshot, limits.tokens));
  return snapshot;
}

Result<std::vector<BlockGroup>> GroupsOfSnapshot(std::string_view bytes) {
  PS_ASSIGN_OR_RETURN(const ReadFile file, ReadSections(bytes));
  if (file.whole) return std::vector<BlockGroup>();
  return ReadBlockGroups(file.sections[3].bytes);
}

int64_t DecodedStateBytes(std::string_view bytes) {
  const Result<SectionTable> table = ReadTable(bytes);
  if (!table.ok()) return 0;
  FieldReader fields(table->bytes);
  for (size_t i = 0; i < table->bytes.size() / kEntryBytes; ++i) {
    uint32_t kind = 0, encoding = 0;
    uint64_t offset = 0, size = 0, decoded_size = 0, checksum = 0;
    fields(kind, encoding, offset, size, decoded_size, checksum);
    if (kind == kState) return static_cast<int64_t>(std::min(decoded_size, uint64_t{INT64_MAX}));
  }
  return 0;
}

}  // namespace polysketch
