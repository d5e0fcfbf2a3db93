#include "engine/snapshot/content_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace polysketch {

struct ContentHasher::State {
  XXH3_state_t xxh;
};

ContentHasher::ContentHasher() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh);
}

ContentHasher::~ContentHasher() = default;

void ContentHasher::Add(std::string_view piece) {
  XXH3_128bits_update(&state_->xxh, piece.data(), piece.size());
}

ContentHash ContentHasher::Hash() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.low64, hash.high64};
}

ContentHash HashContent(std::string_view bytes) {
  ContentHasher hasher;
  hasher.Add(bytes);
  return hasher.Hash();
}

std::string HashText(const ContentHash& hash) {
  char text[33];
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(hash[1]),
                static_cast<unsigned long long>(hash[0]));
  return text;
}

}  // namespace polysketch
