#include "server/convert/status_map.h"

#include "base/check.h"
#include "server/convert/retry.h"

namespace polysketch {

grpc::StatusCode ToGrpcCode(Code code) {
  // base/status.h takes over the numbers; a switch would only repeat them.
  static_assert(static_cast<int>(Code::kInvalidArgument) ==
                static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  static_assert(static_cast<int>(Code::kResourceExhausted) ==
                static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  static_assert(static_cast<int>(Code::kDataLoss) == static_cast<int>(grpc::StatusCode::DATA_LOSS));
  return static_cast<grpc::StatusCode>(code);
}

grpc::Status ToGrpcStatus(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(ToGrpcCode(status.code()), status.message(), RetryDetails(status));
}

Status FinishStatus(const FinishEvent& finish) {
  const auto with_code = [&finish](Code code, const char* message) {
    return Status(code, finish.status.message().empty() ? message : finish.status.message());
  };
  switch (finish.reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
    case FinishReason::kMigrated:
      return Status();
    case FinishReason::kCancelled: {
      // A drain that ran out of time cancels with its own code.
      const Code code = finish.status.ok() ? Code::kCancelled : finish.status.code();
      return with_code(code, "the request was cancelled");
    }
    case FinishReason::kDeadline:
      return with_code(Code::kDeadlineExceeded, "the deadline of the request has passed");
    case FinishReason::kStalled:
      return with_code(Code::kAborted, "the client stalled");
    case FinishReason::kError: {
      const Code code = finish.status.ok() ? Code::kInternal : finish.status.code();
      return with_code(code, "the engine failed");
    }
  }
  PS_CHECK(false) << "finish reason " << static_cast<int>(finish.reason);
  return Status();
}

}  // namespace polysketch
