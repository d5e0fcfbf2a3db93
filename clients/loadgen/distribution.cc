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
    "expected N, uniform:MIN:MAX, normal:MEAN:DEVIATION, exponential:MEAN or "
    "lognormal:MEDIAN:SIGMA, found '";

struct Kind {
  std::string_view name;
  size_t parameters;
  double (*sample)(double a, double b, Random* random);
};

constexpr Kind kKinds[] = {
    {"fixed", 1, [](double a, double, Random*) { return a; }},
    {"uniform", 2,
     [](double a, double b, Random* random) {
       return a + std::floor(random->Uniform() * (b - a + 1));
     }},
    {"normal", 2, [](double a, double b, Random* random) { return a + b * random->Normal(); }},
    {"exponential", 1, [](double a, double, Random* random) { return a * random->Exponential(); }},
    {"lognormal", 2,
     [](double a, double b, Random* random) { return a * std::exp(b * random->Normal()); }},
};

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
  std::vector<std::string_view> parts = Split(text);
  if (parts.size() == 1) parts.insert(parts.begin(), "fixed");
  Distribution parsed;
  parsed.text_ = text;
  for (size_t i = 1; i < parts.size(); ++i) {
    double& number = i == 1 ? parsed.a_ : parsed.b_;
    if (!ParseValue(std::string(parts[i]), &number).ok() ||
        !(number >= 0 && number <= double(kMax))) {
      return InvalidArgument(kForms, text, "' (numbers from 0 to ", kMax, ")");
    }
  }
  for (const Kind& kind : kKinds) {
    if (parts[0] != kind.name || parts.size() != 1 + kind.parameters) continue;
    if (kind.name == "uniform" && parsed.a_ > parsed.b_) break;
    parsed.sample_ = kind.sample;
    return parsed;
  }
  return InvalidArgument(kForms, text, "'");
}

int64_t Distribution::Sample(Random* random) const {
  const double value = sample_ == nullptr ? a_ : sample_(a_, b_, random);
  return static_cast<int64_t>(std::clamp(std::round(value), 1.0, double(kMax)));
}

}  // namespace polysketch::loadgen
