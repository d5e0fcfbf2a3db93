#include "server/chat/builtins.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>
#include <map>

namespace polysketch::chat {
namespace {

constexpr std::array<std::string_view, 31> kFilters = {
    "abs",    "capitalize", "count",      "d",       "default", "dictsort", "first",  "float",
    "indent", "int",        "items",      "join",    "last",    "length",   "list",   "lower",
    "map",    "reject",     "rejectattr", "replace", "reverse", "safe",     "select", "selectattr",
    "string", "title",      "tojson",     "trim",    "unique",  "upper",    "round"};
constexpr std::array<std::string_view, 27> kTests = {
    "boolean", "callable", "defined", "divisibleby", "eq",        "equalto", "even",
    "false",   "float",    "ge",      "gt",          "in",        "integer", "iterable",
    "le",      "lt",       "mapping", "ne",          "none",      "number",  "odd",
    "sameas",  "sequence", "string",  "true",        "undefined", "=="};
constexpr std::array<std::string_view, 5> kFunctions = {"raise_exception", "range", "namespace",
                                                        "strftime_now", "dict"};

template <typename Names>
bool Contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<Value> ListValue(Result<List> list) {
  PS_RETURN_IF_ERROR(list.status());
  return Value::FromList(*std::move(list));
}

Result<List> ToList(const Value& value, Budget* budget) {
  if (value.undefined()) return List();
  return Elements(value, budget);
}

Result<int64_t> Count(const Value& value) {
  if (value.string()) return static_cast<int64_t>(CharacterCount(value.AsText().text()));
  if (value.list()) return static_cast<int64_t>(value.AsList().size());
  if (value.dict()) return static_cast<int64_t>(value.AsDict().entries().size());
  if (value.undefined()) return 0;
  return InvalidArgument("length: expected a string, a list or a dict, found ", value.TypeName());
}

// [key, value] of each entry.
Result<Value> Items(const Value& value, Budget* budget) {
  List items;
  if (value.undefined()) return Value::FromList({});
  if (!value.dict()) return InvalidArgument("items: expected a dict, found ", value.TypeName());
  PS_RETURN_IF_ERROR(budget->Spend(value.AsDict().entries().size() * sizeof(Value)));
  for (const auto& [key, entry] : value.AsDict().entries()) {
    PS_ASSIGN_OR_RETURN(Value pair, Value::FromList({Value::MessageString(key), entry}));
    items.push_back(std::move(pair));
  }
  return Value::FromList(std::move(items));
}

Result<Value> SortedItems(const Value& value, Budget* budget) {
  PS_ASSIGN_OR_RETURN(const Value items, Items(value, budget));
  std::multimap<std::string, Value> sorted;  // equal keys stay in their order
  for (const Value& item : items.AsList()) {
    const MarkedText key = InCase(item.AsList()[0].AsText(), LetterCase::kLower);
    sorted.emplace(key.text(), item);
  }
  List list;
  for (auto& [key, item] : sorted) list.push_back(std::move(item));
  return Value::FromList(std::move(list));
}

Result<Value> JsonFilter(const Value& input, const Arguments& arguments, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(input.weight()));
  JsonForm form;
  if (const Value* indent = arguments.Get(1, "indent"); indent != nullptr && !indent->none()) {
    if (!indent->integer() || indent->AsInt() < 0 || indent->AsInt() > 16)
      return InvalidArgument("tojson: indent: expected 0 to 16, found another value");
    form.indent = static_cast<int>(indent->AsInt());
    form.item_separator.resize(1);  // no space at the end of a line
  }
  if (const Value* value = arguments.Get(0, "ensure_ascii")) form.ensure_ascii = value->Truth();
  if (const Value* value = arguments.Get(3, "sort_keys")) form.sort_keys = value->Truth();
  if (const Value* pair = arguments.Get(2, "separators"); pair != nullptr && !pair->none()) {
    if (!pair->list() || pair->AsList().size() != 2 || !pair->AsList()[0].string() ||
        !pair->AsList()[1].string())
      return InvalidArgument("tojson: separators: expected two strings, found another value");
    form.item_separator = pair->AsList()[0].AsText().text();
    form.key_separator = pair->AsList()[1].AsText().text();
  }
  PS_ASSIGN_OR_RETURN(const std::string json, ToJson(input, form));
  PS_RETURN_IF_ERROR(budget->Spend(json.size()));
  return Value::MessageString(json);
}

// The field of a dict by its path: "function.name".
Value Field(Value value, const std::string& path) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const Value* found = value.dict() ? value.AsDict().Find(name) : nullptr;
    value = found == nullptr ? Value::Missing(name) : Value(*found);
    begin = end + 1;
  }
  return value;
}

