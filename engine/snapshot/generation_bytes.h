// The section of a snapshot file that holds a migrated completion.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/snapshot/snapshot.h"

namespace polysketch {

std::string GenerationBytes(const Generation& generation);
// DATA_LOSS for bytes that GenerationBytes does not write. The values are checked by CheckSnapshot.
Result<Generation> ReadGeneration(std::string_view bytes);

}  // namespace polysketch
