#include "engine/grammar_source/number_range.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace polysketch {
namespace {

// Of a number with bounds, if these have no more. A double tells such numbers apart, so that a
// reader that rounds finds each on its side of a bound.
constexpr int kSignificantDigits = 16;

Ebnf Digits(long long min, long long max) {
  return Ebnf::Repeat(Ebnf::Class({{'0', '9'}}), min, max);
}
Ebnf Digit(char first, char last) {
  return Ebnf::Class({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}

// Digit strings of one length from `low` to `high`.
Ebnf SameLength(const std::string& low, const std::string& high) {
  const auto rest = static_cast<long long>(low.size());
  if (rest == 0) return Ebnf();
  if (low.find_first_not_of('0') == std::string::npos &&
      high.find_first_not_of('9') == std::string::npos)
    return Digits(rest, rest);
  if (low[0] == high[0])
    return Ebnf::Sequence({Digit(low[0], low[0]), SameLength(low.substr(1), high.substr(1))});
  const std::string zeros(low.size() - 1, '0'), nines(low.size() - 1, '9');
  char first = low[0], last = high[0];
  std::vector<Ebnf> choices;
  if (low.substr(1) != zeros) {
    choices.push_back(Ebnf::Sequence({Digit(first, first), SameLength(low.substr(1), nines)}));
    ++first;
  }
  const bool cut = high.substr(1) != nines;
  if (cut) --last;
  if (first <= last)
    choices.push_back(Ebnf::Sequence({Digit(first, last), Digits(rest - 1, rest - 1)}));
  if (cut) {
    choices.push_back(Ebnf::Sequence({Digit(high[0], high[0]), SameLength(zeros, high.substr(1))}));
  }
  return Ebnf::Choice(choices);
}

int Compare(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

std::string Successor(std::string digits) {
  size_t i = digits.size();
  while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
  if (i == 0) return digits.insert(0, 1, '1');
  ++digits[i - 1];
  return digits;
}

// Of a number above zero.
std::string Predecessor(std::string digits) {
  size_t i = digits.size();
  while (digits[i - 1] == '0') digits[--i] = '9';
  --digits[i - 1];
  if (digits.size() > 1 && digits[0] == '0') digits.erase(0, 1);
  return digits;
}

// Integers from `low` to `high`, which may be absent, without leading zeros.
void AddIntegers(const std::string& low, const std::optional<std::string>& high,
                 std::vector<Ebnf>* choices) {
  if (high && Compare(low, *high) > 0) return;
  if (high && low.size() == high->size()) {
    choices->push_back(SameLength(low, *high));
    return;
  }
  choices->push_back(SameLength(low, std::string(low.size(), '9')));
  const auto longer = static_cast<long long>(low.size());
  if (!high) {
    choices->push_back(Ebnf::Sequence({Digit('1', '9'), Digits(longer, -1)}));
    return;
  }
  const auto top = static_cast<long long>(high->size());
  if (top - 1 > longer)
    choices->push_back(Ebnf::Sequence({Digit('1', '9'), Digits(longer, top - 2)}));
  choices->push_back(SameLength(StrCat('1', std::string(high->size() - 1, '0')), *high));
}

// Numbers without a sign between bounds.
class Magnitudes {
 public:
  Magnitudes(bool integer, const Bound& low, const std::optional<Bound>& high, EbnfRules* rules)
      : integer_(integer), low_(low), high_(high), rules_(rules) {
    const size_t whole = std::max(low.value.whole().size(), high ? high->value.whole().size() : 0);
    places_ = std::max(low.value.fraction().size(), high ? high->value.fraction().size() : 0);
    limit_ = std::max(kSignificantDigits - static_cast<int>(whole), 0);
    if (places_ > 0) limit_ = std::max(limit_, static_cast<int>(places_) + 1);
  }

  void Add(std::vector<Ebnf>* choices) {
    const std::string& low = low_.value.whole();
    if (!high_) {
      AddWith(low, true, false, choices);
      AddBetween(Successor(low), std::nullopt, choices);
      return;
    }
    const std::string& high = high_->value.whole();
    const int order = Compare(low, high);
    if (order > 0) return;
    AddWith(low, true, order == 0, choices);
    if (order == 0) return;
    if (Compare(Successor(low), high) < 0) AddBetween(Successor(low), Predecessor(high), choices);
    AddWith(high, false, true, choices);
  }

 private:
  // Whole parts strictly between those of the bounds: any fraction.
  void AddBetween(const std::string& low, const std::optional<std::string>& high,
                  std::vector<Ebnf>* choices) {
    std::vector<Ebnf> whole;
    AddIntegers(low, high, &whole);
    if (whole.empty()) return;
    Ebnf fraction;
    if (!integer_ && limit_ > 0)
      fraction = Ebnf::Repeat(Ebnf::Sequence({Ebnf::Literal("."), Digits(1, limit_)}), 0, 1);
    choices->push_back(Ebnf::Sequence({Ebnf::Choice(whole), fraction}));
  }

  // A whole part that is that of a bound.
  void AddWith(const std::string& whole, bool at_low, bool at_high, std::vector<Ebnf>* choices) {
    if (MayEnd(0, at_low, at_high)) choices->push_back(Ebnf::Literal(whole));
    if (integer_) return;
    if (const auto fraction = Fraction(0, at_low, at_high))
      choices->push_back(Ebnf::Sequence({Ebnf::Literal(whole + "."), *fraction}));
  }

  char At(const std::optional<Bound>& bound, size_t i) const {
    return bound && i < bound->value.fraction().size() ? bound->value.fraction()[i] : '0';
  }
  static bool RestIsZero(const Bound& bound, size_t i) {
    return i >= bound.value.fraction().size();
  }

  // Whether a fraction may end before digit i; at_low: so far it equals that of the lower bound.
  bool MayEnd(size_t i, bool at_low, bool at_high) const {
    if (at_low && (!RestIsZero(low_, i) || low_.exclusive)) return false;
    return !at_high || !RestIsZero(*high_, i) || !high_->exclusive;
  }

  // At least one digit from digit i on; nullopt if there is none.
  std::optional<Ebnf> Fraction(size_t i, bool at_low, bool at_high) {
    const auto left = static_cast<long long>(limit_) - static_cast<long long>(i);
    if (left <= 0) return std::nullopt;
    if (i >= places_ && at_low && !low_.exclusive) at_low = false;
    if (!at_low && !at_high) return Digits(1, left);
    if (i >= places_) {
      if (!at_high) {  // above the lower bound: not zeros alone
        std::vector<Ebnf> choices;
        for (long long zeros = 0; zeros < left; ++zeros) {
          choices.push_back(
              Ebnf::Sequence({Ebnf::Literal(std::string(static_cast<size_t>(zeros), '0')),
                              Digit('1', '9'), Digits(0, left - 1 - zeros)}));
        }
        return Ebnf::Choice(choices);
      }
      if (at_low || high_->exclusive) return std::nullopt;
      return Ebnf::Repeat(Ebnf::Literal("0"), 1, left);
    }
    const char low = at_low ? At(low_, i) : '0';
    const char high = at_high ? At(high_, i) : '9';
    if (low > high) return std::nullopt;
    std::vector<Ebnf> choices;
    const auto add = [&](char digit, bool stays_low, bool stays_high) {
      std::vector<Ebnf> rest;
      if (MayEnd(i + 1, stays_low, stays_high)) rest.push_back(Ebnf());
      if (const auto more = Fraction(i + 1, stays_low, stays_high)) rest.push_back(*more);
      if (rest.empty()) return;
      choices.push_back(Ebnf::Sequence({Digit(digit, digit), Ebnf::Choice(rest)}));
    };
    char first = low, last = high;
    if (at_low) {
      add(low, true, at_high && low == high);
      ++first;
    }
    if (at_high && !(at_low && low == high)) {
      add(high, false, true);
      --last;
    }
    if (first <= last) choices.push_back(Ebnf::Sequence({Digit(first, last), Digits(0, left - 1)}));
    if (choices.empty()) return std::nullopt;
    return rules_->Add(Ebnf::Choice(choices));
  }

  const bool integer_;
  const Bound low_;
  const std::optional<Bound> high_;
  EbnfRules* const rules_;
  int limit_ = 0;      // digits of a fraction
  size_t places_ = 0;  // of the bounds
};

Ebnf AnyNumber(bool integer) {
  const Ebnf whole =
      Ebnf::Choice({Ebnf::Literal("0"), Ebnf::Sequence({Digit('1', '9'), Digits(0, -1)})});
  const Ebnf sign = Ebnf::Repeat(Ebnf::Literal("-"), 0, 1);
  if (integer) return Ebnf::Sequence({sign, whole});
  const Ebnf fraction = Ebnf::Repeat(Ebnf::Sequence({Ebnf::Literal("."), Digits(1, -1)}), 0, 1);
  // No exponent of more than 299: the number is finite for a reader that has doubles.
  const Ebnf exponent = Ebnf::Repeat(
      Ebnf::Sequence(
          {Ebnf::Class({{'E', 'E'}, {'e', 'e'}}),
           Ebnf::Repeat(Ebnf::Class({{'+', '+'}, {'-', '-'}}), 0, 1),
           Ebnf::Choice({Digits(1, 2), Ebnf::Sequence({Digit('1', '2'), Digits(2, 2)})})}),
      0, 1);
  return Ebnf::Sequence({sign, whole, fraction, exponent});
}

// Multiples of `modulus` without bounds: one rule for each remainder of the digits so far.
Ebnf Multiples(int64_t modulus, EbnfRules* rules) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < modulus; ++i) names.push_back(rules->Declare());
  for (int64_t rest = 0; rest < modulus; ++rest) {
    std::vector<Ebnf> choices;
    if (rest == 0) choices.push_back(Ebnf());
    for (int64_t digit = 0; digit < 10; ++digit) {
      const auto next = static_cast<size_t>((rest * 10 + digit) % modulus);
      choices.push_back(
          Ebnf::Sequence({Digit(static_cast<char>('0' + digit), static_cast<char>('0' + digit)),
                          Ebnf::Rule(names[next])}));
    }
    rules->Define(names[static_cast<size_t>(rest)], Ebnf::Choice(choices));
  }
  std::vector<Ebnf> first = {Ebnf::Literal("0")};
  for (int64_t digit = 1; digit < 10; ++digit) {
    first.push_back(
        Ebnf::Sequence({Digit(static_cast<char>('0' + digit), static_cast<char>('0' + digit)),
                        Ebnf::Rule(names[static_cast<size_t>(digit % modulus)])}));
  }
  return Ebnf::Sequence({Ebnf::Repeat(Ebnf::Literal("-"), 0, 1), rules->Add(Ebnf::Choice(first))});
}

// Multiples between two bounds; nullopt if there are none, or too many.
std::optional<Ebnf> BoundedMultiples(const NumberRange& range) {
  const auto low = range.min->value.ToInteger(), high = range.max->value.ToInteger();
  if (!low || !high || *low > *high) return std::nullopt;
  int64_t first = *low / range.multiple_of * range.multiple_of;
  if (first < *low) first += range.multiple_of;
  if ((*high - first) / range.multiple_of >= kMaxMultiples) return std::nullopt;
  std::vector<Ebnf> choices;
  for (int64_t value = first; value <= *high; value += range.multiple_of) {
    const bool excluded =
        (range.min->exclusive && value == *low) || (range.max->exclusive && value == *high);
    if (!excluded) choices.push_back(Ebnf::Literal(std::to_string(value)));
  }
  if (choices.empty()) return std::nullopt;
  return Ebnf::Choice(choices);
}

}  // namespace

std::optional<Ebnf> NumbersWithin(const NumberRange& range, EbnfRules* rules) {
  if (range.multiple_of > 1) {
    if (!range.min && !range.max) return Multiples(range.multiple_of, rules);
    if (!range.min || !range.max) return std::nullopt;
    return BoundedMultiples(range);
  }
  if (!range.min && !range.max) return AnyNumber(range.integer);
  if (range.min && range.max && range.min->value > range.max->value) return std::nullopt;
  std::vector<Ebnf> choices, negative;
  const Bound zero;
  // Zero and above.
  if (!range.max || !range.max->value.negative()) {
    const bool from_zero = !range.min || range.min->value.negative();
    Magnitudes(range.integer, from_zero ? zero : *range.min, range.max, rules).Add(&choices);
  }
  // Below zero: magnitudes above zero, or from that of the upper bound.
  const bool any_negative = !range.min || range.min->value.negative();
  if (any_negative) {
    Bound from{.value = {}, .exclusive = true};
    if (range.max && range.max->value.negative())
      from = {.value = range.max->value.Negated(), .exclusive = range.max->exclusive};
    std::optional<Bound> to;
    if (range.min) to = {.value = range.min->value.Negated(), .exclusive = range.min->exclusive};
    Magnitudes(range.integer, from, to, rules).Add(&negative);
  }
  if (!negative.empty())
    choices.push_back(Ebnf::Sequence({Ebnf::Literal("-"), Ebnf::Choice(negative)}));
  if (choices.empty()) return std::nullopt;
  return rules->Add(Ebnf::Choice(choices));
}

}  // namespace polysketch
