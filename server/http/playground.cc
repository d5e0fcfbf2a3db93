#include "server/http/playground.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "polysketch/v1/polysketch.pb.h"
#include "server/convert/wire.h"
#include "server/http/http_call.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

// Maximum number of completions at the same time. The page is for people; programs use the APIs.
constexpr int kMaxAtOnce = 4;
constexpr size_t kMaxBodyBytes = 1 << 20;

std::string ErrorLine(const Status& status) {
  const nlohmann::json json = {
      {"error", {{"code", std::string(CodeName(status.code()))}, {"message", status.message()}}}};
  return JsonText(json) + "\n";
}

void Refuse(HttpExchange* exchange, const Status& status) {
  exchange->Reply(HttpStatus(status.code()), kJsonType, ErrorLine(status));
}

std::string Line(const v1::CompleteResponse& response) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string line;
  if (!google::protobuf::util::MessageToJsonString(response, &line, options).ok())
    return ErrorLine(Internal("the message has no JSON form"));
  return line + "\n";
}

// Keeps a page of another site from using the server through a browser: such a page can neither
// send JSON without a preflight request, nor set this server's address as its origin.
Status Check(const HttpRequest& request) {
  const std::string_view type = request.Header("Content-Type");
  if (!type.starts_with(kJsonType)) {
    return InvalidArgument("Content-Type: expected application/json, found \"", type, "\"");
  }
  const std::string_view origin = request.Header("Origin");
  if (!origin.empty() && origin != StrCat("http://", request.Header("Host")) &&
      origin != StrCat("https://", request.Header("Host"))) {
    return Status(Code::kPermissionDenied, "Origin: expected the server's own page");
  }
  return Status();
}

Result<v1::CompleteRequest> Read(const HttpRequest& request) {
  PS_RETURN_IF_ERROR(Check(request));
  if (request.body.size() > kMaxBodyBytes) {
    return InvalidArgument("the body: expected at most ", kMaxBodyBytes, " bytes, found ",
                           request.body.size());
  }
  v1::CompleteRequest message;
  if (const auto parsed = google::protobuf::util::JsonStringToMessage(request.body, &message);
      !parsed.ok()) {
    return InvalidArgument("the body: expected the JSON form of CompleteRequest: ",
                           std::string(parsed.message()));
  }
  if (!message.session().empty() || !message.resume_token().empty() || message.return_state()) {
    return InvalidArgument("session, resume_token, return_state: expected none on this page");
  }
  return message;
}

// The response of one completion. Its functions run one at a time.
class Lines {
 public:
  Lines(std::shared_ptr<HttpExchange> exchange, std::shared_ptr<std::atomic<int>> running)
      : exchange_(std::move(exchange)), running_(std::move(running)) {}

  void Add(const grpc::ByteBuffer& message) {
    v1::CompleteResponse response;
    if (!ParseMessage(message, &response).ok()) return;
    if (!std::exchange(started_, true)) exchange_->StartStream("application/x-ndjson");
    exchange_->Send(Line(response));
  }
  void Finish(const Status& status) {
    running_->fetch_sub(1);
    if (!started_) return Refuse(exchange_.get(), status);
    if (!status.ok()) exchange_->Send(ErrorLine(status));
    exchange_->EndStream();
  }

 private:
  const std::shared_ptr<HttpExchange> exchange_;
  const std::shared_ptr<std::atomic<int>> running_;
  bool started_ = false;
};

}  // namespace

void Playground::Complete(const std::shared_ptr<HttpExchange>& exchange) {
  const Result<v1::CompleteRequest> request = Read(exchange->request());
  if (!request.ok()) return Refuse(exchange.get(), request.status());
  if (running_->fetch_add(1) >= kMaxAtOnce) {
    running_->fetch_sub(1);
    return Refuse(exchange.get(), ResourceExhausted("the page runs ", kMaxAtOnce,
                                                    " completions at once; try again later"));
  }
  const auto lines = std::make_shared<Lines>(exchange, running_);
  const auto call = HttpCall::Start(
      *router_, exchange, "Complete", *request,
      {.on_message = [lines](const grpc::ByteBuffer& message) { lines->Add(message); },
       .on_finish = [lines](const Status& status) { lines->Finish(status); }});
  exchange->SetCallbacks([call] { call->OnSent(); }, [call] { call->Cancel(); });
}

}  // namespace polysketch
