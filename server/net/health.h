// grpc.health.v1.Health for the names "" and "polysketch.v1.PolySketch", which always have the same
// status. gRPC's own service reports SERVING from the start, before the model is loaded.
#pragma once

#include <mutex>
#include <unordered_set>

#include "grpc/health/v1/health.pb.h"
#include "server/net/router.h"

namespace polysketch {

// Thread-safe.
class HealthService {
 public:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  // NOT_SERVING at first.
  explicit HealthService(ConnectionTable* connections) : connections_(connections) {}

  // Adds Check, List and Watch. The service outlives their calls.
  void AddMethods(Router* router);
  // Sets the status and sends it to every watcher.
  void SetServing(bool serving);
  // Ends all watches, so that the server can shut down; new ones end at once.
  void EndWatches();

 private:
  class WatchCall;

  // The responses to the bytes of a request.
  Result<grpc::ByteBuffer> Check(const grpc::ByteBuffer& bytes) const;
  Result<grpc::ByteBuffer> List(const grpc::ByteBuffer& bytes) const;
  Status status() const;  // mutex_ held

  ConnectionTable* const connections_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  bool serving_ = false;
  bool ended_ = false;
  std::unordered_set<WatchCall*> watches_;
};

}  // namespace polysketch
