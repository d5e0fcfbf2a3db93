#pragma once

#include <cstdint>
#include <random>

namespace polysketch {

// 64 random bits, for ids and samples that need not be secret.
inline uint64_t RandomBits() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }()};
  return generator();
}

}  // namespace polysketch
