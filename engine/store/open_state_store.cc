#include "engine/store/open_state_store.h"

#include <string_view>
#include <utility>

#include "engine/store/deadline_store.h"

namespace polysketch {

Result<std::unique_ptr<StateStore>> OpenStateStore(const std::string& url, int64_t limit) {
  constexpr std::string_view kDirectory = "dir:";
  if (url.starts_with(kDirectory) && url.size() > kDirectory.size()) {
    PS_ASSIGN_OR_RETURN(std::shared_ptr<StateStore> store,
                        OpenDirectoryStore(url.substr(kDirectory.size()), limit));
    return NewDeadlineStore(std::move(store));
  }
  if (url.starts_with("redis") || url.starts_with("valkey")) {  // with TLS too, which is refused
    if (limit == 0) return OpenRedisStore(url);
    return InvalidArgument("expected a limit with dir:PATH only: a Redis has its own (maxmemory)");
  }
  return InvalidArgument("expected dir:PATH or redis://HOST:PORT, found \"", url, "\"");
}

}  // namespace polysketch
