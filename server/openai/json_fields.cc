#include "server/openai/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "server/openai/other_parameters.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Result<Json> ParseJsonObject(const std::string& text, JsonLimits limits) {
  Result<Json> json = ParseJson<Json>(text, limits);
  if (!json.ok()) return InvalidArgument("the body: ", json.status().message());
  if (json->is_object()) return json;
  return InvalidArgument("the body: expected a JSON object, found ", JsonTypeName(*json));
}

std::string_view JsonTypeName(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_float:
      // An integer of more bits is read as one of these.
      return std::abs(value.get<double>()) < 0x1p63 ? "a number with a fraction"
                                                    : "a number of more than 64 bits";
    default:
      return "an integer";
  }
}

std::string FoundText(const Json* value) {
  if (value == nullptr || value->is_null()) return "none";
  if (!value->is_string()) return std::string(JsonTypeName(*value));
  return StrCat("\"", Abbreviate(value->get_ref<const std::string&>()), "\"");
}

Result<float> ToNumber(const Json& value, const std::string& name, const ParameterRange& range) {
  if (!value.is_number())
    return InvalidArgument(name, ": expected a number, found ", JsonTypeName(value));
  if (range.Contains(value.get<double>())) return ToParameter(value.get<double>());
  return InvalidArgument(name, ": expected ", range.Text(), ", found ", value.dump());
}

Status CheckObject(const Json& value, const std::string& name) {
  if (value.is_object()) return Status();
  return InvalidArgument(name, ": expected an object, found ", JsonTypeName(value));
}

Status CheckList(const Json& value, const std::string& name, std::string_view expected) {
  if (value.is_array() && !value.empty()) return Status();
  return InvalidArgument(name, ": expected ", expected, ", found ",
                         value.is_array() ? "an empty array" : JsonTypeName(value));
}

const Json* MemberOf(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json* JsonFields::Any(const char* name) {
  known_.insert(name);
  return MemberOf(object_, name);
}

template <typename T>
std::optional<T> JsonFields::Get(const char* name, bool (Json::*is)() const, const char* expected) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if ((value->*is)()) return value->get<T>();
  Fail(name, StrCat("expected ", expected, ", found ", JsonTypeName(*value)));
  return std::nullopt;
}

std::optional<bool> JsonFields::Bool(const char* name) {
  return Get<bool>(name, &Json::is_boolean, "true or false");
}

std::optional<int64_t> JsonFields::Integer(const char* name, int64_t min, int64_t max) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) {
    Fail(name, StrCat("expected an integer, found ", JsonTypeName(*value)));
    return std::nullopt;
  }
  const bool large = value->is_number_unsigned() &&
                     value->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()};
  if (!large && value->get<int64_t>() >= min && value->get<int64_t>() <= max)
    return value->get<int64_t>();
  Fail(name, StrCat("expected ", min, " to ", max, ", found ", value->dump()));
  return std::nullopt;
}

std::optional<float> JsonFields::Number(const char* name, const ParameterRange& range) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  const Result<float> number = ToNumber(*value, prefix_ + name, range);
  if (number.ok()) return *number;
  Merge(number.status());
  return std::nullopt;
}

std::optional<std::string> JsonFields::String(const char* name) {
  return Get<std::string>(name, &Json::is_string, "a string");
}

std::string JsonFields::NeededString(const char* name) {
  (void)Needed(name, "a string");
  return String(name).value_or("");
}

const Json* JsonFields::Needed(const char* name, std::string_view expected) {
  const Json* const value = Any(name);
  if (value == nullptr) Fail(name, StrCat("expected ", expected, ", found none"));
  return value;
}

std::string JsonFields::OneOf(const char* name, const std::vector<std::string_view>& values,
                              std::string_view absent) {
  std::string found = String(name).value_or(std::string(absent));
  if (std::ranges::find(values, found) != values.end()) return found;
  std::string list;
  for (size_t i = 0; i < values.size(); ++i)
    list += StrCat(i == 0 ? "" : i + 1 == values.size() ? " or " : ", ", values[i]);
  Fail(name, StrCat("expected ", list, ", found ", FoundText(Any(name))));
  return found;
}

std::optional<std::vector<int32_t>> JsonFields::Integers(const char* name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  Result<std::vector<int32_t>> integers = ToIntegers(*value, prefix_ + name);
  if (integers.ok()) return *std::move(integers);
  if (status_.ok()) status_ = integers.status();
  return std::nullopt;
}

std::optional<std::vector<std::string>> JsonFields::Strings(const char* name) {
  const Json* value = Any(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::vector<std::string>{value->get<std::string>()};
  if (!value->is_array()) {
    Fail(name, StrCat("expected a string or an array of strings, found ", JsonTypeName(*value)));
    return std::nullopt;
  }
  std::vector<std::string> strings;
  strings.reserve(value->size());
  for (const Json& element : *value) {
    if (!element.is_string()) {
      Fail(StrCat(name, "[", strings.size(), "]").c_str(),
           StrCat("expected a string, found ", JsonTypeName(element)));
      return std::nullopt;
    }
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

const Json* JsonFields::Object(const char* name) {
  const Json* value = Any(name);
  if (value == nullptr || value->is_object()) return value;
  Fail(name, StrCat("expected an object, found ", JsonTypeName(*value)));
  return nullptr;
}

void JsonFields::Ignore(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    // Of the elements of arrays, which are the server's own output that comes back, none is
    // counted.
    if (Any(name) != nullptr && prefix_.find('[') == std::string::npos)
      Merge(CheckIgnored(prefix_, name));
  }
}

void JsonFields::Fail(const char* name, const std::string& message) {
  if (status_.ok()) status_ = InvalidArgument(prefix_, name, ": ", message);
}

Status JsonFields::Finish() {
  int unread = 0;
  for (const auto& [name, value] : object_.items()) {
    if (!status_.ok()) break;
    if (value.is_null() || known_.count(name) > 0) continue;
    // Each is compared with every known name.
    status_ = ++unread <= kMaxUnreadFields
                  ? CheckUnread(prefix_, name, value, known_)
                  : InvalidArgument(prefix_, name, ": expected at most ", kMaxUnreadFields,
                                    " fields that the API does not have, found more");
  }
  return status_;
}

Result<std::vector<int32_t>> ToIntegers(const Json& array, const std::string& name) {
  if (!array.is_array())
    return InvalidArgument(name, ": expected an array of integers, found ", JsonTypeName(array));
  std::vector<int32_t> integers;
  integers.reserve(array.size());
  for (const Json& element : array) {
    // As a float64, an integer of 64 bits keeps its size.
    const double size = element.is_number_integer() ? element.get<double>() : 0;
    if (!element.is_number_integer() || size < std::numeric_limits<int32_t>::min() ||
        size > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument(
          name, "[", integers.size(), "]: expected an integer of 32 bits, found ",
          element.is_number_integer() ? element.dump() : std::string(JsonTypeName(element)));
    }
    integers.push_back(element.get<int32_t>());
  }
  return integers;
}

}  // namespace polysketch
