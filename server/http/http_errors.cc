#include "server/http/http_errors.h"

#include <algorithm>

#include "server/http/json_text.h"

namespace polysketch {
namespace {

std::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

int HttpStatus(Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kOutOfRange:
      return 400;
    case Code::kUnauthenticated:
      return 401;
    case Code::kPermissionDenied:
      return 403;
    case Code::kNotFound:
      return 404;
    case Code::kAborted:
    case Code::kAlreadyExists:
      return 409;
    case Code::kResourceExhausted:
      return 429;
    case Code::kCancelled:
      return 499;
    case Code::kUnimplemented:
      return 501;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string ErrorBody(int http_status, const std::string& message, std::string_view param,
                      std::string_view code) {
  const auto text_or_null = [](std::string_view text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json error;
  error["message"] = message;
  error["type"] = ErrorType(http_status);
  error["param"] = text_or_null(param);
  error["code"] = text_or_null(code);
  const nlohmann::ordered_json body = {{"error", std::move(error)}};
  return JsonText(body) + "\n";
}

std::string ErrorBody(const Status& status) {
  return ErrorBody(HttpStatus(status.code()), status.message(), status.field(), status.reason());
}

void ReplyError(HttpExchange* exchange, const Status& status) {
  const int http_status = HttpStatus(status.code());
  HttpHeaders headers;
  if (http_status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (http_status == 429 || http_status == 503) {
    const auto delay = status.retry_after().value_or(std::chrono::seconds(1));
    headers.emplace_back("Retry-After", StrCat(std::max<int64_t>(1, (delay.count() + 999) / 1000)));
    headers.emplace_back("retry-after-ms", StrCat(delay.count()));
  }
  exchange->Reply(http_status, kJsonType, ErrorBody(status), std::move(headers));
}

}  // namespace polysketch