Result<Value> MapFilter(const Value& input, const Arguments& arguments, Budget* budget) {
  PS_ASSIGN_OR_RETURN(const List list, ToList(input, budget));
  const Value* attribute = arguments.Get(-1, "attribute");
  const Value* filter = arguments.Get(0, "");
  List results;
  for (const Value& element : list) {
    PS_RETURN_IF_ERROR(budget->Step());
    if (attribute != nullptr && attribute->string()) {
      const Value* missing = arguments.Get(-1, "default");
      Value field = Field(element, attribute->AsText().text());
      results.push_back(field.undefined() && missing != nullptr ? *missing : std::move(field));
      continue;
    }
    if (filter == nullptr || !filter->string() || !IsFilter(filter->AsText().text()) ||
        filter->AsText().text() == "map")
      return InvalidArgument("map: expected attribute= or the name of a filter, found neither");
    Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
    PS_ASSIGN_OR_RETURN(Value mapped, ApplyFilter(filter->AsText().text(), element, rest, budget));
    results.push_back(std::move(mapped));
  }
  return Value::FromList(std::move(results));
}

// select, reject (by the element), selectattr, rejectattr (by a field of it).
Result<Value> SelectFilter(const Value& input, const Arguments& arguments, bool by_field,
                           bool wanted, Budget* budget) {
  PS_ASSIGN_OR_RETURN(const List list, ToList(input, budget));
  const size_t first = by_field ? 1 : 0;
  if (arguments.positional.size() < first || (by_field && !arguments.positional[0].string()))
    return InvalidArgument("selectattr: expected the name of a field, found none");
  const bool by_test = arguments.positional.size() > first;
  if (by_test && (!arguments.positional[first].string() ||
                  !IsTest(arguments.positional[first].AsText().text())))
    return InvalidArgument(
        "select: expected a test that docs/chat-templates.md lists, found another");
  Arguments rest;
  if (by_test)
    rest.positional.assign(arguments.positional.begin() + static_cast<long>(first) + 1,
                           arguments.positional.end());
  List results;
  for (const Value& element : list) {
    PS_RETURN_IF_ERROR(budget->Step());
    const Value subject =
        by_field ? Field(element, arguments.positional[0].AsText().text()) : element;
    bool chosen = subject.Truth();
    if (by_test) {
      PS_ASSIGN_OR_RETURN(chosen,
                          ApplyTest(arguments.positional[first].AsText().text(), subject, rest));
    }
    if (chosen == wanted) results.push_back(element);
  }
  return Value::FromList(std::move(results));
}

Result<Value> ToInteger(const Value& input, const Arguments& arguments) {
  const Value* given = arguments.Get(0, "default");
  const Value missing = given == nullptr ? Value::Int(0) : *given;
  if (input.floating()) {
    const double value = std::trunc(input.AsDouble());
    if (!(std::fabs(value) < 9e18)) return missing;
    return Value::Int(static_cast<int64_t>(value));
  }
  if (input.number()) return Value::Int(input.AsInt());
  if (!input.string()) return missing;
  const MarkedText stripped = Stripped(input.AsText(), nullptr, true, true);
  std::string_view text = stripped.text();
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return Value::Int(value);
  return missing;
}

Result<Value> ToFloat(const Value& input, const Arguments& arguments) {
  const Value* given = arguments.Get(0, "default");
  const Value missing = given == nullptr ? Value::Float(0) : *given;
  if (input.number()) return Value::Float(input.AsDouble());
  if (!input.string()) return missing;
  const MarkedText stripped = Stripped(input.AsText(), nullptr, true, true);
  const std::string& text = stripped.text();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return Value::Float(value);
  return missing;
}

