// One completion call, by gRPC's callback API.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "clients/cpp/rpc.h"
#include "clients/loadgen/report.h"
#include "clients/loadgen/workload.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch::loadgen {

using Clock = std::chrono::steady_clock;

inline double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
inline Clock::duration Duration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

class Stream final : public grpc::ClientReadReactor<v1::CompleteResponse> {
 public:
  // Called once, by a thread of gRPC, after the call has ended. Deletes the stream.
  using OnEnd =
      std::function<void(Stream* stream, RequestResult result, std::vector<int32_t> output)>;

  // run_start: the origin of result.start. due: the time from which latencies count.
  Stream(Request request, Clock::time_point run_start, Clock::time_point due,
         const CallOptions& call, float temperature, OnEnd on_end);
  void Start(v1::PolySketch::Stub* stub);
  // Thread-safe, until on_end is called.
  void Cancel() { context_.TryCancel(); }

  const Request& request() const { return request_; }
  // on_tokens(count) is called for each message with tokens, by threads of gRPC. Call before Start.
  void SetOnTokens(std::function<void(int)> on_tokens) { on_tokens_ = std::move(on_tokens); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const Request request_;
  const Clock::time_point run_start_;
  const Clock::time_point due_;
  OnEnd on_end_;
  std::function<void(int)> on_tokens_;
  grpc::ClientContext context_;
  v1::CompleteRequest message_;
  v1::CompleteResponse response_;
  RequestResult result_;
  std::vector<int32_t> output_;
};

}  // namespace polysketch::loadgen
