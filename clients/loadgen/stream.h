// One completion call of a load test. Its kinds: GrpcStream and HttpStream.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "clients/loadgen/report.h"
#include "clients/loadgen/workload.h"

namespace polysketch::loadgen {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
inline Clock::duration Duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class Stream;

// What a stream is made of.
struct StreamParts {
  Request request;
  Clock::time_point run_start;  // the origin of RequestResult::start
  Clock::time_point due;        // the time from which latencies count
  // Called for each message with tokens, by a thread of the transport.
  std::function<void(int64_t count)> on_tokens;
  // Called once, by a thread of the transport, after the call has ended. Deletes the stream.
  std::function<void(Stream* stream, RequestResult result, std::vector<int32_t> output)> on_end;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual void Start() = 0;
  // Thread-safe, until on_end is called.
  virtual void Cancel() = 0;
  const Request& request() const { return parts_.request; }

 protected:
  explicit Stream(StreamParts parts);
  // A message with `count` tokens, at least 1, has arrived. `ids`: null if the transport sends
  // none.
  void AddMessage(int64_t count, const int32_t* ids);
  // The messages had `count` more tokens than was known when they arrived.
  void AddTokens(int64_t count);
  // status: RequestResult::status. Deletes the stream.
  void End(std::string status);

  const StreamParts parts_;
  RequestResult result_;

 private:
  std::vector<int32_t> output_;
};

}  // namespace polysketch::loadgen
