// Cuts a scored text into windows that are scored again from fresh starts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace polysketch {

// A window is read from an empty state. Each of its tokens that count has `warm_up` + 1 to `length`
// tokens before it in the window. The next window begins length - warm_up tokens later, so that
// every token of the text counts in one window.
struct WindowShape {
  int64_t length = 4096;
  int64_t warm_up = 2048;

  int64_t stride() const { return length - warm_up; }
};

struct FreshWindow {
  int64_t first = 0;            // index in the text of the first token that counts
  std::vector<double> deep;     // losses of the tokens that count, given the whole text before them
  std::vector<int32_t> tokens;  // to score: those that count are the last ones
  bool at_start = false;        // begins the text: `deep` are its losses, there is nothing to score
};

// Holds the tokens of one window.
class WindowCutter {
 public:
  explicit WindowCutter(const WindowShape& shape) : shape_(shape) {}

  // Appends tokens of the text in order, from its second one on: no token precedes the first. Their
  // losses are given all tokens before. Returns the windows that are complete.
  std::vector<FreshWindow> Append(std::span<const int32_t> tokens, std::span<const float> logprobs);
  // Returns the last window, which may be shorter; none if no token of it counts.
  std::vector<FreshWindow> Finish();

  // Tokens of the text so far, the first one included.
  int64_t text_tokens() const { return next_; }

 private:
  // Takes the window at begin_, of the tokens up to `end`.
  FreshWindow TakeWindow(int64_t end);

  const WindowShape shape_;
  int64_t begin_ = 0;  // where the current window begins in the text
  int64_t next_ = 1;   // index of the next token
  // Of the tokens held_ to next_ - 1.
  int64_t held_ = 1;
  std::vector<int32_t> tokens_;
  std::vector<double> losses_;
};

}  // namespace polysketch
