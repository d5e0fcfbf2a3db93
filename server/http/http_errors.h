// Errors over HTTP, in the shape of OpenAI's API:
// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/http/http_exchange.h"

namespace polysketch {

inline constexpr char kJsonType[] = "application/json";

int HttpStatus(Code code);
// `param`: the field of the request that is wrong, `code`: the reason (QUEUE_FULL); empty: null.
std::string ErrorBody(int http_status, const std::string& message, std::string_view param = "",
                      std::string_view code = "");
std::string ErrorBody(const Status& status);

// Replies with the error, with WWW-Authenticate for 401, and with Retry-After, in seconds, for 429
// and 503.
void ReplyError(HttpExchange* exchange, const Status& status);

}  // namespace polysketch
