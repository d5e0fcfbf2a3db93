// A call as Python writes it, to JSON: get_weather(city="Paris", days=3).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace polysketch {

struct PythonCall {
  std::string name;
  std::string arguments;  // a JSON object
};

// nullopt for a text that is no call whose arguments are keywords, or one dict after **, and
// literals of Python: strings, numbers, True, False, None (and true, false, null), lists, tuples,
// dicts whose keys are strings, integers, True, False or None. Nesting is at most kMaxJsonDepth;
// integers in another base than ten have 64 bits.
std::optional<PythonCall> ParsePythonCall(std::string_view text);

}  // namespace polysketch
