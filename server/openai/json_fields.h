// Reads the fields of a JSON object of a client, whose members are in the order of its text. A
// field that is null counts as absent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/bounded_json.h"
#include "base/status.h"
#include "engine/sampler/sampling_params.h"

namespace polysketch {

inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// INVALID_ARGUMENT says where the text is not JSON, or that it nests too deeply or is no object.
Result<nlohmann::ordered_json> ParseJsonObject(const std::string& text, JsonLimits limits = {});

// "a string", "an integer", "null": the type of a value, for errors.
std::string_view JsonTypeName(const nlohmann::ordered_json& value);
// What was found instead of a string of a few: the string itself, the type of another value, "none"
// for null.
std::string FoundText(const nlohmann::ordered_json* value);
// A number within `range`, which is checked before digits are lost; `name`: its field.
Result<float> ToNumber(const nlohmann::ordered_json& value, const std::string& name,
                       const ParameterRange& range);
// INVALID_ARGUMENT for a value of another type; `name`: its field.
Status CheckObject(const nlohmann::ordered_json& value, const std::string& name);
// The same, and for an array without elements. `expected`: "an array of messages".
Status CheckList(const nlohmann::ordered_json& value, const std::string& name,
                 std::string_view expected);

// The member `name` of an object; nullptr if it is absent or null, which count as one.
const nlohmann::ordered_json* MemberOf(const nlohmann::ordered_json& object, const char* name);

// Fields of one object that no reader asks for.
inline constexpr int kMaxUnreadFields = 1000;

class JsonFields {
 public:
  // `object` outlives the reader. `prefix` precedes the names in errors: "stream_options.".
  explicit JsonFields(const nlohmann::ordered_json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Each returns the value of a field; nullopt if the field is absent or wrong. status() then has
  // the first error.
  std::optional<bool> Bool(const char* name);
  std::optional<int64_t> Integer(const char* name, int64_t min, int64_t max);
  std::optional<float> Number(const char* name, const ParameterRange& range);
  std::optional<std::string> String(const char* name);
  // Fails without the field too; empty then.
  std::string NeededString(const char* name);
  // One of `values`. `absent`: the value without the field, which fails if it is none of them.
  std::string OneOf(const char* name, const std::vector<std::string_view>& values,
                    std::string_view absent = "");
  // An array of integers that fit in 32 bits.
  std::optional<std::vector<int32_t>> Integers(const char* name);
  // A string, or an array of strings.
  std::optional<std::vector<std::string>> Strings(const char* name);
  // An object.
  const nlohmann::ordered_json* Object(const char* name);
  // Any value; null if the field is absent.
  const nlohmann::ordered_json* Any(const char* name);
  // Fails without the field too. `expected`: "an array of messages".
  const nlohmann::ordered_json* Needed(const char* name, std::string_view expected);
  // Names of fields that have no effect (server/net/ignored_parameters.h).
  void Ignore(std::initializer_list<const char*> names);

  // INVALID_ARGUMENT: the first error, or the first field that was not read and is refused
  // (other_parameters.h).
  Status Finish();
  // The first error.
  const Status& status() const { return status_; }
  void Fail(const char* name, const std::string& message);
  // Takes an error of a part of the object; the first error counts.
  void Merge(const Status& status) {
    if (status_.ok()) status_ = status;
  }

 private:
  // `is`: the type that is accepted; `expected`: its name.
  template <typename T>
  std::optional<T> Get(const char* name, bool (nlohmann::ordered_json::*is)() const,
                       const char* expected);

  const nlohmann::ordered_json& object_;
  const std::string prefix_;
  std::unordered_set<std::string> known_;
  Status status_;
};

// The elements of an array of integers that fit in 32 bits; an error names the element.
Result<std::vector<int32_t>> ToIntegers(const nlohmann::ordered_json& array,
                                        const std::string& name);

}  // namespace polysketch
