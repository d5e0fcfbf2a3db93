// Templates to tokens.
#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "server/chat/syntax.h"
#include "server/chat/text.h"

namespace polysketch::chat {
namespace {

using Kind = Token::Kind;

constexpr std::string_view kSpace = " \t\n\r\f\v";
constexpr std::string_view kDigits = "0123456789";

bool IsNameBegin(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Newlines become "\n", and one at the end is dropped.
std::string Normalized(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    out += text[i] == '\r' ? '\n' : text[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : source_(Normalized(text)), rest_(source_) {}

  Result<std::vector<Token>> Run() {
    while (!rest_.empty()) {
      const size_t begin = FindTag();
      PS_RETURN_IF_ERROR(Text(begin));
      if (begin == rest_.npos) break;
      PS_RETURN_IF_ERROR(Tag());
    }
    Add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <typename... Args>
  Status Error(const Args&... args) const {
    return InvalidArgument("line ", line_, ": ", args...);
  }
  void Add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void Skip(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(rest_.begin(), rest_.begin() + static_cast<long>(bytes), '\n'));
    line_starts_ = bytes > 0 && rest_[bytes - 1] == '\n';
    rest_.remove_prefix(bytes);
  }
  void SkipSpace() {
    const size_t end = rest_.find_first_not_of(kSpace);
    Skip(end == rest_.npos ? rest_.size() : end);
  }

  size_t FindTag() const {
    for (size_t at = rest_.find('{'); at != rest_.npos; at = rest_.find('{', at + 1)) {
      const char next = at + 1 < rest_.size() ? rest_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
    }
    return rest_.npos;
  }

  // The text before a tag at `begin`, which may strip spaces at its end.
  Status Text(size_t begin) {
    std::string_view text = rest_.substr(0, begin);
    const bool tag = begin != rest_.npos;
    const char sign = tag && begin + 2 < rest_.size() ? rest_[begin + 2] : '\0';
    if (tag && sign == '-') {
      text = text.substr(0, text.find_last_not_of(kSpace) + 1);
    } else if (tag && sign != '+' && rest_[begin + 1] != '{') {
      const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
      if ((line > 0 || line_starts_) && text.find_first_not_of(kSpace, line) == text.npos)
        text = text.substr(0, line);
    }
    if (ValidUtf8Prefix(text) != text.size()) return Error("expected UTF-8, found other bytes");
    if (!text.empty()) Add(Kind::kText, std::string(text));
    Skip(tag ? begin : rest_.size());
    return Status();
  }

  // Skips the end of a tag, with the newline or the spaces that belong to it. False for other text.
  bool End(std::string_view end, bool newline) {
    const bool strips = rest_.starts_with('-') && rest_.substr(1).starts_with(end);
    const bool keeps = newline && rest_.starts_with('+') && rest_.substr(1).starts_with(end);
    if (!strips && !keeps && !rest_.starts_with(end)) return false;
    size_t size = end.size() + (strips || keeps ? 1 : 0);
    if (strips) {
      size = std::min(rest_.size(), rest_.find_first_not_of(kSpace, size));
    } else if (!keeps && newline && rest_.substr(size).starts_with('\n')) {
      ++size;
    }
    Skip(size);
    return true;
  }

  Status Tag() {
    const char type = rest_[1];
    const bool sign = rest_.size() > 2 && (rest_[2] == '-' || rest_[2] == '+');
    if (type == '#') return Comment(sign ? 3 : 2);
    if (size_t size = 0; type == '%' && IsTagNamed("raw", &size)) return Raw(size);
    const bool output = type == '{';
    const int line = line_;
    Add(output ? Kind::kOutputBegin : Kind::kTagBegin, output ? "{{" : "{%");
    Skip(sign ? 3 : 2);
    std::string open;  // brackets
    while (true) {
      SkipSpace();
      if (rest_.empty())
        return InvalidArgument("line ", line, ": expected ", output ? "}}" : "%}",
                               " at the end of a tag, found the end of the template");
      if (open.empty() && End(output ? "}}" : "%}", !output)) break;
      PS_RETURN_IF_ERROR(Element(&open));
    }
    Add(output ? Kind::kOutputEnd : Kind::kTagEnd, output ? "}}" : "%}");
    return Status();
  }

  Status Comment(size_t begin) {
    const size_t end = rest_.find("#}", begin);
    if (end == rest_.npos) return Error("expected #} at the end of a comment, found none");
    const bool sign = end > begin && (rest_[end - 1] == '-' || rest_[end - 1] == '+');
    Skip(sign ? end - 1 : end);
    PS_CHECK(End("#}", true));
    return Status();
  }

  // Whether the rest begins with {% name %}; *size: up to the end of the name and the spaces after
  // it.
  bool IsTagNamed(std::string_view name, size_t* size) const {
    size_t at = rest_.size() > 2 && (rest_[2] == '-' || rest_[2] == '+') ? 3 : 2;
    at = std::min(rest_.size(), rest_.find_first_not_of(kSpace, at));
    if (!rest_.substr(at).starts_with(name)) return false;
    at = std::min(rest_.size(), rest_.find_first_not_of(kSpace, at + name.size()));
    *size = at;
    const std::string_view end = rest_.substr(at);
    return end.starts_with("%}") || end.starts_with("-%}") || end.starts_with("+%}");
  }

  // {% raw %} text {% endraw %}: the text is no template. `size`: of the tag before its end.
  Status Raw(size_t size) {
    Skip(size);
    if (!End("%}", /*newline=*/false)) return Error("expected %} at the end of raw, found +%}");
    const int line = line_;
    for (size_t at = rest_.find("{%"); at != rest_.npos; at = rest_.find("{%", at + 1)) {
      const std::string_view whole = rest_;
      rest_ = whole.substr(at);
      const bool ends = IsTagNamed("endraw", &size);
      rest_ = whole;
      if (!ends) continue;
      PS_RETURN_IF_ERROR(Text(at));
      Skip(size);
      PS_CHECK(End("%}", /*newline=*/true));
      return Status();
    }
    return InvalidArgument("line ", line, ": expected {% endraw %}, found the end of the template");
  }

  Status Element(std::string* open) {
    const char c = rest_.front();
    if (c == '"' || c == '\'') return String();
    size_t size = 0;
    if (IsNameBegin(c)) {
      while (size < rest_.size() && (IsNameBegin(rest_[size]) || IsDigit(rest_[size]))) ++size;
      return Take(Kind::kName, size);
    }
    if (IsDigit(c)) return Number();
    static constexpr std::array kOperators = {std::string_view("//"), std::string_view("**"),
                                              std::string_view("=="), std::string_view("!="),
                                              std::string_view(">="), std::string_view("<=")};
    for (const std::string_view two : kOperators) {
      if (rest_.starts_with(two)) return Take(Kind::kOperator, 2);
    }
    static constexpr std::string_view kOpen = "([{", kClose = ")]}", kOthers = "+-*/%~<>=.:|,";
    if (kOpen.find(c) != kOpen.npos) {
      *open += c;
    } else if (const size_t close = kClose.find(c); close != kClose.npos) {
      if (open->empty() || open->back() != kOpen[close])
        return Error("expected a bracket that is open, found ", c);
      open->pop_back();
    } else if (kOthers.find(c) == kOthers.npos) {
      const Utf8Char found = DecodeUtf8(rest_);
      if (found.kind != Utf8Char::Kind::kValid) return Error("expected UTF-8, found other bytes");
      return Error("expected an expression, found the character ",
                   rest_.substr(0, static_cast<size_t>(found.length)));
    }
    return Take(Kind::kOperator, 1);
  }

  Status Take(Kind kind, size_t size) {
    Add(kind, std::string(rest_.substr(0, size)));
    Skip(size);
    return Status();
  }

  // Digits of a base, with single "_" between.
  size_t Digits(size_t from, std::string_view digits) const {
    size_t at = from;
    while (at < rest_.size() && (digits.find(rest_[at]) != digits.npos ||
                                 (rest_[at] == '_' && at > from && at + 1 < rest_.size() &&
                                  digits.find(rest_[at + 1]) != digits.npos)))
      ++at;
    return at;
  }

  Status Number() {
    const auto at = [&](size_t i) { return i < rest_.size() ? rest_[i] : '\0'; };
    Kind kind = Kind::kInteger;
    size_t size = 0;
    const auto letter = static_cast<char>(at(1) | 0x20);
    const std::string_view digits = letter == 'x'   ? "0123456789abcdefABCDEF"
                                    : letter == 'o' ? "01234567"
                                    : letter == 'b' ? "01"
                                                    : "";
    if (at(0) == '0' && !digits.empty()) {
      const size_t begin = at(2) == '_' ? 3 : 2;
      size = Digits(begin, digits);
      if (size == begin) return Error("expected a number, found ", rest_.substr(0, 2));
    } else {
      size = Digits(0, kDigits);
      const bool zeros = rest_.substr(0, size).find_first_not_of("0_") == rest_.npos;
      const bool element = tokens_.back().kind == Kind::kOperator && tokens_.back().text == ".";
      if (!element && at(size) == '.' && IsDigit(at(size + 1))) {
        kind = Kind::kFloat;
        size = Digits(size + 1, kDigits);
      }
      const size_t sign = at(size + 1) == '+' || at(size + 1) == '-' ? 1 : 0;
      if (!element && (at(size) | 0x20) == 'e' && IsDigit(at(size + 1 + sign))) {
        kind = Kind::kFloat;
        size = Digits(size + 1 + sign, kDigits);
      }
      if (kind == Kind::kInteger && at(0) == '0' && !zeros)
        return Error("expected a number without zeros before it, found ", rest_.substr(0, size));
    }
    if (IsNameBegin(at(size))) return Error("expected a number, found ", rest_.substr(0, size + 1));
    std::string text(rest_.substr(0, size));
    std::erase(text, '_');
    std::erase(text, '+');
    Add(kind, std::move(text));
    Skip(size);
    return Status();
  }

  Status String() {
    const char quote = rest_.front();
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size())
      return Error("expected ", quote, " at the end of a string, found none");
    std::string text;
    PS_RETURN_IF_ERROR(Unescape(rest_.substr(1, end - 1), &text));
    if (ValidUtf8Prefix(text) != text.size()) return Error("expected UTF-8, found other bytes");
    Add(Kind::kString, std::move(text));
    Skip(end + 1);
    return Status();
  }

  // Python's escapes of characters.
  Status Unescape(std::string_view raw, std::string* text) const {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"";
    static constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    while (!raw.empty()) {
      const char c = raw.size() > 1 ? raw[1] : '\0';
      const size_t letter = kLetters.find(c);
      if (raw.front() != '\\' || raw.size() < 2) {
        *text += raw.front();
        raw.remove_prefix(1);
      } else if (letter != kLetters.npos) {
        *text += kValues[letter];
        raw.remove_prefix(2);
      } else if (c >= '0' && c <= '7') {
        uint32_t code = 0;
        size_t digits = 1;
        for (; digits < 4 && digits < raw.size() && raw[digits] >= '0' && raw[digits] <= '7';
             ++digits)
          code = code * 8 + static_cast<uint32_t>(raw[digits] - '0');
        AppendUtf8(code, text);
        raw.remove_prefix(digits);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t code = 0;
        for (size_t i = 0; i < digits; ++i) {
          const char digit = i + 2 < raw.size() ? raw[i + 2] : '\0';
          const auto value =
              std::string_view("0123456789abcdef").find(static_cast<char>(digit | 0x20));
          if (digit == '\0' || value == std::string_view::npos || (digit < 'A' && !IsDigit(digit)))
            return Error("expected ", digits, " hexadecimal digits after \\", c, ", found others");
          code = code * 16 + static_cast<uint32_t>(value);
        }
        if (code >= 0xd800 && code < 0xe000)
          return Error("expected a character, found a surrogate");
        if (code > 0x10ffff) return Error("expected a character, found one above 10ffff");
        AppendUtf8(code, text);
        raw.remove_prefix(digits + 2);
      } else if (c == 'N') {
        return Error("expected the code of a character, found its name in \\N");
      } else if (c == '\n') {
        raw.remove_prefix(2);
      } else {  // not an escape
        *text += raw.substr(0, 2);
        raw.remove_prefix(2);
      }
    }
    return Status();
  }

  const std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> SplitTemplate(std::string_view text) { return Lexer(text).Run(); }

}  // namespace polysketch::chat
