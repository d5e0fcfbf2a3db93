
#include "base/check.h"
#include "base/utf8.h"
#include "engine/tokenizer/space_marker.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

IncrementalDecoder::IncrementalDecoder(const Tokenizer* tokenizer, bool continued,
                                       bool skip_control)
    : tokenizer_(tokenizer),
      skip_control_(skip_control),
      carried_{!continued && tokenizer->StripsLeadingSpace(), {}} {}

std::string IncrementalDecoder::Append(int32_t id) {
  std::string_view bytes = tokenizer_->PieceBytes(id);
  if (!skip_control_ && tokenizer_->IsControl(id)) bytes = tokenizer_->Piece(id);
  if (bytes.empty()) return std::string();
  if (carried_.at_start && bytes.front() == ' ' &&
      tokenizer_->Piece(id).starts_with(kSpaceMarker)) {
    bytes.remove_prefix(1);
  }
  carried_.at_start = false;
  std::string& pending = carried_.pending;
  pending.append(bytes);

  std::string text;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const Utf8Char c = DecodeUtf8(rest);
    if (c.kind == Utf8Char::Kind::kIncomplete) break;
    if (c.kind == Utf8Char::Kind::kValid) {
      text.append(rest.substr(0, static_cast<size_t>(c.length)));
    } else {
      text.append(kReplacementCharacter);
    }
    rest.remove_prefix(static_cast<size_t>(c.length));
  }
  pending.erase(0, pending.size() - rest.size());
  PS_CHECK(pending.size() <= 3);
  return text;
}

std::string IncrementalDecoder::Finish() {
  // The pending bytes are one incomplete character: a maximal subpart, so one replacement.
  std::string text(carried_.pending.empty() ? std::string_view() : kReplacementCharacter);
  carried_.pending.clear();
  return text;
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  bool at_start = StripsLeadingSpace();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return InvalidArgument("tokens[", i, "]: expected an id in [0, ", vocab_size(), "), found ",
                             ids[i]);
    }
    std::string_view bytes = PieceBytes(ids[i]);
    if (bytes.empty()) continue;
    if (at_start && bytes.front() == ' ' && Piece(ids[i]).starts_with(kSpaceMarker))
      bytes.remove_prefix(1);
    at_start = false;
    text.append(bytes);
  }
  return text;
}

}  // namespace polysketch
