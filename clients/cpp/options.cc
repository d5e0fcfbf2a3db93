#include "clients/cpp/options.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>

namespace polysketch {
namespace {

template <typename T>
Status ParseInteger(std::string_view text, const char* expected, T* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  if (text.empty() || stop != end || error != std::errc()) {
    return InvalidArgument("expected ", expected, ", found '", text, "'");
  }
  return Status();
}

// Rounds to the type's nearest number, so that "1e-50" is 0 as a float and "1e50" infinite: the
// server judges those.
template <typename T>
Status ParseReal(std::string_view text, T (*parse)(const char*, char**), T* value) {
  const std::string terminated(text);
  char* stop = nullptr;
  *value = parse(terminated.c_str(), &stop);
  if (terminated.empty() || stop != terminated.c_str() + terminated.size()) {
    return InvalidArgument("expected a number, found '", text, "'");
  }
  return Status();
}

}  // namespace

Status ParseValue(std::string_view text, std::string* value) {
  *value = text;
  return Status();
}

Status ParseValue(std::string_view text, int32_t* value) {
  return ParseInteger(text, "a whole number of 32 bits", value);
}

Status ParseValue(std::string_view text, uint64_t* value) {
  return ParseInteger(text, "a whole number from 0 to 2^64 - 1", value);
}

Status ParseValue(std::string_view text, float* value) {
  return ParseReal(text, std::strtof, value);
}

Status ParseValue(std::string_view text, double* value) {
  return ParseReal(text, std::strtod, value);
}

Status ParseValue(std::string_view text, std::pair<int32_t, float>* value) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    return InvalidArgument("expected ID=NUMBER, found '", text, "'");
  }
  PS_RETURN_IF_ERROR(ParseValue(text.substr(0, equals), &value->first));
  return ParseValue(text.substr(equals + 1), &value->second);
}

void Options::Switch(std::string name, std::string help, bool* target) {
  options_.push_back({std::move(name), "", std::move(help), [target](std::string_view) {
                        *target = true;
                        return Status();
                      }});
}

const Options::Option* Options::Find(std::string_view name) const {
  for (const Option& option : options_) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

Status Options::Parse(Arguments* args) const {
  while (!args->empty() && args->front().size() > 1 && args->front()[0] == '-') {
    const std::string argument = std::move(args->front());
    args->pop_front();
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const Option* option = Find(name);
    if (option == nullptr) return InvalidArgument("there is no option ", name);

    std::string value;
    if (option->value_name.empty()) {
      if (equals != std::string::npos) return InvalidArgument(name, " takes no value");
    } else if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (!args->empty()) {
      value = std::move(args->front());
      args->pop_front();
    } else {
      return InvalidArgument(name, " needs a value: ", name, " ", option->value_name);
    }
    if (const Status status = option->set(value); !status.ok()) {
      return InvalidArgument(name, ": ", status.message());
    }
  }
  return Status();
}

std::string Options::Help() const {
  std::string help = "Usage: " + program_ + " " + usage_ + "\n" + summary_ + "\n";
  if (!options_.empty()) help += "\n";
  const auto left = [](const Option& option) {
    return option.value_name.empty() ? option.name : option.name + " " + option.value_name;
  };
  size_t width = 0;
  for (const Option& option : options_) width = std::max(width, left(option).size());
  for (const Option& option : options_) {
    const std::string column = left(option);
    help += "  " + column + std::string(width - column.size() + 2, ' ') + option.help + "\n";
  }
  if (!footer_.empty()) help += "\n" + footer_;
  return help;
}

}  // namespace polysketch
