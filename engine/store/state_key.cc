#include "engine/store/state_key.h"

#include <sys/random.h>

#include <algorithm>

#include "base/check.h"
#include "engine/snapshot/content_hash.h"

namespace polysketch {

constexpr size_t kKeyDigits = 32;

uint64_t RandomWord() {
  uint64_t word = 0;
  PS_CHECK(getrandom(&word, sizeof(word), 0) == sizeof(word));
  return word;
}

std::string NewStateKey() { return HashText({RandomWord(), RandomWord()}); }

bool IsStateKey(std::string_view text) {
  return text.size() == kKeyDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsEntryKey(std::string_view name) {
  return !name.empty() &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

}  // namespace polysketch
