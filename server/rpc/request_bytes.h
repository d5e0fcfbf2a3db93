// The memory that the engine takes for a completion, before it is taken.
#pragma once

#include <cstdint>

#include "engine/request/request.h"

namespace polysketch {

// Bytes of the prompt, of the parameters, which each choice has, of the history that drafts are
// looked for in, and of choices that wait for their ranking. Slots, states and events in a stream
// are not part of it. `default_draft_tokens`, `default_max_tokens`: of a request that does not set
// them.
int64_t EngineRequestBytes(const GenerateRequest& request, int64_t default_draft_tokens,
                           int64_t default_max_tokens);

}  // namespace polysketch
