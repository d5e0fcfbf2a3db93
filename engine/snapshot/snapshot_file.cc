#include "engine/snapshot/snapshot_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>
#include <vector>

#include "base/byte_io.h"
#include "engine/snapshot/generation_bytes.h"
#include "engine/snapshot/state_encoding.h"

namespace polysketch {
namespace {

constexpr std::string_view kMagic = "PSKSNAP\n";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 32;  // magic, version, sections, size of the file, checksum
constexpr size_t kEntryBytes = 40;   // of the section table
constexpr size_t kMaxSections = 4;

enum SectionKind : uint32_t { kBinding = 1, kSequence = 2, kState = 3, kGeneration = 4 };

struct Section {
  uint32_t kind = 0;
  uint32_t encoding = 0;      // StateEncoding of kState, else 0
  uint64_t decoded_size = 0;  // of what `bytes` stand for
  std::string bytes;
};

uint64_t Checksum(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string BindingBytes(const SnapshotBinding& binding) {
  ByteWriter out;
  for (const uint64_t word : binding.model) out.Put(word);
  for (const uint64_t word : binding.tokenizer) out.Put(word);
  out.PutBytes(binding.numerics);
  return std::move(out).Take();
}

Status CheckBinding(std::string_view bytes, const SnapshotBinding& expected) {
  ByteReader in(bytes);
  SnapshotBinding found;
  for (uint64_t& word : found.model) word = in.Get<uint64_t>();
  for (uint64_t& word : found.tokenizer) word = in.Get<uint64_t>();
  found.numerics = in.GetBytes();
  if (!in.Finished()) return DataLoss("snapshot: binding: broken");
  if (found.model != expected.model) {
    return FailedPrecondition("snapshot: expected one of model ", HashText(expected.model),
                              ", found one of ", HashText(found.model));
  }
  if (found.tokenizer != expected.tokenizer) {
    return FailedPrecondition("snapshot: expected one of tokenizer ", HashText(expected.tokenizer),
                              ", found one of ", HashText(found.tokenizer));
  }
  if (found.numerics != expected.numerics) {
    return FailedPrecondition("snapshot: expected the numeric format \"", expected.numerics,
                              "\", found \"", found.numerics, "\"");
  }
  return Status();
}

std::string SequenceBytes(const Snapshot& snapshot) {
  ByteWriter out;
  out.Put<int64_t>(snapshot.position());
  out.PutArray(std::span(snapshot.pending));
  out.PutArray(std::span(snapshot.tail));
  out.PutArray(std::span(snapshot.seen.words()));
  return std::move(out).Take();
}

Status ReadSequence(std::string_view bytes, int64_t* position, Snapshot* snapshot) {
  ByteReader in(bytes);
  *position = in.Get<int64_t>();
  snapshot->pending = in.GetArray<int32_t>();
  snapshot->tail = in.GetArray<int32_t>();
  snapshot->seen = TokenSet::FromWords(in.GetArray<uint64_t>());
  if (!in.Finished()) return DataLoss("snapshot: sequence: broken");
  if (*position < 0) {
    return InvalidArgument("snapshot: position: expected 0 or more, found ", *position);
  }
  return Status();
}

std::string Assemble(const std::vector<Section>& sections) {
  ByteWriter table;
  uint64_t offset = kHeaderBytes + sections.size() * kEntryBytes;
  for (const Section& section : sections) {
    table.Put(section.kind);
    table.Put(section.encoding);
    table.Put<uint64_t>(offset);
    table.Put<uint64_t>(section.bytes.size());
    table.Put(section.decoded_size);
    table.Put(Checksum(section.bytes));
    offset += section.bytes.size();
  }
  ByteWriter header;
  for (const char c : kMagic) header.Put(c);
  header.Put(kVersion);
  header.Put(static_cast<uint32_t>(sections.size()));
  header.Put<uint64_t>(offset);
  std::string file = std::move(header).Take();
  const std::string entries = std::move(table).Take();
  const uint64_t checksum = Checksum(file + entries);
  file.reserve(offset);
  file.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  file += entries;
  for (const Section& section : sections) file += section.bytes;
  return file;
}

// A section as the table has it, its checksum verified.
struct View {
  uint32_t kind = 0;
  uint32_t encoding = 0;
  uint64_t decoded_size = 0;
  std::string_view bytes;
};

Result<std::vector<View>> ReadSections(std::string_view file) {
  if (file.size() < kHeaderBytes || !file.starts_with(kMagic)) {
    return DataLoss("snapshot: expected the beginning of one, found ", file.size(),
                    " bytes of something else");
  }
  ByteReader header(file.substr(kMagic.size()));
  const auto version = header.Get<uint32_t>();
  const auto count = header.Get<uint32_t>();
  const auto size = header.Get<uint64_t>();
  const auto checksum = header.Get<uint64_t>();
  if (version != kVersion) {
    return FailedPrecondition("snapshot: expected version ", kVersion, ", found ", version);
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

  std::vector<View> views(count);
  uint64_t next = kHeaderBytes + count * kEntryBytes;
  ByteReader in(table);
  for (View& view : views) {
    view.kind = in.Get<uint32_t>();
    view.encoding = in.Get<uint32_t>();
    const auto offset = in.Get<uint64_t>();
    const auto bytes = in.Get<uint64_t>();
    view.decoded_size = in.Get<uint64_t>();
    const auto section_checksum = in.Get<uint64_t>();
    if (offset != next || bytes > file.size() - offset) {
      return DataLoss("snapshot: section ", view.kind, " does not follow the one before it");
    }
    view.bytes = file.substr(offset, bytes);
    if (Checksum(view.bytes) != section_checksum) {
      return DataLoss("snapshot: the checksum of section ", view.kind, " is wrong");
    }
    next += bytes;
  }
  if (next != file.size()) return DataLoss("snapshot: bytes behind the last section");
  return views;
}

Status CheckOrder(const std::vector<View>& views) {
  const bool three = views.size() == 3 || views.size() == 4;
  bool ordered = three && views[0].kind == kBinding && views[1].kind == kSequence &&
                 views[2].kind == kState && (views.size() == 3 || views[3].kind == kGeneration);
  for (const View& view : views) {
    if (view.kind != kState && (view.encoding != 0 || view.decoded_size != view.bytes.size()))
      ordered = false;
  }
  if (!ordered) {
    return DataLoss(
        "snapshot: expected the sections binding, sequence, state and perhaps "
        "generation, found others");
  }
  return Status();
}

}  // namespace

std::string EncodeSnapshot(const Snapshot& snapshot, const SnapshotBinding& binding,
                           StateEncoding encoding) {
  const auto plain = [](uint32_t kind, std::string bytes) {
    const uint64_t size = bytes.size();
    return Section{kind, 0, size, std::move(bytes)};
  };
  std::vector<Section> sections;
  sections.push_back(plain(kBinding, BindingBytes(binding)));
  sections.push_back(plain(kSequence, SequenceBytes(snapshot)));
  static const ByteBuffer kNone;
  const ByteBuffer& state = snapshot.state ? snapshot.state->bytes : kNone;
  sections.push_back(
      {kState, static_cast<uint32_t>(encoding), state.size(), EncodeState(state, encoding)});
  if (snapshot.generation) {
    sections.push_back(plain(kGeneration, GenerationBytes(*snapshot.generation)));
  }
  return Assemble(sections);
}

Result<Snapshot> DecodeSnapshot(std::string_view bytes, const SnapshotBinding& binding,
                                const DecodeLimits& limits) {
  PS_ASSIGN_OR_RETURN(const std::vector<View> views, ReadSections(bytes));
  PS_RETURN_IF_ERROR(CheckOrder(views));
  PS_RETURN_IF_ERROR(CheckBinding(views[0].bytes, binding));
  Snapshot snapshot;
  int64_t position = 0;
  PS_RETURN_IF_ERROR(ReadSequence(views[1].bytes, &position, &snapshot));
  if (views.size() == 4) {
    PS_ASSIGN_OR_RETURN(snapshot.generation, ReadGeneration(views[3].bytes));
  }
  const View& state = views[2];
  if (state.decoded_size > limits.max_state_bytes || (position == 0 && state.decoded_size != 0)) {
    return InvalidArgument("snapshot: state: expected at most ",
                           position == 0 ? 0 : limits.max_state_bytes, " bytes, found ",
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
