#include "engine/store/state_store.h"

#include <algorithm>
#include <cstdio>

#include "engine/store/directory_store.h"
#include "engine/store/redis_store.h"
#include "engine/store/stored_header.h"

namespace polysketch {

constexpr size_t kKeyDigits = 32;

Result<std::unique_ptr<StateStore>> StateStore::Open(const std::string& url, int64_t limit) {
  constexpr std::string_view kDirectory = "dir:";
  if (url.starts_with(kDirectory) && url.size() > kDirectory.size()) {
    return DirectoryStore::Open(url.substr(kDirectory.size()), limit);
  }
  if (url.starts_with("redis://")) {
    if (limit == 0) return OpenRedisStore(url);
    return InvalidArgument("expected a limit with dir:PATH only: a Redis has its own (maxmemory)");
  }
  return InvalidArgument("expected dir:PATH or redis://HOST:PORT, found \"", url, "\"");
}

std::string NewStateKey() {
  char text[kKeyDigits + 1];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(RandomWord()),
                static_cast<unsigned long long>(RandomWord()));
  return text;
}

bool IsStateKey(std::string_view text) {
  return text.size() == kKeyDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace polysketch
