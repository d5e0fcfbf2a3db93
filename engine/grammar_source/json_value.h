// A JSON text as a tree that keeps the order of members and the digits of numbers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/grammar_source/decimal.h"

namespace polysketch {

struct JsonValue {
  enum class Type { kNull, kBoolean, kNumber, kString, kArray, kObject };
  Type type = Type::kNull;
  bool boolean = false;
  std::string text = {};  // of a string; a number as it was written
  Decimal number = {};
  std::vector<JsonValue> items = {};
  std::vector<std::pair<std::string, JsonValue>> members = {};

  bool Is(Type other) const { return type == other; }
  bool IsFalse() const { return type == Type::kBoolean && !boolean; }
  // Of an object; null if there is none.
  const JsonValue* Find(std::string_view name) const;
  // "a string", "null": for errors.
  std::string_view TypeName() const;
  // The value as JSON, or its beginning: for errors that quote it.
  std::string Shown() const;
  // Equality of JSON Schema: 1 is 1.0, the order of members does not count.
  bool operator==(const JsonValue& other) const;
};

inline constexpr int kMaxValueDepth = 100;

// INVALID_ARGUMENT says where the text is not JSON. Of members with one name the last counts.
Result<JsonValue> ParseJsonValue(std::string_view text);

}  // namespace polysketch
