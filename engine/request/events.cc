#include "engine/request/events.h"

namespace polysketch {

std::string_view FinishReasonName(FinishReason reason) {
  constexpr std::string_view kNames[] = {"stop",    "length", "cancelled", "deadline",
                                         "stalled", "error",  "migrated"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace polysketch
