// Takes control pieces out of an output whose marks are control pieces too: the engine shows all of
// them or none.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

class ControlFilter {
 public:
  // `marks`: pieces that stay; static.
  ControlFilter(const Tokenizer* tokenizer, std::vector<std::string_view> marks)
      : tokenizer_(tokenizer), marks_(std::move(marks)) {}

  // A token was generated. Its text comes with it or later.
  void Add(int32_t token);
  // Returns what is certain of the text without the pieces of such tokens. `ends`: it is the last.
  std::string Take(std::string_view text, bool ends);

 private:
  const Tokenizer* tokenizer_;
  std::vector<std::string_view> marks_;
  std::deque<std::string_view> due_;  // pieces whose text comes, in order
  std::string held_;                  // may begin the first of them
};

}  // namespace polysketch
