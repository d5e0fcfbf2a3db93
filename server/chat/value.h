// The values of a chat template: those of Jinja, with text that is marked by its origin. Values are
// immutable and share their contents, but for namespaces, which a template may change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/marked_text.h"

namespace polysketch::chat {

class Value;
struct Macro;  // server/chat/syntax.h

using List = std::vector<Value>;

// Text -> value, in the order of insertion.
class Dict {
 public:
  // Null without such a key.
  const Value* Find(const std::string& key) const;
  void Set(const std::string& key, Value value);
  const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, Value>> entries_;
  std::unordered_map<std::string, size_t> index_;
};

// Nesting of lists and dicts. Deeper values are an error, so that the recursive functions below and
// destructors need little stack.
inline constexpr int kMaxValueDepth = 64;
// Bytes of text and values inside a value, each counted as often as it is there: a value that a
// template shares between lists may be much larger than its memory.
inline constexpr size_t kMaxValueWeight = size_t{128} << 20;

class Value {
 public:
  // What a name without a value has. `name` is for errors.
  struct Undefined {
    std::string name;
  };
  struct None {};
  struct Namespace {
    Dict fields;
  };
  // A function of the language: "range".
  struct Function {
    std::string_view name;
  };

  Value() : data_(Undefined()) {}
  static Value Missing(std::string name) { return Value(Undefined{std::move(name)}); }
  static Value NoneValue() { return Value(None()); }
  static Value Bool(bool value) { return Value(value); }
  static Value Int(int64_t value) { return Value(value); }
  static Value Float(double value) { return Value(value); }
  static Value String(MarkedText text) {
    return Value(std::make_shared<const MarkedText>(std::move(text)));
  }
  static Value TemplateString(std::string_view text) {
    return String(MarkedText(text, TextOrigin::kTemplate));
  }
  static Value MessageString(std::string_view text) {
    return String(MarkedText(text, TextOrigin::kMessage));
  }
  // INVALID_ARGUMENT for values that nest deeper than kMaxValueDepth, weigh more than
  // kMaxValueWeight or contain a namespace.
  static Result<Value> FromList(List list);
  static Result<Value> FromDict(Dict dict);
  static Value NewNamespace(Dict fields) {
    return Value(std::make_shared<Namespace>(Namespace{std::move(fields)}));
  }
  static Value OfMacro(const Macro* macro) { return Value(macro); }
  static Value OfFunction(std::string_view name) { return Value(Function{name}); }
  // Strings get the mark of a message.
  static Result<Value> FromJson(const nlohmann::json& json);

  bool undefined() const { return Is<Undefined>(); }
  bool none() const { return Is<None>(); }
  bool boolean() const { return Is<bool>(); }
  bool integer() const { return Is<int64_t>(); }
  bool floating() const { return Is<double>(); }
  // As in Python, a boolean is a number: 0 or 1.
  bool number() const { return boolean() || integer() || floating(); }
  bool string() const { return Is<TextPointer>(); }
  bool list() const { return Is<ListPointer>(); }
  bool dict() const { return Is<DictPointer>(); }
  bool is_namespace() const { return Is<NamespacePointer>(); }
  bool callable() const { return Is<const Macro*>() || Is<Function>(); }

  // The contents. The value is of that type.
  bool AsBool() const { return std::get<bool>(data_); }
  // The number as an integer; of a boolean or an integer.
  int64_t AsInt() const { return boolean() ? int64_t{AsBool()} : std::get<int64_t>(data_); }
  double AsDouble() const {
    return floating() ? std::get<double>(data_) : static_cast<double>(AsInt());
  }
  const MarkedText& AsText() const { return *std::get<TextPointer>(data_); }
  const List& AsList() const { return std::get<ListPointer>(data_)->value; }
  const Dict& AsDict() const { return std::get<DictPointer>(data_)->value; }
  Dict* fields() const { return &std::get<NamespacePointer>(data_)->fields; }
  const Macro* AsMacro() const {
    return Is<const Macro*>() ? std::get<const Macro*>(data_) : nullptr;
  }
  std::string_view AsFunction() const {
    return Is<Function>() ? std::get<Function>(data_).name : std::string_view();
  }
  const std::string& missing_name() const { return std::get<Undefined>(data_).name; }

  bool Truth() const;
  // "a string", "an undefined value": for errors.
  std::string_view TypeName() const;
  // Lists and dicts inside each other, this one included; 0 for other values.
  int depth() const;
  // What an operation on the whole value costs.
  size_t weight() const;
  friend bool operator==(const Value& a, const Value& b);

  // The text that {{ value }} adds: Python's str(). Only strings keep their marks.
  MarkedText ToText() const;

 private:
  template <typename T>
  struct Nested {
    T value;
    int depth;
    size_t weight;
  };
  using TextPointer = std::shared_ptr<const MarkedText>;
  using ListPointer = std::shared_ptr<const Nested<List>>;
  using DictPointer = std::shared_ptr<const Nested<Dict>>;
  using NamespacePointer = std::shared_ptr<Namespace>;
  using Data = std::variant<Undefined, None, bool, int64_t, double, TextPointer, ListPointer,
                            DictPointer, NamespacePointer, const Macro*, Function>;

  template <typename T>
  explicit Value(T data) : data_(std::move(data)) {}
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
};

bool operator==(const Value& a, const Value& b);

// The number of characters of valid UTF-8.
size_t CharacterCount(std::string_view text);
// The byte at which each character begins, and the size of the text.
std::vector<size_t> CharacterOffsets(std::string_view text);

// The forms of Python's json.dumps that templates use.
struct JsonForm {
  int indent = -1;  // below 0: one line
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// INVALID_ARGUMENT for a value without a form in JSON.
Result<std::string> ToJson(const Value& value, const JsonForm& form);
// "1.0", "1e+20": Python's repr() of a float.
std::string FloatText(double value);

}  // namespace polysketch::chat
