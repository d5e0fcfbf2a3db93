// Opens the state store that a URL names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/store/state_store.h"

namespace polysketch {

// `url`: "dir:PATH", a folder that is created if it does not exist, or
// "redis://[USER@]HOST:PORT[/DB][?password_file=PATH]". `limit`: maximum bytes of all entries of a
// folder, 0 for no limit; Redis has its own (maxmemory), so it must be 0 there. INVALID_ARGUMENT
// for another form of URL, UNAVAILABLE for a store that cannot be reached or written. Operations
// have deadlines: deadline_store.h and redis_client.h.
Result<std::unique_ptr<StateStore>> OpenStateStore(const std::string& url, int64_t limit = 0);

// Entries as files: PATH/t.OWNER/KEY. The modification time of a file is the time at which it
// expires, so that Touch changes nothing else. Safe among processes that share a file system, NFS
// included: a file appears by rename, whole.
//
// The limit is on the bytes of the files of all processes. Each process counts the files at
// intervals, so together they may exceed the limit by what they write between two counts.
Result<std::unique_ptr<StateStore>> OpenDirectoryStore(const std::filesystem::path& root,
                                                       int64_t limit);

// Entries as strings of a Redis server, polysketch/OWNER/KEY, which expire there. The configuration
// of that server (appendonly) determines whether an acknowledged entry survives a restart of it.
Result<std::unique_ptr<StateStore>> OpenRedisStore(const std::string& url);

}  // namespace polysketch
