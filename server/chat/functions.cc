// Functions, the methods of dicts, lists and loops, and what other builtins use.
#include <algorithm>
#include <chrono>
#include <ctime>

#include "server/chat/builtins.h"
#include "server/chat/operators.h"
#include "server/chat/text.h"

namespace polysketch::chat {
namespace {

// As many has a range in the sandbox of Jinja.
constexpr int64_t kMaxRange = 100'000;

Result<Value> RaiseException(const Call& call) {
  PS_ASSIGN_OR_RETURN(const MarkedText message, TextOf(*call.Get(0), call.budget()));
  return InvalidArgument("the template refuses the messages: ", message.text());
}

Result<Value> Range(const Call& call) {
  PS_ASSIGN_OR_RETURN(const int64_t first, call.Int(0, 0));
  PS_ASSIGN_OR_RETURN(const int64_t second, call.Int(1, 0));
  PS_ASSIGN_OR_RETURN(const int64_t step, call.Int(2, 1));
  const bool one = call.Get(1) == nullptr;
  const int64_t begin = one ? 0 : first, end = one ? first : second;
  constexpr int64_t kLargest = int64_t{1} << 61;
  if (step == 0) return call.Wrong(2, "a step other than 0");
  for (const int64_t number : {begin, end, step}) {
    if (number > kLargest || number < -kLargest) return call.Wrong(0, "numbers of 61 bits");
  }
  const int64_t length = (step > 0 ? begin < end : begin > end)
                             ? (step > 0 ? (end - begin - 1) / step : (begin - end - 1) / -step) + 1
                             : 0;
  if (length > kMaxRange)
    return InvalidArgument("range: expected at most ", kMaxRange, " numbers, found ", length);
  PS_RETURN_IF_ERROR(call.budget()->Spend(static_cast<size_t>(length), Budget::kElement));
  List list;
  list.reserve(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) list.push_back(Value::Int(begin + i * step));
  const std::string by = step == 1 ? "" : StrCat(", ", step);
  return Value::FromList(std::move(list), ListKind::kRange,
                         StrCat("range(", begin, ", ", end, by, ")"));
}

// The arguments of dict and namespace: a dict or pairs, and names.
Result<Dict> NamedValues(const Call& call) {
  Dict fields;
  if (const Value* given = call.Get(0); given != nullptr && given->dict()) {
    PS_RETURN_IF_ERROR(
        call.budget()->Spend(given->AsDict().entries().size(), 4 * Budget::kElement));
    fields = given->AsDict();
  } else if (given != nullptr) {
    PS_ASSIGN_OR_RETURN(const List pairs, Elements(*given, call.budget()));
    for (const Value& pair : pairs) {
      PS_ASSIGN_OR_RETURN(const List two, Elements(pair, call.budget()));
      if (two.size() != 2)
        return InvalidArgument(call.name(), ": expected pairs of a key and a value, found others");
      PS_RETURN_IF_ERROR(call.budget()->Spend(4 * Budget::kElement + two[0].weight()));
      PS_ASSIGN_OR_RETURN(const std::string key, KeyOf(two[0]));
      fields.Set(key, two[1]);
    }
  }
  for (const auto& [key, value] : call.all().named) fields.Set(key, value);
  return fields;
}

Result<Value> MakeDict(const Call& call) {
  PS_ASSIGN_OR_RETURN(Dict fields, NamedValues(call));
  return Value::FromDict(std::move(fields));
}

Result<Value> MakeNamespace(const Call& call) {
  PS_ASSIGN_OR_RETURN(Dict fields, NamedValues(call));
  for (const auto& [key, value] : fields.entries()) {
    if (value.changes())
      return InvalidArgument("namespace: expected no namespace inside a namespace, found one");
  }
  return Value::NewNamespace(std::move(fields));
}

Result<Value> TimeNow(const Call& call) {
  PS_ASSIGN_OR_RETURN(const MarkedText* format, call.Text(0));
  if (format == nullptr || format->size() > 256)
    return call.Wrong(0, "a string of at most 256 bytes");
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[4096];
  const size_t size = std::strftime(text, sizeof(text), format->text().c_str(), &parts);
  return Value::MessageString(std::string_view(text, size));
}

constexpr Builtin kFunctions[] = {
    {"raise_exception", "message", RaiseException},
    {"range", "start stop? step?", Range},
    {"namespace", "mapping? **", MakeNamespace},
    {"strftime_now", "format", TimeNow},
    {"dict", "mapping? **", MakeDict},
};

// --- methods ---

Result<Value> GetOr(const Call& call) {
  const Result<std::string> key = KeyOf(*call.Get(0));
  const Value* found = key.ok() ? call.input().AsDict().Find(*key) : nullptr;
  if (found != nullptr) return *found;
  return call.Get(1) == nullptr ? Value::NoneValue() : *call.Get(1);
}

Result<Value> Itself(const Call& call) { return call.input(); }

Result<Value> DictItems(const Call& call) {
  PS_ASSIGN_OR_RETURN(List items, Items(call.input().AsDict(), call.budget()));
  return Value::FromList(std::move(items), ListKind::kView, "dict_items");
}
Result<Value> DictKeys(const Call& call) {
  PS_ASSIGN_OR_RETURN(List keys, Elements(call.input(), call.budget()));
  return Value::FromList(std::move(keys), ListKind::kView, "dict_keys");
}
Result<Value> DictValues(const Call& call) {
  const auto& entries = call.input().AsDict().entries();
  PS_RETURN_IF_ERROR(call.budget()->Spend(entries.size(), Budget::kElement));
  List values;
  for (const auto& [key, entry] : entries) values.push_back(entry);
  return Value::FromList(std::move(values), ListKind::kView, "dict_values");
}

constexpr Builtin kDictMethods[] = {
    {"copy", "", Itself},   {"get", "/ key default?", GetOr}, {"items", "", DictItems},
    {"keys", "", DictKeys}, {"values", "", DictValues},
};

// The places of a list that equal an argument.
Result<List> PlacesOf(const Call& call) {
  const Value& wanted = *call.Get(0);
  const List& list = call.input().AsList();
  List places;
  for (size_t i = 0; i < list.size(); ++i) {
    PS_RETURN_IF_ERROR(
        call.budget()->Spend(std::min(wanted.weight(), list[i].weight()) + Budget::kElement));
    if (list[i] == wanted) places.push_back(Value::Int(static_cast<int64_t>(i)));
  }
  return places;
}

Result<Value> ListCount(const Call& call) {
  PS_ASSIGN_OR_RETURN(const List places, PlacesOf(call));
  return Value::Int(std::ssize(places));
}

Result<Value> ListIndex(const Call& call) {
  PS_ASSIGN_OR_RETURN(const List places, PlacesOf(call));
  const int64_t size = std::ssize(call.input().AsList());
  PS_ASSIGN_OR_RETURN(int64_t begin, call.Int(1, 0));
  PS_ASSIGN_OR_RETURN(int64_t end, call.Int(2, size));
  if (begin < 0) begin += size;
  if (end < 0) end += size;
  for (const Value& place : places)
    if (place.AsInt() >= begin && place.AsInt() < end) return place;
  return InvalidArgument("index: expected an element of the list, found another value");
}

constexpr Builtin kListMethods[] = {
    {"copy", "", Itself},
    {"count", "/ value", ListCount},
    {"index", "/ value start? stop?", ListIndex},
};

Result<Value> Cycle(const Call& call) {
  const std::vector<Value>& values = call.all().positional;
  if (values.empty()) return InvalidArgument("cycle: expected values, found none");
  return values[call.input().AsLoop().index % values.size()];
}

constexpr Builtin kLoopMethods[] = {{"cycle", "*", Cycle}};

template <size_t kSize>
const Builtin* FindIn(const Builtin (&table)[kSize], std::string_view name) {
  const auto* found = std::find_if(std::begin(table), std::end(table),
                                   [&](const Builtin& builtin) { return builtin.name == name; });
  return found == std::end(table) ? nullptr : found;
}

}  // namespace

const Builtin* FindFunction(std::string_view name) { return FindIn(kFunctions, name); }

const Builtin* FindMethod(const Value& object, std::string_view name) {
  if (object.string()) return FindTextMethod(name);
  if (object.dict()) return FindIn(kDictMethods, name);
  if (object.is_loop()) return FindIn(kLoopMethods, name);
  if (!object.list(ListKind::kList) && !object.list(ListKind::kTuple)) return nullptr;
  if (object.list(ListKind::kTuple) && name == "copy") return nullptr;
  return FindIn(kListMethods, name);
}

Result<MarkedText> TextOf(const Value& value, Budget* budget) {
  if (value.list(ListKind::kIterator))
    return InvalidArgument(
        "expected a value with a text, found an iterator; the filter list makes a list of it");
  PS_RETURN_IF_ERROR(budget->Spend(value.string() ? value.AsText().size() : 4 * value.weight()));
  return value.ToText();
}

Result<List> Elements(const Value& value, Budget* budget) {
  if (value.undefined()) return List();
  if (value.list()) {
    PS_RETURN_IF_ERROR(budget->Spend(value.AsList().size(), Budget::kElement));
    if (value.list_kind() != ListKind::kIterator) return value.AsList();
    const size_t taken = std::exchange(*value.taken(), value.AsList().size());
    return List(value.AsList().begin() + static_cast<int64_t>(taken), value.AsList().end());
  }
  List elements;
  if (value.dict()) {
    const auto& entries = value.AsDict().entries();
    for (const auto& [key, entry] : entries) {
      PS_RETURN_IF_ERROR(budget->Spend(key.size() + Budget::kText));
      elements.push_back(OfKey(key));
    }
    return elements;
  }
  if (!value.string())
    return InvalidArgument("expected a list, a dict or a string, found ", value.TypeName());
  const MarkedText& text = value.AsText();
  PS_RETURN_IF_ERROR(budget->Spend(text.size() + 1, Budget::kText));
  const std::vector<size_t> offsets = CharacterOffsets(text.text());
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    elements.push_back(Value::String(text.Slice(offsets[i], offsets[i + 1])));
  return elements;
}

Result<List> Items(const Dict& dict, Budget* budget) {
  List items;
  for (const auto& [key, entry] : dict.entries()) {
    PS_RETURN_IF_ERROR(budget->Spend(key.size() + 2 * Budget::kText));
    PS_ASSIGN_OR_RETURN(Value pair, Value::FromList({OfKey(key), entry}, ListKind::kTuple));
    items.push_back(std::move(pair));
  }
  return items;
}

Result<Value> Field(const Value& value, const Value& path, const Value* missing, Budget* budget) {
  if (path.none()) return value;
  if (!path.string()) {
    PS_ASSIGN_OR_RETURN(Value item, Item(value, path, budget));
    return item.undefined() && missing != nullptr ? *missing : std::move(item);
  }
  const std::string& names = path.AsText().text();
  Value field = value;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    PS_RETURN_IF_ERROR(budget->Spend(name.size() + 2 * Budget::kElement));
    const bool number = !name.empty() && name.size() < 10 &&
                        name.find_first_not_of("0123456789") == std::string::npos;
    PS_ASSIGN_OR_RETURN(
        field,
        Item(field, number ? Value::Int(std::stoi(name)) : Value::MessageString(name), budget));
    if (field.undefined() && missing != nullptr) field = *missing;
    begin = end + 1;
  }
  return field;
}

}  // namespace polysketch::chat