Result<Value> Indented(const MarkedText& text, const Arguments& arguments, Budget* budget) {
  const Value* width = arguments.Get(0, "width");
  const Value* first = arguments.Get(1, "first");
  const Value* blank = arguments.Get(2, "blank");
  const int64_t spaces = width == nullptr ? 4 : width->integer() ? width->AsInt() : -1;
  if (spaces < 0 || spaces > 256)
    return InvalidArgument("indent: expected 0 to 256, found another value");
  const MarkedText indent(std::string(static_cast<size_t>(spaces), ' '), TextOrigin::kMessage);
  MarkedText out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.text().find('\n', begin), text.size());
    const bool empty = begin == end && (blank == nullptr || !blank->Truth());
    const bool indents = begin == 0 ? first != nullptr && first->Truth() : !empty;
    PS_RETURN_IF_ERROR(budget->Spend(end - begin + indent.size() + 1));
    if (begin > 0) out.Append(text.Slice(begin - 1, begin));
    if (indents) out.Append(indent);
    out.Append(text.Slice(begin, end));
    begin = end + 1;
  }
  return Value::String(std::move(out));
}

Result<Value> Ends(const Value& input, bool last, Budget* budget) {
  PS_ASSIGN_OR_RETURN(List list, ToList(input, budget));
  if (list.empty()) return Value::Missing(last ? "last" : "first");
  return last ? list.back() : list.front();
}

Result<Value> Reversed(const Value& input, Budget* budget) {
  PS_ASSIGN_OR_RETURN(List list, ToList(input, budget));
  std::reverse(list.begin(), list.end());
  if (!input.string()) return Value::FromList(std::move(list));
  PS_ASSIGN_OR_RETURN(MarkedText text, Joined(list, MarkedText(), budget));
  return Value::String(std::move(text));
}

Result<Value> Unique(const Value& input, Budget* budget) {
  PS_ASSIGN_OR_RETURN(const List list, ToList(input, budget));
  List unique;
  for (const Value& element : list) {
    PS_RETURN_IF_ERROR(budget->Spend((element.weight() + 1) * (unique.size() + 1)));
    if (std::find(unique.begin(), unique.end(), element) == unique.end()) unique.push_back(element);
  }
  return Value::FromList(std::move(unique));
}

Result<Value> Rounded(const Value& input, const Arguments& arguments) {
  if (!input.number()) return InvalidArgument("round: expected a number, found ", input.TypeName());
  const Value* digits = arguments.Get(0, "precision");
  if (digits != nullptr && (!digits->integer() || digits->AsInt() < 0 || digits->AsInt() > 15))
    return InvalidArgument("round: expected a precision of 0 to 15, found another value");
  const double scale = std::pow(10.0, digits == nullptr ? 0.0 : digits->AsDouble());
  return Value::Float(std::nearbyint(input.AsDouble() * scale) / scale);
}

Result<Value> JoinFilter(const Value& input, const Arguments& arguments, Budget* budget) {
  PS_ASSIGN_OR_RETURN(List list, ToList(input, budget));
  if (const Value* attribute = arguments.Get(1, "attribute");
      attribute != nullptr && attribute->string()) {
    for (Value& element : list) element = Field(element, attribute->AsText().text());
  }
  const Value* separator = arguments.Get(0, "d");
  PS_ASSIGN_OR_RETURN(
      MarkedText joined,
      Joined(list, separator == nullptr ? MarkedText() : separator->ToText(), budget));
  return Value::String(std::move(joined));
}

// Filters of text; of another value, its text.
Result<Value> TextFilter(const std::string& name, const Value& input, const Arguments& arguments,
                         Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(2 * input.weight()));
  const MarkedText text = input.ToText();
  if (name == "string" || name == "safe") return Value::String(text);
  if (name == "trim") return CallTextMethod(text, "strip", arguments, budget);
  if (name == "indent") return Indented(text, arguments, budget);
  return CallTextMethod(text, name, arguments, budget);  // upper, lower, capitalize, title, replace
}

}  // namespace

Status Budget::Step() {
  if (--steps_ >= 0) return Status();
  return InvalidArgument("expected at most ", kSteps, " steps, found a template that needs more");
}

Status Budget::Spend(size_t bytes) {
  bytes_ -= static_cast<int64_t>(std::min(bytes, size_t{INT64_MAX / 2}));
  if (bytes_ >= 0) return Status();
  return InvalidArgument("expected work on at most ", kBytes,
                         " bytes, found a template that needs more");
}

