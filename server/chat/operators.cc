#include "server/chat/operators.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "server/chat/builtins.h"
#include "server/chat/syntax.h"
#include "server/chat/text.h"

namespace polysketch::chat {
namespace {

Result<bool> Contains(const Value& right, const Value& left, Budget* budget) {
  if (right.undefined()) return false;
  if (right.dict()) {
    if (left.list() || left.dict())
      return InvalidArgument("in: expected a key, found ", left.TypeName());
    const Result<std::string> key = KeyOf(left);
    return key.ok() && right.AsDict().Find(*key) != nullptr;
  }
  if (right.string() && left.string()) {
    PS_RETURN_IF_ERROR(budget->Spend(2 * right.AsText().size() + left.AsText().size()));
    return FindText(right.AsText().text(), left.AsText().text(), 0) != std::string::npos;
  }
  if (!right.list())
    return InvalidArgument("in: expected a list, a dict or two strings, found ", left.TypeName(),
                           " and ", right.TypeName());
  PS_ASSIGN_OR_RETURN(const List elements, Elements(right, budget));
  for (const Value& element : elements) {
    PS_RETURN_IF_ERROR(budget->Spend(std::min(left.weight(), element.weight())));
    if (element == left) return true;
  }
  return false;
}

Result<Value> CalculateFloat(std::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") {
    const double power = std::pow(a, b);
    if ((a < 0 && b != std::floor(b)) || (a == 0 && b < 0) ||
        (std::isinf(power) && std::isfinite(a) && std::isfinite(b)))
      return InvalidArgument("**: expected a real result of 64 bits, found another one");
    return Value::Float(power);
  }
  if (b == 0) return InvalidArgument(op, ": expected a divisor other than 0, found 0");
  if (op == "/") return Value::Float(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == "%") return Value::Float(rest == 0 ? std::copysign(0.0, b) : rest);
  const double quotient = (a - rest) / b;
  const double whole = std::floor(quotient);
  return Value::Float(quotient == 0 ? std::copysign(0.0, a / b)
                                    : whole + (quotient - whole > 0.5 ? 1 : 0));
}

Result<Value> Power(int64_t a, int64_t b) {
  if (b < 0) return CalculateFloat("**", static_cast<double>(a), static_cast<double>(b));
  int64_t result = 1;
  bool overflow = false;
  while (b > 0 && !overflow) {
    if (b % 2 == 1) overflow |= __builtin_mul_overflow(result, a, &result);
    b /= 2;
    if (b > 0) overflow |= __builtin_mul_overflow(a, a, &a);
  }
  if (overflow) return InvalidArgument("**: expected a result of 64 bits, found a larger one");
  return Value::Int(result);
}

Result<Value> CalculateInt(std::string_view op, int64_t a, int64_t b) {
  if (op == "**") return Power(a, b);
  int64_t result = 0;
  const bool divides = op == "//" || op == "%";
  if (divides && b == 0) return InvalidArgument(op, ": expected a divisor other than 0, found 0");
  bool overflow = divides && a == INT64_MIN && b == -1;
  if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (overflow) return InvalidArgument(op, ": expected a result of 64 bits, found a larger one");
  if (!divides) return Value::Int(result);
  // Python rounds down.
  const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  return Value::Int(op == "//" ? quotient : a - quotient * b);
}

Result<Value> Repeated(const Value& value, int64_t count, Budget* budget) {
  count = std::max<int64_t>(count, 0);
  if (value.string()) {
    const MarkedText& text = value.AsText();
    PS_RETURN_IF_ERROR(budget->Spend(text.size() == 0 ? 0 : static_cast<size_t>(count),
                                     text.size() + Budget::kElement / 2));
    MarkedText out;
    for (int64_t i = 0; i < count && text.size() > 0; ++i) out.Append(text);
    return Value::String(std::move(out));
  }
  const List& list = value.AsList();
  PS_RETURN_IF_ERROR(budget->Spend(list.empty() ? 0 : static_cast<size_t>(count),
                                   std::max<size_t>(list.size(), 1) * Budget::kElement));
  List out;
  for (int64_t i = 0; i < count && !list.empty(); ++i)
    out.insert(out.end(), list.begin(), list.end());
  return Value::FromList(std::move(out), value.list_kind());
}

// Lists and tuples: what + and * take.
bool IsListOrTuple(const Value& value) {
  return value.list(ListKind::kList) || value.list(ListKind::kTuple);
}

// An element of a list by its number; unset outside.
std::optional<size_t> Place(int64_t index, size_t size) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return std::nullopt;
  return static_cast<size_t>(index);
}

