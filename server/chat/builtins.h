// The functions, filters, methods and tests of chat templates. docs/chat-templates.md lists them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/chat/value.h"

namespace polysketch::chat {

// What rendering one prompt may cost. A template that asks for more fails.
class Budget {
 public:
  static constexpr int64_t kSteps = 1'000'000;
  static constexpr int64_t kBytes = int64_t{512} << 20;

  // One expression or statement.
  Status Step();
  // An operation on that many bytes or elements.
  Status Spend(size_t bytes);

 private:
  int64_t steps_ = kSteps;
  int64_t bytes_ = kBytes;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `index`, or of that name; null without it. A negative index: by name only.
  const Value* Get(int index, std::string_view name) const;
};

bool IsFilter(std::string_view name);
bool IsTest(std::string_view name);
bool IsFunction(std::string_view name);

// INVALID_ARGUMENT says what was expected; the caller adds the line.
Result<Value> ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments,
                          Budget* budget);
Result<bool> ApplyTest(const std::string& name, const Value& input, const Arguments& arguments);
Result<Value> CallMethod(const Value& object, const std::string& name, const Arguments& arguments,
                         Budget* budget);
Result<Value> CallFunction(std::string_view name, const Arguments& arguments, Budget* budget);

// The elements that a loop visits: of a list, the keys of a dict, the characters of a string; none
// of an undefined value.
Result<List> Elements(const Value& value, Budget* budget);

// --- text, with its marks (text_methods.cc) ---
MarkedText Stripped(const MarkedText& text, const std::string* characters, bool left, bool right);
Result<MarkedText> Replaced(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                            int64_t count, Budget* budget);
// `separator` null: at white space.
Result<List> Split(const MarkedText& text, const std::string* separator, int64_t limit,
                   bool from_right, Budget* budget);
// ASCII letters alone change.
enum class LetterCase { kUpper, kLower, kCapitalized, kTitle };
MarkedText InCase(const MarkedText& text, LetterCase letter_case);
Result<MarkedText> Joined(const List& list, const MarkedText& separator, Budget* budget);
Result<Value> CallTextMethod(const MarkedText& text, const std::string& name,
                             const Arguments& arguments, Budget* budget);

}  // namespace polysketch::chat
