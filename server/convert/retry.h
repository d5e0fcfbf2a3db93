// How a refused client learns when to come again: google.rpc.RetryInfo in the status details, as
// gRPC clients expect it, and the trailing metadata `retry-after-ms` for everybody else.
#pragma once

#include <grpcpp/server_context.h>

#include <string>

#include "base/status.h"

namespace polysketch {

// A serialised google.rpc.Status with a google.rpc.RetryInfo: what goes into
// grpc-status-details-bin. Empty for a status without a retry delay.
std::string RetryDetails(const Status& status);
// Nothing for a status without a retry delay. Before the call is finished.
void AddRetryMetadata(const Status& status, grpc::ServerContextBase* context);

}  // namespace polysketch
