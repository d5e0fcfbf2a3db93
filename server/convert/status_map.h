// Converts Status to gRPC's status, whose details are a google.rpc.Status: ErrorInfo with the
// reason, BadRequest with the field of an INVALID_ARGUMENT, RetryInfo with a retry delay. The delay
// is also sent as the trailing metadata `retry-after-ms`.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/request/request.h"

namespace polysketch {

// Returns `status` with `prefix` before its message; OK stays OK.
Status Prefixed(std::string_view prefix, const Status& status);
// How fields are named elsewhere: a message that begins with the first begins with the second
// instead. The first is a whole name, or ends with a dot ("sampling.").
using FieldNames = std::vector<std::pair<std::string_view, std::string_view>>;
// Of names that fit, the first counts.
Status Renamed(const Status& status, const FieldNames& names);

grpc::StatusCode ToGrpcCode(Code code);
// The message as clients and logs see it: at most 1 KiB, since it may quote what a client sent,
// whatever its size.
std::string ShownMessage(const Status& status);
// With the message that clients see.
grpc::Status ToGrpcStatus(const Status& status);
// Returns the status of a call whose request ended with `finish`: OK for kStop, kLength and
// kMigrated, otherwise a code for the reason, with the message of the finish if it has one.
Status FinishStatus(const FinishEvent& finish);

}  // namespace polysketch
