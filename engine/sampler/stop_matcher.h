// Finds stop strings in a text that arrives in pieces, and never releases a part of a match.
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
  // No stop string is empty. include_match: the match is released too, as the end of the text.
  StopMatcher(const std::vector<std::string>& stops, bool include_match);

  // Appends to `out` the text that can no longer be part of a match. Returns true if a stop string
  // matched: the text ends there, and only matched() and Finish() may be called after it.
  // `may_end`: whether a stop string that ends in `text` counts as a match.
  bool Append(std::string_view text, std::string* out, bool may_end = true);
  // Returns the text that is still held back; empty after a match.
  std::string Finish();
  // The text that is held back now. Appending it to a new matcher, where it may not end, yields the
  // same state.
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

    // Takes a byte. Returns whether the text has ended; it may begin again within itself.
    bool Step(char c);
  };

  std::vector<Pattern> patterns_;
  const bool include_match_;
  std::string held_;
  std::string matched_;
};

}  // namespace polysketch
