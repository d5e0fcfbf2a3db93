// Parses the URL of a Redis server.
#pragma once

#include <string>

#include "base/status.h"

namespace polysketch {

struct RedisUrl {
  std::string host;
  int port = 6379;
  std::string user;           // empty: the default user
  std::string password_file;  // empty: no password
  int database = 0;
};

// "redis://[USER@]HOST[:PORT][/DB][?password_file=PATH]". A password in the URL is refused: every
// user of the machine can read command lines.
Result<RedisUrl> ParseRedisUrl(const std::string& url);

}  // namespace polysketch
