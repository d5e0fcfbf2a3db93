// Counts a call against its connection.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <utility>

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

// Ends a call before its request is read and without initial metadata. Such calls are counted too:
// a flood can consist of them.
class RefusedCall final : public CountedReactor {
 public:
  RefusedCall(ConnectionTable* connections, CallContext* context, const Status& status)
      : CountedReactor(connections, context) {
    context_->Finish(status);
  }
};

// A call of one message in and one out.
class AnsweredCall final : public CountedReactor {
 public:
  // The response to the bytes of a request, on the transport's thread.
  using Answer = std::function<Result<grpc::ByteBuffer>(const grpc::ByteBuffer& request)>;

  // `limited`: a call that its connection may not have is refused; else it is counted and answered.
  AnsweredCall(ConnectionTable* connections, CallContext* context, bool limited, Answer answer)
      : CountedReactor(connections, context), answer_(std::move(answer)) {
    if (!limited || verdict() == ConnectionTable::Verdict::kAccepted) {
      context_->StartRead(&bytes_);
    } else {
      context_->Finish(ResourceExhausted("too many calls at once"));
    }
  }
  void OnReadDone(bool ok) override {
    if (!ok) return context_->Finish(InvalidArgument("expected a message, found none"));
    Result<grpc::ByteBuffer> response = answer_(bytes_);
    if (!response.ok()) return context_->Finish(response.status());
    bytes_ = *std::move(response);
    context_->StartWriteAndFinish(&bytes_);
  }

 private:
  const Answer answer_;
  grpc::ByteBuffer bytes_;  // the request, then the response
};

}  // namespace polysketch
