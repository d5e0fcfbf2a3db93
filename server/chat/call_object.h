// Reads one call that is written as a JSON object, as it arrives: {"name": NAME, "arguments":
// {...}}.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/json_scanner.h"
#include "server/chat/tool_parser.h"

namespace polysketch {

class CallObject {
 public:
  // `names`: of the tools; outlives the object.
  explicit CallObject(const std::set<std::string>* names) : names_(names) {}

  enum class Result { kOpen, kComplete, kNoCall };
  // Takes the next byte, the brace first. Appends kCall and kArguments to `events`.
  Result Take(char c, ToolEvents* events);
  // Whether kCall was appended.
  bool announced() const { return announced_; }

 private:
  enum class Member { kName, kArguments, kOther };
  bool BeginValue(char c);
  bool EndValue(ToolEvents* events);
  void Announce(ToolEvents* events);
  Result Complete(ToolEvents* events);

  const std::set<std::string>* const names_;
  JsonScanner scanner_;
  std::string key_;    // of the member that is read, in quotes
  std::string value_;  // its value, unless it is `streamed`
  Member member_ = Member::kOther;
  bool in_value_ = false;
  bool streamed_ = false;  // the value is arguments that are an object
  std::optional<std::string> name_;
  bool has_arguments_ = false;
  std::string waiting_;  // arguments that came before the name
  bool announced_ = false;
};

}  // namespace polysketch
