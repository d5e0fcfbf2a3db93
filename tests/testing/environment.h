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

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitized;
#endif

// Sanitizers look for other faults than wrong numbers, at many times the cost: a quarter of the
// reduced count shows them.
inline int Count(int reduced, int full) {
  if (FullCounts()) return full;
  return kSanitized ? (reduced + 3) / 4 : reduced;
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
