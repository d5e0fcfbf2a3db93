// What both stores put in front of an entry's bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/byte_io.h"
#include "engine/store/state_store.h"

namespace polysketch {

inline constexpr std::string_view kStoredMagic = "PSKSTORE";
inline constexpr size_t kStoredHeaderBytes = 24;  // magic, revision, milliseconds since the epoch

inline std::string StoredHeader(uint64_t revision) {
  ByteWriter out;
  for (const char c : kStoredMagic) out.Put(c);
  out.Put(revision);
  out.Put<int64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count());
  return std::move(out).Take();
}

// `beginning`: of the entry, kStoredBeginningBytes where it has so many. `size`: of all of it.
inline constexpr size_t kStoredBeginningBytes = kStoredHeaderBytes + kStoredHeadBytes;
inline Result<StoredInfo> ReadStoredHeader(const std::string& key, std::string_view beginning,
                                           int64_t size) {
  if (beginning.size() < kStoredHeaderBytes || !beginning.starts_with(kStoredMagic)) {
    return DataLoss("state store: ", key, ": expected an entry of ours, found ", size,
                    " bytes of something else");
  }
  ByteReader in(beginning.substr(kStoredMagic.size()));
  StoredInfo info;
  info.key = key;
  info.revision = in.Get<uint64_t>();
  info.created =
      std::chrono::system_clock::time_point(std::chrono::milliseconds(in.Get<int64_t>()));
  info.bytes = size - static_cast<int64_t>(kStoredHeaderBytes);
  info.head = beginning.substr(kStoredHeaderBytes, kStoredHeadBytes);
  return info;
}

}  // namespace polysketch
