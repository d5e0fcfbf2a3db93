#include "engine/checkpoint/json_field_reader.h"

#include <nlohmann/json.hpp>

#include "engine/checkpoint/strict_json.h"

namespace polysketch {

using nlohmann::json;

std::optional<int> IntIn(const json& value, int low, int high) {
  // Unsigned beyond int64 compares greater than `high` as unsigned, and so never wraps.
  const bool in_range = value.is_number_unsigned()
                            ? high >= 0 && value.get<uint64_t>() <= static_cast<uint64_t>(high) &&
                                  static_cast<int64_t>(value.get<uint64_t>()) >= low
                            : value.is_number_integer() && value.get<int64_t>() >= low &&
                                  value.get<int64_t>() <= high;
  return in_range ? std::optional(value.get<int>()) : std::nullopt;
}

int JsonFieldReader::Int(const char* name, int low, int high, std::optional<int> fallback) {
  const json* value = Find(name, fallback.has_value());
  if (value == nullptr) return fallback.value_or(low);
  if (const std::optional<int> found = IntIn(*value, low, high)) return *found;
  Fail(name,
       StrCat("expected an integer in [", low, ", ", high, "], found ", DescribeJson(*value)));
  return low;
}

double JsonFieldReader::Number(const char* name, double low, double high,
                               std::optional<double> fallback) {
  const json* value = Find(name, fallback.has_value());
  if (value == nullptr) return fallback.value_or(low);
  const bool in_range =
      value->is_number() && value->get<double>() >= low && value->get<double>() <= high;
  if (!in_range) {
    Fail(name,
         StrCat("expected a number in [", low, ", ", high, "], found ", DescribeJson(*value)));
    return low;
  }
  return value->get<double>();
}

bool JsonFieldReader::Bool(const char* name, bool fallback) {
  const json* value = Find(name, true);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fail(name, StrCat("expected true or false, found ", DescribeJson(*value)));
    return fallback;
  }
  return value->get<bool>();
}

void JsonFieldReader::Only(const char* name, const json& value, std::string_view reason) {
  const json* found = Find(name, true);
  if (found == nullptr || *found == value) return;
  Fail(name, StrCat("expected ", reason, ", found ", DescribeJson(*found)));
}

std::string JsonFieldReader::String(const char* name, bool optional) {
  const json* value = Find(name, optional);
  if (value == nullptr) return "";
  if (!value->is_string()) {
    Fail(name, StrCat("expected a string, found ", DescribeJson(*value)));
    return "";
  }
  return value->get<std::string>();
}

std::vector<int> JsonFieldReader::Ints(const char* name, int low, int high, size_t max_count) {
  const json* value = Find(name, true);
  if (value == nullptr) return {};
  const json list = value->is_array() ? *value : json::array({*value});
  if (list.size() > max_count) {
    Fail(name, StrCat("expected at most ", max_count, " integers, found ", list.size()));
    return {};
  }
  std::vector<int> ints;
  for (const json& one : list) {
    const std::optional<int> found = IntIn(one, low, high);
    if (!found) {
      Fail(name, StrCat("expected integers in [", low, ", ", high, "], found ", DescribeJson(one)));
      return {};
    }
    ints.push_back(*found);
  }
  return ints;
}

std::vector<std::string> JsonFieldReader::Strings(const char* name, size_t max_count) {
  const json* value = Find(name, true);
  if (value == nullptr) return {};
  if (!value->is_array() || value->size() > max_count) {
    Fail(name,
         StrCat("expected an array of at most ", max_count, " strings, found ",
                value->is_array() ? StrCat(value->size(), " elements") : DescribeJson(*value)));
    return {};
  }
  std::vector<std::string> strings;
  for (const json& one : *value) {
    if (!one.is_string()) {
      Fail(name, StrCat("expected strings, found ", DescribeJson(one)));
      return {};
    }
    strings.push_back(one.get<std::string>());
  }
  return strings;
}

void JsonFieldReader::Fail(std::string_view name, std::string_view message) {
  if (status_.ok())
    status_ = InvalidArgument(source_, ": field \"", prefix_, name, "\": ", message);
}

void JsonFieldReader::CheckUnknown() {
  for (const auto& [name, value] : object_.items()) {
    if (read_.contains(name)) continue;
    status_ = InvalidArgument(source_, ": unknown field \"", prefix_, Abbreviate(name), "\"");
    return;
  }
}

const json* JsonFieldReader::Find(const char* name, bool optional) {
  read_.insert(name);
  if (!status_.ok()) return nullptr;
  const auto it = object_.find(name);
  if (it != object_.end() && !(it->is_null() && null_ == Null::kMissing)) return &*it;
  if (!optional) Fail(name, "missing");
  return nullptr;
}

}  // namespace polysketch
