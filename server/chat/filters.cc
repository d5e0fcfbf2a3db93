// The filters of numbers and of lists. text_methods.cc has those of text.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <set>

#include "server/chat/builtins.h"
#include "server/chat/operators.h"
#include "server/chat/text.h"

namespace polysketch::chat {
namespace {

Result<Value> Default(const Call& call) {
  const bool missing = call.input().undefined() || (call.Truth(1, false) && !call.input().Truth());
  if (!missing) return call.input();
  return call.Get(0) == nullptr ? Value::TemplateString("") : *call.Get(0);
}

Result<Value> Length(const Call& call) {
  const Value& value = call.input();
  if (value.undefined()) return Value::Int(0);
  if (value.string()) {
    PS_RETURN_IF_ERROR(call.budget()->Spend(value.AsText().size()));
    return Value::Int(static_cast<int64_t>(CharacterCount(value.AsText().text())));
  }
  if (value.list() && value.list_kind() != ListKind::kIterator)
    return Value::Int(std::ssize(value.AsList()));
  if (value.dict()) return Value::Int(std::ssize(value.AsDict().entries()));
  if (value.is_loop()) return Value::Int(std::ssize(*value.AsLoop().elements));
  return InvalidArgument("length: expected a string, a list or a dict, found ", value.TypeName());
}

// --- numbers ---

// The characters of a number without "_" between digits and without the spaces around.
std::string NumberText(const MarkedText& text) {
  const std::string stripped = Stripped(text, nullptr, true, true).text();
  std::string out;
  for (size_t i = 0; i < stripped.size(); ++i) {
    const auto alnum = [&](size_t at) {
      return at < stripped.size() && std::isalnum(static_cast<unsigned char>(stripped[at])) != 0;
    };
    if (stripped[i] == '_' && i > 0 && alnum(i - 1) && alnum(i + 1)) continue;
    out += stripped[i];
  }
  return out;
}

// Python's float(text).
std::optional<double> ParseFloat(const MarkedText& text) {
  if (text.size() > 4096) return std::nullopt;
  const std::string number = NumberText(text);
  const char* begin = number.data();
  if (number.starts_with('+') && number.find_first_of("+-", 1) != 1) ++begin;
  double value = 0;
  const char* const all = number.data() + number.size();
  const auto [end, error] = std::from_chars(begin, all, value);
  if (end != all || begin == all || number.find('(') != std::string::npos) return std::nullopt;
  if (error == std::errc::result_out_of_range) return std::strtod(begin, nullptr);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// Python's int(text, base).
Result<std::optional<int64_t>> ParseInt(const MarkedText& text, int64_t base) {
  if (text.size() > 4096) return std::optional<int64_t>();
  std::string number = NumberText(text);
  const bool negative = number.starts_with('-');
  if (negative || number.starts_with('+')) number.erase(0, 1);
  if (number.size() > 2 && number[0] == '0') {
    const char letter = static_cast<char>(number[1] | 0x20);
    const int64_t of_letter = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (of_letter != 0 && (base == 0 || base == of_letter)) {
      base = of_letter;
      number.erase(0, number[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) {
    if (number.size() > 1 && number[0] == '0' && number.find_first_not_of('0') != std::string::npos)
      return std::optional<int64_t>();
    base = 10;
  }
  if (number.empty() || number[0] == '-') return std::optional<int64_t>();
  const std::string whole = negative ? "-" + number : number;
  int64_t value = 0;
  const char* const all = whole.data() + whole.size();
  const auto [end, error] = std::from_chars(whole.data(), all, value, static_cast<int>(base));
  if (end != all) return std::optional<int64_t>();
  if (error == std::errc::result_out_of_range)
    return InvalidArgument("int: expected a number of 64 bits, found a larger one");
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

Result<Value> ToInteger(const Call& call) {
  const Value& input = call.input();
  const Value missing = call.Get(0) == nullptr ? Value::Int(0) : *call.Get(0);
  std::optional<double> number;
  if (input.string()) {
    PS_RETURN_IF_ERROR(call.budget()->Spend(input.AsText().size()));
    PS_ASSIGN_OR_RETURN(const int64_t base, call.Int(1, 10));
    if (base == 0 || (base >= 2 && base <= 36)) {
      PS_ASSIGN_OR_RETURN(const std::optional<int64_t> value, ParseInt(input.AsText(), base));
      if (value) return Value::Int(*value);
    }
    number = ParseFloat(input.AsText());
    if (!number || !std::isfinite(*number)) return missing;
  } else if (input.floating()) {
    number = input.AsDouble();
    if (std::isnan(*number)) return missing;
  } else if (input.number()) {
    return Value::Int(input.AsInt());
  } else if (input.undefined()) {
    return InvalidArgument("int: expected a value of ", input.missing_name(), ", found none");
  } else {
    return missing;
  }
  if (!(std::fabs(*number) < 9.2e18))
    return InvalidArgument("int: expected a number of 64 bits, found a larger one");
  return Value::Int(static_cast<int64_t>(*number));
}

Result<Value> ToFloat(const Call& call) {
  const Value& input = call.input();
  if (input.number()) return Value::Float(input.AsDouble());
  if (input.undefined())
    return InvalidArgument("float: expected a value of ", input.missing_name(), ", found none");
  if (input.string()) {
    PS_RETURN_IF_ERROR(call.budget()->Spend(input.AsText().size()));
    if (const std::optional<double> number = ParseFloat(input.AsText()))
      return Value::Float(*number);
  }
  return call.Get(0) == nullptr ? Value::Float(0) : *call.Get(0);
}

Result<Value> Absolute(const Call& call) {
  const Value& input = call.input();
  if (input.floating()) return Value::Float(std::fabs(input.AsDouble()));
  if (!input.number() || input.AsInt() == INT64_MIN)
    return InvalidArgument("abs: expected a number, found ", input.TypeName());
  return Value::Int(std::abs(input.AsInt()));
}

// Python's round(): to the nearest, of two to the even one.
Result<Value> Nearest(const Value& input, int64_t digits) {
  if (!input.floating()) {
    if (digits >= 0) return Value::Int(input.AsInt());
    if (digits < -18) return Value::Int(0);
    int64_t unit = 1;
    for (int64_t i = 0; i > digits; --i) unit *= 10;
    int64_t rest = input.AsInt() % unit;
    if (rest < 0) rest += unit;
    const int64_t below = input.AsInt() / unit - (input.AsInt() % unit < 0 ? 1 : 0);
    const bool up = rest > unit - rest || (rest == unit - rest && below % 2 != 0);
    int64_t rounded = 0;
    if (__builtin_mul_overflow(below + (up ? 1 : 0), unit, &rounded))
      return InvalidArgument("round: expected a result of 64 bits, found a larger one");
    return Value::Int(rounded);
  }
  const double value = input.AsDouble();
  if (!std::isfinite(value) || digits > 323) return input;
  if (digits < -308) return Value::Float(std::copysign(0.0, value));
  if (digits < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-digits));
    return Value::Float(std::nearbyint(value / unit) * unit);
  }
  char text[800];
  std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(digits), value);
  return Value::Float(std::strtod(text, nullptr));
}

Result<Value> Round(const Call& call) {
  const Value& input = call.input();
  if (!input.number()) return InvalidArgument("round: expected a number, found ", input.TypeName());
  PS_ASSIGN_OR_RETURN(const int64_t digits, call.Int(0, 0));
  PS_ASSIGN_OR_RETURN(const MarkedText* method, call.Text(1));
  const std::string name = method == nullptr ? "common" : method->text();
  if (name == "common") return Nearest(input, digits);
  if (name != "ceil" && name != "floor") return call.Wrong(1, "common, ceil or floor");
  if (digits < -300 || digits > 300) return call.Wrong(0, "-300 to 300");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double value = input.AsDouble() * scale;
  const double whole = name == "ceil" ? std::ceil(value) : std::floor(value);
  if (!(std::fabs(value) < 9.2e18))
    return InvalidArgument("round: expected a number of 64 bits, found a larger one");
  return Value::Float((whole + 0.0) / scale);  // no negative 0
}

// --- lists ---

Result<Value> Iterator(List list) { return Value::FromList(std::move(list), ListKind::kIterator); }

// What a value is sorted and told apart by: of a text its letters without regard to case, unless
// `case_sensitive`.
Result<Value> SortKey(const Value& value, bool case_sensitive, Budget* budget) {
  if (case_sensitive || !value.string()) return value;
  return TextValue(InCase(value.AsText(), LetterCase::kLower, budget));
}

// The keys of elements: of `attribute`, which may be null, or of the elements themselves.
Result<List> KeysOf(const List& list, const Value* attribute, bool case_sensitive, Budget* budget) {
  List keys;
  for (const Value& element : list) {
    Value key = element;
    if (attribute != nullptr) {
      PS_ASSIGN_OR_RETURN(key, Field(element, *attribute, nullptr, budget));
    }
    PS_RETURN_IF_ERROR(budget->Spend(Budget::kElement));
    PS_ASSIGN_OR_RETURN(key, SortKey(key, case_sensitive, budget));
    keys.push_back(std::move(key));
  }
  return keys;
}

// The elements in the order of their keys, equal ones in theirs. `reverse` keeps that too.
Result<List> Sorted(const List& list, const List& keys, bool reverse, Budget* budget) {
  // A merge sort compares an element about twice on each of log2(n) levels.
  const auto levels = static_cast<size_t>(std::bit_width(list.size())) + 1;
  for (const Value& key : keys) PS_RETURN_IF_ERROR(budget->Spend(key.weight(), 2 * levels));
  std::vector<size_t> order(list.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Status failed;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (keys[a] == keys[b]) return false;
    const Result<int> sign = Order(keys[a], keys[b]);
    if (!sign.ok()) {
      if (failed.ok()) failed = sign.status();
      return false;
    }
    return reverse ? *sign > 0 : *sign < 0;
  });
  PS_RETURN_IF_ERROR(failed);
  List sorted;
  for (const size_t i : order) sorted.push_back(list[i]);
  return sorted;
}

Result<Value> Sort(const Call& call) {
  PS_ASSIGN_OR_RETURN(const List list, Elements(call.input(), call.budget()));
  const Value* attribute = call.GetSome(2);
  const bool case_sensitive = call.Truth(1, false);
  PS_ASSIGN_OR_RETURN(const int64_t reverse, call.Int(0, 0));
  // "a,b" sorts by a, then by b.
  if (attribute != nullptr && attribute->string() &&
      attribute->AsText().text().find(',') != std::string::npos) {
    const std::string comma = ",";
    PS_ASSIGN_OR_RETURN(const List names,
                        Split(attribute->AsText(), &comma, -1, false, call.budget()));
    List keys(list.size());
    std::vector<List> parts;
    for (const Value& name : names) {
      PS_ASSIGN_OR_RETURN(List part, KeysOf(list, &name, case_sensitive, call.budget()));
      parts.push_back(std::move(part));
    }
    for (size_t i = 0; i < list.size(); ++i) {
      List key;
      for (const List& part : parts) key.push_back(part[i]);
      PS_ASSIGN_OR_RETURN(keys[i], Value::FromList(std::move(key)));
    }
    return ListOf(Sorted(list, keys, reverse != 0, call.budget()));
  }
  PS_ASSIGN_OR_RETURN(const List keys, KeysOf(list, attribute, case_sensitive, call.budget()));
  return ListOf(Sorted(list, keys, reverse != 0, call.budget()));
}

Result<Value> Extreme(const Call& call, bool largest) {
  PS_ASSIGN_OR_RETURN(const List list, Elements(call.input(), call.budget()));
  if (list.empty()) return Value::Missing(std::string(call.name()));
  PS_ASSIGN_OR_RETURN(const List keys,
                      KeysOf(list, call.GetSome(1), call.Truth(0, false), call.budget()));
  size_t best = 0;
  for (size_t i = 1; i < list.size(); ++i) {
    PS_RETURN_IF_ERROR(call.budget()->Spend(keys[i].weight()));
    PS_ASSIGN_OR_RETURN(const int order, Order(keys[i], keys[best]));
    if (largest ? order > 0 : order < 0) best = i;
  }
  return list[best];
}

Result<Value> SortedItems(const Call& call) {
  if (!call.input().dict())
    return InvalidArgument("dictsort: expected a dict, found ", call.input().TypeName());
  PS_ASSIGN_OR_RETURN(const MarkedText* by, call.Text(1));
  const bool by_value = by != nullptr && by->text() == "value";
  if (by != nullptr && !by_value && by->text() != "key") return call.Wrong(1, "key or value");
  PS_ASSIGN_OR_RETURN(const List items, Items(call.input().AsDict(), call.budget()));
  const Value place = Value::Int(by_value ? 1 : 0);
  PS_ASSIGN_OR_RETURN(const List keys, KeysOf(items, &place, call.Truth(0, false), call.budget()));
  PS_ASSIGN_OR_RETURN(const int64_t reverse, call.Int(2, 0));
  return ListOf(Sorted(items, keys, reverse != 0, call.budget()));
}

Result<Value> ItemsFilter(const Call& call) {
  if (call.input().undefined()) return Iterator({});
  if (!call.input().dict())
    return InvalidArgument("items: expected a dict, found ", call.input().TypeName());
  PS_ASSIGN_OR_RETURN(List items, Items(call.input().AsDict(), call.budget()));
  return Iterator(std::move(items));
}

Result<Value> Join(const Call& call) {
  PS_ASSIGN_OR_RETURN(List list, Elements(call.input(), call.budget()));
  const Value* attribute = call.GetSome(1);
  for (Value& element : list) {
    if (attribute != nullptr) {
      PS_ASSIGN_OR_RETURN(element, Field(element, *attribute, nullptr, call.budget()));
    }
    if (element.string()) continue;
    PS_ASSIGN_OR_RETURN(MarkedText text, TextOf(element, call.budget()));
    element = Value::String(std::move(text));
  }
  MarkedText separator;
  if (call.Get(0) != nullptr) {
    PS_ASSIGN_OR_RETURN(separator, TextOf(*call.Get(0), call.budget()));
  }
  return TextValue(Joined(list, separator, call.budget()));
}

Result<Value> ToList(const Call& call) { return ListOf(Elements(call.input(), call.budget())); }

Result<Value> First(const Call& call) {
  const Value& input = call.input();
  if (input.list(ListKind::kIterator)) {
    if (*input.taken() >= input.AsList().size()) return Value::Missing("first");
    return input.AsList()[(*input.taken())++];
  }
  if (input.list()) return input.AsList().empty() ? Value::Missing("first") : input.AsList()[0];
  if (input.string()) return Item(input, Value::Int(0), call.budget());
  PS_ASSIGN_OR_RETURN(const List list, Elements(input, call.budget()));
  return list.empty() ? Value::Missing("first") : list.front();
}

Result<Value> Last(const Call& call) {
  const Value& input = call.input();
  if (input.list(ListKind::kIterator))
    return InvalidArgument("last: expected a list, found an iterator");
  if (input.list()) return input.AsList().empty() ? Value::Missing("last") : input.AsList().back();
  if (input.string()) return Item(input, Value::Int(-1), call.budget());
  PS_ASSIGN_OR_RETURN(const List list, Elements(input, call.budget()));
  return list.empty() ? Value::Missing("last") : list.back();
}

Result<Value> Reverse(const Call& call) {
  if (call.input().string()) {
    return TextValue(CharacterSlice(call.input().AsText(), nullptr, nullptr, -1, call.budget()));
  }
  PS_ASSIGN_OR_RETURN(List list, Elements(call.input(), call.budget()));
  std::reverse(list.begin(), list.end());
  // Of what Python cannot reverse Jinja makes a list.
  if (call.input().list(ListKind::kIterator)) return Value::FromList(std::move(list));
  return Iterator(std::move(list));
}

// A text that two values share exactly if they are equal. Lists and dicts have none, as in Python.
Status AppendIdentity(const Value& value, std::string* out) {
  if (value.list(ListKind::kTuple)) {
    *out += '(';
    for (const Value& element : value.AsList()) PS_RETURN_IF_ERROR(AppendIdentity(element, out));
    *out += ')';
    return Status();
  }
  if (value.method_object() != nullptr) {
    *out += StrCat("m", value.method_name(), ".");
    return AppendIdentity(*value.method_object(), out);
  }
  if (value.list() || value.dict())
    return InvalidArgument("unique: expected texts and numbers, found ", value.TypeName());
  if (value.number()) {
    const bool whole = !value.floating() || (value.AsDouble() == std::floor(value.AsDouble()) &&
                                             std::fabs(value.AsDouble()) < 9e15);
    const int64_t number =
        value.floating() ? (whole ? static_cast<int64_t>(value.AsDouble()) : 0) : value.AsInt();
    *out += StrCat("n", whole ? std::to_string(number) : FloatText(value.AsDouble()), ";");
    return Status();
  }
  const std::string text = value.string() ? value.AsText().text() : Repr(value);
  *out += StrCat(value.string() ? "s" : "v", text.size(), ":", text);
  return Status();
}

Result<Value> Unique(const Call& call) {
  PS_ASSIGN_OR_RETURN(const List list, Elements(call.input(), call.budget()));
  PS_ASSIGN_OR_RETURN(const List keys,
                      KeysOf(list, call.GetSome(1), call.Truth(0, false), call.budget()));
  const auto levels = static_cast<size_t>(std::bit_width(list.size())) + 4;
  std::set<std::string> seen;
  List unique;
  for (size_t i = 0; i < list.size(); ++i) {
    PS_RETURN_IF_ERROR(call.budget()->Spend(keys[i].weight() + Budget::kElement, levels));
    std::string identity;
    PS_RETURN_IF_ERROR(AppendIdentity(keys[i], &identity));
    if (seen.insert(std::move(identity)).second) unique.push_back(list[i]);
  }
  return Iterator(std::move(unique));
}

Result<Value> Sum(const Call& call) {
  PS_ASSIGN_OR_RETURN(const List list, Elements(call.input(), call.budget()));
  Value sum = call.Get(1) == nullptr ? Value::Int(0) : *call.Get(1);
  if (sum.string()) return call.Wrong(1, "a number");
  for (const Value& element : list) {
    PS_RETURN_IF_ERROR(call.budget()->Spend(Budget::kElement));
    Value term = element;
    if (call.GetSome(0) != nullptr) {
      PS_ASSIGN_OR_RETURN(term, Field(element, *call.Get(0), nullptr, call.budget()));
    }
    PS_ASSIGN_OR_RETURN(sum, Calculate("+", sum, term, call.budget()));
  }
  return sum;
}

// Lists of `linecount` elements each, the last filled up.
Result<Value> Batch(const Call& call) {
  PS_ASSIGN_OR_RETURN(const List list, Elements(call.input(), call.budget()));
  PS_ASSIGN_OR_RETURN(const int64_t count, call.Int(0, 1));
  if (count <= 0 || count > 100'000) return call.Wrong(0, "1 to 100000");
  List batches;
  const auto size = static_cast<size_t>(count);
  for (size_t begin = 0; begin < list.size(); begin += size) {
    PS_RETURN_IF_ERROR(call.budget()->Spend(Budget::kText));
    const size_t end = std::min(list.size(), begin + size);
    List batch(list.begin() + static_cast<int64_t>(begin),
               list.begin() + static_cast<int64_t>(end));
    if (call.GetSome(1) != nullptr && batch.size() < size) {
      PS_RETURN_IF_ERROR(call.budget()->Spend(size, Budget::kElement));
      batch.resize(size, *call.Get(1));
    }
    PS_ASSIGN_OR_RETURN(Value value, Value::FromList(std::move(batch)));
    batches.push_back(std::move(value));
  }
  return Iterator(std::move(batches));
}

// `slices` lists of nearly the same size.
Result<Value> Slices(const Call& call) {
  PS_ASSIGN_OR_RETURN(const List list, Elements(call.input(), call.budget()));
  PS_ASSIGN_OR_RETURN(const int64_t count, call.Int(0, 1));
  if (count <= 0 || count > 100'000) return call.Wrong(0, "1 to 100000");
  PS_RETURN_IF_ERROR(call.budget()->Spend(static_cast<size_t>(count), Budget::kText));
  const size_t each = list.size() / static_cast<size_t>(count);
  const size_t larger = list.size() % static_cast<size_t>(count);
  List slices;
  size_t begin = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const size_t end = begin + each + (i < larger ? 1 : 0);
    List slice(list.begin() + static_cast<int64_t>(begin),
               list.begin() + static_cast<int64_t>(end));
    if (call.GetSome(1) != nullptr && i >= larger) slice.push_back(*call.Get(1));
    PS_ASSIGN_OR_RETURN(Value value, Value::FromList(std::move(slice)));
    slices.push_back(std::move(value));
    begin = end;
  }
  return Iterator(std::move(slices));
}

// The arguments after the first `count`.
Arguments Rest(const Arguments& all, size_t count) {
  Arguments rest = all;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<int64_t>(count));
  return rest;
}

Result<Value> Map(const Call& call) {
  if (!call.input().Truth()) return Iterator({});
  const Arguments& all = call.all();
  const auto named = [&](std::string_view name) -> const Value* {
    for (const auto& [key, value] : all.named)
      if (key == name) return &value;
    return nullptr;
  };
  const Value* attribute = all.positional.empty() ? named("attribute") : nullptr;
  const Value* missing = named("default");
  const Builtin* filter = nullptr;
  if (attribute != nullptr) {
    if (all.named.size() > (missing == nullptr ? 1 : 2))
      return InvalidArgument("map: expected attribute and default, found another argument");
    if (missing != nullptr && missing->none()) missing = nullptr;
  } else {
    if (all.positional.empty() || !all.positional[0].string())
      return InvalidArgument("map: expected an attribute or the name of a filter, found neither");
    filter = FindFilter(all.positional[0].AsText().text());
    // A map inside a map would nest as deep as its arguments are long.
    if (filter == nullptr || filter->run == Map)
      return InvalidArgument("map: expected a filter that docs/chat-templates.md lists, found ",
                             all.positional[0].AsText().text());
  }
  const Arguments rest = filter == nullptr ? Arguments() : Rest(all, 1);
  PS_ASSIGN_OR_RETURN(const List list, Elements(call.input(), call.budget()));
  List results;
  for (const Value& element : list) {
    PS_RETURN_IF_ERROR(call.budget()->Step());
    PS_ASSIGN_OR_RETURN(Value result, filter == nullptr
                                          ? Field(element, *attribute, missing, call.budget())
                                          : RunBuiltin(*filter, element, rest, call.budget()));
    results.push_back(std::move(result));
  }
  return Iterator(std::move(results));
}

// select, reject, selectattr, rejectattr. As Jinja, they do not look at a value without truth.
Result<Value> Select(const Call& call, bool by_field, bool wanted) {
  if (!call.input().Truth()) return Iterator({});
  const Arguments& all = call.all();
  const size_t first = by_field ? 1 : 0;
  if (all.positional.size() < first)
    return InvalidArgument(call.name(), ": expected an attribute, found none");
  const Builtin* test = nullptr;
  if (all.positional.size() > first) {
    const Value& name = all.positional[first];
    test = name.string() ? FindTest(name.AsText().text()) : nullptr;
    if (test == nullptr)
      return InvalidArgument(call.name(),
                             ": expected a test that docs/chat-templates.md lists, found ",
                             name.string() ? name.AsText().text() : name.TypeName());
  } else if (!all.named.empty()) {
    return InvalidArgument(call.name(), ": expected arguments that it has, found ",
                           all.named[0].first);
  }
  const Arguments rest = test == nullptr ? Arguments() : Rest(all, first + 1);
  PS_ASSIGN_OR_RETURN(const List list, Elements(call.input(), call.budget()));
  List results;
  for (const Value& element : list) {
    PS_RETURN_IF_ERROR(call.budget()->Step());
    Value subject = element;
    if (by_field) {
      PS_ASSIGN_OR_RETURN(subject, Field(element, all.positional[0], nullptr, call.budget()));
    }
    if (test != nullptr) {
      PS_ASSIGN_OR_RETURN(subject, RunBuiltin(*test, subject, rest, call.budget()));
    }
    if (subject.Truth() == wanted) results.push_back(element);
  }
  return Iterator(std::move(results));
}

Result<Value> Json(const Call& call) {
  JsonForm form;
  if (const Value* indent = call.GetSome(1)) {
    if (indent->string()) {
      form.indent = indent->AsText().text();
    } else {
      PS_ASSIGN_OR_RETURN(const int64_t spaces, call.Int(1, 0));
      if (spaces > 4096) return call.Wrong(1, "at most 4096");
      form.indent = std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
    }
    form.item_separator.resize(1);  // no space at the end of a line
  }
  form.ensure_ascii = call.Truth(0, false);
  form.sort_keys = call.Truth(3, false);
  if (const Value* pair = call.GetSome(2)) {
    if (!pair->list() || pair->AsList().size() != 2 || !pair->AsList()[0].string() ||
        !pair->AsList()[1].string())
      return call.Wrong(2, "two strings");
    form.item_separator = pair->AsList()[0].AsText().text();
    form.key_separator = pair->AsList()[1].AsText().text();
  }
  PS_ASSIGN_OR_RETURN(const std::string json, ToJson(call.input(), form, call.budget()));
  return Value::MessageString(json);
}

constexpr Builtin kFilters[] = {
    {"abs", "", Absolute},
    {"batch", "linecount fill_with?", Batch},
    {"count", "", Length},
    {"d", "default_value? boolean?", Default},
    {"default", "default_value? boolean?", Default},
    {"dictsort", "case_sensitive? by? reverse?", SortedItems},
    {"first", "", First},
    {"float", "default?", ToFloat},
    {"int", "default? base?", ToInteger},
    {"items", "", ItemsFilter},
    {"join", "d? attribute?", Join},
    {"last", "", Last},
    {"length", "", Length},
    {"list", "", ToList},
    {"map", "* **", Map},
    {"max", "case_sensitive? attribute?", [](const Call& call) { return Extreme(call, true); }},
    {"min", "case_sensitive? attribute?", [](const Call& call) { return Extreme(call, false); }},
    {"reject", "* **", [](const Call& call) { return Select(call, false, false); }},
    {"rejectattr", "* **", [](const Call& call) { return Select(call, true, false); }},
    {"reverse", "", Reverse},
    {"round", "precision? method?", Round},
    {"select", "* **", [](const Call& call) { return Select(call, false, true); }},
    {"selectattr", "* **", [](const Call& call) { return Select(call, true, true); }},
    {"slice", "slices fill_with?", Slices},
    {"sort", "reverse? case_sensitive? attribute?", Sort},
    {"sum", "attribute? start?", Sum},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", Json},
    {"unique", "case_sensitive? attribute?", Unique},
};

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFilters), std::end(kFilters),
                                   [&](const Builtin& filter) { return filter.name == name; });
  if (found != std::end(kFilters)) return found;
  const Builtin* of_strings = FindStringFilter(name);
  return of_strings != nullptr ? of_strings : FindTextFilter(name);
}

Result<Value> RunBuiltin(const Builtin& builtin, const Value& input, const Arguments& arguments,
                         Budget* budget) {
  // Filters of text take the text of any value.
  Value text;
  if (FindTextFilter(builtin.name) == &builtin && !input.string()) {
    PS_ASSIGN_OR_RETURN(MarkedText of_input, TextOf(input, budget));
    text = Value::String(std::move(of_input));
  }
  PS_ASSIGN_OR_RETURN(const Call call,
                      Call::Bind(builtin, text.undefined() ? input : text, arguments, budget));
  return builtin.run(call);
}

}  // namespace polysketch::chat
