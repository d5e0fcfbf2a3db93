// HTTP POST of JSON to one URL, by libcurl.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace polysketch {

// Names and values, without control characters.
using PostHeaders = std::vector<std::pair<std::string, std::string>>;

// Used by one thread, except Wake.
class HttpPost {
 public:
  // `headers`: of each request, beside the server's own.
  // `connect_timeout`: time to connect, within the deadline of Send.
  HttpPost(const std::string& url, const PostHeaders& headers,
           std::chrono::milliseconds connect_timeout);
  ~HttpPost();
  HttpPost(const HttpPost&) = delete;
  HttpPost& operator=(const HttpPost&) = delete;

  // Posts `body` and waits for the response, which is dropped. OK: its status is 2xx. Ends at
  // `deadline()`, which is called again after each Wake.
  Status Send(const std::string& body,
              const std::function<std::chrono::steady_clock::time_point()>& deadline);
  // Thread-safe.
  void Wake();

 private:
  struct Curl;
  const std::unique_ptr<Curl> curl_;
};

}  // namespace polysketch
