#include "server/http/playground_sessions.h"

#include <algorithm>
#include <iterator>

#include "polysketch/v1/polysketch.pb.h"
#include "server/http/http_errors.h"
#include "server/http/page_request.h"
#include "server/http/unary_http_call.h"

namespace polysketch {
namespace {

template <typename Request, typename Response>
void Run(const Router& router, const std::shared_ptr<HttpExchange>& exchange,
         std::string_view rpc) {
  Request request;
  if (const Status status = ReadPageRequest(exchange->request(), &request); !status.ok())
    return RefusePage(exchange.get(), status);
  CallUnary<Response>(router, exchange, rpc, request, [exchange](const Result<Response>& response) {
    if (!response.ok()) return RefusePage(exchange.get(), response.status());
    exchange->Reply(200, kJsonType, JsonLine(*response));
  });
}

struct SessionPath {
  std::string_view path;
  std::string_view rpc;
  void (*run)(const Router& router, const std::shared_ptr<HttpExchange>& exchange,
              std::string_view rpc);
};

constexpr SessionPath kPaths[] = {
    {"/api/sessions/create", "CreateSession", Run<v1::CreateSessionRequest, v1::Session>},
    {"/api/sessions/fork", "ForkSession", Run<v1::ForkSessionRequest, v1::ForkSessionResponse>},
    {"/api/sessions/snapshot", "SnapshotSession", Run<v1::SnapshotSessionRequest, v1::Snapshot>},
    {"/api/sessions/restore", "RestoreSession", Run<v1::RestoreSessionRequest, v1::Session>},
    {"/api/sessions/list", "ListSessions", Run<v1::ListSessionsRequest, v1::ListSessionsResponse>},
    {"/api/sessions/delete", "DeleteSession",
     Run<v1::DeleteSessionRequest, v1::DeleteSessionResponse>},
};

const SessionPath* Find(std::string_view path) {
  const auto* found = std::ranges::find(kPaths, path, &SessionPath::path);
  return found == std::end(kPaths) ? nullptr : found;
}

}  // namespace

bool IsSessionPath(std::string_view path) { return Find(path) != nullptr; }

void RunSessionCall(const Router& router, const std::shared_ptr<HttpExchange>& exchange) {
  const SessionPath* path = Find(exchange->request().path);
  path->run(router, exchange, path->rpc);
}

}  // namespace polysketch
