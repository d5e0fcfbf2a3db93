#include "server/http/playground.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "polysketch/v1/polysketch.pb.h"
#include "server/http/http_call.h"
#include "server/http/http_errors.h"
#include "server/http/page_request.h"

namespace polysketch {
namespace {

// Maximum number of completions at the same time. The page is for people; programs use the APIs.
constexpr int kMaxAtOnce = 4;
constexpr std::string_view kCompletePath = "/api/complete";

Result<v1::CompleteRequest> Read(const HttpRequest& request) {
  v1::CompleteRequest message;
  PS_RETURN_IF_ERROR(ReadPageRequest(request, &message));
  if (!message.resume_token().empty() || message.return_state())
    return InvalidArgument("resume_token, return_state: expected none on this page");
  return message;
}

// The response of one completion. Its functions run one at a time.
class Lines {
 public:
  Lines(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<std::atomic<int>> running)
      : exchange_(std::move(exchange)), running_(std::move(running)) {}

  void Start() {
    if (!std::exchange(started_, true)) exchange_->StartStream("application/x-ndjson", "\n");
  }
  void Add(const v1::CompleteResponse& response) {
    Start();
    exchange_->Send(JsonLine(response));
  }
  void Finish(const Status& status) {
    running_->fetch_sub(1);
    if (!started_) return RefusePage(exchange_.get(), status);
    if (!status.ok()) exchange_->Send(ErrorLine(status));
    exchange_->EndStream();
  }

 private:
  const std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<std::atomic<int>> running_;
  bool started_ = false;
};

template <typename Request, typename Response>
void RunUnary(const Router& router, const std::shared_ptr<HttpExchange>& exchange,
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

const SessionPath* Find(std::string_view path) {
  const auto* found = std::ranges::find(kPaths, path, &SessionPath::path);
  return found == std::end(kPaths) ? nullptr : found;
}

}  // namespace

bool Playground::IsPath(std::string_view path) {
  return path == kCompletePath || Find(path) != nullptr;
}

void Playground::Handle(const std::shared_ptr<HttpExchange>& exchange) {
  if (!CheckMethod(exchange.get(), "POST")) return;
  const SessionPath* const path = Find(exchange->request().path);
  path == nullptr ? Complete(exchange) : path->run(*router_, exchange, path->rpc);
}

void Playground::Complete(const std::shared_ptr<HttpExchange>& exchange) {
  Result<v1::CompleteRequest> request = Read(exchange->request());
  if (!request.ok()) return RefusePage(exchange.get(), request.status());
  if (running_->fetch_add(1) >= kMaxAtOnce) {
    running_->fetch_sub(1);
    return RefusePage(exchange.get(), ResourceExhausted("the page runs ", kMaxAtOnce,
                                                        " completions at once; try again later"));
  }
  const auto lines = std::make_shared<Lines>(exchange, running_);
  const auto call = HttpCall::StartCompletion(
      service_, exchange, *std::move(request),
      {.on_submitted = [lines](int64_t) { lines->Start(); },
       .on_response = [lines](const v1::CompleteResponse& response) { lines->Add(response); },
       .on_finish = [lines](const Status& status) { lines->Finish(status); }});
  exchange->SetCallbacks([call] { call->OnSent(); }, [call] { call->Cancel(); });
}

}  // namespace polysketch
