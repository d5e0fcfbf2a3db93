#include "tests/e2e/evaluation.h"

#include <algorithm>

#include "tests/e2e/process.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {

std::optional<std::vector<int32_t>> EvalTokens(size_t most) {
  const std::filesystem::path path = testing::SharedDir() / "data" / "eval.bin";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::string bytes = ReadFile(path);  // uint16, little-endian
  std::vector<int32_t> tokens(std::min(most, bytes.size() / 2));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<uint8_t>(bytes[2 * i]) | static_cast<uint8_t>(bytes[2 * i + 1]) << 8;
  }
  return tokens;
}

}  // namespace polysketch::e2e
