// Server-sent events, whose bytes arrive in parts of any size.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// Calls take(data) for each event of `bytes` whose end has arrived, and removes them. Lines before
// the data, which name the event, are skipped, as are comments. An error of `take` is returned at
// once.
template <typename Take>
Status TakeEvents(std::string* bytes, const Take& take) {
  constexpr std::string_view kData = "data: ", kLaterData = "\ndata: ";
  size_t begin = 0;
  for (size_t end; (end = bytes->find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    std::string_view event = std::string_view(*bytes).substr(begin, end - begin);
    if (event.starts_with(kData)) {
      event.remove_prefix(kData.size());
    } else {
      const size_t data = event.find(kLaterData);
      if (data == std::string_view::npos) continue;
      event.remove_prefix(data + kLaterData.size());
    }
    PS_RETURN_IF_ERROR(take(event));
  }
  bytes->erase(0, begin);
  return Status();
}

}  // namespace polysketch
