// Server reflection, grpc.reflection.v1 and v1alpha (the same on the wire). gRPC's own plugin
// brings in the synchronous server, whose waiting calls accumulate uncounted.
#pragma once

#include "server/net/router.h"

namespace polysketch {

// `connections` outlives the calls.
void AddReflectionMethods(ConnectionTable* connections, Router* router);

}  // namespace polysketch
