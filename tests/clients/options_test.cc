#include "clients/cpp/options.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

struct Parsed {
  std::optional<int32_t> count;
  float real = 0;
  std::vector<std::string> stops;
  std::vector<std::pair<int32_t, float>> biases;
  uint64_t seed = 0;
  bool json = false;
  Status status;
  Arguments rest;
};

Parsed Parse(Arguments args) {
  Parsed parsed;
  Options options("test", "A test.");
  options.Value("--count", "N", "a count", &parsed.count);
  options.Value("--real", "X", "a number", &parsed.real);
  options.Value("--stop", "TEXT", "a text", &parsed.stops);
  options.Value("--bias", "ID=V", "a bias", &parsed.biases);
  options.Field<uint64_t>("--seed", "N", "a seed",
                          [&parsed](uint64_t seed) { parsed.seed = seed; });
  options.Switch("--json", "a switch", &parsed.json);
  parsed.status = options.Parse(&args);
  parsed.rest = args;
  return parsed;
}

TEST(Options, TakeValuesInBothForms) {
  const Parsed parsed = Parse({"--count", "-3", "--real=2.5", "--stop", "--json", "--stop=a=b",
                               "--bias", "7=-1.5", "--seed", "18446744073709551615", "--json"});
  ASSERT_TRUE(parsed.status.ok()) << parsed.status.ToString();
  EXPECT_EQ(parsed.count, -3);
  EXPECT_EQ(parsed.real, 2.5f);
  EXPECT_EQ(parsed.stops, (std::vector<std::string>{"--json", "a=b"}));
  EXPECT_EQ(parsed.biases, (std::vector<std::pair<int32_t, float>>{{7, -1.5f}}));
  EXPECT_EQ(parsed.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(parsed.json);
  EXPECT_TRUE(parsed.rest.empty());
}

TEST(Options, LeaveWhatIsNoOption) {
  const Parsed parsed = Parse({"--json", "command", "--json"});
  ASSERT_TRUE(parsed.status.ok());
  EXPECT_FALSE(parsed.count.has_value());
  EXPECT_EQ(parsed.rest, (Arguments{"command", "--json"}));
}

TEST(Options, LeaveRangesToTheServer) {
  EXPECT_TRUE(std::isnan(Parse({"--real", "nan"}).real));
  EXPECT_EQ(Parse({"--real", "1e50"}).real, std::numeric_limits<float>::infinity());
}

TEST(Options, SayWhatIsWrong) {
  const std::pair<Arguments, const char*> cases[] = {
      {{"--frob"}, "there is no option --frob"},
      {{"--count"}, "--count needs a value: --count N"},
      {{"--count", ""}, "--count: expected a whole number of 32 bits, found ''"},
      {{"--count", "3x"}, "--count: expected a whole number of 32 bits, found '3x'"},
      {{"--count=2147483648"}, "--count: expected a whole number of 32 bits, found '2147483648'"},
      {{"--seed", "-1"}, "--seed: expected a whole number from 0 to 2^64 - 1, found '-1'"},
      {{"--real", "1.5.2"}, "--real: expected a number, found '1.5.2'"},
      {{"--bias", "7"}, "--bias: expected ID=NUMBER, found '7'"},
      {{"--json=yes"}, "--json takes no value"},
  };
  for (const auto& [args, message] : cases) {
    const Parsed parsed = Parse(args);
    EXPECT_EQ(parsed.status.code(), Code::kInvalidArgument);
    EXPECT_EQ(parsed.status.message(), message);
  }
}

TEST(Options, HelpNamesEveryOption) {
  bool json = false;
  std::string name;
  Options options("test [options]", "A test.");
  options.Switch("--json", "print JSON", &json);
  options.Value("--name", "NAME", "somebody", &name);
  EXPECT_EQ(options.Help(),
            "Usage: polysketch test [options]\nA test.\n\n"
            "  --json       print JSON\n  --name NAME  somebody\n");
}

}  // namespace
}  // namespace polysketch
