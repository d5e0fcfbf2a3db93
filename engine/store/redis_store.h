// Entries as strings of a Redis server: polysketch/OWNER/KEY, which expire there. How long an
// acknowledged entry survives is the server's configuration (appendonly).
#pragma once

#include "engine/store/state_store.h"

namespace polysketch {

Result<std::unique_ptr<StateStore>> OpenRedisStore(const std::string& url);

}  // namespace polysketch
