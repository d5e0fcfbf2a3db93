// One completion under way, on gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "clients/loadgen/report.h"
#include "clients/loadgen/workload.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch::loadgen {

using Clock = std::chrono::steady_clock;

class Stream final : public grpc::ClientReadReactor<v1::CompleteResponse> {
 public:
  // Called once, on a thread of gRPC's, with the stream's last words; the stream is to be deleted
  // then.
  using OnEnd =
      std::function<void(Stream* stream, RequestResult result, std::vector<int32_t> output)>;

  // `run_start` is the zero of result.start; `due` is when the request should have begun, from
  // which its latencies count. A timeout of 0 is none.
  Stream(Request request, Clock::time_point run_start, Clock::time_point due, double timeout,
         float temperature, OnEnd on_end);
  void Start(v1::PolySketch::Stub* stub);
  // From any thread, before on_end returns.
  void Cancel() { context_.TryCancel(); }

  const Request& request() const { return request_; }
  // Called for each token that arrives, on gRPC's threads.
  void SetOnTokens(std::function<void(int)> on_tokens) { on_tokens_ = std::move(on_tokens); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  double SinceDue() const;

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
