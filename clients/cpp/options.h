// Command-line options: declared once, with the text that --help shows, and parsed into plain
// variables.
//
//   Options options("complete [options]", "Continues a prompt.");
//   options.Value("--max-tokens", "N", "most tokens to generate", &max_tokens);
//   options.Switch("--json", "print one JSON object", &json);
//   Status status = options.Parse(&args);
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace polysketch {

// Each takes the whole of `text` or says what was expected. Numbers are not checked against any
// range but that of their type: which values are legal is the server's to say.
Status ParseValue(std::string_view text, std::string* value);
Status ParseValue(std::string_view text, int32_t* value);
Status ParseValue(std::string_view text, uint64_t* value);
Status ParseValue(std::string_view text, float* value);                      // also nan and inf
Status ParseValue(std::string_view text, double* value);                     // also nan and inf
Status ParseValue(std::string_view text, std::pair<int32_t, float>* value);  // "ID=NUMBER"

template <typename T>
Status ParseValue(std::string_view text, std::optional<T>* value) {
  return ParseValue(text, &value->emplace());
}
template <typename T>
Status ParseValue(std::string_view text, std::vector<T>* values) {
  return ParseValue(text, &values->emplace_back());
}

using Arguments = std::deque<std::string>;

class Options {
 public:
  // usage: what follows the program's name on the first line of Help().
  Options(std::string usage, std::string summary, std::string program = "polysketch")
      : program_(std::move(program)), usage_(std::move(usage)), summary_(std::move(summary)) {}

  // --name: sets *target. The targets outlive the Options.
  void Switch(std::string name, std::string help, bool* target);
  // --name VALUE or --name=VALUE. Given again, an option replaces its value; one whose target is a
  // vector adds to it.
  template <typename T>
  void Value(std::string name, std::string value_name, std::string help, T* target) {
    options_.push_back({std::move(name), std::move(value_name), std::move(help),
                        [target](std::string_view text) { return ParseValue(text, target); }});
  }
  // The same for a value that goes elsewhere than into a variable: set(value).
  template <typename T, typename Set>
  void Field(std::string name, std::string value_name, std::string help, Set set) {
    options_.push_back({std::move(name), std::move(value_name), std::move(help),
                        [set](std::string_view text) -> Status {
                          T value;
                          PS_RETURN_IF_ERROR(ParseValue(text, &value));
                          set(std::move(value));
                          return Status();
                        }});
  }
  // Lines behind the options in Help().
  void Footer(std::string footer) { footer_ = std::move(footer); }

  // Takes options off the front of *args until the first argument that does not begin with "-",
  // which stays. Whether that one is welcome is for the caller to say.
  Status Parse(Arguments* args) const;
  std::string Help() const;

 private:
  struct Option {
    std::string name;
    std::string value_name;  // empty: a switch
    std::string help;
    std::function<Status(std::string_view)> set;
  };
  const Option* Find(std::string_view name) const;

  std::string program_;
  std::string usage_;
  std::string summary_;
  std::string footer_;
  std::vector<Option> options_;
};

}  // namespace polysketch
