// The values of a chat template: those of Jinja, with text that is marked by its origin. Values are
// immutable and share their contents, but for namespaces, which a template may change, and
// iterators, which move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/marked_text.h"
#include "server/chat/budget.h"

namespace polysketch::chat {

class Value;
struct Macro;  // server/chat/syntax.h

using List = std::vector<Value>;

// Key -> value, in the order of insertion. Keys come from requests: no choice of them makes it
// slow. A key is text, or an integer in the form of KeyOf.
class Dict {
 public:
  // Null without such a key.
  const Value* Find(const std::string& key) const;
  void Set(const std::string& key, Value value);
  const std::vector<std::pair<std::string, Value>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, Value>> entries_;
  std::map<std::string, size_t> index_;
};

// Python's kinds of ordered values, which differ in what they can do.
enum class ListKind {
  kList,
  kTuple,
  kRange,
  kView,      // of a dict: has a length, and no items by number
  kIterator,  // of map, select, reverse: can be visited once, and has no length
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
    std::shared_ptr<const std::string> name;
  };
  struct None {};
  struct Namespace {
    Dict fields;
  };
  // A function of the language: "range".
  struct Function {
    std::string_view name;
  };
  // A macro, and the scope of the interpreter in which it is defined: how many scopes there are,
  // and the number of the last one.
  struct MacroHere {
    const Macro* macro = nullptr;
    uint32_t scopes = 0;
    uint32_t scope = 0;
  };
  // An integer of a request from 2^63 to 2^64 - 1. It has a text and no arithmetic.
  struct LargeInteger {
    uint64_t value = 0;
  };
  // The variable `loop` in one iteration.
  struct Loop {
    std::shared_ptr<const List> elements;
    size_t index = 0;
  };

  Value() : data_(Undefined()) {}
  static Value Missing(std::string name) {
    return Value(Undefined{std::make_shared<const std::string>(std::move(name))});
  }
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
  // Markup of Jinja: text that + does not escape, though it escapes what is added to it.
  static Value Markup(MarkedText text) {
    return Value(SafeText{std::make_shared<const MarkedText>(std::move(text))});
  }
  // INVALID_ARGUMENT for values that nest deeper than kMaxValueDepth, weigh more than
  // kMaxValueWeight or contain a loop or a method. `label`: of a range its text, of a view its
  // name.
  static Result<Value> FromList(List list, ListKind kind = ListKind::kList, std::string label = "");
  static Result<Value> FromDict(Dict dict);
  static Value NewNamespace(Dict fields) {
    return Value(std::make_shared<Namespace>(Namespace{std::move(fields)}));
  }
  static Value NewLoop(Loop loop) { return Value(std::make_shared<const Loop>(std::move(loop))); }
  static Value OfMacro(MacroHere macro) { return Value(macro); }
  static Value Large(uint64_t value) { return Value(LargeInteger{value}); }
  static Value OfFunction(std::string_view name) { return Value(Function{name}); }
  // A method of `object` that is not called: {{ text.strip }}. `name` is static.
  static Value OfMethod(const Value& object, std::string_view name);
  // Strings get the mark of a message. Json: nlohmann::json or ordered_json.
  template <typename Json>
  static Result<Value> FromJson(const Json& json);

  bool undefined() const { return Is<Undefined>(); }
  bool none() const { return Is<None>(); }
  bool boolean() const { return Is<bool>(); }
  bool integer() const { return Is<int64_t>(); }
  bool floating() const { return Is<double>(); }
  bool large() const { return Is<LargeInteger>(); }
  // As in Python, a boolean is a number: 0 or 1.
  bool number() const { return boolean() || integer() || floating(); }
  bool string() const { return Is<TextPointer>() || Is<SafeText>(); }
  bool markup() const { return Is<SafeText>(); }
  bool list() const { return Is<ListPointer>(); }  // of any kind
  bool list(ListKind kind) const { return list() && list_kind() == kind; }
  bool dict() const { return Is<DictPointer>(); }
  bool is_namespace() const { return Is<NamespacePointer>(); }
  bool is_loop() const { return Is<LoopPointer>(); }
  bool callable() const {
    return Is<MacroHere>() || Is<Function>() || Is<std::shared_ptr<const Method>>();
  }

