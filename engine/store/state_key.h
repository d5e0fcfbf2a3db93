// Names of entries in a store: unguessable, since a client that knows a name of its tenant may use
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace polysketch {

// 64 bits of the kernel's random generator.
uint64_t RandomWord();

// 128 random bits as 32 hexadecimal digits.
std::string NewStateKey();
// Whether a client may have got it from NewStateKey.
bool IsStateKey(std::string_view text);

}  // namespace polysketch
