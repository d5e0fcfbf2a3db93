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
  // The state is written into the file at once: no second copy is made of it.
  const size_t sections = snapshot.generation ? 4 : 3;
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
  static const SavedState kEmpty;
  const SavedState& state = snapshot.state ? *snapshot.state : kEmpty;
  const size_t state_bytes = state.saved_bytes();
  add(kState, encoding, state_bytes, [&] {
    EncodeState([&](const StateWriter& write) { state.Write(write); }, state_bytes, encoding,
                &file);
  });
  if (snapshot.generation) add_bytes(kGeneration, GenerationBytes(*snapshot.generation));
  const std::string entries = std::move(table).Take();
  FieldWriter header(kMagic);
  header(binding.decay_gate ? kGateVersion : kVersion, static_cast<uint32_t>(sections),
         uint64_t{file.size()});
  std::string head = std::move(header).Take();
  FieldWriter checksum;
  checksum(Checksum(head + entries));
  head += std::move(checksum).Take();
  file.replace(0, head.size(), head);
  file.replace(table_begin, entries.size(), entries);
  return file;
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

int64_t DecodedStateBytes(std::string_view bytes) {
  const Result<std::string_view> table = ReadTable(bytes);
  if (!table.ok()) return 0;
  FieldReader fields(*table);
  for (size_t i = 0; i < table->size() / kEntryBytes; ++i) {
    uint32_t kind = 0, encoding = 0;
    uint64_t offset = 0, size = 0, decoded_size = 0, checksum = 0;
    fields(kind, encoding, offset, size, decoded_size, checksum);
    if (kind == kState) return static_cast<int64_t>(std::min(decoded_size, uint64_t{INT64_MAX}));
  }
  return 0;
}

}  // namespace polysketch
