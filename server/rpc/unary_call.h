// Calls of one message in and one out that run nothing on the engine.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <string_view>

#include "server/convert/status_map.h"
#include "server/convert/wire.h"
#include "server/rpc/call.h"

namespace polysketch {

// A call that needs no engine: `work` makes the response, on a thread of `where`, by default at
// once or, if the request is large, on a tokenizer thread.
template <typename Request, typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // `info`: whose request it is.
  using Work = Status (*)(const Request& request, const RequestInfo& info, const ServedModel& model,
                          Response* response);

  UnaryCall(std::string_view rpc, ServiceContext* service, grpc::CallbackServerContext* context,
            Work work, const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
            Executor* where = nullptr)
      : call_(rpc, service, context), work_(work), request_(*request), response_(response) {
    if (Status status = call_.Admission(); !status.ok()) {
      End(status);
    } else if (where == nullptr && request_.Length() <= kInlineRequestBytes) {
      Run();
    } else {
      if (where == nullptr) where = service->tokenizers;
      where->Post([this] { Run(); });  // alive until Finish, which Run calls
    }
  }

  void OnDone() override {
    call_.OnRpcDone();
    delete this;
  }

 private:
  void Run() {
    Request request;
    Response response;
    Status status = ParseMessage(request_, &request);
    if (status.ok()) status = work_(request, call_.info(), *call_.model(), &response);
    if (status.ok()) *response_ = SerializeMessage(response);
    End(status);
  }

  void End(const Status& status) {
    call_.OnEnd(status, nullptr);
    Finish(ToGrpcStatus(status));
  }

  Call call_;
  const Work work_;
  const grpc::ByteBuffer request_;
  grpc::ByteBuffer* const response_;
};

}  // namespace polysketch
