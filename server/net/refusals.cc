#include "server/net/refusals.h"

#include "base/logging.h"

namespace polysketch {
namespace {

// Bytes of a path or a message that a client chose.
constexpr size_t kMaxLogged = 500;

}  // namespace

bool Refusals::Count(const Status& status) {
  const Reason reason = status.reason_or_none();
  const int index = reason == Reason::kNone ? kReasons + static_cast<int>(status.code())
                                            : static_cast<int>(reason);
  counts_[static_cast<size_t>(index)].fetch_add(1);
  return log_limit_.Allow();
}

void Refusals::Add(const Status& status, const Request& request) {
  if (!Count(status)) return;
  LogInfo("request_refused",
          {{"id", request.id},
           {"peer", request.peer},
           {"method", request.method.substr(0, kMaxLogged)},
           {"reason", status.reason()},
           {"message", std::string_view(status.message()).substr(0, kMaxLogged)}});
}

Refusals::Counts Refusals::counts() const {
  Counts counts;
  for (int i = 1; i < kReasons + kCodes; ++i) {
    if (i == kReasons) continue;  // OK
    const std::string_view name = i < kReasons ? ReasonName(static_cast<Reason>(i))
                                               : CodeName(static_cast<Code>(i - kReasons));
    counts.emplace_back(name, counts_[static_cast<size_t>(i)].load());
  }
  return counts;
}

}  // namespace polysketch
