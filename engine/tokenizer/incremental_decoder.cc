#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // U+2581

IncrementalDecoder::IncrementalDecoder(const Tokenizer* tokenizer, bool continued)
    : tokenizer_(tokenizer), at_start_(!continued && tokenizer->StripsLeadingSpace()) {}

std::string IncrementalDecoder::Append(int32_t id) {
  std::string_view bytes = tokenizer_->PieceBytes(id);
  if (bytes.empty()) return std::string();
  if (at_start_ && bytes.front() == ' ' && tokenizer_->Piece(id).starts_with(kSpaceMarker)) {
    bytes.remove_prefix(1);
  }
  at_start_ = false;
  pending_.append(bytes);

  std::string text;
  std::string_view rest = pending_;
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
  pending_.erase(0, pending_.size() - rest.size());
  PS_CHECK(pending_.size() <= 3);
  return text;
}

std::string IncrementalDecoder::Finish() {
  // What is pending is one incomplete character: a maximal subpart, so one replacement.
  std::string text(pending_.empty() ? std::string_view() : kReplacementCharacter);
  pending_.clear();
  return text;
}

}  // namespace polysketch
