#include "engine/snapshot/snapshot_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/snapshot/fields.h"
#include "engine/snapshot/generation_bytes.h"
#include "engine/snapshot/state_encoding.h"

namespace polysketch {
namespace {

constexpr std::string_view kMagic = "PSKSNAP\n";
// Version 2: the state has the sums of a decay gate. Files without them keep version 1, so that
// earlier servers read them.
constexpr uint32_t kVersion = 1, kGateVersion = 2;
constexpr size_t kHeaderBytes = 32;  // magic, version, sections, size of the file, checksum
constexpr size_t kEntryBytes = 40;   // of the section table
constexpr size_t kMaxSections = 4;

enum SectionKind : uint32_t { kBinding = 1, kSequence = 2, kState = 3, kGeneration = 4 };

// Bytes is std::string in a file that is written and std::string_view in one that is read.
template <typename Bytes>
struct Section {
  uint32_t kind = 0;
  uint32_t encoding = 0;      // StateEncoding of kState, else 0
  uint64_t decoded_size = 0;  // of `bytes` without the encoding
  Bytes bytes;
};
using ReadSection = Section<std::string_view>;

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

std::string Assemble(uint32_t version, const std::vector<Section<std::string>>& sections) {
  FieldWriter table;
  uint64_t offset = kHeaderBytes + sections.size() * kEntryBytes;
  for (const auto& [kind, encoding, decoded_size, bytes] : sections) {
    table(kind, encoding, offset, uint64_t{bytes.size()}, decoded_size, Checksum(bytes));
    offset += bytes.size();
  }
  FieldWriter header(kMagic);
  header(version, static_cast<uint32_t>(sections.size()), offset);
  std::string file = std::move(header).Take();
  const std::string entries = std::move(table).Take();
  FieldWriter checksum;
  checksum(Checksum(file + entries));
  file.reserve(offset);
  file += std::move(checksum).Take();
  file += entries;
  for (const auto& section : sections) file += section.bytes;
  return file;
}

// Returns the section table after its checksum was verified.
Result<std::string_view> ReadTable(std::string_view file) {
  if (file.size() < kHeaderBytes || !file.starts_with(kMagic)) {
    return DataLoss("snapshot: expected the beginning of one, found ", file.size(),
                    " bytes of something else");
  }
  FieldReader header(file.substr(kMagic.size()));
  uint32_t version = 0, count = 0;
  uint64_t size = 0, checksum = 0;
  header(version, count, size, checksum);
  if (version != kVersion && version != kGateVersion) {
    return FailedPrecondition("snapshot: expected version ", kVersion, " or ", kGateVersion,
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
  return table;
}

Result<std::vector<ReadSection>> ReadSections(std::string_view file) {
  PS_ASSIGN_OR_RETURN(const std::string_view table, ReadTable(file));
  std::vector<ReadSection> sections(table.size() / kEntryBytes);
  uint64_t next = kHeaderBytes + table.size();
  FieldReader fields(table);
  for (ReadSection& section : sections) {
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
  return sections;
}

Status CheckOrder(const std::vector<ReadSection>& sections) {
  bool ordered = sections.size() == 3 || sections.size() == 4;
  for (size_t i = 0; i < sections.size(); ++i) {
    const ReadSection& section = sections[i];
    const bool plain = section.encoding == 0 && section.decoded_size == section.bytes.size();
    ordered = ordered && section.kind == kBinding + i && (plain || section.kind == kState);
  }
  if (ordered) return Status();
  return DataLoss(
      "snapshot: expected the sections binding, sequence, state and perhaps generation, found "
      "others");
}

}  // namespace

std::string EncodeSnapshot(const Snapshot& snapshot, const SnapshotBinding& binding,
                           StateEncoding encoding) {
  std::vector<Section<std::string>> sections;
  const auto add = [&](SectionKind kind, std::string bytes) {
    sections.push_back({kind, 0, bytes.size(), std::move(bytes)});
  };
  add(kBinding, BindingBytes(binding));
  add(kSequence, SequenceBytes(snapshot));
  static const ByteBuffer kNone;
  const ByteBuffer& state = snapshot.state ? snapshot.state->bytes : kNone;
  sections.push_back(
      {kState, static_cast<uint32_t>(encoding), state.size(), EncodeState(state, encoding)});
  if (snapshot.generation) add(kGeneration, GenerationBytes(*snapshot.generation));
  return Assemble(binding.decay_gate ? kGateVersion : kVersion, sections);
}

Result<Snapshot> DecodeSnapshot(std::string_view bytes, const SnapshotBinding& binding,
                                const DecodeLimits& limits) {
  PS_ASSIGN_OR_RETURN(const std::vector<ReadSection> sections, ReadSections(bytes));
  PS_RETURN_IF_ERROR(CheckOrder(sections));
  PS_RETURN_IF_ERROR(CheckBinding(sections[0].bytes, binding));
  Snapshot snapshot;
  int64_t position = 0;
  PS_RETURN_IF_ERROR(ReadSequence(sections[1].bytes, &position, &snapshot));
  if (sections.size() == 4) {
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
  PS_ASSIGN_OR_RETURN(saved->bytes, DecodeState(state.bytes, state.encoding, state.decoded_size));
  if (position > 0) snapshot.state = std::move(saved);
  PS_RETURN_IF_ERROR(CheckSnapshot(snapshot, limits.tokens));
  return snapshot;
}

}  // namespace polysketch
