#include "engine/grammar_source/decimal.h"

#include <algorithm>
#include <cctype>

namespace polysketch {
namespace {

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole().size() != b.whole().size()) return a.whole().size() < b.whole().size() ? -1 : 1;
  const int order = a.whole().compare(b.whole());
  return order != 0 ? order : a.fraction().compare(b.fraction());
}

}  // namespace

std::optional<Decimal> Decimal::Parse(std::string_view text) {
  Decimal number;
  if (text.starts_with('-')) {
    number.negative_ = true;
    text.remove_prefix(1);
  }
  std::string digits;
  int64_t point = -1;
  size_t i = 0;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      point = std::ssize(digits);
    } else {
      digits += text[i];
    }
  }
  if (point < 0) point = std::ssize(digits);
  if (i < text.size()) {
    std::string_view exponent = text.substr(i + 1);
    const bool minus = exponent.starts_with('-');
    if (minus || exponent.starts_with('+')) exponent.remove_prefix(1);
    int64_t value = 0;
    for (const char c : exponent) value = std::min<int64_t>(value * 10 + (c - '0'), 1'000'000);
    point += minus ? -value : value;
  }
  // The number is 0.DIGITS times ten to the `point`.
  const size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, zeros);
  point -= static_cast<int64_t>(zeros);
  while (digits.ends_with('0')) digits.pop_back();
  if (digits.empty()) return Decimal();
  if (point > kMaxDigits || std::ssize(digits) - point > kMaxDigits) return std::nullopt;
  if (point < 0) {
    digits.insert(0, static_cast<size_t>(-point), '0');
    point = 0;
  }
  if (std::ssize(digits) < point) digits.append(static_cast<size_t>(point) - digits.size(), '0');
  number.whole_ = point == 0 ? "0" : digits.substr(0, static_cast<size_t>(point));
  number.fraction_ = digits.substr(static_cast<size_t>(point));
  return number;
}

Decimal Decimal::Magnitude() const {
  Decimal result = *this;
  result.negative_ = false;
  return result;
}

Decimal Decimal::Negated() const {
  Decimal result = *this;
  result.negative_ = !negative_ && !IsZero();
  return result;
}

std::optional<bool> Decimal::IsMultipleOf(const Decimal& divisor) const {
  // Both as integers of the same unit; the remainder by long division.
  const size_t places = std::max(fraction_.size(), divisor.fraction_.size());
  const auto scaled = [places](const Decimal& d) {
    return d.whole_ + d.fraction_ + std::string(places - d.fraction_.size(), '0');
  };
  std::string by = scaled(divisor);
  by.erase(0, std::min(by.find_first_not_of('0'), by.size()));
  if (by.empty() || by.size() > 17) return std::nullopt;
  const int64_t modulus = std::stoll(by);
  int64_t rest = 0;
  for (const char c : scaled(*this)) {
    rest = rest * 10 + (c - '0');
    rest %= modulus;
  }
  return rest == 0;
}

std::optional<int64_t> Decimal::ToInteger() const {
  if (!IsInteger() || whole_.size() > 18) return std::nullopt;
  const int64_t value = std::stoll(whole_);
  return negative_ ? -value : value;
}

int Decimal::Compare(const Decimal& other) const {
  if (negative_ != other.negative_) return negative_ ? -1 : 1;
  return negative_ ? CompareMagnitudes(other, *this) : CompareMagnitudes(*this, other);
}

}  // namespace polysketch
