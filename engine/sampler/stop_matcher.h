// Finds stop strings in a text that arrives in pieces and never lets a part of a match out.
//
// The match is the one that ends first; of several that end at the same byte, the longest. So the
// result is a property of the text, whatever its split. Text is held back only while it is a proper
// prefix of some stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace polysketch {

class StopMatcher {
 public:
  // `stops` are not empty. include_match: a match is let out too, and ends the text.
  StopMatcher(const std::vector<std::string>& stops, bool include_match);

  // Appends to `out` what is certain now. Returns true when a stop string matched: the text ends
  // there, and no further call is allowed but matched() and Finish().
  bool Append(std::string_view text, std::string* out);
  // What is still held back; nothing after a match.
  std::string Finish();
  // What is held back now. Appended to a new matcher it gives the same state.
  const std::string& held() const { return held_; }
  // The stop string that matched; empty before.
  const std::string& matched() const { return matched_; }

 private:
  // Knuth-Morris-Pratt over one stop string.
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // border[i]: longest proper prefix of text[0, i] that is also its
                                 // suffix; border[0] = 0
    size_t state = 0;            // bytes of text that the input ends with

    void Step(char c);
  };

  std::vector<Pattern> patterns_;
  const bool include_match_;
  std::string held_;
  std::string matched_;
};

}  // namespace polysketch
