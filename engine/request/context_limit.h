// The limit of the length of a sequence.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace polysketch {

// Checks that `prompt` tokens (those of a session or a state count) and `output` tokens after them
// are at most `limit` (EngineOptions::context_limit; 0: no limit). INVALID_ARGUMENT with the reason
// CONTEXT_LENGTH_EXCEEDED; programs of others know the message by its first words.
inline Status CheckContext(int64_t limit, int64_t prompt, int64_t output) {
  if (limit == 0 || prompt + output <= limit) return Status();
  return InvalidArgument("prompt: this model's maximum context length is ", limit,
                         " tokens: expected prompt and output to be at most that together, found ",
                         prompt, " + ", output)
      .WithReason(Reason::kContextLengthExceeded);
}

}  // namespace polysketch
