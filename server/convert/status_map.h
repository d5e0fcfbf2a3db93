// The one place where our statuses become gRPC's.
#pragma once

#include <grpcpp/support/status.h>

#include "base/status.h"
#include "engine/request/request.h"

namespace polysketch {

grpc::StatusCode ToGrpcCode(Code code);
grpc::Status ToGrpcStatus(const Status& status);

// How a request ended: OK for kStop and kLength, otherwise a code for the reason with the finish's
// own message.
Status FinishStatus(const FinishEvent& finish);

}  // namespace polysketch
