// The functions, filters, methods and tests of chat templates. docs/chat-templates.md lists them.
//
// Each is a row of a table: its name, its parameters (those of Jinja 3.1, of methods those of
// Python), and a function. An argument that a builtin does not have is an error that names it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/chat/budget.h"
#include "server/chat/value.h"

namespace polysketch::chat {

// The arguments of a call, as written.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Call;

struct Builtin {
  std::string_view name;
  // The names of the parameters, in order, with spaces between. "name?" may be absent; "*": any
  // number of more arguments; "**": any names; "/" at the beginning: by position alone.
  std::string_view parameters;
  Result<Value> (*run)(const Call& call);
};

// One call of a builtin: its arguments by parameter, and what it works on.
class Call {
 public:
  // INVALID_ARGUMENT for an argument that is missing, given twice, or not a parameter.
  static Result<Call> Bind(const Builtin& builtin, const Value& input, const Arguments& arguments,
                           Budget* budget);

  // Of a filter or a test the value before it, of a method the object.
  const Value& input() const { return input_; }
  Budget* budget() const { return budget_; }
  const Arguments& all() const { return arguments_; }
  std::string_view name() const { return builtin_.name; }

  // The argument of parameter `index`; null without it.
  const Value* Get(size_t index) const { return index < bound_.size() ? bound_[index] : nullptr; }
  // The same, with none as if it were absent.
  const Value* GetSome(size_t index) const;
  bool Truth(size_t index, bool missing) const;
  Result<int64_t> Int(size_t index, int64_t missing) const;
  // Null without the argument, and for none.
  Result<const MarkedText*> Text(size_t index) const;
  // "name: parameter: expected ..., found ...".
  Status Wrong(size_t index, std::string_view expected) const;

 private:
  Call(const Builtin& builtin, const Value& input, const Arguments& arguments, Budget* budget)
      : builtin_(builtin), input_(input), arguments_(arguments), budget_(budget) {}

  const Builtin& builtin_;
  const Value& input_;
  const Arguments& arguments_;
  Budget* const budget_;
  std::vector<const Value*> bound_;
};

// Runs a filter, a test, a method or a function. INVALID_ARGUMENT says what was expected; the
// caller adds the line.
Result<Value> RunBuiltin(const Builtin& builtin, const Value& input, const Arguments& arguments,
                         Budget* budget);

// Null for a name that does not exist.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindFunction(std::string_view name);
// A method of a value of that type.
const Builtin* FindMethod(const Value& object, std::string_view name);

// --- the tables, each in a file of its own ---
// Filters of the text of any value, and those of strings alone.
const Builtin* FindTextFilter(std::string_view name);
const Builtin* FindStringFilter(std::string_view name);
const Builtin* FindTextMethod(std::string_view name);

// --- what several of them use ---

// The text of a value: Python's str().
Result<MarkedText> TextOf(const Value& value, Budget* budget);

// The elements that a loop visits: of a list, the keys of a dict, the characters of a string; none
// of an undefined value. An iterator is at its end afterwards.
Result<List> Elements(const Value& value, Budget* budget);
// The value that `path` names: "function.name" (`path` a string), or an index. `missing`, which may
// be null, takes the place of each undefined part.
Result<Value> Field(const Value& value, const Value& path, const Value* missing, Budget* budget);
// [key, value] of each entry.
Result<List> Items(const Dict& dict, Budget* budget);

}  // namespace polysketch::chat
