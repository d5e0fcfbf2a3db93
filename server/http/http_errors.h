// Errors over HTTP, in the shape of OpenAI's API,
//   {"error": {"message": ..., "type": ..., "param": ..., "code": ...}},
// or of Anthropic's:
//   {"type": "error", "error": {"type": ..., "message": ..., "details": {"error_code": ...}},
//    "request_id": ...}.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_exchange.h"

namespace polysketch {

inline constexpr char kJsonType[] = "application/json";

// 429 for QUEUE_FULL, 413 for BODY_TOO_LARGE.
int HttpStatus(const Status& status, ErrorShape shape = ErrorShape::kOpenAi);
// "param" is the field of the request that is wrong, or null; "code", or "error_code", the reason
// (QUEUE_FULL).
std::string ErrorBody(const Status& status);
std::string AnthropicErrorBody(const Status& status, std::string_view request_id);

// Replies with the error, with WWW-Authenticate for 401, and with Retry-After, in seconds, for 429
// and 503. `headers`: more of them.
void ReplyError(HttpExchange* exchange, const Status& status, HttpHeaders headers = {});

// Whether the method of a request is `allowed`: "GET", which HEAD is too, "POST", or "GET, DELETE".
// Replies with 405 otherwise.
bool CheckMethod(HttpExchange* exchange, std::string_view allowed);
// Replies with 404 to a request for a path that is not served.
void ReplyNoSuchPath(HttpExchange* exchange);
// INVALID_ARGUMENT for a body that is not JSON by its Content-Type. It keeps a page of another site
// from using the server through a browser: such a page cannot send JSON without a preflight
// request.
Status CheckJsonType(const HttpRequest& request);
// The same, but a JSON object may have any type where no browser has sent it, as by `curl -d`:
// browsers send Origin, or Sec-Fetch-Site, with each POST.
Status CheckApiBody(const HttpRequest& request);

}  // namespace polysketch
