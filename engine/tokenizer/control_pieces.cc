#include <algorithm>

#include "engine/tokenizer/tokenizer.h"

namespace polysketch {
namespace {

Status AppendText(const Tokenizer& tokenizer, std::string_view text, bool continued,
                  std::vector<int32_t>* ids) {
  if (text.empty()) return Status();
  IncrementalEncoder encoder(&tokenizer, continued);
  PS_ASSIGN_OR_RETURN(const std::vector<int32_t> first, encoder.Append(text));
  PS_ASSIGN_OR_RETURN(const std::vector<int32_t> rest, encoder.Finish());
  ids->insert(ids->end(), first.begin(), first.end());
  ids->insert(ids->end(), rest.begin(), rest.end());
  return Status();
}

}  // namespace

Result<std::vector<int32_t>> EncodeWithControlPieces(const Tokenizer& tokenizer,
                                                     std::string_view text) {
  const std::span<const ControlPiece> pieces = tokenizer.ControlPieces();
  std::string first_bytes;  // a control piece can begin at these bytes only
  for (const ControlPiece& piece : pieces) {
    if (first_bytes.find(piece.text.front()) == std::string::npos)
      first_bytes += piece.text.front();
  }
  std::vector<int32_t> ids;
  size_t encoded = 0;  // bytes of the text
  for (size_t at = text.find_first_of(first_bytes); at != std::string_view::npos;
       at = text.find_first_of(first_bytes, at)) {
    const auto found = std::find_if(pieces.begin(), pieces.end(), [&](const ControlPiece& piece) {
      return text.substr(at).starts_with(piece.text);
    });
    if (found == pieces.end()) {
      ++at;
      continue;
    }
    PS_RETURN_IF_ERROR(
        AppendText(tokenizer, text.substr(encoded, at - encoded), encoded > 0, &ids));
    ids.push_back(found->id);
    at += found->text.size();
    encoded = at;
  }
  PS_RETURN_IF_ERROR(AppendText(tokenizer, text.substr(encoded), encoded > 0, &ids));
  return ids;
}

}  // namespace polysketch
