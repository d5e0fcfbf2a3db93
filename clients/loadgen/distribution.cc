#include "clients/loadgen/distribution.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "clients/cpp/options.h"

namespace polysketch::loadgen {
namespace {

constexpr char kForms[] =
    "expected N, uniform:LEAST:MOST, normal:MEAN:DEVIATION, exponential:MEAN or "
    "lognormal:MEDIAN:SIGMA, found '";

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t colon = text.find(':');
    parts.push_back(text.substr(0, colon));
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

}  // namespace

double Random::Uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }

int64_t Random::Below(int64_t limit) {
  return static_cast<int64_t>(Uniform() * static_cast<double>(limit));
}

double Random::Exponential() { return -std::log1p(-Uniform()); }

double Random::Normal() {
  const double radius = std::sqrt(2 * Exponential());
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

Result<Distribution> Distribution::Parse(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text);
  Distribution parsed;
  std::vector<double> numbers;
  for (size_t i = parts.size() == 1 ? 0 : 1; i < parts.size(); ++i) {
    double number = 0;
    if (!ParseValue(parts[i], &number).ok() || !(number >= 0 && number <= double(kMax))) {
      return InvalidArgument(kForms, text, "' (numbers from 0 to ", kMax, ")");
    }
    numbers.push_back(number);
  }
  const std::string_view name = parts.size() == 1 ? "fixed" : parts[0];
  const auto is = [&](std::string_view kind, size_t count) {
    return name == kind && numbers.size() == count;
  };
  if (is("fixed", 1)) {
    parsed.kind_ = Kind::kFixed;
  } else if (is("uniform", 2) && numbers[0] <= numbers[1]) {
    parsed.kind_ = Kind::kUniform;
  } else if (is("normal", 2)) {
    parsed.kind_ = Kind::kNormal;
  } else if (is("exponential", 1)) {
    parsed.kind_ = Kind::kExponential;
  } else if (is("lognormal", 2)) {
    parsed.kind_ = Kind::kLognormal;
  } else {
    return InvalidArgument(kForms, text, "'");
  }
  parsed.a_ = numbers[0];
  if (numbers.size() > 1) parsed.b_ = numbers[1];
  return parsed;
}

int64_t Distribution::Draw(Random* random) const {
  double value = a_;
  switch (kind_) {
    case Kind::kFixed:
      break;
    case Kind::kUniform:
      value = a_ + std::floor(random->Uniform() * (b_ - a_ + 1));
      break;
    case Kind::kNormal:
      value = a_ + b_ * random->Normal();
      break;
    case Kind::kExponential:
      value = a_ * random->Exponential();
      break;
    case Kind::kLognormal:
      value = a_ * std::exp(b_ * random->Normal());
      break;
  }
  return static_cast<int64_t>(std::clamp(std::round(value), 1.0, double(kMax)));
}

}  // namespace polysketch::loadgen
