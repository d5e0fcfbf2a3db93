// Options of the command line, on CLI11. The error for a bad value says what was expected and what
// was found.
#pragma once

#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/status.h"

// CLI11 takes ten seconds to compile: options.cc alone includes it.
namespace CLI {
class App;
}  // namespace CLI

namespace polysketch {

// Exit statuses of the client and of the load generator.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,        // no connection to the server, or an error from it
  kExitUsage = 2,         // bad command line, or bad input named by it
  kExitInterrupted = 130  // SIGINT, as shells report it
};

// ParseValue parses the whole of `text`. INVALID_ARGUMENT says what was expected. Numbers are
// checked against the range of their type only: the server checks the rest.
inline Status ParseValue(const std::string& text, std::string* value) {
  *value = text;
  return Status();
}
template <std::integral T>
Status ParseValue(const std::string& text, T* value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc() && stop == text.data() + text.size()) return Status();
  return InvalidArgument("expected an integer from ", std::numeric_limits<T>::min(), " to ",
                         std::numeric_limits<T>::max(), ", found '", text, "'");
}
// Accepts nan and inf too. Rounds to the type: "1e50" is inf as a float.
template <std::floating_point T>
Status ParseValue(const std::string& text, T* value) {
  char* stop = nullptr;
  *value = static_cast<T>(std::is_same_v<T, float> ? std::strtof(text.c_str(), &stop)
                                                   : std::strtod(text.c_str(), &stop));
  if (!text.empty() && stop == text.c_str() + text.size()) return Status();
  return InvalidArgument("expected a number, found '", text, "'");
}
template <typename T>
Status ParseValue(const std::string& text, std::optional<T>* value) {
  return ParseValue(text, &value->emplace());
}
// "ID=NUMBER".
Status ParseValue(const std::string& text, std::pair<int32_t, float>* value);

using TextParser = std::function<Status(const std::string& text)>;

// Adds `--name VALUE` (also `--name=VALUE`) to `app`; `value` is its word in --help. A name such as
// "-n,--name,WORD" is that of an argument without a name too. `parse` is
// called for each occurrence, in order. --help shows `initial` as the default unless it is empty.
void AddOption(CLI::App* app, const std::string& name, const std::string& value,
               const std::string& help, const TextParser& parse, const std::string& initial = "");

// As above; the value is stored in *target, which outlives the parsing. The last occurrence counts.
// --help shows the initial value as the default.
template <typename T>
void AddOption(CLI::App* app, const std::string& name, const std::string& value,
               const std::string& help, T* target) {
  std::string initial;
  if constexpr (requires(std::ostream & out) { out << *target; }) initial = StrCat(*target);
  const auto parse = [target](const std::string& text) { return ParseValue(text, target); };
  AddOption(app, name, value, help, parse, initial);
}

// As above, for a number from `min` to `max`.
template <typename T>
void AddNumber(CLI::App* app, const std::string& name, const std::string& value,
               const std::string& help, std::type_identity_t<T> min, std::type_identity_t<T> max,
               T* target) {
  const auto parse = [=](const std::string& text) -> Status {
    if (ParseValue(text, target).ok() && *target >= min && *target <= max) return Status();
    return InvalidArgument("expected a number from ", min, " to ", max, ", found '", text, "'");
  };
  AddOption(app, name, value, help, parse, StrCat(*target));
}

// As above; the value is stored in a field of a protobuf message by the setter of the field.
template <typename Message, typename T>
void AddOption(CLI::App* app, const std::string& name, const std::string& value,
               const std::string& help, Message* message, void (Message::*set)(T)) {
  AddOption(app, name, value, help, [=](const std::string& text) {
    T parsed{};
    const Status status = ParseValue(text, &parsed);
    if (status.ok()) (message->*set)(parsed);
    return status;
  });
}

// Adds `--name`, which sets *target or calls `set`.
void AddFlag(CLI::App* app, const std::string& name, const std::string& help, bool* target);
void AddFlag(CLI::App* app, const std::string& name, const std::string& help,
             const std::function<void()>& set);

// Adds a required argument without a name.
void AddArgument(CLI::App* app, const std::string& value, const std::string& help,
                 std::string* target);

// The heading in --help of the options that are added next.
void SetOptionGroup(CLI::App* app, const std::string& heading);

// Adds a command to a program or to a command. `select` is called when the arguments name it, and
// is empty if it is a parent of commands. `footer` ends its --help.
CLI::App* AddCommand(CLI::App* parent, const std::string& name, const std::string& description,
                     const std::function<void()>& select, const std::string& footer = "");

struct Program {
  std::string name;
  std::string version;
  std::string description;
  std::string footer;
};

// Parses the command line with the options and commands that `add` adds. Returns the exit status if
// the process ends here: --help, --version or --help-format was printed, or an error, as
// "NAME: MESSAGE", or --help, because a command is missing, on stderr. A program with commands also
// gets the command help.
std::optional<ExitCode> ParseCommandLine(int argc, const char* const* argv, const Program& program,
                                         const std::function<void(CLI::App*)>& add);

// Prints "NAME: MESSAGE" of a bad command line or input on stderr. Returns kExitUsage.
ExitCode ReportUsageError(const Status& status, const std::string& program = "polysketch");

}  // namespace polysketch