const Value* Arguments::Get(int index, std::string_view name) const {
  if (index >= 0 && static_cast<size_t>(index) < positional.size())
    return &positional[static_cast<size_t>(index)];
  const auto found = std::find_if(named.begin(), named.end(),
                                  [&](const auto& argument) { return argument.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

bool IsFilter(std::string_view name) { return Contains(kFilters, name); }
bool IsTest(std::string_view name) { return Contains(kTests, name); }
bool IsFunction(std::string_view name) { return Contains(kFunctions, name); }

Result<List> Elements(const Value& value, Budget* budget) {
  if (value.undefined()) return List();
  if (value.list()) {
    PS_RETURN_IF_ERROR(budget->Spend(value.AsList().size() * sizeof(Value)));
    return value.AsList();
  }
  List elements;
  if (value.dict()) {
    PS_RETURN_IF_ERROR(budget->Spend(value.AsDict().entries().size() * sizeof(Value)));
    for (const auto& [key, entry] : value.AsDict().entries())
      elements.push_back(Value::MessageString(key));
    return elements;
  }
  if (!value.string())
    return InvalidArgument("expected a list, a dict or a string, found ", value.TypeName());
  PS_RETURN_IF_ERROR(budget->Spend(value.AsText().size() * 4 * sizeof(Value)));
  const std::vector<size_t> offsets = CharacterOffsets(value.AsText().text());
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    elements.push_back(Value::String(value.AsText().Slice(offsets[i], offsets[i + 1])));
  return elements;
}

Result<Value> ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments,
                          Budget* budget) {
  if (name == "default" || name == "d") {
    const Value* given = arguments.Get(0, "default_value");
    const Value* boolean = arguments.Get(1, "boolean");
    const bool missing =
        input.undefined() || (boolean != nullptr && boolean->Truth() && !input.Truth());
    if (!missing) return input;
    return given == nullptr ? Value::TemplateString("") : *given;
  }
  if (name == "length" || name == "count") {
    PS_ASSIGN_OR_RETURN(const int64_t count, Count(input));
    return Value::Int(count);
  }
  if (name == "tojson") return JsonFilter(input, arguments, budget);
  if (name == "join") return JoinFilter(input, arguments, budget);
  if (name == "items") return Items(input, budget);
  if (name == "dictsort") return SortedItems(input, budget);
  if (name == "list") return ListValue(ToList(input, budget));
  if (name == "first" || name == "last") return Ends(input, name == "last", budget);
  if (name == "reverse") return Reversed(input, budget);
  if (name == "unique") return Unique(input, budget);
  if (name == "map") return MapFilter(input, arguments, budget);
  if (name == "select" || name == "reject")
    return SelectFilter(input, arguments, false, name == "select", budget);
  if (name == "selectattr" || name == "rejectattr")
    return SelectFilter(input, arguments, true, name == "selectattr", budget);
  if (name == "int") return ToInteger(input, arguments);
  if (name == "float") return ToFloat(input, arguments);
  if (name == "round") return Rounded(input, arguments);
  if (name == "abs") {
    if (input.floating()) return Value::Float(std::fabs(input.AsDouble()));
    if (!input.number() || input.AsInt() == INT64_MIN)
      return InvalidArgument("abs: expected a number, found ", input.TypeName());
    return Value::Int(std::abs(input.AsInt()));
  }
  return TextFilter(name, input, arguments, budget);
}

Result<bool> ApplyTest(const std::string& name, const Value& input, const Arguments& arguments) {
  if (name == "defined") return !input.undefined();
  if (name == "undefined") return input.undefined();
  if (name == "none") return input.none();
  if (name == "string") return input.string();
  if (name == "mapping") return input.dict();
  if (name == "boolean") return input.boolean();
  if (name == "integer") return input.integer();
  if (name == "float") return input.floating();
  if (name == "number") return input.number();
  if (name == "callable") return input.callable();
  if (name == "true") return input.boolean() && input.AsBool();
  if (name == "false") return input.boolean() && !input.AsBool();
  if (name == "sequence" || name == "iterable")
    return input.string() || input.list() || input.dict() || input.undefined();
  if (name == "even" || name == "odd") {
    if (!input.integer())
      return InvalidArgument(name, ": expected an integer, found ", input.TypeName());
    return (input.AsInt() % 2 == 0) == (name == "even");
  }
  const Value* other = arguments.Get(0, "other");
  if (other == nullptr) return InvalidArgument(name, ": expected an argument, found none");
  if (name == "eq" || name == "==" || name == "equalto") return input == *other;
  if (name == "ne") return !(input == *other);
  if (name == "sameas")  // values have no identity: equal ones of one type are the same
    return input == *other && input.TypeName() == other->TypeName();
  if (name == "in") {
    if (!other->list()) return InvalidArgument("in: expected a list, found ", other->TypeName());
    return std::find(other->AsList().begin(), other->AsList().end(), input) !=
           other->AsList().end();
  }
  if (!input.number() || !other->number())
    return InvalidArgument(name, ": expected numbers, found ", input.TypeName(), " and ",
                           other->TypeName());
  if (name == "divisibleby") {
    if (!input.integer() || !other->integer() || other->AsInt() <= 0)
      return InvalidArgument("divisibleby: expected integers above 0, found others");
    return input.AsInt() % other->AsInt() == 0;
  }
  if (name == "lt") return input.AsDouble() < other->AsDouble();
  if (name == "le") return input.AsDouble() <= other->AsDouble();
  if (name == "gt") return input.AsDouble() > other->AsDouble();
  return input.AsDouble() >= other->AsDouble();
}

Result<Value> CallMethod(const Value& object, const std::string& name, const Arguments& arguments,
                         Budget* budget) {
  if (object.string()) return CallTextMethod(object.AsText(), name, arguments, budget);
  if (object.dict()) {
    if (name == "items") return Items(object, budget);
    if (name == "keys") return ListValue(Elements(object, budget));
    if (name == "values") {
      List values;
      for (const auto& [key, entry] : object.AsDict().entries()) values.push_back(entry);
      PS_RETURN_IF_ERROR(budget->Spend(values.size() * sizeof(Value)));
      return Value::FromList(std::move(values));
    }
    if (name == "get") {
      const Value* key = arguments.Get(0, "key");
      if (key == nullptr) return InvalidArgument("get: expected a key, found none");
      const Value* found = key->string() ? object.AsDict().Find(key->AsText().text()) : nullptr;
      if (found != nullptr) return *found;
      const Value* missing = arguments.Get(1, "default");
      return missing == nullptr ? Value::NoneValue() : *missing;
    }
  }
  if (object.undefined())
    return InvalidArgument("expected a value of ", object.missing_name(), ", found none");
  return InvalidArgument("expected a method that docs/chat-templates.md lists, found ", name,
                         " of ", object.TypeName());
}

namespace {

Result<Value> Range(const Arguments& arguments, Budget* budget) {
  int64_t numbers[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3)
    return InvalidArgument("range: expected 1 to 3 numbers, found ", count);
  for (size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].integer())
      return InvalidArgument("range: expected integers, found ",
                             arguments.positional[i].TypeName());
    numbers[count == 1 ? 1 : i] = arguments.positional[i].AsInt();
  }
  constexpr int64_t kLargest = int64_t{1} << 31;
  if (numbers[2] == 0 ||
      std::any_of(numbers, numbers + 3, [](int64_t n) { return n < -kLargest || n > kLargest; }))
    return InvalidArgument("range: expected numbers of 32 bits and a step, found others");
  List list;
  for (int64_t i = numbers[0]; numbers[2] > 0 ? i < numbers[1] : i > numbers[1]; i += numbers[2]) {
    PS_RETURN_IF_ERROR(budget->Step());
    list.push_back(Value::Int(i));
  }
  return Value::FromList(std::move(list));
}

Result<Value> TimeNow(const Arguments& arguments) {
  const Value* format = arguments.Get(0, "format");
  if (format == nullptr || !format->string() || format->AsText().size() > 256)
    return InvalidArgument("strftime_now: expected a format, found none");
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[4096];
  const size_t size = std::strftime(text, sizeof(text), format->AsText().text().c_str(), &parts);
  return Value::MessageString(std::string_view(text, size));
}

}  // namespace

Result<Value> CallFunction(std::string_view name, const Arguments& arguments, Budget* budget) {
  if (name == "range") return Range(arguments, budget);
  if (name == "strftime_now") return TimeNow(arguments);
  if (name == "raise_exception") {
    const Value* message = arguments.Get(0, "message");
    return InvalidArgument("the template refuses the messages: ",
                           message == nullptr ? "" : message->ToText().text());
  }
  Dict fields;
  for (const auto& [key, value] : arguments.named) fields.Set(key, value);
  if (name == "dict") return Value::FromDict(std::move(fields));
  for (const auto& [key, value] : arguments.named) {
    if (value.is_namespace())
      return InvalidArgument("namespace: expected no namespace inside a namespace, found one");
  }
  return Value::NewNamespace(std::move(fields));
}

}  // namespace polysketch::chat
