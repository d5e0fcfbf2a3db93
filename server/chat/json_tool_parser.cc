// Calls that are JSON objects: Hermes, Llama 3, Mistral, plain JSON.
#include <optional>
#include <utility>

#include "base/bounded_json.h"
#include "server/chat/call_object.h"
#include "server/chat/tool_parser.h"

namespace polysketch {
namespace {

using Kind = ToolEvent::Kind;

class JsonToolParser final : public ToolParser {
 public:
  explicit JsonToolParser(const ToolParsing& parsing)
      : names_(parsing.names),
        max_calls_(parsing.max_calls),
        open_(parsing.unmarked ? "" : FramingOf(parsing.form).open),
        close_(parsing.unmarked ? "" : FramingOf(parsing.form).close),
        state_(open_.empty() ? State::kBetween : State::kSearch) {}

  void Append(std::string_view text, ToolEvents* events) override {
    for (const char c : text) {
      // A byte that ends an attempt is read again as text.
      while (!Take(c, events)) {
      }
    }
  }

  void Finish(ToolEvents* events) override {
    const bool drop =
        state_ == State::kSearch ? calls_ > 0 && matched_ == 0 : calls_here_ > 0 && !call_;
    drop ? held_.clear() : Release(events);
  }

  size_t held_bytes() const override { return held_.size(); }

 private:
  // kText: no call follows. kSearch: `open` may. kBetween: before, between or after calls. kCall:
  // in one.
  // kClose: `close` has begun, or may.
  enum class State { kText, kSearch, kBetween, kCall, kClose };

  // Returns whether the byte was taken.
  bool Take(char c, ToolEvents* events) {
    switch (state_) {
      case State::kText:
        AddToolEvent(Kind::kText, {&c, 1}, events);
        return true;
      case State::kSearch:
        return Search(c, events);
      case State::kBetween:
        return Between(c, events);
      case State::kCall:
        return InCall(c, events);
      case State::kClose:
        return Close(c, events);
    }
    return true;
  }

  // Holds white space, which belongs to a call that follows, and the beginning of `open_`, whose
  // first character is nowhere else in it.
  bool Search(char c, ToolEvents* events) {
    if (c == open_[matched_]) {
      held_ += c;
      if (++matched_ == open_.size()) Enter();
      return true;
    }
    if (matched_ > 0) {
      Release(events);
      return false;
    }
    if (IsJsonSpace(c)) {
      held_ += c;
      // White space without end waits for nothing.
      if (held_.size() > kMaxHeldSpace) Release(events);
      return true;
    }
    Release(events);
    AddToolEvent(Kind::kText, {&c, 1}, events);
    return true;
  }

  void Enter() {
    matched_ = 0;
    calls_here_ = 0;
    array_ = false;
    state_ = State::kBetween;
  }

  bool Between(char c, ToolEvents* events) {
    const bool space = IsJsonSpace(c);
    const bool opens = c == '[' && !array_ && calls_here_ == 0;
    const bool separates = (c == ',' || c == ';') && calls_here_ > 0;
    if (held_.size() <= kMaxHeldSpace && (space || opens || separates)) {
      if (opens) array_ = true;
      held_ += c;
      return true;
    }
    if (c == '{' && calls_ < max_calls_) {
      call_.emplace(&names_);
      call_begin_ = held_.size();
      state_ = State::kCall;
      return InCall(c, events);
    }
    if (calls_here_ > 0 && array_ && c == ']') {
      // The end of the array is a part of the calls.
      held_.clear();
      state_ = close_.empty() && !open_.empty() ? State::kSearch : State::kClose;
      return true;
    }
    if (calls_here_ > 0 && !array_ && !close_.empty() && c == close_[0]) {
      state_ = State::kClose;
      return false;
    }
    return Leave(events);
  }

  bool InCall(char c, ToolEvents* events) {
    const CallObject::Result result =
        held_.size() < kMaxCallBytes ? call_->Take(c, events) : CallObject::Result::kNoCall;
    if (result == CallObject::Result::kNoCall) return Leave(events);
    held_ += c;
    if (result == CallObject::Result::kComplete) {
      // What the server would refuse in a history is no call: numbers and characters without a value.
      if (!ParseJson(std::string_view(held_).substr(call_begin_)).ok()) {
        Leave(events);
        return true;
      }
      AddToolEvent(Kind::kEnd, "", events);
      held_.clear();
      call_.reset();
      ++calls_;
      ++calls_here_;
      state_ = State::kBetween;
    }
    return true;
  }

  bool Close(char c, ToolEvents* events) {
    if (matched_ == 0 && IsJsonSpace(c) && held_.size() <= kMaxHeldSpace) {
      held_ += c;
      return true;
    }
    if (matched_ == close_.size() || c != close_[matched_]) return Leave(events);
    held_ += c;
    if (++matched_ == close_.size()) {
      held_.clear();
      matched_ = 0;
      state_ = State::kSearch;
    }
    return true;
  }

  // What was held is text, and so is what follows unless `open_` does. The byte is not taken.
  bool Leave(ToolEvents* events) {
    Release(events);
    state_ = open_.empty() ? State::kText : State::kSearch;
    return false;
  }

  void Release(ToolEvents* events) {
    const bool broken = call_ && call_->announced();
    AddToolEvent(broken ? Kind::kBroken : Kind::kText, std::exchange(held_, ""), events);
    call_.reset();
    matched_ = 0;
  }

  static constexpr size_t kMaxHeldSpace = 1024;

  const std::set<std::string> names_;
  const int max_calls_;
  const std::string_view open_, close_;  // static
  State state_;
  std::string held_;       // since the last event that was text or ended a call
  size_t matched_ = 0;     // bytes of open_, or in kClose of close_
  size_t call_begin_ = 0;  // of call_ in held_
  int calls_ = 0;
  int calls_here_ = 0;  // since open_
  bool array_ = false;  // the calls are in an array
  std::optional<CallObject> call_;
};

}  // namespace

std::unique_ptr<ToolParser> NewJsonToolParser(const ToolParsing& parsing) {
  return std::make_unique<JsonToolParser>(parsing);
}

}  // namespace polysketch
