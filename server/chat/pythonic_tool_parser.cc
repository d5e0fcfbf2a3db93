// Calls as Python writes them: [get_weather(city="Paris"), get_time()].
#include <optional>
#include <string>

#include "base/bounded_json.h"
#include "base/json_scanner.h"
#include "server/chat/python_call.h"
#include "server/chat/tool_parser.h"

namespace polysketch {
namespace {

using Kind = ToolEvent::Kind;

class PythonicToolParser final : public ToolParser {
 public:
  explicit PythonicToolParser(const ToolParsing& parsing)
      : names_(parsing.names), max_calls_(parsing.max_calls) {}

  void Append(std::string_view text, ToolEvents* events) override {
    for (const char c : text) Take(c, events);
  }

  void Finish(ToolEvents* events) override {
    const bool drop = calls_ > 0 && call_.empty();
    drop ? held_.clear() : Leave(events);
  }

  size_t held_bytes() const override { return held_.size() + call_.size(); }

 private:
  // kStart: before the bracket. kBetween: before or after a call. kCall: in one.
  enum class State { kStart, kBetween, kCall, kText };

  void Take(char c, ToolEvents* events) {
    if (state_ == State::kText) return AddToolEvent(Kind::kText, {&c, 1}, events);
    if (held_.size() > kMaxCallBytes) return Reject(c, events);
    held_ += c;
    if (state_ == State::kCall) return InCall(c, events);
    if (IsJsonSpace(c)) return;
    if (state_ == State::kStart) {
      if (c != '[') return Leave(events);
      state_ = State::kBetween;
    } else if (closed_ || !MayFollow(c)) {
      Leave(events);
    } else if (c == ']') {
      held_.clear();
      closed_ = true;
    } else if (c == ',') {
      comma_ = true;
    } else {
      state_ = State::kCall;
      InCall(c, events);
    }
  }

  // Whether `c` may stand between calls; but for the bracket and the comma it begins one.
  bool MayFollow(char c) const {
    if (c == ']') return calls_ > 0;
    if (c == ',') return calls_ > 0 && !comma_;
    return calls_ < max_calls_ && (calls_ == 0 || comma_);
  }

  void InCall(char c, ToolEvents* events) {
    call_ += c;
    if (quote_ != '\0' && InString(c)) return;
    // A name, and nothing before the bracket.
    if (depth_ == 0 && c != '(' && !IsInToolName(c)) return Leave(events);
    if (c == '"' || c == '\'') quote_ = c, quotes_ = 1, content_ = false;
    if (c == '(' || c == '[' || c == '{') ++depth_;
    if (c != ')' && c != ']' && c != '}') return;
    if (--depth_ > 0) return;
    const std::optional<PythonCall> call = ParsePythonCall(call_);
    if (!call || !names_.contains(call->name) || !ParseJson(call->arguments).ok())
      return Leave(events);
    AddToolEvent(Kind::kCall, call->name, events);
    AddToolEvent(Kind::kArguments, call->arguments, events);
    AddToolEvent(Kind::kEnd, "", events);
    held_.clear();
    call_.clear();
    depth_ = 0;
    comma_ = false;
    ++calls_;
    state_ = State::kBetween;
  }

  // Returns whether the byte belongs to the string. It begins and ends with one quote, or with
  // three.
  bool InString(char c) {
    const bool quote = c == quote_ && !escaped_;
    if (!content_) {
      if (quote && quotes_ < 3) {
        ++quotes_;
        return true;
      }
      if (quotes_ == 2) {  // it was empty
        quote_ = '\0';
        return false;
      }
      content_ = true;
      end_ = quotes_;
      quotes_ = 0;
    }
    quotes_ = quote ? quotes_ + 1 : 0;
    escaped_ = c == '\\' && !escaped_;
    if (quotes_ == end_) quote_ = '\0';
    return true;
  }

  void Reject(char c, ToolEvents* events) {
    Leave(events);
    AddToolEvent(Kind::kText, {&c, 1}, events);
  }

  // What was held is text, and so is what follows.
  void Leave(ToolEvents* events) {
    AddToolEvent(Kind::kText, held_, events);
    held_.clear();
    call_.clear();
    state_ = State::kText;
  }

  const std::set<std::string> names_;
  const int max_calls_;
  State state_ = State::kStart;
  std::string held_;      // since the last call
  std::string call_;      // of held_
  char quote_ = '\0';     // of the string that is open
  int quotes_ = 0;        // in a row, at its beginning or within it
  int end_ = 0;           // quotes that end it
  bool content_ = false;  // it has more than quotes
  bool escaped_ = false;
  int depth_ = 0;  // brackets that are open in call_
  int calls_ = 0;
  bool comma_ = false;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<ToolParser> NewPythonicToolParser(const ToolParsing& parsing) {
  return std::make_unique<PythonicToolParser>(parsing);
}

}  // namespace polysketch
