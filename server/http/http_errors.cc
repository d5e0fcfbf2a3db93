#include "server/http/http_errors.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/convert/status_map.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

constexpr size_t kMaxQuotedPath = 200;

// The value beside `key`, or `otherwise`.
template <typename Key, typename Value, size_t N>
Value ValueOf(const std::pair<Key, Value> (&table)[N], Key key, Value otherwise) {
  const auto* const found = std::ranges::find(table, key, &std::pair<Key, Value>::first);
  return found == std::end(table) ? otherwise : found->second;
}

std::string_view ErrorType(int http_status) {
  static constexpr std::pair<int, std::string_view> kTypes[] = {{401, "authentication_error"},
                                                                {403, "permission_error"},
                                                                {404, "not_found_error"},
                                                                {429, "rate_limit_error"}};
  return ValueOf(kTypes, http_status,
                 std::string_view(http_status < 500 ? "invalid_request_error" : "server_error"));
}

std::string_view AnthropicErrorType(int http_status) {
  static constexpr std::pair<int, std::string_view> kTypes[] = {
      {413, "request_too_large"}, {504, "timeout_error"}, {529, "overloaded_error"}};
  return ValueOf(kTypes, http_status, http_status < 500 ? ErrorType(http_status) : "api_error");
}

constexpr std::pair<Code, int> kOfCode[] = {{Code::kOk, 200},
                                            {Code::kInvalidArgument, 400},
                                            {Code::kFailedPrecondition, 400},
                                            {Code::kOutOfRange, 400},
                                            {Code::kUnauthenticated, 401},
                                            {Code::kPermissionDenied, 403},
                                            {Code::kNotFound, 404},
                                            {Code::kAborted, 409},
                                            {Code::kAlreadyExists, 409},
                                            {Code::kResourceExhausted, 429},
                                            {Code::kCancelled, 499},
                                            {Code::kUnimplemented, 501},
                                            {Code::kUnavailable, 503},
                                            {Code::kDeadlineExceeded, 504}};
constexpr std::pair<Reason, int> kOfReason[] = {
    {Reason::kMethodNotAllowed, 405},    {Reason::kRequestTimeout, 408},
    {Reason::kBodyTooLarge, 413},        {Reason::kTargetTooLong, 414},
    {Reason::kUnsupportedEncoding, 415}, {Reason::kExpectationFailed, 417},
    {Reason::kHeaderTooLarge, 431},      {Reason::kHttpVersion, 505}};

}  // namespace

int HttpStatus(const Status& status, ErrorShape shape) {
  const int of_code = ValueOf(kOfCode, status.code(), 500);
  const bool overloaded = of_code == 503 && shape == ErrorShape::kAnthropic;
  return ValueOf(kOfReason, status.reason_or_none(), overloaded ? 529 : of_code);
}

std::string ErrorBody(const Status& status) {
  const Status shown = status.WithMessage(ShownMessage(status));
  const std::string_view param = shown.field();
  nlohmann::ordered_json error;
  error["message"] = shown.message();
  error["type"] = ErrorType(HttpStatus(status));
  error["param"] = param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(param);
  // OpenAI's name, which clients know.
  const bool too_long = status.reason_or_none() == Reason::kContextLengthExceeded;
  error["code"] = too_long ? "context_length_exceeded" : status.reason();
  const nlohmann::ordered_json body = {{"error", std::move(error)}};
  return JsonText(body) + "\n";
}

std::string AnthropicErrorBody(const Status& status, std::string_view request_id) {
  nlohmann::ordered_json error;
  error["type"] = AnthropicErrorType(HttpStatus(status, ErrorShape::kAnthropic));
  error["message"] = ShownMessage(status);
  // Anthropic's name, which tells its clients to send whole conversations.
  const bool threads = status.field() == "thread";
  error["details"]["error_code"] = threads ? "thread_unsupported_request" : status.reason();
  nlohmann::ordered_json body;
  body["type"] = "error";
  body["error"] = std::move(error);
  body["request_id"] = request_id;
  return JsonText(body) + "\n";
}

void ReplyError(HttpExchange* exchange, const Status& status, HttpHeaders headers) {
  const HttpRequest& request = exchange->request();
  const int http_status = HttpStatus(status, request.error_shape);
  exchange->OnRefused(status);
  if (http_status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (const auto delay = status.retry_after(); delay.has_value()) {
    headers.emplace_back("Retry-After",
                         StrCat(std::max<int64_t>(1, (delay->count() + 999) / 1000)));
    headers.emplace_back("retry-after-ms", StrCat(delay->count()));
  }
  if (status.reason_or_none() == Reason::kUnsupportedEncoding)
    headers.emplace_back("Accept-Encoding", "identity");
  exchange->Reply(http_status, kJsonType,
                  request.error_shape == ErrorShape::kOpenAi
                      ? ErrorBody(status)
                      : AnthropicErrorBody(status, request.Header(kRequestIdHeader)),
                  std::move(headers));
}

bool CheckMethod(HttpExchange* exchange, std::string_view allowed) {
  const std::string& found = exchange->request().method;
  const bool reads = allowed.starts_with("GET");
  for (std::string_view rest = allowed; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    if (found == one || (one == "GET" && found == "HEAD")) return true;
    rest.remove_prefix(std::min(rest.size(), one.size() + 2));  // ", "
  }
  const Status status =
      Status(Code::kUnimplemented, StrCat("the method: expected ", allowed, ", found ", found))
          .WithReason(Reason::kMethodNotAllowed);
  ReplyError(exchange, status,
             {{"Allow", reads ? StrCat("GET, HEAD", allowed.substr(3)) : std::string(allowed)}});
  return false;
}

void ReplyNoSuchPath(HttpExchange* exchange) {
  const HttpRequest& request = exchange->request();
  ReplyError(exchange, NotFound("the path: expected one that is served, found ", request.method,
                                " ", request.path.substr(0, kMaxQuotedPath))
                           .WithReason(Reason::kNoSuchPath));
}

Status CheckJsonType(const HttpRequest& request) {
  const std::string_view type = request.Header("Content-Type");
  std::string_view name = type.substr(0, type.find(';'));
  while (name.ends_with(' ') || name.ends_with('\t')) name.remove_suffix(1);
  if (EqualsIgnoringCase(name, kJsonType)) return Status();
  return InvalidArgument("Content-Type: expected application/json, found \"", type, "\"");
}

Status CheckApiBody(const HttpRequest& request) {
  const size_t first = request.body.find_first_not_of(" \t\r\n");
  const bool object = first != std::string::npos && request.body[first] == '{';
  const bool browser =
      !request.Headers("Origin").empty() || !request.Headers("Sec-Fetch-Site").empty();
  return object && !browser ? Status() : CheckJsonType(request);
}

}  // namespace polysketch
