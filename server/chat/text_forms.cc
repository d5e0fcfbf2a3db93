// Values as text: Python's repr() and json.dumps.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"
#include "server/chat/text.h"
#include "server/chat/value.h"

namespace polysketch::chat {
namespace {

// Python's repr() of a string.
void AppendQuoted(std::string_view text, std::string* out_text) {
  const bool single = text.find('\'') == text.npos || text.find('"') != text.npos;
  const char quote = single ? '\'' : '"';
  std::string& out = *out_text;
  out += quote;
  while (!text.empty()) {
    const Utf8Char decoded = DecodeUtf8(text);
    const auto c = static_cast<uint32_t>(decoded.code_point);
    char escaped[16];
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (!IsPrintable(decoded.code_point)) {
      std::snprintf(escaped, sizeof(escaped),
                    c < 0x100     ? "\\x%02x"
                    : c < 0x10000 ? "\\u%04x"
                                  : "\\U%08x",
                    c);
      out += escaped;
    } else {
      out += text.substr(0, static_cast<size_t>(decoded.length));
    }
    text.remove_prefix(static_cast<size_t>(decoded.length));
  }
  out += quote;
}

void AppendRepr(const Value& value, std::string* out);

// ["open", a, b, "close"] with commas between.
void AppendAll(std::string_view open, std::string_view close, const List& list, std::string* out) {
  *out += open;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) *out += ", ";
    AppendRepr(list[i], out);
  }
  *out += close;
}

void AppendDict(const Dict& dict, std::string* out) {
  *out += '{';
  bool first = true;
  for (const auto& [key, entry] : dict.entries()) {
    if (!std::exchange(first, false)) *out += ", ";
    AppendRepr(OfKey(key), out);
    *out += ": ";
    AppendRepr(entry, out);
  }
  *out += '}';
}

void AppendList(const Value& value, std::string* out) {
  switch (value.list_kind()) {
    case ListKind::kList:
      return AppendAll("[", "]", value.AsList(), out);
    case ListKind::kTuple:
      return AppendAll("(", value.AsList().size() == 1 ? ",)" : ")", value.AsList(), out);
    case ListKind::kRange:
      *out += value.label();
      return;
    case ListKind::kView:
      return AppendAll(value.label() + "([", "])", value.AsList(), out);
    case ListKind::kIterator:
      *out += "<iterator>";
      return;
  }
}

void AppendRepr(const Value& value, std::string* out) {
  if (value.string()) {
    AppendQuoted(value.AsText().text(), out);
  } else if (value.list()) {
    AppendList(value, out);
  } else if (value.dict()) {
    AppendDict(value.AsDict(), out);
  } else if (value.undefined()) {
    *out += "Undefined";
  } else if (value.none()) {
    *out += "None";
  } else if (value.boolean()) {
    *out += value.AsBool() ? "True" : "False";
  } else if (value.integer()) {
    *out += std::to_string(value.AsInt());
  } else if (value.large()) {
    *out += std::to_string(value.AsLarge());
  } else if (value.floating()) {
    *out += FloatText(value.AsDouble());
  } else {
    *out += value.is_namespace() ? "<Namespace>" : value.is_loop() ? "<LoopContext>" : "<function>";
  }
}

}  // namespace

std::string Repr(const Value& value) {
  std::string out;
  AppendRepr(value, &out);
  return out;
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
    } else if (code < 0x20 || (ensure_ascii && code >= 0x7f && code < 0x10000)) {
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
  JsonWriter(const JsonForm& form, Budget* budget) : form_(form), budget_(budget) {}

  Status Write(const Value& value) {
    PS_RETURN_IF_ERROR(Count());
    if (value.none()) {
      out_ += "null";
    } else if (value.boolean()) {
      out_ += value.AsBool() ? "true" : "false";
    } else if (value.large()) {
      out_ += std::to_string(value.AsLarge());
    } else if (value.floating()) {
      const double number = value.AsDouble();
      out_ += std::isnan(number)   ? "NaN"
              : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                   : FloatText(number);
    } else if (value.integer()) {
      out_ += std::to_string(value.AsInt());
    } else if (value.string()) {
      out_ += JsonString(value.AsText().text(), form_.ensure_ascii);
    } else if (value.list(ListKind::kList) || value.list(ListKind::kTuple)) {
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
    PS_RETURN_IF_ERROR(budget_->Spend(dict.entries().size(), 2 * Budget::kElement));
    std::vector<std::pair<std::string_view, const Value*>> entries;
    for (const auto& [key, entry] : dict.entries()) entries.emplace_back(key, &entry);
    if (form_.sort_keys) std::sort(entries.begin(), entries.end());
    return WriteAll('{', '}', entries, [this](const auto& entry) {
      const Value key = OfKey(std::string(entry.first));
      out_ += JsonString(key.ToText().text(), form_.ensure_ascii) + form_.key_separator;
      return Write(*entry.second);
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
  // Spends what was written since the last call, and looks ahead to the next line.
  Status Count() {
    const size_t line =
        form_.indent ? form_.indent->size() * static_cast<size_t>(level_) + 1 : size_t{0};
    const size_t written = out_.size() + line - std::exchange(counted_, out_.size());
    return budget_->Spend(written + Budget::kElement);
  }
  void NewLine() {
    if (!form_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *form_.indent;
  }

  const JsonForm& form_;
  Budget* const budget_;
  int level_ = 0;
  size_t counted_ = 0;
  std::string out_;
};

}  // namespace

Result<std::string> ToJson(const Value& value, const JsonForm& form, Budget* budget) {
  JsonWriter writer(form, budget);
  PS_RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

}  // namespace polysketch::chat
