// Reads a JSON text byte by byte, as it arrives, and says where it is: a program that waits for the
// end of a value knows it without reading the text again.
#pragma once

#include <cstdint>
#include <string>

#include "base/bounded_json.h"

namespace polysketch {

// White space of JSON.
inline bool IsJsonSpace(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Accepts what ParseJson accepts, but for half pairs of surrogates, bytes that are not UTF-8 and
// numbers out of range, which it does not look at. The text is an array or an object.
class JsonScanner {
 public:
  explicit JsonScanner(int max_depth = kMaxJsonDepth) : max_depth_(max_depth) {}

  // What the next byte belongs to, or may begin.
  enum class Place : uint8_t {
    kValue,
    kFirstItem,  // of an array, or its end
    kFirstKey,   // of an object, or its end
    kKey,
    kColon,
    kAfterValue,
    kString,  // of a value
    kKeyString,
    kScalar,  // a number or a word
    kEnd,     // the text is complete
    kError,   // the text is no JSON
  };

  // Takes the next byte. Returns the place after it. Neither kEnd nor kError is left again.
  Place Take(char c);
  Place place() const { return place_; }
  // Arrays and objects that are open.
  int depth() const { return static_cast<int>(open_.size()); }

 private:
  Place Value(char c);
  Place AfterValue(char c);
  Place String(char c);
  Place Scalar(char c);
  Place Close(char c);

  const int max_depth_;
  Place place_ = Place::kValue;
  std::string open_;  // "[{"
  int escape_ = 0;  // of a string: 1 after a backslash; 2 to 5: hexadecimal digits that follow, + 1
  std::string word_;    // what is left of true, false or null; empty: a number
  char number_ = '\0';  // of a number: the state of Scalar
};

}  // namespace polysketch
