#include "engine/tokenizer/text_stages.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace polysketch {
namespace {

Status TooLong() {
  return InvalidArgument("expected a place to cut (such as a space between words) within ",
                         kMaxHeldBytes, " bytes, found none");
}

// Bytes of the text's last character.
size_t LastCharacter(std::string_view text) {
  size_t length = 1;
  while (length < text.size() &&
         (static_cast<unsigned char>(text[text.size() - length]) & 0xC0) == 0x80) {
    ++length;
  }
  return length;
}

char32_t FirstCodePoint(std::string_view text) { return DecodeUtf8(text).code_point; }

char32_t LastCodePoint(std::string_view text) {
  return FirstCodePoint(text.substr(text.size() - LastCharacter(text)));
}

// Marks and compositions of Unicode 10 to 14. The tables of Hugging Face's tokenizers are older: it leaves these
// characters where they are, and normalizes what is before and after each by itself.
struct CodePoints {
  char32_t first;
  char32_t last;
};
constexpr CodePoints kUnknownToNormalization[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
};

bool UnknownToNormalization(char32_t c) {
  const auto* const after =
      std::upper_bound(std::begin(kUnknownToNormalization), std::end(kUnknownToNormalization), c,
                       [](char32_t value, const CodePoints& range) { return value < range.first; });
  return after != std::begin(kUnknownToNormalization) && c <= std::prev(after)->last;
}

// Whether normalization form C never changes what is on both sides of a place before `c`. Starters that
// compose with what precedes them are marks, or vowels and consonants of Hangul.
bool BeginsNormalized(char32_t c) {
  if (c < 0x300 || UnknownToNormalization(c)) return true;
  if ((c >= 0x1160 && c <= 0x11FF) || (c >= 0xD7B0 && c <= 0xD7FF)) return false;
  const utf8proc_property_t* const property =
      utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return property->combining_class == 0 && property->category != UTF8PROC_CATEGORY_MN &&
         property->category != UTF8PROC_CATEGORY_MC && property->category != UTF8PROC_CATEGORY_ME &&
         property->category != UTF8PROC_CATEGORY_CN;
}

class NfcStage final : public TextStage {
 public:
  explicit NfcStage(TextStage* next) : next_(next) {}

  Status Push(std::string_view text, bool ends) override {
    held_ += text;
    size_t ready = held_.size();
    // Up to the last character that normalization cannot join with what precedes it.
    while (!ends && ready > 0) {
      ready -= LastCharacter(std::string_view(held_).substr(0, ready));
      if (BeginsNormalized(FirstCodePoint(std::string_view(held_).substr(ready)))) break;
    }
    const std::string whole = Normalized(std::string_view(held_).substr(0, ready));
    held_.erase(0, ready);
    if (held_.size() > kMaxHeldBytes) return TooLong();
    return whole.empty() && !ends ? Status() : next_->Push(whole, ends);
  }

 private:
  static std::string Normalized(std::string_view text) {
    if (std::all_of(text.begin(), text.end(),
                    [](char c) { return static_cast<signed char>(c) >= 0; }))
      return std::string(text);
    std::string made;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char next = DecodeUtf8(text.substr(at));
      if (UnknownToNormalization(next.code_point)) {
        made += Composed(text.substr(begin, at - begin));
        made += text.substr(at, static_cast<size_t>(next.length));
        begin = at + static_cast<size_t>(next.length);
      }
      at += static_cast<size_t>(next.length);
    }
    return made + Composed(text.substr(begin));
  }

  static std::string Composed(std::string_view text) {
    utf8proc_uint8_t* made = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(text.size()), &made,
                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    PS_CHECK(size >= 0) << utf8proc_errmsg(size);
    const std::unique_ptr<utf8proc_uint8_t, decltype(&free)> owner(made, &free);
    return std::string(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
  }

  TextStage* const next_;
  std::string held_;
};

// Puts a text before segments.
class PrefixStage final : public TextStage {
 public:
  // `always`: also where the segment begins with it.
  PrefixStage(const StageSpec& spec, bool always, StageContext* context, TextStage* next)
      : spec_(spec), always_(always), context_(context), next_(next) {}

  Status Push(std::string_view text, bool ends) override {
    if (!begun_ && !text.empty()) {
      begun_ = true;
      const TextPlace place = context_->place;
      const bool wanted =
          spec_.only_at_start ? place == TextPlace::kStart : place != TextPlace::kContinued;
      if (wanted && (always_ || !text.starts_with(spec_.content)))
        PS_RETURN_IF_ERROR(next_->Push(spec_.content, false));
    }
    if (ends) begun_ = false;
    return next_->Push(text, ends);
  }

 private:
  const StageSpec& spec_;
  const bool always_;
  StageContext* const context_;
  TextStage* const next_;
  bool begun_ = false;  // the segment has text
};

// Divides segments into matches of a regular expression and what is between them.
class MatchStage : public TextStage {
 public:
  explicit MatchStage(const Regex& regex) : regex_(regex) {}

