// A completion over gRPC, by gRPC's callback API.
#pragma once

#include <grpcpp/grpcpp.h>

#include "clients/cpp/rpc.h"
#include "clients/loadgen/stream.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch::loadgen {

class GrpcStream final : public Stream, private grpc::ClientReadReactor<v1::CompleteResponse> {
 public:
  // `stub` outlives the stream.
  GrpcStream(StreamParts parts, const CallOptions& call, float temperature,
             v1::PolySketch::Stub* stub);
  void Start() override;
  void Cancel() override { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  v1::PolySketch::Stub* const stub_;
  grpc::ClientContext context_;
  v1::CompleteRequest message_;
  v1::CompleteResponse response_;
};

}  // namespace polysketch::loadgen
