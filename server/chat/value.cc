#include "server/chat/value.h"

#include <algorithm>

namespace polysketch::chat {

struct Value::Method {
  Value object;
  std::string_view name;
};

namespace {

// Of a value beside its text: its memory, and what it takes to visit it.
constexpr size_t kOwnWeight = 32;

// Adds an element of a list or a dict to the depth and the weight of the whole.
Status Nest(const Value& element, size_t key_size, int* depth, size_t* weight, bool* changes) {
  *changes |= element.changes();
  // Their depth is not counted.
  if (element.is_loop() || element.method_object() != nullptr)
    return InvalidArgument("expected no ", element.TypeName().substr(2),
                           " inside a list or a dict, found one");
  *depth = std::max(*depth, element.depth() + 1);
  *weight += element.weight() + key_size;
  if (*depth > kMaxValueDepth)
    return InvalidArgument("expected values that nest ", kMaxValueDepth,
                           " deep, found deeper ones");
  if (*weight > kMaxValueWeight)
    return InvalidArgument("expected a value of at most ", kMaxValueWeight,
                           " bytes, found a larger one");
  return Status();
}

}  // namespace

const Value* Dict::Find(const std::string& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

void Dict::Set(const std::string& key, Value value) {
  const auto [at, added] = index_.emplace(key, entries_.size());
  if (added) {
    entries_.emplace_back(key, std::move(value));
  } else {
    entries_[at->second].second = std::move(value);
  }
}

Result<Value> Value::FromList(List list, ListKind kind, std::string label) {
  int depth = 1;
  size_t weight = kOwnWeight;
  bool changes = false;
  for (const Value& element : list) PS_RETURN_IF_ERROR(Nest(element, 0, &depth, &weight, &changes));
  return Value(std::make_shared<const Nested<List>>(
      Nested<List>{std::move(list), depth, weight, kind, std::move(label), changes}));
}

Result<Value> Value::FromDict(Dict dict) {
  int depth = 1;
  size_t weight = kOwnWeight;
  bool changes = false;
  for (const auto& [key, entry] : dict.entries())
    PS_RETURN_IF_ERROR(Nest(entry, key.size() + kOwnWeight, &depth, &weight, &changes));
  return Value(std::make_shared<const Nested<Dict>>(Nested<Dict>{
      .value = std::move(dict), .depth = depth, .weight = weight, .changes = changes}));
}

namespace {

// `level`: containers around `json`. A check after the recursion would come too late for the stack.
template <typename Json>
Result<Value> FromJsonAt(const Json& json, int level) {
  if (level > kMaxValueDepth)
    return InvalidArgument("expected values that nest ", kMaxValueDepth,
                           " deep, found deeper ones");
  if (json.is_null()) return Value::NoneValue();
  if (json.is_boolean()) return Value::Bool(json.template get<bool>());
  if (json.is_string()) return Value::MessageString(json.template get_ref<const std::string&>());
  if (json.is_number_unsigned() && json.template get<uint64_t>() > uint64_t{INT64_MAX})
    return Value::Large(json.template get<uint64_t>());
  if (json.is_number_integer()) return Value::Int(json.template get<int64_t>());
  if (json.is_number()) return Value::Float(json.template get<double>());
  if (json.is_array()) {
    List list;
    list.reserve(json.size());
    for (const Json& element : json) {
      PS_ASSIGN_OR_RETURN(Value value, FromJsonAt(element, level + 1));
      list.push_back(std::move(value));
    }
    return Value::FromList(std::move(list));
  }
  Dict dict;
  for (const auto& [key, entry] : json.items()) {
    PS_ASSIGN_OR_RETURN(Value value, FromJsonAt(entry, level + 1));
    dict.Set(key, std::move(value));
  }
  return Value::FromDict(std::move(dict));
}

}  // namespace

template <typename Json>
Result<Value> Value::FromJson(const Json& json) {
  return FromJsonAt(json, 0);
}
template Result<Value> Value::FromJson(const nlohmann::json& json);
template Result<Value> Value::FromJson(const nlohmann::ordered_json& json);

Value Value::OfMethod(const Value& object, std::string_view name) {
  return Value(std::make_shared<const Method>(Method{object, name}));
}

const Value* Value::method_object() const {
  const auto* method = std::get_if<std::shared_ptr<const Method>>(&data_);
  return method == nullptr ? nullptr : &(*method)->object;
}

std::string_view Value::method_name() const {
  return std::get<std::shared_ptr<const Method>>(data_)->name;
}

bool Value::Truth() const {
  if (undefined() || none()) return false;
  if (floating()) return AsDouble() != 0;
  if (number()) return AsInt() != 0;
  if (string()) return AsText().size() > 0;
  if (list()) return list_kind() == ListKind::kIterator || !AsList().empty();
  if (dict()) return !AsDict().entries().empty();
  return true;
}

std::string_view Value::TypeName() const {
  if (undefined()) return "an undefined value";
  if (none()) return "none";
  if (boolean()) return "a boolean";
  if (number()) return "a number";
  if (large()) return "an integer beyond 64 bits";
  if (string()) return "a string";
  if (list(ListKind::kIterator)) return "an iterator";
  if (list(ListKind::kTuple)) return "a tuple";
  if (list()) return "a list";
  if (is_loop()) return "a loop";
  if (dict()) return "a dict";
  return is_namespace() ? "a namespace" : "a function";
}

int Value::depth() const {
  if (list()) return std::get<ListPointer>(data_)->depth;
  return dict() ? std::get<DictPointer>(data_)->depth : 0;
}

size_t Value::weight() const {
  if (string()) return AsText().size() + kOwnWeight;
  if (list()) return std::get<ListPointer>(data_)->weight;
  return dict() ? std::get<DictPointer>(data_)->weight : kOwnWeight;
}

bool Value::changes() const {
  if (list()) return std::get<ListPointer>(data_)->changes;
  if (dict()) return std::get<DictPointer>(data_)->changes;
  return is_namespace() || is_loop() || method_object() != nullptr;
}

namespace {

// Begins the key of an integer: a byte that no text has.
constexpr char kIntegerKey = '\xff';

}  // namespace

Result<std::string> KeyOf(const Value& value) {
  if (value.string()) return value.AsText().text();
  if (value.integer()) return kIntegerKey + std::to_string(value.AsInt());
  return InvalidArgument("expected a string or an integer as a key, found ", value.TypeName());
}

Value OfKey(const std::string& key) {
  if (key.empty() || key[0] != kIntegerKey) return Value::MessageString(key);
  return Value::Int(std::stoll(key.substr(1)));
}

bool operator==(const Value& a, const Value& b) {
  if (a.large() || b.large()) return a.large() && b.large() && a.AsLarge() == b.AsLarge();
  if (a.floating() || b.floating()) return a.number() && b.number() && a.AsDouble() == b.AsDouble();
  if (a.number() || b.number()) return a.number() && b.number() && a.AsInt() == b.AsInt();
  if (a.string()) return b.string() && a.AsText().text() == b.AsText().text();
  if (a.list()) {
    if (!b.list() || a.list_kind() != b.list_kind()) return false;
    if (a.list_kind() == ListKind::kIterator) return &a.AsList() == &b.AsList();
    return a.AsList() == b.AsList();
  }
  if (a.dict()) {
    if (!b.dict() || a.AsDict().entries().size() != b.AsDict().entries().size()) return false;
    return std::all_of(a.AsDict().entries().begin(), a.AsDict().entries().end(),
                       [&](const auto& entry) {
                         const Value* other = b.AsDict().Find(entry.first);
                         return other != nullptr && entry.second == *other;
                       });
  }
  if (a.is_namespace()) return b.is_namespace() && a.fields() == b.fields();
  if (a.is_loop()) return b.is_loop() && &a.AsLoop() == &b.AsLoop();
  if (a.method_object() != nullptr || b.method_object() != nullptr) {
    return a.method_object() != nullptr && b.method_object() != nullptr &&
           a.method_name() == b.method_name() && *a.method_object() == *b.method_object();
  }
  if (a.callable())
    return a.AsMacro().macro == b.AsMacro().macro && a.AsFunction() == b.AsFunction();
  return (a.none() && b.none()) || (a.undefined() && b.undefined());
}

MarkedText Value::ToText() const {
  if (string()) return AsText();
  return MarkedText(undefined() ? "" : Repr(*this), TextOrigin::kMessage);
}

size_t CharacterCount(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::vector<size_t> CharacterOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

Result<Value> TextValue(Result<MarkedText> text) {
  PS_RETURN_IF_ERROR(text.status());
  return Value::String(*std::move(text));
}

Result<Value> ListOf(Result<List> list, ListKind kind) {
  PS_RETURN_IF_ERROR(list.status());
  return Value::FromList(*std::move(list), kind);
}

}  // namespace polysketch::chat
