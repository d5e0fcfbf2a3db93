// Calls of one message in, and one or several out, that run nothing on the engine.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/convert/wire.h"
#include "server/net/request_memory.h"
#include "server/net/router.h"
#include "server/rpc/call.h"
#include "server/rpc/call_parts.h"

namespace polysketch {

// What the work of a call has.
struct UnaryInput {
  grpc::ByteBuffer* bytes;  // the request; cleared once it is parsed, to free its memory
  const RequestInfo& info;  // ids and tenant
  const ServedModel& model;
  HeldMemory* request;  // holds `bytes`
  HeldMemory* reply;    // until the client has the response
};
// Makes the response. Work that makes a large one holds its memory first.
using UnaryWork = std::function<Result<grpc::ByteBuffer>(const UnaryInput& input)>;
// As UnaryWork, for an RPC that returns a stream of at least one message.
using StreamWork = std::function<Result<Messages>(const UnaryInput& input)>;

// Parses the request, and holds its memory in place of that of its bytes.
Status ParseUnary(const UnaryInput& input, google::protobuf::Message* request);

// The threads that run the work. Null: gRPC's thread, or the tokenizer pool for a large request.
using UnaryExecutor =
    std::function<Result<Executor*>(const UnaryInput& input, const ServiceContext& service)>;
// The same, for a request that has been parsed.
template <typename Request>
using PickExecutor = Executor& (*)(const Request& request, const RequestInfo& info,
                                   const ServiceContext& service);

// A client that cancels, sends no request or does not read the response for the stall deadline ends
// the call: work that has not started is dropped.
class UnaryCall final : public CallReactor, public std::enable_shared_from_this<UnaryCall> {
 public:
  UnaryCall(std::string_view rpc, ServiceContext* service, CallContext* context, StreamWork work,
            UnaryExecutor executor);

  // Called once. The call lives until OnDone.
  void Start();

  // --- the callbacks of the transport ---
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  UnaryInput Input();
  void Run();
  void End(Result<Messages> responses);
  void WriteNext();  // of responses_; mutex_ held
  // Checks after an eighth of the stall deadline, and again until the call is done.
  void WatchForStall();
  void CheckStall();

  Call call_;
  const StreamWork work_;
  const UnaryExecutor executor_;
  grpc::ByteBuffer bytes_;     // the request
  HeldMemory request_memory_;  // of the thread that handles the request
  HeldMemory reply_memory_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::shared_ptr<UnaryCall> pinned_;  // until OnDone
  CallContext* context_;               // null after OnDone
  bool ended_ = false;
  TokenizerPool::Ticket ticket_;  // of work that may not have started
  std::optional<Clock::time_point>
      since_;           // of the wait for the client; unset: it is not waited for
  Messages responses_;  // that are not yet written, in reverse order
  grpc::ByteBuffer response_;
};

// Adds an RPC. Request and Response: messages; Work: Status(const Request&, const RequestInfo&,
// const ServedModel&, Response*).
template <typename Request, typename Response>
void AddUnaryMethod(RpcMethod rpc,
                    Status (*work)(const Request& request, const RequestInfo& info,
                                   const ServedModel& model, Response* response),
                    ServiceContext* service, Router* router, PickExecutor<Request> pick = nullptr);
void AddUnaryWork(RpcMethod rpc, UnaryWork work, ServiceContext* service, Router* router,
                  UnaryExecutor executor = nullptr);
void AddStreamWork(RpcMethod rpc, StreamWork work, ServiceContext* service, Router* router,
                   UnaryExecutor executor = nullptr);

template <typename Request, typename Response>
void AddUnaryMethod(RpcMethod rpc,
                    Status (*work)(const Request& request, const RequestInfo& info,
                                   const ServedModel& model, Response* response),
                    ServiceContext* service, Router* router, PickExecutor<Request> pick) {
  const auto whole = [work](const UnaryInput& input) -> Result<grpc::ByteBuffer> {
    Request request;
    Response response;
    PS_RETURN_IF_ERROR(ParseUnary(input, &request));
    PS_RETURN_IF_ERROR(work(request, input.info, input.model, &response));
    PS_RETURN_IF_ERROR(input.reply->Hold(static_cast<int64_t>(response.ByteSizeLong())));
    return SerializeMessage(response);
  };
  if (pick == nullptr) return AddUnaryWork(rpc, whole, service, router);
  AddUnaryWork(rpc, whole, service, router,
               [pick](const UnaryInput& input, const ServiceContext& context) -> Result<Executor*> {
                 Request request;
                 const int64_t held = input.request->bytes();
                 PS_RETURN_IF_ERROR(input.request->Hold(ParsedMessageBytes(*input.bytes, request)));
                 PS_RETURN_IF_ERROR(ParseMessage(*input.bytes, &request));
                 PS_RETURN_IF_ERROR(input.request->HoldOnly(held));
                 return &pick(request, input.info, context);
               });
}

}  // namespace polysketch
