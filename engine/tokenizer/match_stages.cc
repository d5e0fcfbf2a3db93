// The stages that search a text for matches of a regular expression.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/tokenizer/stage_parts.h"

namespace polysketch {
namespace {

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
      // What is certain of a gap goes on at once. Its last character may begin a match that more
      // text makes possible only where the search says so.
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

}  // namespace

std::unique_ptr<TextStage> NewReplaceStage(const StageSpec& spec, TextStage* next) {
  return std::make_unique<ReplaceStage>(spec, next);
}

std::unique_ptr<TextStage> NewSplitStage(const StageSpec& spec, TextStage* next) {
  return std::make_unique<SplitStage>(spec, next);
}

}  // namespace polysketch
