#include "engine/sampler/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace polysketch {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_match)
    : include_match_(include_match) {
  for (const std::string& stop : stops) {
    PS_CHECK(!stop.empty());
    Pattern pattern{stop, std::vector<size_t>(stop.size(), 0)};
    for (size_t i = 1, k = 0; i < stop.size(); ++i) {
      while (k > 0 && stop[i] != stop[k]) k = pattern.border[k - 1];
      if (stop[i] == stop[k]) ++k;
      pattern.border[i] = k;
    }
    patterns_.push_back(std::move(pattern));
  }
}

bool StopMatcher::Pattern::Step(char c) {
  while (state > 0 && text[state] != c) state = border[state - 1];
  if (text[state] == c) ++state;
  if (state < text.size()) return false;
  state = border.back();
  return true;
}

bool StopMatcher::Append(std::string_view text, std::string* out, bool may_end) {
  PS_CHECK(matched_.empty()) << "Append after a match";
  if (patterns_.empty()) {
    out->append(text);
    return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const Pattern* match = nullptr;
    for (Pattern& pattern : patterns_) {
      if (pattern.Step(text[i]) && may_end &&
          (match == nullptr || pattern.text.size() > match->text.size())) {
        match = &pattern;
      }
    }
    if (match != nullptr) {
      held_.append(text.substr(0, i + 1));
      const size_t end = include_match_ ? held_.size() : held_.size() - match->text.size();
      out->append(held_, 0, end);
      held_.clear();
      matched_ = match->text;
      return true;
    }
  }
  held_.append(text);
  size_t hold = 0;
  for (const Pattern& pattern : patterns_) hold = std::max(hold, pattern.state);
  out->append(held_, 0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return false;
}

std::string StopMatcher::Finish() { return std::exchange(held_, std::string()); }

}  // namespace polysketch
