// What a test learns from its environment: how much to run, and where the data lies.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace polysketch::testing {

// Whether POLYSKETCH_TEST_FULL=1: tests run their full counts.
inline bool FullCounts() {
  const char* value = std::getenv("POLYSKETCH_TEST_FULL");
  return value != nullptr && std::string(value) == "1";
}

#if defined(__SANITIZE_ADDRESS__)
inline constexpr int kSanitizerDivisor = 4;
#elif defined(__SANITIZE_THREAD__)
inline constexpr int kSanitizerDivisor = 10;
#else
inline constexpr int kSanitizerDivisor = 1;
#endif
inline constexpr bool kSanitized = kSanitizerDivisor > 1;

// Sanitizers look for other faults than wrong numbers, at many times the cost: a part of the reduced
// count shows them.
inline int Count(int reduced, int full) {
  if (FullCounts()) return full;
  return (reduced + kSanitizerDivisor - 1) / kSanitizerDivisor;
}

// The root of the source tree; ctest sets the variable.
inline std::filesystem::path SourceDir() {
  const char* value = std::getenv("POLYSKETCH_SOURCE_DIR");
  return value != nullptr ? std::filesystem::path(value) : std::filesystem::current_path();
}

// Large data kept beside the tree. It may be absent: tests then skip.
inline std::filesystem::path SharedDir() {
  const char* value = std::getenv("POLYSKETCH_SHARED");
  return value != nullptr ? std::filesystem::path(value) : SourceDir() / ".." / "shared";
}

}  // namespace polysketch::testing
