// Status and Result<T>: how a function reports to its caller that untrusted input was bad or a
// resource was missing. The codes are gRPC's canonical codes; the server maps them in one place
// (server/convert/status_map.h).
#pragma once

#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace polysketch {

enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

std::string_view CodeName(Code code);

// What a client can act on where the code alone does not say it. The names (QUEUE_FULL) are part of
// the contract; polysketch.proto explains each.
enum class Reason : int {
  kNone,  // the code says it all
  kTokenizerMissing,
  kPositionMismatch,
  kModelMismatch,
  kStateStoreMissing,
  kQueueFull,
  kRateLimited,
  kRequestMemoryFull,
  kTooManyCalls,
  kTooManySessions,
  kSessionMemoryFull,
  kStateStoreFull,
  kLoading,
  kDraining,
  kSessionInUse,
  kOutcomeUnknown,
  kContextLengthExceeded,
  // Of the HTTP server alone; docs/openai-api.md explains each.
  kMalformedRequest,
  kHostRefused,
  kNoSuchPath,
  kMethodNotAllowed,
  kRequestTimeout,
  kBodyTooLarge,
  kTargetTooLong,
  kUnsupportedEncoding,
  kExpectationFailed,
  kHeaderTooLarge,
  kTooManyConnections,
  kHttpVersion,
};
inline constexpr int kReasons = static_cast<int>(Reason::kHttpVersion) + 1;

// The name of a reason; empty for kNone.
std::string_view ReasonName(Reason reason);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  // The delay after which the caller should retry; nullopt if it is not known.
  std::optional<std::chrono::milliseconds> retry_after() const { return retry_after_; }
  Status WithRetryAfter(std::chrono::milliseconds delay) && {
    retry_after_ = delay;
    return std::move(*this);
  }
  Reason reason_or_none() const { return reason_; }
  // The name of the reason, or, for kNone, that of the code.
  std::string_view reason() const {
    return reason_ == Reason::kNone ? CodeName(code_) : ReasonName(reason_);
  }
  Status WithReason(Reason reason) && {
    reason_ = reason;
    return std::move(*this);
  }
  // The same error with another message.
  Status WithMessage(std::string message) const {
    Status status = *this;
    status.message_ = std::move(message);
    return status;
  }
  // The path of the field of a request that is wrong: messages begin with it ("sampling.top_p:
  // expected ..."). Empty for a message that begins with something else.
  std::string_view field() const;
  // "INVALID_ARGUMENT: message", or "OK".
  std::string ToString() const;

 private:
  Code code_ = Code::kOk;
  std::string message_;
  Reason reason_ = Reason::kNone;
  std::optional<std::chrono::milliseconds> retry_after_;
};

// Concatenates its arguments through an ostream: StrCat("expected ", 3, " values").
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

// Makes a Status of its code: InvalidArgument("expected 1 to ", 9, ", found ", n).
template <Code code>
struct ErrorOf {
  template <typename... Args>
  Status operator()(const Args&... args) const {
    return Status(code, StrCat(args...));
  }
};
inline constexpr ErrorOf<Code::kInvalidArgument> InvalidArgument;
inline constexpr ErrorOf<Code::kFailedPrecondition> FailedPrecondition;
inline constexpr ErrorOf<Code::kResourceExhausted> ResourceExhausted;
inline constexpr ErrorOf<Code::kNotFound> NotFound;
inline constexpr ErrorOf<Code::kInternal> Internal;
inline constexpr ErrorOf<Code::kUnavailable> Unavailable;
inline constexpr ErrorOf<Code::kDataLoss> DataLoss;

// A value, or the Status that says why the value is missing.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design
    PS_CHECK(!status_.ok()) << "a Result without a value needs an error";
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    PS_CHECK(ok()) << status_.ToString();
    return *value_;
  }
  const T& value() const& {
    PS_CHECK(ok()) << status_.ToString();
    return *value_;
  }
  T&& value() && {
    PS_CHECK(ok()) << status_.ToString();
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace polysketch

#define PS_CONCAT_INNER(a, b) a##b
#define PS_CONCAT(a, b) PS_CONCAT_INNER(a, b)

// Returns the error of an expression of type Status.
#define PS_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                              \
    if (::polysketch::Status ps_status = (expr); !ps_status.ok()) return ps_status; \
  } while (false)

// PS_ASSIGN_OR_RETURN(auto x, F()): declares x with the value of a Result, or returns its error.
#define PS_ASSIGN_OR_RETURN(lhs, expr) \
  PS_ASSIGN_OR_RETURN_IMPL(PS_CONCAT(ps_result_, __LINE__), lhs, expr)
#define PS_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                             \
  if (!result.ok()) return result.status();         \
  lhs = std::move(result).value()
