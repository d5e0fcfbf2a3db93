// grpc.health.v1.Health for the names "" and "polysketch.v1.PolySketch", which are always of one
// state. Our own, since gRPC's begins in SERVING before anybody can say otherwise.
#pragma once

#include <mutex>
#include <unordered_set>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/net/connections.h"

namespace polysketch {

using RawHealth = grpc::health::v1::Health::WithRawCallbackMethod_Check<
    grpc::health::v1::Health::WithRawCallbackMethod_Watch<grpc::health::v1::Health::Service>>;

// Requests are bytes (server/convert/wire.h): gRPC answers a call without a legal message by itself, and it
// would not be counted.
class HealthService final : public RawHealth {
 public:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // NOT_SERVING at first.
  explicit HealthService(ConnectionTable* connections) : connections_(connections) {}

  // Tells every watcher.
  void SetServing(bool serving);
  // Ends all watches, so that the server can shut down; new ones end at once.
  void EndWatches();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  class CheckCall;
  class WatchCall;

  Status status() const;

  ConnectionTable* const connections_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  bool serving_ = false;
  bool ended_ = false;
  std::unordered_set<WatchCall*> watches_;
};

}  // namespace polysketch
