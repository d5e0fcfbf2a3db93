// The file of --api-keys: an error that shows no key, or keys that the server can use.
#include "server/credentials/api_keys.h"

#include <unordered_set>

#include "server/convert/request_id.h"
#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

void CheckKeys(const std::vector<ApiKey>& keys) {
  PS_CHECK(!keys.empty());
  std::unordered_set<std::string> names;
  for (const ApiKey& key : keys) {
    PS_CHECK(IsRequestId(key.name) && names.insert(key.name).second) << key.name;
    PS_CHECK(IsRequestId(key.tenant)) << key.tenant;
    PS_CHECK(key.max_priority.value_or(0) >= 0 && key.max_priority.value_or(0) <= 1000);
    PS_CHECK(key.requests_per_minute >= 0 && key.tokens_per_minute >= 0);
  }
}

// The file that these keys came from, but for what is not a key.
std::string Write(const std::vector<ApiKey>& keys) {
  std::string text;
  for (const ApiKey& key : keys) {
    text += StrCat(R"({"name": ")", key.name, R"(", "tenant": ")", key.tenant, R"(", "sha256": ")");
    for (const uint8_t byte : key.sha256) {
      text += "0123456789abcdef"[byte >> 4];
      text += "0123456789abcdef"[byte & 15];
    }
    text += '"';
    if (key.max_priority) text += StrCat(R"(, "max_priority": )", *key.max_priority);
    if (key.requests_per_minute > 0)
      text += StrCat(R"(, "requests_per_minute": )", key.requests_per_minute);
    if (key.tokens_per_minute > 0)
      text += StrCat(R"(, "tokens_per_minute": )", key.tokens_per_minute);
    text += "}\n";
  }
  return text;
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  const auto keys = ParseApiKeys({reinterpret_cast<const char*>(data), size});
  if (!keys.ok()) {
    fuzz::CheckError(keys.status());
    return 0;
  }
  CheckKeys(*keys);
  const std::string text = Write(*keys);
  const auto again = ParseApiKeys(text);
  PS_CHECK(again.ok()) << again.status().ToString();
  PS_CHECK(Write(*again) == text);
  return 0;
}
