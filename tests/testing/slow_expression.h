// A regular expression that a grammar compiler works on for long.
#pragma once

#include <string>

namespace polysketch::testing {

// `repetitions` alternatives whose states xgrammar makes deterministic: about a second for 60, more
// than 20 s for 300.
inline std::string SlowExpression(int repetitions) {
  std::string text = "[a-z]{1,1}";
  for (int i = 2; i <= repetitions; ++i) text += "|[a-z]{1," + std::to_string(i) + "}";
  return "(" + text + ")*";
}

}  // namespace polysketch::testing
