#include "server/credentials/api_keys.h"

#include <openssl/sha.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/bounded_json.h"
#include "server/convert/request_id.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxPriority = 1000;  // of --max-priority
constexpr int64_t kMaxPerMinute = int64_t{1} << 48;

// A value as an error shows it. A sha256 is no secret, but a key in its place is: texts are cut.
std::string Found(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  return StrCat("a string of ", text.size(), " characters");
}

Result<Json> ParseObject(std::string_view line) {
  PS_ASSIGN_OR_RETURN(Json json, ParseJson(line, {.unique_keys = true}));
  if (!json.is_object()) return InvalidArgument("expected a JSON object");
  return json;
}

// Reads the fields of one line. The first error counts.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  std::string Id(const char* name) {
    const Json* value = Take(name);
    if (value == nullptr) {
      Fail(name, "expected a string, found none");
      return {};
    }
    if (!value->is_string() || !IsRequestId(value->get_ref<const std::string&>())) {
      Fail(name, StrCat("expected 1 to 128 characters of [A-Za-z0-9._:-], found ", Found(*value)));
      return {};
    }
    return value->get<std::string>();
  }

  Sha256 Hash(const char* name) {
    Sha256 hash{};
    const Json* value = Take(name);
    const std::string text =
        value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
    const bool good = text.size() == 2 * hash.size() &&
                      text.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    if (!good) {
      Fail(name, StrCat("expected 64 hexadecimal digits, found ",
                        value == nullptr ? "none" : Found(*value)));
      return hash;
    }
    for (size_t i = 0; i < hash.size(); ++i)
      hash[i] = static_cast<uint8_t>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    return hash;
  }

  std::optional<int64_t> Integer(const char* name, int64_t min, int64_t max) {
    const Json* value = Take(name);
    if (value == nullptr) return std::nullopt;
    if (value->is_number_integer() && *value >= min && *value <= max) return value->get<int64_t>();
    Fail(name, StrCat("expected an integer from ", min, " to ", max, ", found ", Found(*value)));
    return std::nullopt;
  }

  Status Finish() {
    for (const auto& [name, value] : json_.items()) {
      if (!known_.contains(name))
        Fail(name,
             "expected name, sha256, tenant, max_priority, requests_per_minute or "
             "tokens_per_minute, found an unknown field");
    }
    return status_;
  }

 private:
  const Json* Take(const char* name) {
    known_.insert(name);
    const auto found = json_.find(name);
    return found == json_.end() ? nullptr : &*found;
  }
  void Fail(const std::string& name, const std::string& message) {
    if (status_.ok()) status_ = InvalidArgument(name, ": ", message);
  }

  const Json& json_;
  std::unordered_set<std::string> known_;
  Status status_;
};

Result<ApiKey> ParseApiKey(std::string_view line) {
  PS_ASSIGN_OR_RETURN(const Json json, ParseObject(line));
  Fields fields(json);
  ApiKey key;
  key.name = fields.Id("name");
  key.sha256 = fields.Hash("sha256");
  key.tenant = fields.Id("tenant");
  if (const auto value = fields.Integer("max_priority", 0, kMaxPriority))
    key.max_priority = static_cast<int>(*value);
  key.requests_per_minute = fields.Integer("requests_per_minute", 1, kMaxPerMinute).value_or(0);
  key.tokens_per_minute = fields.Integer("tokens_per_minute", 1, kMaxPerMinute).value_or(0);
  PS_RETURN_IF_ERROR(fields.Finish());
  return key;
}

Status CheckUnique(const ApiKey& key, const std::vector<ApiKey>& earlier) {
  for (const ApiKey& other : earlier) {
    if (other.name == key.name)
      return InvalidArgument("name: expected another than in a line before, found ", key.name);
    if (other.sha256 == key.sha256)
      return InvalidArgument("sha256: expected another than in a line before, found that of ",
                             other.name);
  }
  return Status();
}

}  // namespace

Sha256 Sha256Of(std::string_view text) {
  Sha256 hash{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash.data());
  return hash;
}

Result<std::vector<ApiKey>> ParseApiKeys(std::string_view text) {
  std::vector<ApiKey> keys;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<ApiKey> key = ParseApiKey(line);
    Status status = key.ok() ? CheckUnique(*key, keys) : key.status();
    if (!status.ok()) return Prefixed(StrCat("line ", number, ": "), status);
    keys.push_back(*std::move(key));
  }
  if (keys.empty()) return InvalidArgument("expected a JSON object a line, found no line");
  return keys;
}

}  // namespace polysketch
