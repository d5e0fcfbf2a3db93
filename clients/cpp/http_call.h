// Calls of a server's HTTP port.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "clients/cpp/connection.h"

namespace polysketch {

struct HttpRequest {
  std::string server;  // HOST:PORT
  std::string method;
  std::string path;
  std::string body;                       // JSON; empty: none
  std::vector<std::string> headers = {};  // "name: value", besides those of every call
};

struct HttpReply {
  int status = 0;
  std::string body;        // of another status than 200
  std::string request_id;  // x-request-id; empty: none
};

// Makes a call. The body of an answer of status 200 goes to `take` as it arrives; an error of
// `take` ends the call, and is returned. `stopped` is asked at each signal, at each piece of the
// answer and once a second; true ends the call with CANCELLED. UNAVAILABLE: there was no answer, or
// not all of one.
Result<HttpReply> CallHttp(const ConnectionOptions& connection, const HttpRequest& request,
                           const std::function<Status(std::string_view)>& take,
                           const std::function<bool()>& stopped);

}  // namespace polysketch
