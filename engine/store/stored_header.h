// The header that both stores write before the bytes of an entry.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "engine/snapshot/fields.h"
#include "engine/store/state_store.h"

namespace polysketch {

inline constexpr std::string_view kStoredMagic = "PSKSTORE";
inline constexpr size_t kStoredHeaderBytes = 24;  // magic, revision, milliseconds since the epoch

inline std::string StoredHeader(uint64_t revision) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  FieldWriter fields(kStoredMagic);
  fields(revision, int64_t{std::chrono::duration_cast<std::chrono::milliseconds>(now).count()});
  return std::move(fields).Take();
}

// `beginning`: the first kStoredBeginningBytes of the stored bytes, or all of them if there are
// fewer. `size`: number of stored bytes, header included. DATA_LOSS for bytes without the header.
inline constexpr size_t kStoredBeginningBytes = kStoredHeaderBytes + kStoredHeadBytes;
inline Result<StoredInfo> ReadStoredHeader(const std::string& key, std::string_view beginning,
                                           int64_t size) {
  if (beginning.size() < kStoredHeaderBytes || !beginning.starts_with(kStoredMagic)) {
    return DataLoss("state store: ", key, ": expected an entry of ours, found ", size,
                    " bytes of something else");
  }
  FieldReader fields(beginning.substr(kStoredMagic.size()));
  StoredInfo info;
  int64_t created = 0;
  fields(info.revision, created);
  // The system clock counts nanoseconds in 64 bits.
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / 1'000'000;
  if (created < 0 || created > kMax) {
    return DataLoss("state store: ", key, ": expected a time that a clock can show, found ",
                    created, " ms");
  }
  info.key = key;
  info.created = std::chrono::system_clock::time_point(std::chrono::milliseconds(created));
  info.bytes = size - static_cast<int64_t>(kStoredHeaderBytes);
  info.head = beginning.substr(kStoredHeaderBytes, kStoredHeadBytes);
  return info;
}

}  // namespace polysketch
