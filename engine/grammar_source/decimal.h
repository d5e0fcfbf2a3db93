// Numbers of JSON, exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace polysketch {

class Decimal {
 public:
  // Digits before and after the point of a number that Parse accepts.
  static constexpr int kMaxDigits = 400;

  Decimal() = default;
  // `text` is a number of JSON; nullopt for one with more digits.
  static std::optional<Decimal> Parse(std::string_view text);

  bool negative() const { return negative_; }
  bool IsZero() const { return whole_ == "0" && fraction_.empty(); }
  bool IsInteger() const { return fraction_.empty(); }
  // Of the magnitude: digits before the point, without leading zeros ("0"), and after it, without
  // zeros at the end.
  const std::string& whole() const { return whole_; }
  const std::string& fraction() const { return fraction_; }
  Decimal Magnitude() const;
  Decimal Negated() const;
  // Whether it is a multiple of `divisor`, which is above zero; nullopt if that has too many
  // digits.
  std::optional<bool> IsMultipleOf(const Decimal& divisor) const;
  // The value, of at most 18 digits and no fraction, else nullopt.
  std::optional<int64_t> ToInteger() const;

  // Below zero, zero or above: as *this is less than, equal to or greater than `other`.
  int Compare(const Decimal& other) const;
  bool operator==(const Decimal& other) const { return Compare(other) == 0; }
  bool operator<(const Decimal& other) const { return Compare(other) < 0; }
  bool operator>(const Decimal& other) const { return Compare(other) > 0; }
  bool operator<=(const Decimal& other) const { return Compare(other) <= 0; }

 private:
  bool negative_ = false;
  std::string whole_ = "0";
  std::string fraction_;
};

// A bound of numbers.
struct Bound {
  Decimal value;
  bool exclusive = false;
};

}  // namespace polysketch
