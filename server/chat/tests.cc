// The tests of chat templates: value is NAME.
#include <algorithm>
#include <cmath>

#include "server/chat/builtins.h"
#include "server/chat/operators.h"
#include "server/chat/text.h"

namespace polysketch::chat {
namespace {

// A test of the type alone.
template <bool (*kTest)(const Value&)>
Result<Value> Type(const Call& call) {
  return Value::Bool(kTest(call.input()));
}

bool IsSequence(const Value& value) {
  return value.string() || value.dict() || value.undefined() ||
         (value.list() && value.list_kind() != ListKind::kView &&
          value.list_kind() != ListKind::kIterator);
}
bool IsIterable(const Value& value) {
  return value.string() || value.dict() || value.undefined() || value.list() || value.is_loop();
}
// Undefined values have a method that says that they cannot be called.
bool IsCallable(const Value& value) { return value.callable() || value.undefined(); }

template <const char* kOperator>
Result<Value> Compared(const Call& call) {
  PS_ASSIGN_OR_RETURN(const bool truth,
                      Compare(kOperator, call.input(), *call.Get(0), call.budget()));
  return Value::Bool(truth);
}
constexpr char kEqual[] = "==", kNotEqual[] = "!=", kBelow[] = "<",
               kAtMost[] = "<=", kAbove[] = ">", kAtLeast[] = ">=", kIn[] = "in";

// Whether the rest of a division by `divisor` is `rest`.
Result<Value> HasRest(const Call& call, const Value& divisor, int64_t rest) {
  if (!call.input().number())
    return InvalidArgument(call.name(), ": expected a number, found ", call.input().TypeName());
  PS_ASSIGN_OR_RETURN(const Value found, Calculate("%", call.input(), divisor, call.budget()));
  return Value::Bool(found == Value::Int(rest));
}

Result<Value> DivisibleBy(const Call& call) { return HasRest(call, *call.Get(0), 0); }
Result<Value> Even(const Call& call) { return HasRest(call, Value::Int(2), 0); }
Result<Value> Odd(const Call& call) { return HasRest(call, Value::Int(2), 1); }

// Values have no identity: equal ones of one type are the same.
Result<Value> SameAs(const Call& call) {
  const Value& other = *call.Get(0);
  PS_RETURN_IF_ERROR(call.budget()->Spend(std::min(call.input().weight(), other.weight())));
  return Value::Bool(call.input() == other && call.input().TypeName() == other.TypeName() &&
                     call.input().floating() == other.floating());
}

template <LetterCase kCase>
Result<Value> InLetterCase(const Call& call) {
  PS_ASSIGN_OR_RETURN(const MarkedText text, TextOf(call.input(), call.budget()));
  const Value value = Value::String(text);
  return RunBuiltin(*FindMethod(value, kCase == LetterCase::kUpper ? "isupper" : "islower"), value,
                    {}, call.budget());
}

Result<Value> IsFilterName(const Call& call) {
  if (call.input().list(ListKind::kList) || call.input().dict())
    return InvalidArgument("filter: expected a string, found ", call.input().TypeName());
  return Value::Bool(call.input().string() && FindFilter(call.input().AsText().text()) != nullptr);
}
Result<Value> IsTestName(const Call& call) {
  if (call.input().list(ListKind::kList) || call.input().dict())
    return InvalidArgument("test: expected a string, found ", call.input().TypeName());
  return Value::Bool(call.input().string() && FindTest(call.input().AsText().text()) != nullptr);
}

constexpr Builtin kTests[] = {
    {"!=", "b", Compared<kNotEqual>},
    {"<", "b", Compared<kBelow>},
    {"<=", "b", Compared<kAtMost>},
    {"==", "b", Compared<kEqual>},
    {">", "b", Compared<kAbove>},
    {">=", "b", Compared<kAtLeast>},
    {"boolean", "", Type<[](const Value& v) { return v.boolean(); }>},
    {"callable", "", Type<IsCallable>},
    {"defined", "", Type<[](const Value& v) { return !v.undefined(); }>},
    {"divisibleby", "num", DivisibleBy},
    {"eq", "b", Compared<kEqual>},
    {"equalto", "b", Compared<kEqual>},
    {"even", "", Even},
    {"false", "", Type<[](const Value& v) { return v.boolean() && !v.AsBool(); }>},
    {"filter", "", IsFilterName},
    {"float", "", Type<[](const Value& v) { return v.floating(); }>},
    {"ge", "b", Compared<kAtLeast>},
    {"greaterthan", "b", Compared<kAbove>},
    {"gt", "b", Compared<kAbove>},
    {"in", "seq", Compared<kIn>},
    {"integer", "", Type<[](const Value& v) { return v.integer() || v.large(); }>},
    {"iterable", "", Type<IsIterable>},
    {"le", "b", Compared<kAtMost>},
    {"lessthan", "b", Compared<kBelow>},
    {"lower", "", InLetterCase<LetterCase::kLower>},
    {"lt", "b", Compared<kBelow>},
    {"mapping", "", Type<[](const Value& v) { return v.dict(); }>},
    {"ne", "b", Compared<kNotEqual>},
    {"none", "", Type<[](const Value& v) { return v.none(); }>},
    {"number", "", Type<[](const Value& v) { return v.number() || v.large(); }>},
    {"odd", "", Odd},
    {"sameas", "other", SameAs},
    {"sequence", "", Type<IsSequence>},
    {"string", "", Type<[](const Value& v) { return v.string(); }>},
    {"test", "", IsTestName},
    {"true", "", Type<[](const Value& v) { return v.boolean() && v.AsBool(); }>},
    {"undefined", "", Type<[](const Value& v) { return v.undefined(); }>},
    {"upper", "", InLetterCase<LetterCase::kUpper>},
};

}  // namespace

const Builtin* FindTest(std::string_view name) {
  const auto* found = std::lower_bound(
      std::begin(kTests), std::end(kTests), name,
      [](const Builtin& test, std::string_view wanted) { return test.name < wanted; });
  return found != std::end(kTests) && found->name == name ? found : nullptr;
}

}  // namespace polysketch::chat
