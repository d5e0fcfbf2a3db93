// An HTTP request and its response.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/net/request_memory.h"

namespace polysketch {

class Caller;

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Names of headers have no case.
bool EqualsIgnoringCase(std::string_view a, std::string_view b);

inline constexpr char kRequestIdHeader[] = "x-request-id";

// The API whose errors a client reads.
enum class ErrorShape { kOpenAi, kAnthropic };

struct HttpRequest {
  std::string method;
  std::string path;        // decoded, without the query: "/v1/models"
  std::string query = {};  // as it came, without the question mark
  HttpHeaders
      headers;  // with x-request-id, the server's own if the client's is missing or malformed
  std::string body;
  std::string peer;                      // "ipv4:127.0.0.1:4711"
  std::shared_ptr<const Caller> caller;  // null without API keys, and for an open path
  Principal principal;                   // whose memory and work the request is

  ErrorShape error_shape = ErrorShape::kOpenAi;
  // Access-Control-Allow-Origin of the response; empty: none.
  std::string allowed_origin;

  // The value of a header, whatever the case of its name; empty if the client did not send it.
  std::string_view Header(std::string_view name) const;
  // The values of all headers of the name.
  std::vector<std::string_view> Headers(std::string_view name) const;
  // Replaces all headers of the name.
  void SetHeader(std::string_view name, std::string value);
};

// One request and its response: Reply, or StartStream, any number of Send and EndStream.
// Thread-safe. Once the client has left, what is sent is dropped.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;

  // Sends the whole response.
  virtual void Reply(int status, std::string_view content_type, std::string body,
                     HttpHeaders headers = {}) = 0;
  // Sends a response in pieces, each of which a client reads as a whole. `comment`: a piece that
  // means nothing, sent while there is no other.
  virtual void StartStream(std::string_view content_type, std::string comment) = 0;
  virtual void Send(std::string piece) = 0;
  virtual void EndStream() = 0;

  // Bytes of Send that the socket has not taken.
  virtual size_t unsent_bytes() const = 0;
  // `on_sent` runs on the thread of the server each time when the socket has taken bytes.
  // `on_gone` runs there once, if the client leaves before the end of the response, or has left.
  // Both are destroyed at the end of the response.
  virtual void SetCallbacks(std::function<void()> on_sent, std::function<void()> on_gone) = 0;
  // Runs `work` on the thread of the server.
  virtual void Post(std::function<void()> work) = 0;
  // Counts and logs that the request is refused, unless one of its calls has done so. Called before
  // the answer.
  virtual void OnRefused(const Status& status) = 0;
  // A call of the request has ended with an error, which the call has counted and logged.
  virtual void OnCallFailed() = 0;
  // Memory that the request makes the server hold.
  virtual HeldMemory NewMemory(RequestPhase phase) const = 0;
};

}  // namespace polysketch
