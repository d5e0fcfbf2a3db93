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

// The threads that run the work of an RPC. Null: gRPC's thread, or a tokenizer thread for a large
// request.
template <typename Request>
using PickExecutor = Executor& (*)(const Request& request, const RequestInfo& info,
                                   const ServiceContext& service);

template <typename Request, typename Response>
class UnaryCall final : public CallReactor {
 public:
  UnaryCall(std::string_view rpc, ServiceContext* service, CallContext* context,
            UnaryWork<Request, Response> work, PickExecutor<Request> pick)
      : context_(context), call_(rpc, service, context), work_(work), pick_(pick) {
    if (Status status = call_.Admission(); !status.ok()) {
      End(status);
    } else {
      context_->StartRead(&bytes_);
    }
  }

  // The call lives until End, which Run calls.
  void OnReadDone(bool ok) override {
    if (!ok) return End(InvalidArgument("expected a message, found none"));
    if (pick_ != nullptr) return ParseAndPost();
    if (bytes_.Length() <= kInlineRequestBytes) return Run();
    call_.service()->tokenizers->Post([this] { Run(); });
  }
  void OnDone() override {
    call_.OnRpcDone();
    delete this;
  }

 private:
  void ParseAndPost() {
    if (Status status = ParseMessage(bytes_, &request_); !status.ok()) return End(status);
    pick_(request_, call_.info(), *call_.service()).Post([this] { Work(); });
  }

  void Run() {
    if (Status status = ParseMessage(bytes_, &request_); !status.ok()) return End(status);
    Work();
  }

  void Work() {
    Response response;
    Status status = work_(request_, call_.info(), *call_.model(), &response);
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
  const PickExecutor<Request> pick_;
  Request request_;
  grpc::ByteBuffer bytes_;  // the request, then the response
};

template <typename Request, typename Response>
void AddUnaryMethod(std::string_view rpc, UnaryWork<Request, Response> work,
                    ServiceContext* service, Router* router, PickExecutor<Request> pick = nullptr) {
  router->Add(kPolySketchService, std::string(rpc), [=](CallContext* context) {
    return new UnaryCall<Request, Response>(rpc, service, context, work, pick);
  });
}

}  // namespace polysketch
