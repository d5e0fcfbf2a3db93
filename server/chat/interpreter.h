// Runs the syntax tree of a chat template.
#pragma once

#include "base/status.h"
#include "engine/tokenizer/marked_text.h"
#include "server/chat/budget.h"
#include "server/chat/syntax.h"

namespace polysketch::chat {

// Size in bytes of a rendered prompt.
inline constexpr size_t kMaxOutputBytes = size_t{128} << 20;

// Returns the text of a template. `variables`: "messages", "bos_token", ... INVALID_ARGUMENT for an
// error of the template ("line 3: ..."), for messages that it refuses (raise_exception), and beyond
// the limits of time, memory and nesting.
// `hold`: takes the memory of what it makes; null: nothing is counted.
Result<MarkedText> Render(const Block& block, const Dict& variables, HoldMemory hold = nullptr);

}  // namespace polysketch::chat
