#include "base/json_scanner.h"

#include <string_view>

namespace polysketch {
namespace {

using Place = JsonScanner::Place;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsHex(char c) { return IsDigit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

// The states of a number, by what was read last: '-', '0' (alone), '1' (digits), '.', 'f' (digits
// of the fraction), 'e', '+' (a sign of the exponent), 'x' (its digits). NUL: the byte does not
// continue it.
char NextInNumber(char state, char c) {
  switch (state) {
    case '-':
      return c == '0' ? '0' : IsDigit(c) ? '1' : '\0';
    case '0':
    case '1':
      if (state == '1' && IsDigit(c)) return '1';
      return c == '.' ? '.' : c == 'e' || c == 'E' ? 'e' : '\0';
    case '.':
      return IsDigit(c) ? 'f' : '\0';
    case 'f':
      return IsDigit(c) ? 'f' : c == 'e' || c == 'E' ? 'e' : '\0';
    case 'e':
      return c == '+' || c == '-' ? '+' : IsDigit(c) ? 'x' : '\0';
    default:
      return IsDigit(c) ? 'x' : '\0';
  }
}

bool MayEndNumber(char state) {
  return state == '0' || state == '1' || state == 'f' || state == 'x';
}

}  // namespace

Place JsonScanner::Take(char c) {
  switch (place_) {
    case Place::kString:
    case Place::kKeyString:
      return place_ = String(c);
    case Place::kScalar:
      return place_ = Scalar(c);
    case Place::kError:
      return place_;
    default:
      break;
  }
  if (IsJsonSpace(c)) return place_;
  switch (place_) {
    case Place::kFirstItem:
      return place_ = c == ']' ? Close(c) : Value(c);
    case Place::kFirstKey:
      if (c == '}') return place_ = Close(c);
      [[fallthrough]];
    case Place::kKey:
      return place_ = c == '"' ? Place::kKeyString : Place::kError;
    case Place::kColon:
      return place_ = c == ':' ? Place::kValue : Place::kError;
    case Place::kAfterValue:
      return place_ = AfterValue(c);
    case Place::kValue:
      return place_ = Value(c);
    default:
      return place_ = Place::kError;
  }
}

Place JsonScanner::Value(char c) {
  if (c == '[' || c == '{') {
    if (depth() >= max_depth_) return Place::kError;
    open_ += c;
    return c == '[' ? Place::kFirstItem : Place::kFirstKey;
  }
  if (open_.empty()) return Place::kError;
  if (c == '"') return Place::kString;
  word_ = c == 't' ? "rue" : c == 'f' ? "alse" : c == 'n' ? "ull" : "";
  if (!word_.empty()) return Place::kScalar;
  if (c != '-' && !IsDigit(c)) return Place::kError;
  number_ = c == '-' || c == '0' ? c : '1';
  return Place::kScalar;
}

Place JsonScanner::AfterValue(char c) {
  if (c == ',') return open_.back() == '{' ? Place::kKey : Place::kValue;
  return Close(c);
}

Place JsonScanner::Close(char c) {
  if (c != (open_.back() == '{' ? '}' : ']')) return Place::kError;
  open_.pop_back();
  return open_.empty() ? Place::kEnd : Place::kAfterValue;
}

Place JsonScanner::String(char c) {
  if (escape_ > 1) {
    if (!IsHex(c)) return Place::kError;
    --escape_;
    if (escape_ == 1) escape_ = 0;
    return place_;
  }
  if (escape_ == 1) {
    if (c == 'u') {
      escape_ = 5;
      return place_;
    }
    escape_ = 0;
    return std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos ? Place::kError
                                                                            : place_;
  }
  if (static_cast<unsigned char>(c) < 0x20) return Place::kError;
  if (c == '\\') escape_ = 1;
  if (c != '"') return place_;
  return place_ == Place::kKeyString ? Place::kColon : Place::kAfterValue;
}

Place JsonScanner::Scalar(char c) {
  if (number_ == '\0') {
    if (c != word_.front()) return Place::kError;
    word_.erase(0, 1);
    return word_.empty() ? Place::kAfterValue : Place::kScalar;
  }
  if (const char next = NextInNumber(number_, c); next != '\0') {
    number_ = next;
    return Place::kScalar;
  }
  const bool ends = MayEndNumber(number_);
  number_ = '\0';
  if (!ends) return Place::kError;
  return IsJsonSpace(c) ? Place::kAfterValue : AfterValue(c);
}

}  // namespace polysketch
