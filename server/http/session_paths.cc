#include "server/http/session_paths.h"

#include <algorithm>
#include <iterator>

#include "polysketch/v1/polysketch.pb.h"
#include "server/http/http_call.h"
#include "server/http/http_errors.h"
#include "server/http/page_request.h"

namespace polysketch {
namespace {

template <typename Request, typename Response>
void RunUnary(const Router& router, const std::shared_ptr<HttpExchange>& exchange,
              std::string_view rpc) {
  Request request;
  if (const Status status = ReadPageRequest(exchange->request(), &request); !status.ok())
    return ReplyError(exchange.get(), status);
  CallUnary<Response>(router, exchange, rpc, request, [exchange](const Result<Response>& response) {
    const Result<std::string> line = response.ok() ? JsonLine(*response) : response.status();
    if (!line.ok()) return ReplyError(exchange.get(), line.status());
    exchange->Reply(200, kJsonType, *line);
  });
}

struct SessionPath {
  std::string_view path;
  std::string_view rpc;
  void (*run)(const Router& router, const std::shared_ptr<HttpExchange>& exchange,
              std::string_view rpc);
};

constexpr SessionPath kPaths[] = {
    {"/api/sessions/create", "CreateSession", RunUnary<v1::CreateSessionRequest, v1::Session>},
    {"/api/sessions/fork", "ForkSession",
     RunUnary<v1::ForkSessionRequest, v1::ForkSessionResponse>},
    {"/api/sessions/snapshot", "SnapshotSession",
     RunUnary<v1::SnapshotSessionRequest, v1::Snapshot>},
    {"/api/sessions/restore", "RestoreSession", RunUnary<v1::RestoreSessionRequest, v1::Session>},
    {"/api/sessions/list", "ListSessions",
     RunUnary<v1::ListSessionsRequest, v1::ListSessionsResponse>},
    {"/api/sessions/delete", "DeleteSession",
     RunUnary<v1::DeleteSessionRequest, v1::DeleteSessionResponse>},
};

}  // namespace

bool HandleSessions(const Router& router, const std::shared_ptr<HttpExchange>& exchange) {
  const auto* const found = std::ranges::find(kPaths, exchange->request().path, &SessionPath::path);
  if (found == std::end(kPaths)) return false;
  if (CheckMethod(exchange.get(), "POST")) found->run(router, exchange, found->rpc);
  return true;
}

}  // namespace polysketch
