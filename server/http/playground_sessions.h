// Sessions for the status page: POST /api/sessions/NAME runs an RPC of sessions. The body has the
// JSON form of its request, the response that of its response.
#pragma once

#include <memory>
#include <string_view>

#include "server/http/http_exchange.h"
#include "server/net/router.h"

namespace polysketch {

// Whether RunSessionCall answers the path.
bool IsSessionPath(std::string_view path);

// Answers a POST of a path of IsSessionPath. Called on the thread of the HTTP server. `router`
// outlives the call.
void RunSessionCall(const Router& router, const std::shared_ptr<HttpExchange>& exchange);

}  // namespace polysketch
