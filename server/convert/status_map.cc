#include "server/convert/status_map.h"

#include <google/rpc/errors.pb.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/utf8.h"

namespace polysketch {
namespace {

// gRPC's travels in a header, of which clients accept 8 KiB, percent-encoded and perhaps in the
// details too.
constexpr size_t kMaxMessageBytes = 1024;

google::rpc::ErrorInfo ToErrorInfo(const Status& status) {
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(status.reason()));
  info.set_domain("polysketch.v1");
  return info;
}

// `message`: that of the status, abbreviated.
google::rpc::BadRequest ToBadRequest(const Status& status, std::string_view message) {
  google::rpc::BadRequest request;
  const std::string_view field = status.field().substr(0, message.size());
  const size_t begin = std::min(message.size(), field.size() + std::string_view(": ").size());
  auto* violation = request.add_field_violations();
  violation->set_field(std::string(field));
  violation->set_description(std::string(message.substr(begin)));
  return request;
}

google::rpc::RetryInfo ToRetryInfo(std::chrono::milliseconds delay) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(delay.count() / 1000);
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(delay.count() % 1000 * 1'000'000));
  return info;
}

// Whether a field is `name`, or a part of it.
bool IsOf(std::string_view name, std::string_view field) {
  return field.starts_with(name) &&
         (field.size() == name.size() || field[name.size()] == '.' || field[name.size()] == '[');
}

// The value of grpc-status-details-bin.
std::string Details(const Status& status, const std::string& message) {
  google::rpc::Status details;
  details.set_code(static_cast<int32_t>(status.code()));
  details.set_message(message);
  details.add_details()->PackFrom(ToErrorInfo(status));
  if (status.code() == Code::kInvalidArgument && !status.field().empty())
    details.add_details()->PackFrom(ToBadRequest(status, message));
  if (status.retry_after().has_value())
    details.add_details()->PackFrom(ToRetryInfo(*status.retry_after()));
  return details.SerializeAsString();
}

}  // namespace

Status Prefixed(std::string_view prefix, const Status& status) {
  return status.ok() ? status : status.WithMessage(StrCat(prefix, status.message()));
}

Status Renamed(const Status& status, const FieldNames& names) {
  for (const auto& [name, other] : names) {
    if (name.ends_with('.') ? status.message().starts_with(name) : IsOf(name, status.field()))
      return status.WithMessage(StrCat(other, status.message().substr(name.size())));
  }
  return status;
}

grpc::StatusCode ToGrpcCode(Code code) {
  // The codes of base/status.h have gRPC's numbers.
  static_assert(static_cast<int>(Code::kInvalidArgument) ==
                static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  static_assert(static_cast<int>(Code::kResourceExhausted) ==
                static_cast<int>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  static_assert(static_cast<int>(Code::kUnauthenticated) ==
                static_cast<int>(grpc::StatusCode::UNAUTHENTICATED));
  return static_cast<grpc::StatusCode>(code);
}

std::string ShownMessage(const Status& status) {
  const std::string_view message = status.message();
  if (message.size() <= kMaxMessageBytes) return std::string(message);
  const size_t whole = ValidUtf8Prefix(message.substr(0, kMaxMessageBytes));
  return StrCat(message.substr(0, std::max(whole, kMaxMessageBytes - 3)), "...");
}

grpc::Status ToGrpcStatus(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message = ShownMessage(status);
  return grpc::Status(ToGrpcCode(status.code()), message, Details(status, message));
}

Status FinishStatus(const FinishEvent& finish) {
  const auto with_code = [&finish](Code code, const char* message) {
    if (finish.status.code() == code && !finish.status.message().empty()) return finish.status;
    return Status(code, finish.status.message().empty() ? message : finish.status.message());
  };
  switch (finish.reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
    case FinishReason::kMigrated:
      return Status();
    case FinishReason::kCancelled: {
      // A drain that ran out of time cancels with a code of its own.
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
