// The RPCs of polysketch.v1.PolySketch. Each function adds the RPCs of its source file to `router`.
// `context` outlives the calls.
#pragma once

#include "server/net/router.h"
#include "server/rpc/service_context.h"

namespace polysketch {

void AddCompletionMethods(ServiceContext* context, Router* router);
void AddScoreMethod(ServiceContext* context, Router* router);
void AddSessionMethods(ServiceContext* context, Router* router);
void AddAppendMethod(ServiceContext* context, Router* router);
void AddTextMethods(ServiceContext* context, Router* router);

}  // namespace polysketch