Value LoopField(const Value::Loop& loop, std::string_view name) {
  const List& elements = *loop.elements;
  const auto index = static_cast<int64_t>(loop.index);
  const int64_t length = std::ssize(elements);
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "revindex") return Value::Int(length - index);
  if (name == "revindex0") return Value::Int(length - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == length);
  if (name == "length") return Value::Int(length);
  // Of loops that call themselves, which the language does not have.
  if (name == "depth") return Value::Int(1);
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem" && index > 0) return elements[loop.index - 1];
  if (name == "nextitem" && index + 1 < length) return elements[loop.index + 1];
  return Value::Missing(std::string(name));
}

// Methods that change a dict. The sandbox of Jinja has them undefined.
bool ChangesDict(std::string_view name) {
  return name == "clear" || name == "pop" || name == "popitem" || name == "setdefault" ||
         name == "update";
}

}  // namespace

Result<int> Order(const Value& left, const Value& right) {
  if (left.string() && right.string()) {
    const int order = left.AsText().text().compare(right.AsText().text());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (left.number() && right.number()) {
    if (left == right) return 0;
    const bool integers = !left.floating() && !right.floating();
    return (integers ? left.AsInt() < right.AsInt() : left.AsDouble() < right.AsDouble()) ? -1 : 1;
  }
  if (IsListOrTuple(left) && right.list(left.list_kind())) {
    const List &a = left.AsList(), &b = right.AsList();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (a[i] == b[i]) continue;
      return Order(a[i], b[i]);
    }
    return a.size() == b.size() ? 0 : a.size() < b.size() ? -1 : 1;
  }
  return InvalidArgument("expected two numbers, two strings or two lists, found ", left.TypeName(),
                         " and ", right.TypeName());
}

Result<bool> Compare(std::string_view op, const Value& left, const Value& right, Budget* budget) {
  if (op == "in" || op == "not in") {
    PS_ASSIGN_OR_RETURN(const bool contains, Contains(right, left, budget));
    return contains == (op == "in");
  }
  PS_RETURN_IF_ERROR(budget->Spend(2 * std::min(left.weight(), right.weight())));
  if (op == "==") return left == right;
  if (op == "!=") return !(left == right);
  const Result<int> order = Order(left, right);
  if (!order.ok()) return Status(order.status().code(), StrCat(op, ": ", order.status().message()));
  if (left.number() && (std::isnan(left.AsDouble()) || std::isnan(right.AsDouble()))) return false;
  return op == "<" ? *order < 0 : op == "<=" ? *order <= 0 : op == ">" ? *order > 0 : *order >= 0;
}

Result<Value> Calculate(std::string_view op, const Value& left, const Value& right,
                        Budget* budget) {
  if (op == "~" || (op == "+" && left.string() && right.string())) {
    PS_RETURN_IF_ERROR(budget->Spend(left.weight() + right.weight()));
    PS_ASSIGN_OR_RETURN(MarkedText text, TextOf(left, budget));
    PS_ASSIGN_OR_RETURN(MarkedText more, TextOf(right, budget));
    const bool markup = op == "+" && (left.markup() || right.markup());
    if (markup && !left.markup()) {
      PS_ASSIGN_OR_RETURN(text, Escaped(text, budget));
    } else if (markup && !right.markup()) {
      PS_ASSIGN_OR_RETURN(more, Escaped(more, budget));
    }
    text.Append(more);
    return markup ? Value::Markup(std::move(text)) : Value::String(std::move(text));
  }
  if (op == "+" && IsListOrTuple(left) && right.list(left.list_kind())) {
    PS_ASSIGN_OR_RETURN(List list, Elements(left, budget));
    PS_ASSIGN_OR_RETURN(const List more, Elements(right, budget));
    list.insert(list.end(), more.begin(), more.end());
    return Value::FromList(std::move(list), left.list_kind());
  }
  const auto repeats = [](const Value& value) { return value.string() || IsListOrTuple(value); };
  if (op == "*" && repeats(left) && (right.integer() || right.boolean()))
    return Repeated(left, right.AsInt(), budget);
  if (op == "*" && repeats(right) && (left.integer() || left.boolean()))
    return Repeated(right, left.AsInt(), budget);
  if (op == "%" && left.string()) {
    return TextValue(PercentFormat(left.AsText(), right, budget));
  }
  if (!left.number() || !right.number()) {
    const Value& wrong =
        left.undefined() || right.undefined() ? (left.undefined() ? left : right) : right;
    if (wrong.undefined())
      return InvalidArgument(op, ": expected a value of ", wrong.missing_name(), ", found none");
    return InvalidArgument(op, ": expected two numbers", op == "+" ? ", strings or lists" : "",
                           ", found ", left.TypeName(), " and ", right.TypeName());
  }
  if (op == "/" || left.floating() || right.floating())
    return CalculateFloat(op, left.AsDouble(), right.AsDouble());
  return CalculateInt(op, left.AsInt(), right.AsInt());
}

