// Counts a call against its connection.
#pragma once

#include <grpcpp/generic/async_generic_service.h>

#include "server/net/connections.h"

namespace polysketch {

using CallContext = grpc::GenericCallbackServerContext;
using CallReactor = grpc::ServerGenericBidiReactor;

// Counts one call from construction to End.
class CountedCall {
 public:
  CountedCall(ConnectionTable* connections, CallContext* context)
      : connections_(connections),
        context_(context),
        call_(connections->BeginCall(context->peer())) {}
  ConnectionTable::Verdict verdict() const { return call_.verdict; }
  // Called once, in OnDone: the context is destroyed after it.
  void End() { connections_->EndCall(call_, context_->IsCancelled()); }

 private:
  ConnectionTable* const connections_;
  CallContext* const context_;
  const ConnectionTable::Call call_;
};

// The reactor of a counted call that deletes itself.
class CountedReactor : public CallReactor {
 public:
  void OnDone() override {
    counted_.End();
    delete this;
  }

 protected:
  CountedReactor(ConnectionTable* connections, CallContext* context)
      : counted_(connections, context) {}
  ConnectionTable::Verdict verdict() const { return counted_.verdict(); }

 private:
  CountedCall counted_;
};

}  // namespace polysketch
