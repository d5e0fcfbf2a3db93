// Methods of no generated service: server reflection, and everything that does not exist. gRPC's
// own reflection plugin brings in the synchronous server, whose calls wait, and pile up, where they
// are not counted; and calls of unknown methods are as good for a flood as others.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include "server/net/connections.h"

namespace polysketch {

class ReflectionService final : public grpc::CallbackGenericService {
 public:
  explicit ReflectionService(ConnectionTable* connections) : connections_(connections) {}
  // grpc.reflection.v1 and v1alpha (they are the same on the wire); UNIMPLEMENTED for others.
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  ConnectionTable* const connections_;
};

}  // namespace polysketch
