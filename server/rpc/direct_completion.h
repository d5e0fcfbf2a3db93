// A completion for a transport in this process: its request and its responses are messages, not
// bytes.
#pragma once

#include "polysketch/v1/polysketch.pb.h"
#include "server/rpc/completion_renderer.h"
#include "server/rpc/service_context.h"

namespace polysketch {

// Starts the RPC Complete of polysketch.v1 with `request`. Each message that the call writes to
// `context` is without bytes: `slot` has got its response before. `service` and `context` outlive
// the call.
CallReactor* StartCompletion(ServiceContext* service, CallContext* context,
                             v1::CompleteRequest request, ResponseSlot slot);

}  // namespace polysketch