Result<Value> Attribute(const Value& object, const std::string& name) {
  if (object.undefined())
    return InvalidArgument("expected a value of ", object.missing_name(), ", found none");
  if (object.is_loop()) {
    if (name != "cycle") return LoopField(object.AsLoop(), name);
  } else if (object.is_namespace()) {
    const Value* found = object.fields()->Find(name);
    return found == nullptr ? Value::Missing(name) : *found;
  }
  if (const Macro* const macro = object.AsMacro().macro; macro != nullptr && name == "name")
    return Value::TemplateString(macro->name);
  if (object.dict() && ChangesDict(name)) return Value::Missing(name);
  if (const Builtin* method = FindMethod(object, name))
    return Value::OfMethod(object, method->name);
  const Value* found = object.dict() ? object.AsDict().Find(name) : nullptr;
  return found == nullptr ? Value::Missing(name) : *found;
}

Result<Value> Item(const Value& object, const Value& key, Budget* budget) {
  if (object.undefined())
    return InvalidArgument("expected a value of ", object.missing_name(), ", found none");
  if (key.string()) {
    const std::string& name = key.AsText().text();
    const Value* found = object.dict() ? object.AsDict().Find(name) : nullptr;
    return found == nullptr ? Attribute(object, name) : *found;
  }
  const Value missing = Value::Missing("an element");
  if (object.dict()) {
    const Result<std::string> name = KeyOf(key);
    const Value* found = name.ok() ? object.AsDict().Find(*name) : nullptr;
    return found == nullptr ? missing : *found;
  }
  if (!key.integer() && !key.boolean()) return missing;
  if (object.list()) {
    if (object.list_kind() == ListKind::kView || object.list_kind() == ListKind::kIterator)
      return missing;
    const std::optional<size_t> place = Place(key.AsInt(), object.AsList().size());
    return place ? object.AsList()[*place] : missing;
  }
  if (!object.string()) return missing;
  const std::string& text = object.AsText().text();
  PS_RETURN_IF_ERROR(budget->Spend(2 * text.size()));
  const std::optional<size_t> place = Place(key.AsInt(), CharacterCount(text));
  if (!place) return missing;
  const auto begin = static_cast<int64_t>(*place), end = begin + 1;
  return TextValue(CharacterSlice(object.AsText(), &begin, &end, 1, budget));
}

Result<Value> SliceOf(const Value& object, const Value& begin, const Value& end, const Value& step,
                      Budget* budget) {
  constexpr int64_t kLargest = int64_t{1} << 40;  // more than any value has elements
  std::optional<int64_t> parts[3];
  const Value* given[] = {&begin, &end, &step};
  for (int i = 0; i < 3; ++i) {
    if (given[i]->undefined() || given[i]->none()) continue;
    if (!given[i]->integer() && !given[i]->boolean())
      return InvalidArgument("a slice: expected integers, found ", given[i]->TypeName());
    parts[i] = std::clamp(given[i]->AsInt(), -kLargest, kLargest);
  }
  const int64_t by = parts[2].value_or(1);
  if (by == 0) return InvalidArgument("a slice: expected a step other than 0, found 0");
  const int64_t* const from = parts[0] ? &*parts[0] : nullptr;
  const int64_t* const to = parts[1] ? &*parts[1] : nullptr;
  if (object.undefined())
    return InvalidArgument("expected a value of ", object.missing_name(), ", found none");
  if (object.string()) {
    return TextValue(CharacterSlice(object.AsText(), from, to, by, budget));
  }
  if (!IsListOrTuple(object) && !object.list(ListKind::kRange))
    return InvalidArgument("a slice: expected a list or a string, found ", object.TypeName());
  const List& list = object.AsList();
  const Span span = SliceSpan(from, to, by, std::ssize(list));
  List chosen;
  for (int64_t i = span.begin; by > 0 ? i < span.end : i > span.end; i += by) {
    PS_RETURN_IF_ERROR(budget->Spend(Budget::kElement));
    chosen.push_back(list[static_cast<size_t>(i)]);
  }
  const ListKind kind = object.list_kind() == ListKind::kTuple ? ListKind::kTuple : ListKind::kList;
  return Value::FromList(std::move(chosen), kind);
}

}  // namespace polysketch::chat
