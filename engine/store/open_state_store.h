// Opens the store that a URL names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/store/state_store.h"

namespace polysketch {

// `url`: "dir:PATH", a folder that is created when it is missing, or
// "redis://[USER@]HOST:PORT[/DB][?password_file=PATH]". `limit`: maximum bytes of all entries of a
// folder, 0 for no limit; Redis has its own (maxmemory), so it must be 0 there. INVALID_ARGUMENT for
// another form of URL, UNAVAILABLE for a store that cannot be reached or written.
Result<std::unique_ptr<StateStore>> OpenStateStore(const std::string& url, int64_t limit = 0);

}  // namespace polysketch
