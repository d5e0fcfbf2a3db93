#include "base/status.h"

#include <iterator>

namespace polysketch {

std::string_view CodeName(Code code) {
  static constexpr std::string_view kNames[] = {// in the order of gRPC's codes
                                                "OK",
                                                "CANCELLED",
                                                "UNKNOWN",
                                                "INVALID_ARGUMENT",
                                                "DEADLINE_EXCEEDED",
                                                "NOT_FOUND",
                                                "ALREADY_EXISTS",
                                                "PERMISSION_DENIED",
                                                "RESOURCE_EXHAUSTED",
                                                "FAILED_PRECONDITION",
                                                "ABORTED",
                                                "OUT_OF_RANGE",
                                                "UNIMPLEMENTED",
                                                "INTERNAL",
                                                "UNAVAILABLE",
                                                "DATA_LOSS",
                                                "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

std::string_view ReasonName(Reason reason) {
  static constexpr std::string_view kNames[] = {// in the order of Reason
                                                "",
                                                "TOKENIZER_MISSING",
                                                "POSITION_MISMATCH",
                                                "MODEL_MISMATCH",
                                                "STATE_STORE_MISSING",
                                                "QUEUE_FULL",
                                                "RATE_LIMITED",
                                                "REQUEST_MEMORY_FULL",
                                                "TOO_MANY_CALLS",
                                                "TOO_MANY_SESSIONS",
                                                "SESSION_MEMORY_FULL",
                                                "STATE_STORE_FULL",
                                                "LOADING",
                                                "DRAINING",
                                                "SESSION_IN_USE",
                                                "OUTCOME_UNKNOWN",
                                                "CONTEXT_LENGTH_EXCEEDED",
                                                "MALFORMED_REQUEST",
                                                "HOST_REFUSED",
                                                "NO_SUCH_PATH",
                                                "METHOD_NOT_ALLOWED",
                                                "REQUEST_TIMEOUT",
                                                "BODY_TOO_LARGE",
                                                "TARGET_TOO_LONG",
                                                "UNSUPPORTED_ENCODING",
                                                "EXPECTATION_FAILED",
                                                "HEADER_TOO_LARGE",
                                                "TOO_MANY_CONNECTIONS",
                                                "HTTP_VERSION"};
  static_assert(std::size(kNames) == kReasons);
  return kNames[static_cast<size_t>(reason)];
}

std::string_view Status::field() const {
  const std::string_view message = message_;
  const size_t end = message.find_first_not_of(
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.[]");
  const bool path =
      end != 0 && end != std::string_view::npos && message.substr(end).starts_with(": ");
  return path ? message.substr(0, end) : std::string_view();
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return StrCat(CodeName(code_), ": ", message_);
}

}  // namespace polysketch