  Status Push(std::string_view text, bool ends) final {
    text_ += text;
    if (!ends && text_.size() < try_at_) return Status();
    PS_RETURN_IF_ERROR(Find(ends));
    if (ends) {
      PS_RETURN_IF_ERROR(OnEnd());
      text_.clear();
      done_ = searched_ = try_at_ = 0;
      return Status();
    }
    if (text_.size() - done_ > kMaxHeldBytes) return TooLong();
    // What is undecided is searched again when it has twice the size, so that all searches together
    // take time linear in the text.
    try_at_ = done_ + 2 * (text_.size() - done_);
    DropDone();
    return Status();
  }

 protected:
  // A part of what is between two matches, or a match.
  virtual Status OnGap(std::string_view text) = 0;
  virtual Status OnMatch(std::string_view text) = 0;
  virtual Status OnEnd() = 0;

 private:
  Status Find(bool ends) {
    const std::string_view all = text_;
    while (searched_ <= all.size()) {
      PS_ASSIGN_OR_RETURN(const Regex::Match match, regex_.Find(all, searched_, ends));
      size_t gap_end = match.begin;
      // What is certain of a gap goes on at once. Its last character may begin a match that more text
      // makes possible only where the search says so.
      if (match.outcome == Regex::Outcome::kNone) gap_end = all.size();
      if (gap_end > done_) PS_RETURN_IF_ERROR(OnGap(all.substr(done_, gap_end - done_)));
      done_ = std::max(done_, gap_end);
      searched_ = done_;
      if (match.outcome != Regex::Outcome::kMatch) return Status();
      PS_RETURN_IF_ERROR(OnMatch(all.substr(match.begin, match.end - match.begin)));
      done_ = searched_ = match.end;
      // After an empty match the search goes on one character later.
      if (match.end == match.begin) {
        if (match.end == all.size()) return Status();
        searched_ += static_cast<size_t>(DecodeUtf8(all.substr(match.end)).length);
      }
    }
    return Status();
  }

  // Forgets what is done, but for the characters that a match may look back at.
  void DropDone() {
    size_t keep = done_;
    for (size_t i = 0; i < regex_.lookbehind() && keep > 0; ++i)
      keep -= LastCharacter(std::string_view(text_).substr(0, keep));
    text_.erase(0, keep);
    done_ -= keep;
    searched_ -= keep;
    try_at_ -= std::min(try_at_, keep);
  }

  const Regex& regex_;
  std::string text_;     // what is done, as far as a match may look back at it, then what is not
  size_t done_ = 0;      // bytes of text_ that have gone on
  size_t searched_ = 0;  // where the next search begins: done_, or a character later
  size_t try_at_ = 0;    // size of text_ from which on it is searched again
};

class ReplaceStage final : public MatchStage {
 public:
  ReplaceStage(const StageSpec& spec, TextStage* next)
      : MatchStage(*spec.regex), content_(spec.content), next_(next) {}

 private:
  Status OnGap(std::string_view text) override { return next_->Push(text, false); }
  Status OnMatch(std::string_view) override { return next_->Push(content_, false); }
  Status OnEnd() override { return next_->Push({}, true); }

  const std::string& content_;
  TextStage* const next_;
};

class SplitStage final : public MatchStage {
 public:
  SplitStage(const StageSpec& spec, TextStage* next)
      : MatchStage(*spec.regex), behavior_(spec.behavior), inverted_(spec.inverted), next_(next) {}

 private:
  enum class Unit { kNone, kGap, kMatch };

  Status OnGap(std::string_view text) override {
    if (!in_gap_) PS_RETURN_IF_ERROR(Begin(inverted_ ? Unit::kMatch : Unit::kGap));
    in_gap_ = true;
    return Add(text);
  }
  Status OnMatch(std::string_view text) override {
    PS_RETURN_IF_ERROR(EndGap());
    PS_RETURN_IF_ERROR(Begin(inverted_ ? Unit::kGap : Unit::kMatch));
    PS_RETURN_IF_ERROR(Add(text));
    return EndUnit();
  }
  Status OnEnd() override {
    PS_RETURN_IF_ERROR(EndGap());
    PS_RETURN_IF_ERROR(Close());
    unit_ = Unit::kNone;
    return Status();
  }

  Status EndGap() { return std::exchange(in_gap_, false) ? EndUnit() : Status(); }

