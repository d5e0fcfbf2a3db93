#include "clients/cpp/options.h"

#include <cmath>
#include <iostream>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

using Strings = std::vector<std::string>;

// A message with a field, as protobuf generates it.
class Message {
 public:
  void set_seed(uint64_t seed) { seed_ = seed; }
  uint64_t seed() const { return seed_; }

 private:
  uint64_t seed_ = 0;
};

// Sends an output stream of the process into a string.
class Capture {
 public:
  explicit Capture(std::ostream* stream) : stream_(stream), saved_(stream->rdbuf(text_.rdbuf())) {}
  ~Capture() { stream_->rdbuf(saved_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::ostream* const stream_;
  std::streambuf* const saved_;
};

struct Parsed {
  std::optional<int32_t> count;
  float real = 0;
  Strings stops;
  std::vector<std::pair<int32_t, float>> biases;
  Message message;
  int64_t size = 7;
  double seconds = 1.5;
  bool json = false;
  std::string name = "anna";
  std::string text;
  std::string command;
  std::optional<ExitCode> exit_code;
  std::string output;
  std::string error;
};

Parsed Parse(const Strings& arguments, bool with_commands = false, bool with_text = false) {
  Parsed parsed;
  const auto add = [&parsed, with_commands, with_text](CLI::App* app) {
    AddOption(app, "--count", "N", "A count.", &parsed.count);
    AddOption(app, "--real", "X", "A number.", &parsed.real);
    AddOption(app, "--stop", "TEXT", "A text.", [&parsed](const std::string& text) {
      return ParseValue(text, &parsed.stops.emplace_back());
    });
    AddOption(app, "--bias", "ID=V", "A bias.", [&parsed](const std::string& text) {
      return ParseValue(text, &parsed.biases.emplace_back());
    });
    AddOption(app, "--seed", "N", "A seed.", &parsed.message, &Message::set_seed);
    AddNumber(app, "--size", "N", "A size.", 1, 9, &parsed.size);
    AddNumber(app, "--seconds", "S", "A time.", 0, 1e9, &parsed.seconds);
    AddOption(app, "-n,--name", "NAME", "A name.", &parsed.name);
    AddFlag(app, "--json", "A flag.", &parsed.json);
    if (with_text) {
      AddOption(app, "-t,--text,WORD", "WORD", "A text.", [&parsed](const std::string& text) {
        if (text == "bad") return InvalidArgument("bad");
        return ParseValue(text, &parsed.text);
      });
    }
    if (!with_commands) return;
    for (const char* name : {"go", "stop"}) {
      AddCommand(app, name, "A command.", [&parsed, name] { parsed.command = name; });
    }
  };
  std::vector<const char*> argv = {"program"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const Capture output(&std::cout), error(&std::cerr);
  parsed.exit_code = ParseCommandLine(
      static_cast<int>(argv.size()), argv.data(),
      {.name = "test", .version = "1.2", .description = "A test.", .footer = ""}, add);
  parsed.output = output.text();
  parsed.error = error.text();
  return parsed;
}

TEST(Options, TakeValuesInBothForms) {
  const Parsed parsed =
      Parse({"--count", "-3", "--real=2.5", "--stop", "--json", "--stop=a=b", "--bias", "7=-1.5",
             "--seed", "18446744073709551615", "--json", "--json", "-n", "-", "--size=9"});
  ASSERT_FALSE(parsed.exit_code) << parsed.error;
  EXPECT_EQ(parsed.count, -3);
  EXPECT_EQ(parsed.real, 2.5f);
  EXPECT_EQ(parsed.stops, (Strings{"--json", "a=b"}));
  EXPECT_EQ(parsed.biases, (std::vector<std::pair<int32_t, float>>{{7, -1.5f}}));
  EXPECT_EQ(parsed.message.seed(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parsed.name, "-");
  EXPECT_EQ(parsed.size, 9);
  EXPECT_TRUE(parsed.json);
}

TEST(Options, TakeValuesVerbatim) {
  for (const std::string value : {"", "{}", "[1,2]", "%%", " ", "--", "a b", "go", "-x", "\"q\""}) {
    EXPECT_EQ(Parse({"--name", value}).name, value);
    EXPECT_EQ(Parse({"--name=" + value, "--json"}).name, value);
    EXPECT_EQ(Parse({"--stop", "x", "--stop", value}).stops, (Strings{"x", value}));
  }
}

TEST(Options, TheLastOccurrenceCounts) {
  const Parsed parsed =
      Parse({"--count=1", "--name=a", "--name=b", "--count=2", "--real=nan", "--real=1"});
  EXPECT_EQ(parsed.count, 2);
  EXPECT_EQ(parsed.name, "b");
  EXPECT_EQ(parsed.real, 1);
}

TEST(Options, AreOptional) {
  const Parsed parsed = Parse({"--json", "go"}, true);
  ASSERT_FALSE(parsed.exit_code) << parsed.error;
  EXPECT_FALSE(parsed.count.has_value());
  EXPECT_EQ(parsed.size, 7);
  EXPECT_EQ(parsed.name, "anna");
  EXPECT_EQ(parsed.command, "go");
}

TEST(Options, MayBeGivenWithoutTheirName) {
  for (const Strings& arguments : {Strings{"a text", "--json"}, Strings{"--json", "-t", "a text"},
                                   Strings{"--text=a text"}, Strings{"--json", "--", "a text"}}) {
    const Parsed parsed = Parse(arguments, false, true);
    EXPECT_FALSE(parsed.exit_code) << parsed.error;
    EXPECT_EQ(parsed.text, "a text");
  }
  EXPECT_EQ(Parse({"bad"}, false, true).error, "test: --text: bad\n");
  EXPECT_EQ(Parse({"a", "text"}, false, true).error,
            "test: text: unexpected argument (see --help)\n");
  const std::string man = Parse({"--help-format", "man"}, false, true).output;
  EXPECT_NE(man.find(".B \"\\-t, \\-\\-text WORD\"\n"), std::string::npos) << man;
}

TEST(Options, LeaveRangesToTheServer) {
  EXPECT_TRUE(std::isnan(Parse({"--real", "nan"}).real));
  EXPECT_EQ(Parse({"--real", "1e50"}).real, std::numeric_limits<float>::infinity());
}

TEST(Options, SayWhatIsWrong) {
  const std::pair<Strings, const char*> cases[] = {
      {{"--frob"}, "--frob: unknown option (see --help)"},
      {{"-f"}, "-f: unknown option (see --help)"},
      {{"frob"}, "frob: unknown command (see --help)"},
      {{"sotp", "x", "y"}, "sotp: unknown command; did you mean stop?"},
      {{"--cuont=3", "1", "go", "--jsno", "2"},
       "--cuont: unknown option of go; did you mean --count?\n"
       "--jsno: unknown option of go; did you mean --json?"},
      {{"go", "stop"}, "stop: unexpected argument of go (see --help)"},
      {{"--count"}, "--count: 1 required N missing"},
      {{"--count", ""}, "--count: expected an integer from -2147483648 to 2147483647, found ''"},
      {{"--count=", "--json"},
       "--count: expected an integer from -2147483648 to 2147483647, found ''"},
      {{"--count", "3x"},
       "--count: expected an integer from -2147483648 to 2147483647, found '3x'"},
      {{"--count", "0x10"},
       "--count: expected an integer from -2147483648 to 2147483647, found '0x10'"},
      {{"--count=2147483648"},
       "--count: expected an integer from -2147483648 to 2147483647, found '2147483648'"},
      {{"--seed", "-1"}, "--seed: expected an integer from 0 to 18446744073709551615, found '-1'"},
      {{"--size", "0"}, "--size: expected a number from 1 to 9, found '0'"},
      {{"--size", "10"}, "--size: expected a number from 1 to 9, found '10'"},
      {{"--size", "x"}, "--size: expected a number from 1 to 9, found 'x'"},
      {{"--seconds", "-1"}, "--seconds: expected a number from 0 to 1e+09, found '-1'"},
      {{"--seconds", "nan"}, "--seconds: expected a number from 0 to 1e+09, found 'nan'"},
      {{"--real", "1.5.2"}, "--real: expected a number, found '1.5.2'"},
      {{"--bias", "7"}, "--bias: expected ID=NUMBER, found '7'"},
      {{"--bias", "=1"}, "--bias: expected ID=NUMBER, found '=1'"},
      {{"--bias", "7="}, "--bias: expected ID=NUMBER, found '7='"},
      {{"--json=frob"}, "Could not convert: --json = frob"},
  };
  for (const auto& [arguments, message] : cases) {
    const Parsed parsed = Parse(arguments, true);
    EXPECT_EQ(parsed.exit_code, kExitUsage);
    EXPECT_EQ(parsed.error, std::string("test: ") + message + "\n");
    EXPECT_EQ(parsed.output, "");
  }
}

TEST(Options, HelpNamesEveryOption) {
  const Parsed parsed = Parse({"--count", "1", "--help"}, true);
  EXPECT_EQ(parsed.exit_code, kExitOk);
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(
      parsed.output,
      "Usage: test [OPTIONS] [COMMAND]\n"
      "A test.\n"
      "\n"
      "Options:\n"
      "  -h,--help                   Prints this help.\n"
      "  --version                   Prints the version.\n"
      "  --help-format man|bash      Prints this help as a man page or as a completion script\n"
      "                              of bash.\n"
      "  --count N                   A count.\n"
      "  --real X=0                  A number.\n"
      "  --stop TEXT                 A text.\n"
      "  --bias ID=V                 A bias.\n"
      "  --seed N                    A seed.\n"
      "  --size N=7                  A size.\n"
      "  --seconds S=1.5             A time.\n"
      "  -n,--name NAME=anna         A name.\n"
      "  --json                      A flag.\n"
      "\n"
      "Commands:\n"
      "  go                          A command.\n"
      "  stop                        A command.\n"
      "  help                        Prints the help of a command.\n"
      "\n");
}

TEST(Options, TheCommandHelpPrintsTheHelpOfACommand) {
  EXPECT_EQ(Parse({"help"}, true).output, Parse({"--help"}, true).output);
  EXPECT_EQ(Parse({"help"}, true).exit_code, kExitOk);
  EXPECT_EQ(Parse({"help", "go"}, true).output, Parse({"go", "--help"}, true).output);
  EXPECT_TRUE(Parse({"help", "go"}, true).output.starts_with("Usage: test go"));
  const Parsed unknown = Parse({"help", "frob"}, true);
  EXPECT_EQ(unknown.exit_code, kExitUsage);
  EXPECT_EQ(unknown.error, "test: help: expected a command of test, found 'frob' (see --help)\n");
  EXPECT_EQ(Parse({"help"}).exit_code, kExitUsage) << "a program without commands has no help";
}

TEST(Options, FormatsOfTheHelpHaveEveryOption) {
  const std::string man = Parse({"--help-format", "man"}, true).output;
  const std::string bash = Parse({"--help-format=bash"}, true).output;
  for (const std::string name : {"count", "real", "stop", "bias", "seed", "size", "seconds", "name",
                                 "json", "help", "version", "help\\-format"}) {
    EXPECT_NE(man.find("\\-\\-" + name), std::string::npos) << name;
    EXPECT_NE(bash.find("--" + name.substr(0, name.find('\\'))), std::string::npos) << name;
  }
  EXPECT_NE(man.find(".B \"\\-n, \\-\\-name NAME\"\nA name. [anna]\n"), std::string::npos) << man;
  EXPECT_NE(man.find(".B \"\\-\\-json\"\nA flag.\n"), std::string::npos) << man;
  EXPECT_NE(man.find(".SS \"go\"\nA command.\n"), std::string::npos) << man;
  EXPECT_TRUE(bash.ends_with("complete -o filenames -F _test test\n")) << bash;
  EXPECT_EQ(Parse({"--help-format", "html"}).error,
            "test: --help-format: expected man or bash, found 'html'\n");
}

TEST(Options, AMissingCommandPrintsTheHelp) {
  const Parsed parsed = Parse({"--count", "1"}, true);
  EXPECT_EQ(parsed.exit_code, kExitUsage);
  EXPECT_EQ(parsed.error, Parse({"--help"}, true).output);
  EXPECT_EQ(parsed.output, "");
}

TEST(Options, VersionNamesTheProgram) {
  const Parsed parsed = Parse({"--version"});
  EXPECT_EQ(parsed.exit_code, kExitOk);
  EXPECT_EQ(parsed.output, "test 1.2\n");
}

}  // namespace
}  // namespace polysketch
