// Counts a call against its connection.
#pragma once

#include <grpcpp/server_context.h>

#include "server/net/connections.h"

namespace polysketch {

// Counts a call of any service from its beginning to End.
class CountedCall {
 public:
  CountedCall(ConnectionTable* connections, grpc::CallbackServerContext* context)
      : connections_(connections),
        context_(context),
        call_(connections->BeginCall(context->peer())) {}
  ConnectionTable::Verdict verdict() const { return call_.verdict; }
  // In OnDone, once: the context ends with it.
  void End() { connections_->EndCall(call_, context_->IsCancelled()); }

 private:
  ConnectionTable* const connections_;
  grpc::CallbackServerContext* const context_;
  const ConnectionTable::Call call_;
};

}  // namespace polysketch
