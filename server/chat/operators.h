// The operators of expressions, with Python's semantics.
#pragma once

#include <string_view>

#include "base/status.h"
#include "server/chat/budget.h"
#include "server/chat/value.h"

namespace polysketch::chat {

// left < right, and the others; "in" and "not in" too.
Result<bool> Compare(std::string_view op, const Value& left, const Value& right, Budget* budget);
// -1, 0 or 1 as left is below, equal to or above right: numbers, strings, lists of these.
Result<int> Order(const Value& left, const Value& right);
Result<Value> Calculate(std::string_view op, const Value& left, const Value& right, Budget* budget);

// object.name: a method of the object, or else its field.
Result<Value> Attribute(const Value& object, const std::string& name);
// object[key]: the element, or else the attribute.
Result<Value> Item(const Value& object, const Value& key, Budget* budget);
// object[begin:end:step]; a part that is missing is undefined or none.
Result<Value> SliceOf(const Value& object, const Value& begin, const Value& end, const Value& step,
                      Budget* budget);

}  // namespace polysketch::chat
