// Reads the fields of one JSON object of a model folder: each is checked, and the message of an
// error names the field, what was expected and what was found.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace polysketch {

// `value`, if it is an integer in [low, high].
std::optional<int> IntIn(const nlohmann::json& value, int low, int high);

// After the first error later reads do nothing.
class JsonFieldReader {
 public:
  // What a field of null is: a wrong value, or a missing one.
  enum class Null { kWrong, kMissing };

  // `object`, which outlives the reader, is an object. Messages begin with `source`; the names of
  // fields in them begin with `prefix`.
  JsonFieldReader(const nlohmann::json& object, std::string_view source, Null null = Null::kWrong,
                  std::string_view prefix = "")
      : object_(object), source_(source), prefix_(prefix), null_(null) {}

  // `fallback` empty: the field is required.
  int Int(const char* name, int low, int high, std::optional<int> fallback = std::nullopt);
  double Number(const char* name, double low, double high,
                std::optional<double> fallback = std::nullopt);
  bool Bool(const char* name, bool fallback);
  std::string String(const char* name, bool optional);
  // An array of integers, or one integer; empty: there is no such field.
  std::vector<int> Ints(const char* name, int low, int high, size_t max_count);
  std::vector<std::string> Strings(const char* name, size_t max_count);
  // Fails unless the field is `value` or missing. reason: what is expected.
  void Only(const char* name, const nlohmann::json& value, std::string_view reason);
  // The field as it is; null: there is none.
  const nlohmann::json* Find(const char* name) { return Find(name, true); }

  void Fail(std::string_view name, std::string_view message);
  // Takes an error that was found elsewhere.
  void Fail(const Status& status) {
    if (status_.ok()) status_ = status;
  }
  // An unknown field is the error that is reported first: it explains a missing one.
  void CheckUnknown();
  const Status& status() const { return status_; }

 private:
  const nlohmann::json* Find(const char* name, bool optional);

  const nlohmann::json& object_;
  const std::string_view source_;
  const std::string prefix_;
  const Null null_;
  std::set<std::string> read_;
  Status status_;
};

}  // namespace polysketch
