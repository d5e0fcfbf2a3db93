// The encoder of a tokenizer whose texts are cut into parts (Tokenizer::NextCut).
#include <algorithm>
#include <utility>

#include "engine/tokenizer/tokenizer.h"

namespace polysketch {
namespace {

class PartEncoder final : public TextEncoder {
 public:
  PartEncoder(const Tokenizer* tokenizer, bool first) : tokenizer_(tokenizer), first_(first) {}

  Status Append(std::string_view text, std::vector<int32_t>* ids) override {
    buffer_.append(text);
    size_t begin = 0;  // buffer_ may hold many parts: encoded parts are erased once, at the end
    while (true) {
      const std::string_view rest = std::string_view(buffer_).substr(begin);
      const size_t cut = tokenizer_->NextCut(rest, std::max(searched_, Tokenizer::kPartBytes));
      if (cut == std::string_view::npos) {
        // The last character has no right neighbour yet: the position before it is decided, the
        // position after it is not.
        searched_ = rest.size();
        break;
      }
      PS_RETURN_IF_ERROR(EncodePart(rest.substr(0, cut), ids));
      begin += cut;
      searched_ = 0;
    }
    buffer_.erase(0, begin);
    if (buffer_.size() <= Tokenizer::kMaxPartBytes) return Status();
    return InvalidArgument("expected a place to cut (such as a space between words) within ",
                           Tokenizer::kMaxPartBytes, " bytes, found none");
  }

  Status Finish(std::vector<int32_t>* ids) override {
    return buffer_.empty() ? Status() : EncodePart(std::exchange(buffer_, {}), ids);
  }

 private:
  Status EncodePart(std::string_view part, std::vector<int32_t>* ids) {
    PS_ASSIGN_OR_RETURN(const std::vector<int32_t> more,
                        tokenizer_->EncodePart(part, std::exchange(first_, false)));
    ids->insert(ids->end(), more.begin(), more.end());
    return Status();
  }

  const Tokenizer* const tokenizer_;
  std::string buffer_;   // not yet encoded
  size_t searched_ = 0;  // this part has no cut before here
  bool first_;           // buffer_ begins the text
};

}  // namespace

std::unique_ptr<TextEncoder> Tokenizer::NewEncoder(TextPlace place) const {
  return std::make_unique<PartEncoder>(this, place == TextPlace::kStart);
}

const ControlPiece* Tokenizer::ControlPieceAt(std::string_view text) const {
  const TokenTrie::Found found = control_trie_.At(text);
  return found.id < 0 ? nullptr : &control_pieces_[static_cast<size_t>(found.id)];
}

void Tokenizer::SetControlPieces(std::vector<ControlPiece> pieces) {
  control_pieces_ = std::move(pieces);
  std::stable_sort(control_pieces_.begin(), control_pieces_.end(),
                   [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
  control_trie_ = TokenTrie();
  for (size_t i = 0; i < control_pieces_.size(); ++i)
    control_trie_.Add(control_pieces_[i].text, static_cast<int32_t>(i));
}

}  // namespace polysketch
