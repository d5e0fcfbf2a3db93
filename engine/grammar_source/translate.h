// Sources of grammars as EBNF, the one language that the compiler of grammars is given.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/request/params.h"

namespace polysketch {

// INVALID_ARGUMENT for a source that is no grammar, or that has a part that the grammar would not
// hold.
Result<std::string> ToEbnf(const GrammarSource& source);

}  // namespace polysketch
