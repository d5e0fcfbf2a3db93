// Counts a call against its connection.
#pragma once

#include "server/net/call_transport.h"
#include "server/net/connections.h"

namespace polysketch {

// Counts one call from construction to End.
class CountedCall {
 public:
  CountedCall(ConnectionTable* connections, CallContext* context)
      : connections_(connections),
        context_(context),
        call_(connections->BeginCall(context->peer(), context->caller().get())) {}
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
      : context_(context), counted_(connections, context) {}
  ConnectionTable::Verdict verdict() const { return counted_.verdict(); }

  CallContext* const context_;

 private:
  CountedCall counted_;
};

}  // namespace polysketch
