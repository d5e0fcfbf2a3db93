// The stage that finds added tokens.
#include <utf8proc.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/tokenizer/stage_parts.h"

namespace polysketch {
namespace {

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Whether a character belongs to a word, as \w of Rust's regex: alphabetic characters, marks,
// decimal digits, connecting punctuation, joiners.
bool IsWord(char32_t c) {
  const bool circled = (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
                       (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
  if (circled || c == 0x200c || c == 0x200d) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

class AddedTokenStage final : public TextStage {
 public:
  AddedTokenStage(const std::vector<AddedToken>& tokens, const TokenTrie& trie,
                  StageContext* context, TextStage* next)
      : tokens_(tokens), trie_(trie), context_(context), next_(next) {
    for (const AddedToken& token : tokens) strips_left_ = strips_left_ || token.strip_left;
  }

  Status Push(std::string_view text, bool ends) override {
    text_ += text;
    SkipSpaces();
    PS_RETURN_IF_ERROR(Find(ends));
    if (ends) {
      PS_RETURN_IF_ERROR(Pass(text_.size(), true));
      before_ = 0;
      text_.clear();
      done_ = at_ = 0;
      skips_ = false;
      return Status();
    }
    // White space may belong to the token after it.
    PS_RETURN_IF_ERROR(Pass(strips_left_ ? BeforeSpaces() : at_, false));
    const size_t drop = std::min(done_, at_);
    if (drop > 0) before_ = LastCodePoint(std::string_view(text_).substr(0, drop));
    text_.erase(0, drop);
    at_ -= drop;
    done_ -= drop;
    return text_.size() > kMaxHeldBytes ? TooLong() : Status();
  }

 private:
  // Finds tokens from at_ on, and stops where what follows the text decides.
  Status Find(bool ends) {
    while (at_ < text_.size()) {
      const TokenTrie::Found found = trie_.At(std::string_view(text_).substr(at_));
      if (found.undecided && !ends) return Status();
      if (found.id < 0) {
        ++at_;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(found.id)];
      const size_t end = at_ + found.bytes;
      if (token.single_word) {
        if (end == text_.size() && !ends) return Status();
        const bool inside =
            (end < text_.size() && IsWord(FirstCodePoint(std::string_view(text_).substr(end)))) ||
            IsWord(Before());
        if (inside) {  // tokenizers goes on after the text that it found
          at_ = end;
          continue;
        }
      }
      PS_RETURN_IF_ERROR(Add(token, end));
    }
    return Status();
  }

  // The character before at_; U+0000 at the beginning.
  char32_t Before() const {
    return at_ == 0 ? before_ : LastCodePoint(std::string_view(text_).substr(0, at_));
  }

  // Where the white space before at_ begins, as far as it has not gone on.
  size_t BeforeSpaces() const {
    size_t begin = at_;
    while (begin > done_) {
      const size_t length = LastCharacter(std::string_view(text_).substr(0, begin));
      if (!IsSpace(FirstCodePoint(std::string_view(text_).substr(begin - length)))) break;
      begin -= length;
    }
    return begin;
  }

  Status Add(const AddedToken& token, size_t end) {
    PS_RETURN_IF_ERROR(Pass(token.strip_left ? BeforeSpaces() : at_, true));
    context_->ids->push_back(token.id);
    context_->place = TextPlace::kAfterControl;
    at_ = done_ = end;
    skips_ = token.strip_right;
    SkipSpaces();
    return Status();
  }

  // White space after a token belongs to it. Another token may be found in it nevertheless.
  void SkipSpaces() {
    while (skips_ && done_ < text_.size()) {
      const Utf8Char c = DecodeUtf8(std::string_view(text_).substr(done_));
      skips_ = IsSpace(c.code_point);
      if (skips_) done_ += static_cast<size_t>(c.length);
    }
  }

  // Passes the text on up to byte `end`.
  Status Pass(size_t end, bool ends) {
    const size_t begin = std::exchange(done_, std::max(done_, end));
    const std::string_view text = std::string_view(text_).substr(begin, done_ - begin);
    if (text.empty() && !(ends && open_)) return Status();
    open_ = !ends;
    return next_->Push(text, ends);
  }

  const std::vector<AddedToken>& tokens_;
  const TokenTrie& trie_;  // ids are indices of tokens_
  StageContext* const context_;
  TextStage* const next_;
  bool strips_left_ = false;  // some token does
  std::string text_;
  size_t done_ = 0;      // bytes of text_ that have gone on, or belong to a token
  size_t at_ = 0;        // no token begins before here
  char32_t before_ = 0;  // the last character before text_
  bool skips_ = false;   // white space at done_ belongs to the token before it
  bool open_ = false;    // the next stage has a segment without its end
};

}  // namespace

std::unique_ptr<TextStage> NewAddedTokenStage(const std::vector<AddedToken>& tokens,
                                              const TokenTrie& trie, StageContext* context,
                                              TextStage* next) {
  return std::make_unique<AddedTokenStage>(tokens, trie, context, next);
}

}  // namespace polysketch
