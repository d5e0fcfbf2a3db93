// Sets of Unicode scalar values.
#pragma once

#include <initializer_list>
#include <vector>

namespace polysketch {

// Surrogates are in no set: a range that contains them is cut.
class CodePoints {
 public:
  struct Range {
    char32_t first;
    char32_t last;
    bool operator==(const Range&) const = default;
  };

  CodePoints() = default;
  CodePoints(std::initializer_list<Range> ranges) : CodePoints(std::vector<Range>(ranges)) {}
  explicit CodePoints(const std::vector<Range>& ranges);
  static CodePoints All() { return CodePoints({{0, 0x10ffff}}); }

  // Sorted; neighbours do not touch.
  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  bool Contains(char32_t c) const;
  // The only element, if there is one element.
  bool IsOne() const { return ranges_.size() == 1 && ranges_[0].first == ranges_[0].last; }

  CodePoints Complement() const;
  friend CodePoints operator|(const CodePoints& a, const CodePoints& b);
  friend CodePoints operator&(const CodePoints& a, const CodePoints& b) {
    return (a.Complement() | b.Complement()).Complement();
  }
  friend CodePoints operator-(const CodePoints& a, const CodePoints& b) {
    return a & b.Complement();
  }
  bool operator==(const CodePoints&) const = default;

 private:
  std::vector<Range> ranges_;
};

}  // namespace polysketch
