// Structural tags: texts in which JSON stands between fixed marks, as EBNF.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// The texts that `tag` describes, JSON in the format of xgrammar's structural tags
// (docs/structured-output.md). INVALID_ARGUMENT begins with the path of what is wrong.
Result<std::string> StructuralTagToEbnf(std::string_view tag, bool compact);

}  // namespace polysketch
