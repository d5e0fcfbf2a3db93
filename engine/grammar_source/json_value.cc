#include "engine/grammar_source/json_value.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/bounded_json.h"

namespace polysketch {
namespace {

using Type = JsonValue::Type;

// Builds the tree from events: nlohmann's own tree rounds large numbers.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;

  bool null() { return Add({}); }
  bool boolean(bool value) { return Add({.type = Type::kBoolean, .boolean = value}); }
  bool number_integer(number_integer_t value) { return AddNumber(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) { return AddNumber(std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const std::string& text) { return AddNumber(text); }
  bool string(std::string& value) { return Add({.type = Type::kString, .text = std::move(value)}); }
  bool binary(std::vector<uint8_t>& /*value*/) { return false; }
  bool start_object(size_t /*size*/) { return Open(Type::kObject); }
  bool start_array(size_t /*size*/) { return Open(Type::kArray); }
  bool key(std::string& value) {
    open_.back().key = std::move(value);
    return true;
  }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  // The library's words quote a part of a character.
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) {
    return Fail(StrCat("expected JSON, found an error at byte ", position));
  }

  Result<JsonValue> Take() {
    if (!error_.ok()) return error_;
    return std::move(root_);
  }

 private:
  struct Open_ {
    JsonValue value;
    std::string key;
    std::unordered_map<std::string, size_t> names;
  };

  bool Fail(const std::string& message) {
    if (error_.ok()) error_ = InvalidArgument(message);
    return false;
  }
  bool AddNumber(const std::string& text) {
    const auto number = Decimal::Parse(text);
    if (!number)
      return Fail(StrCat("expected numbers of at most ", Decimal::kMaxDigits, " digits, found ",
                         Abbreviate(text)));
    return Add({.type = Type::kNumber, .text = text, .number = *number});
  }
  bool Open(Type type) {
    if (std::ssize(open_) >= kMaxValueDepth)
      return Fail(StrCat("expected at most ", kMaxValueDepth,
                         " arrays and objects within others, "
                         "found more"));
    open_.push_back({.value = {.type = type}, .key = {}, .names = {}});
    return true;
  }
  bool Close() {
    JsonValue value = std::move(open_.back().value);
    open_.pop_back();
    return Add(std::move(value));
  }
  bool Add(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Open_& parent = open_.back();
    if (parent.value.type == Type::kArray) {
      parent.value.items.push_back(std::move(value));
      return true;
    }
    auto& members = parent.value.members;
    const auto [at, inserted] = parent.names.try_emplace(parent.key, members.size());
    if (inserted) {
      members.emplace_back(parent.key, std::move(value));
    } else {
      members[at->second].second = std::move(value);
    }
    return true;
  }

  std::vector<Open_> open_;
  JsonValue root_;
  Status error_;
};

}  // namespace

const JsonValue* JsonValue::Find(std::string_view name) const {
  const auto at = std::find_if(members.begin(), members.end(),
                               [name](const auto& member) { return member.first == name; });
  return at == members.end() ? nullptr : &at->second;
}

std::string_view JsonValue::TypeName() const {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "a number",
                                         "a string", "an array",  "an object"};
  return kNames[static_cast<size_t>(type)];
}

std::string JsonValue::Shown() const {
  if (Is(Type::kNull)) return "null";
  if (Is(Type::kBoolean)) return boolean ? "true" : "false";
  if (Is(Type::kNumber)) return Abbreviate(text);
  const auto quoted = [](const std::string& string) { return nlohmann::json(string).dump(); };
  if (Is(Type::kString)) return Abbreviate(quoted(text));
  constexpr size_t kEnough = 100;
  std::string json;
  for (size_t i = 0; i < items.size() && json.size() <= kEnough; ++i)
    json += StrCat(i > 0 ? "," : "", items[i].Shown());
  for (size_t i = 0; i < members.size() && json.size() <= kEnough; ++i)
    json += StrCat(i > 0 ? "," : "", quoted(members[i].first), ":", members[i].second.Shown());
  return Abbreviate(Is(Type::kArray) ? StrCat("[", json, "]") : StrCat("{", json, "}"), kEnough);
}

bool JsonValue::operator==(const JsonValue& other) const {
  if (type != other.type) return false;
  switch (type) {
    case Type::kNull:
      return true;
    case Type::kBoolean:
      return boolean == other.boolean;
    case Type::kNumber:
      return number == other.number;
    case Type::kString:
      return text == other.text;
    case Type::kArray:
      return items == other.items;
    case Type::kObject:
      return members.size() == other.members.size() &&
             std::all_of(members.begin(), members.end(), [&](const auto& member) {
               const JsonValue* const same = other.Find(member.first);
               return same != nullptr && *same == member.second;
             });
  }
  return false;
}

Result<JsonValue> ParseJsonValue(std::string_view text) {
  Builder builder;
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

}  // namespace polysketch
