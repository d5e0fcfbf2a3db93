// The default of the tokens of a step.
#pragma once

#include <algorithm>

namespace polysketch {

// The kernels of a GPU are short beside their launches until a step has some thousand tokens.
inline constexpr int kDeviceStepTokens = 8192;

// The activations of a token of a 110M model take 50 KB: those of 128 tokens a thread stay near its
// core. Many threads need more tokens to share, and a long step delays other sequences.
inline int CpuStepTokens(int threads) { return std::clamp(128 * threads, 256, 512); }

inline int DefaultStepTokens(bool on_device, int threads) {
  return on_device ? kDeviceStepTokens : CpuStepTokens(threads);
}

}  // namespace polysketch
