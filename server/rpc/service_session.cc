// Sessions: every call waits for files or the network, so it runs on the store thread.
#include <chrono>

#include "server/rpc/service.h"
#include "server/rpc/unary_call.h"

namespace polysketch {
namespace {

constexpr int kMaxForks = 64;

// In milliseconds; saturates, for the table to refuse.
std::chrono::milliseconds Ttl(int64_t seconds) {
  constexpr int64_t kMax = int64_t{1} << 40;
  return std::chrono::seconds(std::clamp(seconds, -kMax, kMax));
}

Status DoCreate(const v1::CreateSessionRequest& request, const RequestInfo& info,
                const ServedModel& model, v1::Session* response) {
  PS_ASSIGN_OR_RETURN(
      const SessionInfo session,
      model.sessions->Create(info.tenant, request.durable(), Ttl(request.ttl_seconds())));
  ToProto(session, response);
  return Status();
}

Status DoFork(const v1::ForkSessionRequest& request, const RequestInfo& info,
              const ServedModel& model, v1::ForkSessionResponse* response) {
  const int count = request.count() == 0 ? 1 : request.count();
  if (count < 1 || count > kMaxForks) {
    return InvalidArgument("count: expected 1 to ", kMaxForks, ", found ", count);
  }
  std::optional<int64_t> expected;
  if (request.has_expected_position()) expected = request.expected_position();
  PS_ASSIGN_OR_RETURN(const std::vector<SessionInfo> forks,
                      model.sessions->Fork(info.tenant, request.session(), count, expected));
  for (const SessionInfo& fork : forks) ToProto(fork, response->add_sessions());
  return Status();
}

Status DoSnapshot(const v1::SnapshotSessionRequest& request, const RequestInfo& info,
                  const ServedModel& model, v1::Snapshot* response) {
  PS_ASSIGN_OR_RETURN(
      const SnapshotInfo snapshot,
      model.sessions->TakeSnapshot(info.tenant, request.session(), Ttl(request.ttl_seconds())));
  ToProto(snapshot, response);
  return Status();
}

Status DoRestore(const v1::RestoreSessionRequest& request, const RequestInfo& info,
                 const ServedModel& model, v1::Session* response) {
  PS_ASSIGN_OR_RETURN(const SessionInfo session,
                      model.sessions->Restore(info.tenant, request.snapshot(), request.durable(),
                                              Ttl(request.ttl_seconds())));
  ToProto(session, response);
  return Status();
}

Status DoList(const v1::ListSessionsRequest&, const RequestInfo& info, const ServedModel& model,
              v1::ListSessionsResponse* response) {
  PS_ASSIGN_OR_RETURN(const SessionTable::Listing listing, model.sessions->List(info.tenant));
  for (const SessionInfo& session : listing.sessions) ToProto(session, response->add_sessions());
  for (const SnapshotInfo& one : listing.snapshots) ToProto(one, response->add_snapshots());
  return Status();
}

Status DoDelete(const v1::DeleteSessionRequest& request, const RequestInfo& info,
                const ServedModel& model, v1::DeleteSessionResponse*) {
  return model.sessions->Delete(info.tenant, request.session());
}

}  // namespace

grpc::ServerUnaryReactor* PolySketchService::CreateSession(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return new UnaryCall<v1::CreateSessionRequest, v1::Session>(
      "CreateSession", context_, context, DoCreate, request, response, context_->stores.get());
}

grpc::ServerUnaryReactor* PolySketchService::ForkSession(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response) {
  return new UnaryCall<v1::ForkSessionRequest, v1::ForkSessionResponse>(
      "ForkSession", context_, context, DoFork, request, response, context_->stores.get());
}

grpc::ServerUnaryReactor* PolySketchService::SnapshotSession(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request,
                                                             grpc::ByteBuffer* response) {
  return new UnaryCall<v1::SnapshotSessionRequest, v1::Snapshot>(
      "SnapshotSession", context_, context, DoSnapshot, request, response, context_->stores.get());
}

grpc::ServerUnaryReactor* PolySketchService::RestoreSession(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return new UnaryCall<v1::RestoreSessionRequest, v1::Session>(
      "RestoreSession", context_, context, DoRestore, request, response, context_->stores.get());
}

grpc::ServerUnaryReactor* PolySketchService::ListSessions(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* response) {
  return new UnaryCall<v1::ListSessionsRequest, v1::ListSessionsResponse>(
      "ListSessions", context_, context, DoList, request, response, context_->stores.get());
}

grpc::ServerUnaryReactor* PolySketchService::DeleteSession(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  return new UnaryCall<v1::DeleteSessionRequest, v1::DeleteSessionResponse>(
      "DeleteSession", context_, context, DoDelete, request, response, context_->stores.get());
}

}  // namespace polysketch
