// The sessions of the status page: /api/sessions/NAME runs an RPC, whose request and response have
// their JSON form.
#pragma once

#include <memory>

#include "server/http/http_exchange.h"
#include "server/net/router.h"

namespace polysketch {

// Answers a request of one of the paths; returns false, and does nothing, for another path. Called
// on the thread of the HTTP server. `router` outlives the call.
bool HandleSessions(const Router& router, const std::shared_ptr<HttpExchange>& exchange);

}  // namespace polysketch
