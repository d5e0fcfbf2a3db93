// The factory of stages, the stage that puts a text before segments, and the one that encodes
// words.
#include "engine/tokenizer/text_stages.h"

#include "base/check.h"
#include "engine/tokenizer/stage_parts.h"

namespace polysketch {
namespace {

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
  // Without a pre-tokenizer a text is one word. It is cut between two characters that no token
  // holds together: merges make only tokens, so none spans such a place.
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
      return NewNfcStage(next);
    case StageSpec::Kind::kPrepend:
      return std::make_unique<PrefixStage>(spec, /*always=*/true, context, next);
    case StageSpec::Kind::kPrefix:
      return std::make_unique<PrefixStage>(spec, /*always=*/false, context, next);
    case StageSpec::Kind::kReplace:
      return NewReplaceStage(spec, next);
    case StageSpec::Kind::kSplit:
      return NewSplitStage(spec, next);
  }
  PS_CHECK(false) << "a kind of stage";
  return nullptr;
}

std::unique_ptr<TextStage> NewBpeStage(const BpeModel& model, StageContext* context) {
  return std::make_unique<BpeStage>(model, context);
}

}  // namespace polysketch
