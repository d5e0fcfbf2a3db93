// Keys of store entries: unguessable, since a client that knows a key of its tenant may use it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace polysketch {

// 64 bits of the kernel's random generator.
uint64_t RandomWord();

// 128 random bits as 32 hexadecimal digits.
std::string NewStateKey();
// Whether `text` has the form of NewStateKey.
bool IsStateKey(std::string_view text);
// Whether `name` has the form of the key of an entry, [a-z0-9-]+. What others have put beside the
// entries is none.
bool IsEntryKey(std::string_view name);

}  // namespace polysketch