  Status Begin(Unit unit) {
    const Unit before = std::exchange(unit_, unit);
    bool joins = false;  // the unit before
    if (behavior_ == SplitBehavior::kMergedWithPrevious)
      joins = unit == Unit::kMatch && before == Unit::kGap;
    else if (behavior_ == SplitBehavior::kMergedWithNext)
      joins = unit == Unit::kGap && before == Unit::kMatch;
    else if (behavior_ == SplitBehavior::kContiguous)
      joins = unit == before;
    return joins ? Status() : Close();
  }
  Status Add(std::string_view text) {
    if (behavior_ == SplitBehavior::kRemoved && unit_ == Unit::kMatch) return Status();
    open_ = open_ || !text.empty();
    return next_->Push(text, false);
  }
  Status EndUnit() {
    const bool whole = behavior_ == SplitBehavior::kIsolated ||
                       behavior_ == SplitBehavior::kRemoved ||
                       (behavior_ == SplitBehavior::kMergedWithPrevious && unit_ == Unit::kMatch);
    return whole ? Close() : Status();
  }
  Status Close() { return std::exchange(open_, false) ? next_->Push({}, true) : Status(); }

  const SplitBehavior behavior_;
  const bool inverted_;
  TextStage* const next_;
  Unit unit_ = Unit::kNone;  // the last one that has begun
  bool in_gap_ = false;      // the last call was OnGap
  bool open_ = false;        // the next stage has a segment without its end
};

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Whether a character belongs to a word, as \w of Rust's regex: alphabetic characters, marks, decimal digits,
// connecting punctuation, joiners.
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
    size_t sure = at_;
    while (strips_left_ && sure > done_) {  // white space may belong to the token after it
      const size_t length = LastCharacter(std::string_view(text_).substr(0, sure));
      if (!IsSpace(FirstCodePoint(std::string_view(text_).substr(sure - length)))) break;
      sure -= length;
    }
    PS_RETURN_IF_ERROR(Pass(sure, false));
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

  Status Add(const AddedToken& token, size_t end) {
    size_t begin = at_;
    while (token.strip_left && begin > done_) {
      const size_t length = LastCharacter(std::string_view(text_).substr(0, begin));
      if (!IsSpace(FirstCodePoint(std::string_view(text_).substr(begin - length)))) break;
      begin -= length;
    }
    PS_RETURN_IF_ERROR(Pass(begin, true));
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

class BpeStage final : public TextStage {
 public:
  BpeStage(const BpeModel& model, StageContext* context) : model_(model), context_(context) {}

  Status Push(std::string_view text, bool ends) override {
    if (!text.empty()) context_->place = TextPlace::kAfterControl;
    if (ends && word_.empty()) {
      model_.Encode(text, context_->ids);
      return Status();
    }
    word_ += text;
    if (ends) {
      model_.Encode(word_, context_->ids);
      word_.clear();
      searched_ = 0;
      return Status();
    }
    EncodeSureParts();
    return word_.size() > kMaxHeldBytes ? TooLong() : Status();
  }

 private:
  // Without a pre-tokenizer a text is one word. It is cut between two characters that no token holds
  // together: merges make only tokens, so none spans such a place.
  void EncodeSureParts() {
    if (model_.byte_level() || model_.whole_words()) return;
    size_t begin = 0;
    for (size_t at = searched_; at < word_.size();) {
      const std::string_view rest = std::string_view(word_).substr(at);
      const Utf8Char left = DecodeUtf8(rest);
      const auto length = static_cast<size_t>(left.length);
      searched_ = at;
      if (length == rest.size()) break;
      at += length;
      if (at - begin < kPartBytes) continue;
      if (model_.Joins(left.code_point, FirstCodePoint(rest.substr(length)))) continue;
      model_.Encode(std::string_view(word_).substr(begin, at - begin), context_->ids);
      begin = at;
    }
    word_.erase(0, begin);
    searched_ -= begin;
  }

  static constexpr size_t kPartBytes = 4096;

  const BpeModel& model_;
  StageContext* const context_;
  std::string word_;
  size_t searched_ = 0;  // the last character of word_ before which no cut is possible
};

}  // namespace

std::unique_ptr<TextStage> NewStage(const StageSpec& spec, StageContext* context, TextStage* next) {
  switch (spec.kind) {
    case StageSpec::Kind::kNfc:
      return std::make_unique<NfcStage>(next);
    case StageSpec::Kind::kPrepend:
      return std::make_unique<PrefixStage>(spec, /*always=*/true, context, next);
    case StageSpec::Kind::kPrefix:
      return std::make_unique<PrefixStage>(spec, /*always=*/false, context, next);
    case StageSpec::Kind::kReplace:
      return std::make_unique<ReplaceStage>(spec, next);
    case StageSpec::Kind::kSplit:
      return std::make_unique<SplitStage>(spec, next);
  }
  PS_CHECK(false) << "a kind of stage";
  return nullptr;
}

std::unique_ptr<TextStage> NewAddedTokenStage(const std::vector<AddedToken>& tokens,
                                              const TokenTrie& trie, StageContext* context,
                                              TextStage* next) {
  return std::make_unique<AddedTokenStage>(tokens, trie, context, next);
}

std::unique_ptr<TextStage> NewBpeStage(const BpeModel& model, StageContext* context) {
  return std::make_unique<BpeStage>(model, context);
}

}  // namespace polysketch
