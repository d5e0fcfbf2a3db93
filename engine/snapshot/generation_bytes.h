// The section of a snapshot that holds a stopped completion.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

std::string GenerationBytes(const Generation& generation);
// DATA_LOSS for bytes that GenerationBytes cannot have written; values are CheckSnapshot's to
// judge.
Result<std::optional<Generation>> ReadGeneration(std::string_view bytes);

}  // namespace polysketch
