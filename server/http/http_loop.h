// What the connections and the exchanges of an HttpServer share.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <unordered_set>

#include "base/shares.h"
#include "server/http/http_settings.h"

namespace polysketch {

class HttpConnection;

// Used on the thread that runs `io`, but for `running`.
struct HttpLoop {
  boost::asio::io_context io{1};
  HttpLimits limits;
  HttpGuards guards;
  HttpHandler handler;
  std::unordered_set<HttpConnection*> connections;
  // Requests from their header to the end of their response, probes apart. One principal has
  // max_connections at once, and others find room for a third more.
  Shares requests;
  int64_t max_requests() const { return (4 * limits.max_connections + 2) / 3; }
  bool draining = false;
  std::atomic<int64_t> running{0};
};

}  // namespace polysketch
