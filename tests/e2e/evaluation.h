// The long text in ../shared.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace polysketch::e2e {

// The first `most` tokens of data/eval.bin; none where it is absent.
std::optional<std::vector<int32_t>> EvalTokens(size_t most = SIZE_MAX);

}  // namespace polysketch::e2e
