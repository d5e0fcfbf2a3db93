// What EBNF of a client may not have: parts that the compiler reads as something else than a
// grammar of texts, or drops.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// `text` with escapes of a fixed length: \xHH has two digits, as in GBNF, where the compiler takes
// all that follow. INVALID_ARGUMENT for a character U+0000, where the compiler would stop to read;
// for counts of a repetition that it would cut to 32 bits; for its macros (Regex, Token and others)
// and attributes of rules, which have an effect beyond the text. Whether the rest is EBNF is the
// compiler's to say.
Result<std::string> CheckedEbnf(std::string_view text);

}  // namespace polysketch
