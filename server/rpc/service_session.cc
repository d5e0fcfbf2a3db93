// The RPCs of sessions. Those that may wait for the store run on its threads.
#include "server/rpc/service.h"
#include "server/rpc/unary_call.h"

namespace polysketch {
namespace {

SessionUser UserOf(const RequestInfo& info) {
  return {.tenant = info.tenant, .principal = info.principal};
}

Status CreateSession(const v1::CreateSessionRequest& request, const RequestInfo& info,
                     const ServedModel& model, v1::Session* response) {
  using Keep = SessionTable::Keep;
  if (request.evictable() && request.durable())
    return InvalidArgument("evictable: expected false for a durable session, found true");
  const Keep keep = request.durable()     ? Keep::kDurable
                    : request.evictable() ? Keep::kEvictable
                                          : Keep::kPassing;
  PS_ASSIGN_OR_RETURN(const SessionInfo session,
                      model.sessions->Create(UserOf(info), keep, ToTtl(request.ttl_seconds())));
  ToProto(session, response);
  return Status();
}

Status ForkSession(const v1::ForkSessionRequest& request, const RequestInfo& info,
                   const ServedModel& model, v1::ForkSessionResponse* response) {
  PS_ASSIGN_OR_RETURN(const int count, ToForkCount(request));
  PS_ASSIGN_OR_RETURN(
      const std::vector<SessionInfo> forks,
      model.sessions->Fork(UserOf(info), request.session(), count, ExpectedPosition(request)));
  for (const SessionInfo& fork : forks) ToProto(fork, response->add_sessions());
  return Status();
}

Status SnapshotSession(const v1::SnapshotSessionRequest& request, const RequestInfo& info,
                       const ServedModel& model, v1::Snapshot* response) {
  PS_ASSIGN_OR_RETURN(
      const SnapshotInfo snapshot,
      model.sessions->TakeSnapshot(UserOf(info), request.session(), ToTtl(request.ttl_seconds())));
  ToProto(snapshot, response);
  return Status();
}

Status RestoreSession(const v1::RestoreSessionRequest& request, const RequestInfo& info,
                      const ServedModel& model, v1::Session* response) {
  PS_ASSIGN_OR_RETURN(const SessionInfo session,
                      model.sessions->Restore(UserOf(info), request.snapshot(), request.durable(),
                                              ToTtl(request.ttl_seconds())));
  ToProto(session, response);
  return Status();
}

Status ListSessions(const v1::ListSessionsRequest&, const RequestInfo& info,
                    const ServedModel& model, v1::ListSessionsResponse* response) {
  PS_ASSIGN_OR_RETURN(const SessionTable::Listing listing, model.sessions->List(info.tenant));
  for (const SessionInfo& session : listing.sessions) ToProto(session, response->add_sessions());
  for (const SnapshotInfo& one : listing.snapshots) ToProto(one, response->add_snapshots());
  return Status();
}

Status DeleteSession(const v1::DeleteSessionRequest& request, const RequestInfo& info,
                     const ServedModel& model, v1::DeleteSessionResponse*) {
  return model.sessions->Delete(info.tenant, request.session());
}

// --- the threads that run them ---

Executor& ForCreate(const v1::CreateSessionRequest& request, const RequestInfo& info,
                    const ServiceContext& service) {
  const SessionTable& sessions = *service.model.load()->sessions;
  return service.ForSession(sessions.CreateNeedsStore(info.tenant, request.durable()));
}

Executor& ForFork(const v1::ForkSessionRequest& request, const RequestInfo& info,
                  const ServiceContext& service) {
  const SessionTable& sessions = *service.model.load()->sessions;
  return service.ForSession(sessions.NeedsStore(info.tenant, request.session()) ||
                            sessions.CreateNeedsStore(info.tenant, /*durable=*/false));
}

Executor& ForDelete(const v1::DeleteSessionRequest& request, const RequestInfo& info,
                    const ServiceContext& service) {
  const SessionTable& sessions = *service.model.load()->sessions;
  return service.ForSession(sessions.NeedsStore(info.tenant, request.session()));
}

// Snapshots and listings.
template <typename Request>
Executor& ForStore(const Request&, const RequestInfo&, const ServiceContext& service) {
  return service.ForSession(service.model.load()->sessions->options().store != nullptr);
}

}  // namespace

void AddSessionMethods(ServiceContext* context, Router* router) {
  const auto add = [context, router](RpcMethod rpc, auto work, auto pick) {
    AddUnaryMethod(rpc, work, context, router, pick);
  };
  add("CreateSession", CreateSession, ForCreate);
  add("ForkSession", ForkSession, ForFork);
  add("SnapshotSession", SnapshotSession, ForStore<v1::SnapshotSessionRequest>);
  add("RestoreSession", RestoreSession, ForStore<v1::RestoreSessionRequest>);
  add("ListSessions", ListSessions, ForStore<v1::ListSessionsRequest>);
  add("DeleteSession", DeleteSession, ForDelete);
}

}  // namespace polysketch
