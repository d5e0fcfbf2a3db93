// The word that a person meant who typed another one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace polysketch {

// The word of `known` that few insertions, removals, replacements and swaps of neighbours make of
// `word`; empty: none is near. Of equals the first of the alphabet.
std::string NearestWord(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace polysketch
