#include "clients/cpp/fresh_windows.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace polysketch {

std::vector<FreshWindow> WindowCutter::Append(std::span<const int32_t> tokens,
                                              std::span<const float> logprobs) {
  PS_CHECK(tokens.size() == logprobs.size()) << tokens.size() << " " << logprobs.size();
  std::vector<FreshWindow> windows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens_.push_back(tokens[i]);
    losses_.push_back(-static_cast<double>(logprobs[i]));
    // A window has one token more than its length: the last one is only predicted.
    if (next_++ == begin_ + shape_.length) windows.push_back(TakeWindow(next_));
  }
  return windows;
}

std::vector<FreshWindow> WindowCutter::Finish() {
  const int64_t counted_from = begin_ == 0 ? 1 : begin_ + shape_.warm_up + 1;
  if (next_ <= counted_from) return {};
  return {TakeWindow(next_)};
}

FreshWindow WindowCutter::TakeWindow(int64_t end) {
  FreshWindow window;
  window.at_start = begin_ == 0;
  window.first = window.at_start ? 1 : begin_ + shape_.warm_up + 1;
  const auto at = [this](const auto& values, int64_t index) {
    return values.begin() + static_cast<ptrdiff_t>(index - held_);
  };
  window.deep.assign(at(losses_, window.first), at(losses_, end));
  if (!window.at_start) window.tokens.assign(at(tokens_, begin_), at(tokens_, end));

  begin_ += shape_.stride();
  const int64_t kept = std::min(begin_, next_);  // the last window may end before the next begins
  tokens_.erase(tokens_.begin(), at(tokens_, kept));
  losses_.erase(losses_.begin(), at(losses_, kept));
  held_ = kept;
  return window;
}

}  // namespace polysketch
