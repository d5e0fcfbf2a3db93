// Arguments to parameters.
#include <algorithm>

#include "server/chat/builtins.h"

namespace polysketch::chat {
namespace {

// The next name of a list with spaces between, which loses it.
std::string_view TakeName(std::string_view* names) {
  const size_t end = std::min(names->find(' '), names->size());
  const std::string_view name = names->substr(0, end);
  names->remove_prefix(std::min(end + 1, names->size()));
  return name;
}

std::string_view ParameterAt(std::string_view parameters, size_t index) {
  if (parameters.starts_with("/ ")) parameters.remove_prefix(2);
  std::string_view name = TakeName(&parameters);
  for (; index > 0; --index) name = TakeName(&parameters);
  return name.ends_with('?') ? name.substr(0, name.size() - 1) : name;
}

}  // namespace

Result<Call> Call::Bind(const Builtin& builtin, const Value& input, const Arguments& arguments,
                        Budget* budget) {
  Call call(builtin, input, arguments, budget);
  size_t named_used = 0;
  bool any_more = false, any_names = false;
  std::string_view rest = builtin.parameters;
  const bool by_position = rest.starts_with("/ ");
  if (by_position) TakeName(&rest);
  if (by_position && !arguments.named.empty())
    return InvalidArgument(builtin.name, ": expected arguments by position, found ",
                           arguments.named[0].first);
  while (!rest.empty()) {
    std::string_view name = TakeName(&rest);
    if (name == "*" || name == "**") {
      (name == "*" ? any_more : any_names) = true;
      continue;
    }
    const bool optional = name.ends_with('?');
    if (optional) name.remove_suffix(1);
    const size_t index = call.bound_.size();
    const Value* value =
        index < arguments.positional.size() ? &arguments.positional[index] : nullptr;
    for (const auto& [key, given] : arguments.named) {
      if (key != name) continue;
      if (value != nullptr)
        return InvalidArgument(builtin.name, ": expected ", name, " once, found it twice");
      value = &given;
      ++named_used;
    }
    if (value == nullptr && !optional)
      return InvalidArgument(builtin.name, ": expected the argument ", name, ", found none");
    call.bound_.push_back(value);
  }
  if (!any_more && arguments.positional.size() > call.bound_.size())
    return InvalidArgument(builtin.name, ": expected at most ", call.bound_.size(),
                           " arguments, found ", arguments.positional.size());
  if (any_names || named_used == arguments.named.size()) return call;
  for (const auto& [key, given] : arguments.named) {
    bool known = false;
    for (size_t i = 0; i < call.bound_.size(); ++i)
      known |= ParameterAt(builtin.parameters, i) == key;
    if (!known)
      return InvalidArgument(builtin.name, ": expected ",
                             builtin.parameters.empty() ? "no arguments" : "arguments that it has",
                             ", found ", key);
  }
  return InvalidArgument(builtin.name, ": expected each argument once, found one twice");
}

const Value* Call::GetSome(size_t index) const {
  const Value* value = Get(index);
  return value == nullptr || value->none() ? nullptr : value;
}

bool Call::Truth(size_t index, bool missing) const {
  const Value* value = Get(index);
  return value == nullptr ? missing : value->Truth();
}

Result<int64_t> Call::Int(size_t index, int64_t missing) const {
  const Value* value = Get(index);
  if (value == nullptr) return missing;
  if (value->integer() || value->boolean()) return value->AsInt();
  return Wrong(index, "an integer");
}

Result<const MarkedText*> Call::Text(size_t index) const {
  const Value* value = GetSome(index);
  if (value == nullptr) return static_cast<const MarkedText*>(nullptr);
  if (value->string()) return &value->AsText();
  return Wrong(index, "a string");
}

Status Call::Wrong(size_t index, std::string_view expected) const {
  const Value* value = Get(index);
  return InvalidArgument(builtin_.name, ": ", ParameterAt(builtin_.parameters, index),
                         ": expected ", expected, ", found ",
                         value == nullptr ? "none" : value->TypeName());
}

}  // namespace polysketch::chat