  // The contents. The value is of that type.
  bool AsBool() const { return std::get<bool>(data_); }
  // The number as an integer; of a boolean or an integer.
  int64_t AsInt() const { return boolean() ? int64_t{AsBool()} : std::get<int64_t>(data_); }
  uint64_t AsLarge() const { return std::get<LargeInteger>(data_).value; }
  double AsDouble() const {
    return floating() ? std::get<double>(data_) : static_cast<double>(AsInt());
  }
  const MarkedText& AsText() const {
    return markup() ? *std::get<SafeText>(data_).text : *std::get<TextPointer>(data_);
  }
  const List& AsList() const { return std::get<ListPointer>(data_)->value; }
  ListKind list_kind() const { return std::get<ListPointer>(data_)->kind; }
  const std::string& label() const { return std::get<ListPointer>(data_)->label; }
  // How many elements of an iterator were taken.
  size_t* taken() const { return &std::get<ListPointer>(data_)->taken; }
  const Dict& AsDict() const { return std::get<DictPointer>(data_)->value; }
  Dict* fields() const { return &std::get<NamespacePointer>(data_)->fields; }
  const Loop& AsLoop() const { return *std::get<LoopPointer>(data_); }
  // Without a macro for another value.
  MacroHere AsMacro() const { return Is<MacroHere>() ? std::get<MacroHere>(data_) : MacroHere(); }
  std::string_view AsFunction() const {
    return Is<Function>() ? std::get<Function>(data_).name : std::string_view();
  }
  // The object and the name of a method; null for another value.
  const Value* method_object() const;
  std::string_view method_name() const;
  std::string missing_name() const {
    const auto& name = std::get<Undefined>(data_).name;
    return name == nullptr ? "a value" : *name;
  }

  bool Truth() const;
  // "a string", "an undefined value": for errors.
  std::string_view TypeName() const;
  // Lists and dicts inside each other, this one included; 0 for other values.
  int depth() const;
  // What an operation on the whole value costs.
  size_t weight() const;
  // Whether it is, or has inside, a value that changes. A namespace holds none: it could hold
  // itself.
  bool changes() const;
  friend bool operator==(const Value& a, const Value& b);

  // The text that {{ value }} adds: Python's str(). Only strings keep their marks. The caller has
  // spent the weight.
  MarkedText ToText() const;

 private:
  template <typename T>
  struct Nested {
    T value;
    int depth;
    size_t weight;
    ListKind kind = ListKind::kList;
    std::string label = {};
    bool changes = false;
    mutable size_t taken = 0;
  };
  struct Method;
  using TextPointer = std::shared_ptr<const MarkedText>;
  struct SafeText {
    TextPointer text;
  };
  using ListPointer = std::shared_ptr<const Nested<List>>;
  using DictPointer = std::shared_ptr<const Nested<Dict>>;
  using NamespacePointer = std::shared_ptr<Namespace>;
  using LoopPointer = std::shared_ptr<const Loop>;
  using Data = std::variant<Undefined, None, bool, int64_t, double, TextPointer, SafeText,
                            ListPointer, DictPointer, NamespacePointer, LoopPointer, MacroHere,
                            LargeInteger, Function, std::shared_ptr<const Method>>;

  template <typename T>
  explicit Value(T data) : data_(std::move(data)) {}
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
};

bool operator==(const Value& a, const Value& b);

// The key of a dict for a value. INVALID_ARGUMENT for one that is neither text nor an integer.
Result<std::string> KeyOf(const Value& value);
// The value of a key.
Value OfKey(const std::string& key);

// The number of characters of valid UTF-8.
size_t CharacterCount(std::string_view text);
// The byte at which each character begins, and the size of the text.
std::vector<size_t> CharacterOffsets(std::string_view text);

// --- text_forms.cc ---
// The forms of Python's json.dumps that templates use.
struct JsonForm {
  std::optional<std::string> indent;  // of each level; unset: one line
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// INVALID_ARGUMENT for a value without a form in JSON, and for a text beyond the budget.
Result<std::string> ToJson(const Value& value, const JsonForm& form, Budget* budget);
// "1.0", "1e+20": Python's repr() of a float.
std::string FloatText(double value);
// Python's repr() of a value.
std::string Repr(const Value& value);

// The value of a result.
Result<Value> TextValue(Result<MarkedText> text);
Result<Value> ListOf(Result<List> list, ListKind kind = ListKind::kList);

}  // namespace polysketch::chat
