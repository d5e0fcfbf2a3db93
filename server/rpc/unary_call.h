// Calls of one message in and one out that run nothing on the engine.
#pragma once

#include <string>
#include <string_view>

#include "server/convert/wire.h"
#include "server/net/router.h"
#include "server/rpc/call.h"

namespace polysketch {

// Makes the response. `info`: ids and tenant of the request.
template <typename Request, typename Response>
using UnaryWork = Status (*)(const Request& request, const RequestInfo& info,
                             const ServedModel& model, Response* response);

// The thread that runs the work. kCaller: gRPC's thread, or a tokenizer thread for a large request.
enum class RunOn { kCaller, kStoreThread };

template <typename Request, typename Response>
class UnaryCall final : public CallReactor {
 public:
  UnaryCall(std::string_view rpc, ServiceContext* service, CallContext* context,
            UnaryWork<Request, Response> work, RunOn run_on)
      : context_(context), call_(rpc, service, context), work_(work), run_on_(run_on) {
    if (Status status = call_.Admission(); !status.ok()) {
      End(status);
    } else {
      context_->StartRead(&bytes_);
    }
  }

  // The call lives until End, which Run calls.
  void OnReadDone(bool ok) override {
    if (!ok) return End(InvalidArgument("expected a message, found none"));
    if (run_on_ == RunOn::kStoreThread) return call_.service()->stores->Post([this] { Run(); });
    if (bytes_.Length() <= kInlineRequestBytes) return Run();
    call_.service()->tokenizers->Post([this] { Run(); });
  }
  void OnDone() override {
    call_.OnRpcDone();
    delete this;
  }

 private:
  void Run() {
    Request request;
    Response response;
    Status status = ParseMessage(bytes_, &request);
    if (status.ok()) status = work_(request, call_.info(), *call_.model(), &response);
    if (status.ok()) bytes_ = SerializeMessage(response);
    End(status);
  }

  void End(const Status& status) {
    call_.OnEnd(status, nullptr);
    if (!status.ok()) return context_->Finish(status);
    context_->StartWriteAndFinish(&bytes_);
  }

  CallContext* const context_;
  Call call_;
  const UnaryWork<Request, Response> work_;
  const RunOn run_on_;
  grpc::ByteBuffer bytes_;  // the request, then the response
};

template <typename Request, typename Response>
void AddUnaryMethod(std::string_view rpc, UnaryWork<Request, Response> work,
                    ServiceContext* service, Router* router, RunOn run_on = RunOn::kCaller) {
  router->Add(kPolySketchService, std::string(rpc), [=](CallContext* context) {
    return new UnaryCall<Request, Response>(rpc, service, context, work, run_on);
  });
}

}  // namespace polysketch
