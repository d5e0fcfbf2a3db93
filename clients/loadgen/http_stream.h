// Completions over HTTP: server-sent events of OpenAI's /v1/completions.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "clients/loadgen/stream.h"

namespace polysketch::loadgen {

struct HttpOptions {
  std::string address;  // HOST:PORT
  std::string api_key;  // empty: none
  double timeout = 0;   // of a request, in seconds; 0: none
  float temperature = 1;
};

// Makes streams, and runs them on a thread of its own. A request in flight has a connection, which
// later requests use again.
class HttpClient {
 public:
  virtual ~HttpClient() = default;  // after the end of every stream
  // The client outlives the stream.
  virtual std::unique_ptr<Stream> NewStream(StreamParts parts) = 0;

  // INVALID_ARGUMENT for an address that is malformed; UNAVAILABLE for one that does not resolve.
  static Result<std::unique_ptr<HttpClient>> Create(const HttpOptions& options);
};

}  // namespace polysketch::loadgen
