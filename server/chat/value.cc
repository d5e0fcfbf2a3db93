#include "server/chat/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"

namespace polysketch::chat {
namespace {

// Adds an element of a list or a dict to the depth and the weight of the whole.
Status Nest(const Value& element, size_t key_size, int* depth, size_t* weight) {
  if (element.is_namespace())
    return InvalidArgument("expected no namespace inside a list or a dict, found one");
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

// Python's repr() of a string.
std::string Quoted(std::string_view text) {
  const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    char escaped[8];
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out += quote;
}

std::string Repr(const Value& value) {
  if (value.string()) return Quoted(value.AsText().text());
  if (value.list()) {
    std::string out;
    for (const Value& element : value.AsList())
      out += StrCat(out.empty() ? "" : ", ", Repr(element));
    return StrCat("[", out, "]");
  }
  if (value.dict()) {
    std::string out;
    for (const auto& [key, entry] : value.AsDict().entries())
      out += StrCat(out.empty() ? "" : ", ", Quoted(key), ": ", Repr(entry));
    return StrCat("{", out, "}");
  }
  if (value.undefined()) return "Undefined";
  return value.ToText().text();
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

Result<Value> Value::FromList(List list) {
  int depth = 1;
  size_t weight = 1;
  for (const Value& element : list) PS_RETURN_IF_ERROR(Nest(element, 0, &depth, &weight));
  return Value(std::make_shared<const Nested<List>>(Nested<List>{std::move(list), depth, weight}));
}

Result<Value> Value::FromDict(Dict dict) {
  int depth = 1;
  size_t weight = 1;
  for (const auto& [key, entry] : dict.entries())
    PS_RETURN_IF_ERROR(Nest(entry, key.size(), &depth, &weight));
  return Value(std::make_shared<const Nested<Dict>>(Nested<Dict>{std::move(dict), depth, weight}));
}

namespace {

// `level`: containers around `json`. A check after the recursion would come too late for the stack.
Result<Value> FromJsonAt(const nlohmann::json& json, int level) {
  if (level > kMaxValueDepth)
    return InvalidArgument("expected values that nest ", kMaxValueDepth,
                           " deep, found deeper ones");
  if (json.is_null()) return Value::NoneValue();
  if (json.is_boolean()) return Value::Bool(json.get<bool>());
  if (json.is_string()) return Value::MessageString(json.get_ref<const std::string&>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX})
    return Value::Float(json.get<double>());
  if (json.is_number_integer()) return Value::Int(json.get<int64_t>());
  if (json.is_number()) return Value::Float(json.get<double>());
  if (json.is_array()) {
    List list;
    list.reserve(json.size());
    for (const nlohmann::json& element : json) {
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

Result<Value> Value::FromJson(const nlohmann::json& json) { return FromJsonAt(json, 0); }

bool Value::Truth() const {
  if (undefined() || none()) return false;
  if (floating()) return AsDouble() != 0;
  if (number()) return AsInt() != 0;
  if (string()) return AsText().size() > 0;
  if (list()) return !AsList().empty();
  if (dict()) return !AsDict().entries().empty();
  return true;
}

std::string_view Value::TypeName() const {
  if (undefined()) return "an undefined value";
  if (none()) return "none";
  if (boolean()) return "a boolean";
  if (number()) return "a number";
  if (string()) return "a string";
  if (list()) return "a list";
  if (dict()) return "a dict";
  return is_namespace() ? "a namespace" : "a function";
}

int Value::depth() const {
  if (list()) return std::get<ListPointer>(data_)->depth;
  return dict() ? std::get<DictPointer>(data_)->depth : 0;
}

size_t Value::weight() const {
  if (string()) return AsText().size() + 1;
  if (list()) return std::get<ListPointer>(data_)->weight;
  return dict() ? std::get<DictPointer>(data_)->weight : 1;
}

bool operator==(const Value& a, const Value& b) {
  if (a.floating() || b.floating()) return a.number() && b.number() && a.AsDouble() == b.AsDouble();
  if (a.number() || b.number()) return a.number() && b.number() && a.AsInt() == b.AsInt();
  if (a.string()) return b.string() && a.AsText().text() == b.AsText().text();
  if (a.list()) return b.list() && a.AsList() == b.AsList();
  if (a.dict()) {
    if (!b.dict() || a.AsDict().entries().size() != b.AsDict().entries().size()) return false;
    return std::all_of(a.AsDict().entries().begin(), a.AsDict().entries().end(),
                       [&](const auto& entry) {
                         const Value* other = b.AsDict().Find(entry.first);
                         return other != nullptr && entry.second == *other;
                       });
  }
  if (a.is_namespace()) return b.is_namespace() && a.fields() == b.fields();
  if (a.callable()) return a.AsMacro() == b.AsMacro() && a.AsFunction() == b.AsFunction();
  return (a.none() && b.none()) || (a.undefined() && b.undefined());
}

MarkedText Value::ToText() const {
  if (string()) return AsText();
  std::string text;
  if (none()) text = "None";
  if (boolean()) text = AsBool() ? "True" : "False";
  if (integer()) text = std::to_string(AsInt());
  if (floating()) text = FloatText(AsDouble());
  if (list() || dict()) text = Repr(*this);
  if (is_namespace()) text = "<Namespace>";
  if (callable()) text = "<function>";
  return MarkedText(text, TextOrigin::kMessage);
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

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // Python chooses the form by the exponent.
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char text[400];
  const auto end = std::to_chars(text, text + sizeof(text), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string out(text, end);
  if (fixed && out.find('.') == out.npos) out += ".0";
  return out;
}

namespace {

std::string JsonString(std::string_view text, bool ensure_ascii) {
  std::string out = "\"";
  char escaped[16];
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    const auto length = static_cast<size_t>(c.length);
    const char32_t code = c.code_point;
    static constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    const size_t special = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : kEscaped.npos;
    if (special != kEscaped.npos) {
      out += '\\';
      out += kLetters[special];
    } else if (code < 0x20 || (ensure_ascii && code >= 0x7f && code < 0x10000 && code != 0x7f)) {
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(code));
      out += escaped;
    } else if (ensure_ascii && code >= 0x10000) {
      std::snprintf(escaped, sizeof(escaped), "\\u%04x\\u%04x",
                    static_cast<unsigned>(0xd800 + ((code - 0x10000) >> 10)),
                    static_cast<unsigned>(0xdc00 + ((code - 0x10000) & 0x3ff)));
      out += escaped;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonForm& form) : form_(form) {}

  Status Write(const Value& value) {
    if (value.none()) {
      out_ += "null";
    } else if (value.boolean()) {
      out_ += value.AsBool() ? "true" : "false";
    } else if (value.floating()) {
      const double number = value.AsDouble();
      out_ += std::isnan(number)   ? "NaN"
              : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                   : FloatText(number);
    } else if (value.integer()) {
      out_ += std::to_string(value.AsInt());
    } else if (value.string()) {
      out_ += JsonString(value.AsText().text(), form_.ensure_ascii);
    } else if (value.list()) {
      return WriteAll('[', ']', value.AsList(), [this](const Value& e) { return Write(e); });
    } else if (value.dict()) {
      return WriteDict(value.AsDict());
    } else {
      return InvalidArgument("tojson: expected a value with a form in JSON, found ",
                             value.TypeName());
    }
    return Status();
  }
  std::string Take() { return std::move(out_); }

 private:
  Status WriteDict(const Dict& dict) {
    auto entries = dict.entries();
    if (form_.sort_keys)
      std::sort(entries.begin(), entries.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
    return WriteAll('{', '}', entries, [this](const auto& entry) {
      out_ += JsonString(entry.first, form_.ensure_ascii) + form_.key_separator;
      return Write(entry.second);
    });
  }
  template <typename Elements, typename WriteOne>
  Status WriteAll(char open, char close, const Elements& elements, WriteOne write_one) {
    out_ += open;
    ++level_;
    bool first = true;
    for (const auto& element : elements) {
      if (!std::exchange(first, false)) out_ += form_.item_separator;
      NewLine();
      PS_RETURN_IF_ERROR(write_one(element));
    }
    --level_;
    if (!first) NewLine();
    out_ += close;
    return Status();
  }
  void NewLine() {
    if (form_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(form_.indent) * static_cast<size_t>(level_), ' ');
  }

  const JsonForm& form_;
  int level_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> ToJson(const Value& value, const JsonForm& form) {
  JsonWriter writer(form);
  PS_RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

}  // namespace polysketch::chat
