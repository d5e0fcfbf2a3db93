#include "server/chat/python_call.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "base/bounded_json.h"
#include "server/chat/text.h"
#include "server/chat/tool_form.h"

namespace polysketch {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsInName(char c) {
  return c == '_' || IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The value of a digit of any base; 99 for another character.
int DigitOf(char c) {
  const int lower = c | 0x20;
  return IsDigit(c) ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::optional<PythonCall> Call() {
    PythonCall call;
    SkipSpace();
    while (IsInToolName(Peek())) call.name += text_[at_++];
    if (call.name.empty() || !Skip('(')) return std::nullopt;
    if (SkipWord("**")) {
      if (PeekAfterSpace() != '{' || !Value(&call.arguments, 0)) return std::nullopt;
      (void)Skip(',');
      return Skip(')') && End() ? std::optional(call) : std::nullopt;
    }
    call.arguments += '{';
    std::set<std::string> names;
    while (!Skip(')')) {
      std::string name;
      SkipSpace();
      while (IsInName(Peek())) name += text_[at_++];
      if (name.empty() || IsDigit(name[0]) || !names.insert(name).second || !Skip('='))
        return std::nullopt;
      call.arguments += StrCat(names.size() > 1 ? ", " : "", Quoted(name), ": ");
      if (!Value(&call.arguments, 1)) return std::nullopt;
      if (Skip(',')) continue;
      if (PeekAfterSpace() != ')') return std::nullopt;
    }
    call.arguments += '}';
    return End() ? std::optional(call) : std::nullopt;
  }

 private:
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void SkipSpace() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  char PeekAfterSpace() {
    SkipSpace();
    return Peek();
  }
  bool Skip(char c) {
    if (PeekAfterSpace() != c) return false;
    ++at_;
    return true;
  }
  bool SkipWord(std::string_view word) {
    SkipSpace();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool End() {
    SkipSpace();
    return at_ == text_.size();
  }

  // Appends a literal as JSON. `depth`: containers around it.
  bool Value(std::string* out, int depth) {
    if (depth > kMaxJsonDepth) return false;
    const char c = PeekAfterSpace();
    if (AtString()) {
      std::string text;
      do {  // strings beside each other are one
        if (!String(&text)) return false;
        SkipSpace();
      } while (AtString());
      *out += Quoted(text);
      return true;
    }
    if (c == '[' || c == '(') return Items(c == '[' ? ']' : ')', out, depth);
    if (c == '{') return Members(out, depth);
    return c == '-' || c == '+' || c == '.' || IsDigit(c) ? Number(out) : Word(out);
  }

  bool Items(char end, std::string* out, int depth) {
    ++at_;
    const size_t begin = out->size();
    *out += '[';
    int count = 0;
    bool comma = false;
    while (!Skip(end)) {
      if (count++ > 0) {
        if (!comma) return false;
        *out += ", ";
      }
      if (!Value(out, depth + 1)) return false;
      comma = Skip(',');
    }
    // (1) is a number, (1,) a tuple.
    if (end == ')' && count == 1 && !comma) {
      out->erase(begin, 1);
    } else {
      *out += ']';
    }
    return true;
  }

  bool Members(std::string* out, int depth) {
    ++at_;
    *out += '{';
    bool first = true, comma = true;
    while (!Skip('}')) {
      if (!comma) return false;
      if (!first) *out += ", ";
      first = false;
      if (!Key(out, depth + 1) || !Skip(':')) return false;
      *out += ": ";
      if (!Value(out, depth + 1)) return false;
      comma = Skip(',');
    }
    *out += '}';
    return true;
  }

  // A string; an integer, a boolean or None becomes one, as json.dumps writes it.
  bool Key(std::string* out, int depth) {
    SkipSpace();
    if (AtString()) return Value(out, depth);
    std::string key;
    const char c = Peek();
    if (c == '[' || c == '(' || c == '{' || !Value(&key, depth)) return false;
    if (key.find_first_of(".eE") != std::string::npos && IsDigit(key.back()))
      return false;  // Python would write the number in its own way
    *out += Quoted(key);
    return true;
  }

  bool Word(std::string* out) {
    std::string word;
    while (IsInName(Peek())) word += text_[at_++];
    const bool yes = word == "True" || word == "true", no = word == "False" || word == "false";
    if (!yes && !no && word != "None" && word != "null") return false;
    *out += yes ? "true" : no ? "false" : "null";
    return true;
  }

  // Appends digits of the base; underscores may be between them. False for no digit, or an
  // underscore that no digit follows.
  bool Digits(int base, std::string* digits) {
    do {
      if (DigitOf(Peek()) >= base) return false;
      while (DigitOf(Peek()) < base) *digits += text_[at_++];
    } while (SkipHere('_'));
    return true;
  }
  bool SkipHere(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }

  // Digits, which JSON writes in another way: no sign +, no zeros before others, digits beside a
  // point.
  bool Number(std::string* out) {
    std::string number;
    if (Peek() == '-') number = "-";
    if (Peek() == '-' || Peek() == '+') {
      ++at_;
      SkipSpace();
    }
    const char second =
        at_ + 1 < text_.size() && Peek() == '0' ? static_cast<char>(text_[at_ + 1] | 0x20) : '\0';
    const int base = second == 'x' ? 16 : second == 'o' ? 8 : second == 'b' ? 2 : 10;
    if (!(base == 10 ? Decimal(&number) : OtherBase(base, &number))) return false;
    *out += number == "-0" ? "0" : number;
    return !IsInName(Peek()) && Peek() != '.';
  }

  bool Decimal(std::string* out) {
    std::string whole, fraction, exponent;
    if (Peek() != '.' && !Digits(10, &whole)) return false;
    const bool point = SkipHere('.');
    if (point && (whole.empty() || IsDigit(Peek())) && !Digits(10, &fraction)) return false;
    if (Peek() == 'e' || Peek() == 'E') {
      exponent = text_[at_++];
      if (Peek() == '-' || Peek() == '+') exponent += text_[at_++];
      if (!Digits(10, &exponent)) return false;
    }
    const size_t zeros = std::min(whole.find_first_not_of('0'), whole.size());
    // Python has no integers as 012.
    if (!point && exponent.empty() && zeros > 0 && zeros < whole.size()) return false;
    whole.erase(0, zeros);
    *out += whole.empty() ? "0" : whole;
    if (point) *out += StrCat(".", fraction.empty() ? "0" : fraction);
    *out += exponent;
    return true;
  }

  // 0x1F, 0o17, 0b11, of at most 64 bits.
  bool OtherBase(int base, std::string* out) {
    at_ += 2;
    (void)SkipHere('_');
    std::string digits;
    if (!Digits(base, &digits)) return false;
    uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    *out += StrCat(value);
    return error == std::errc();
  }

  bool AtString() const {
    const char c = static_cast<char>(Peek() | 0x20);
    const size_t quote = at_ + (c == 'r' || c == 'u' ? 1 : 0);
    return quote < text_.size() && (text_[quote] == '"' || text_[quote] == '\'');
  }

  // A string that ends with one or three quotes. In a raw one (r"...") a backslash is itself.
  bool String(std::string* out) {
    const bool raw = (Peek() | 0x20) == 'r';
    if (Peek() != '"' && Peek() != '\'') ++at_;
    const std::string three(3, Peek());
    const bool lines = text_.substr(at_).starts_with(three);
    const std::string_view end = std::string_view(three).substr(lines ? 0 : 2);
    at_ += end.size();
    while (!text_.substr(at_).starts_with(end)) {
      if (at_ >= text_.size()) return false;
      const char c = text_[at_++];
      if (c == '\n' || c == '\r') {
        if (!lines) return false;
        if (c == '\r') (void)SkipHere('\n');
        *out += '\n';
      } else if (c != '\\') {
        *out += c;
      } else if (!raw) {
        if (!Escape(out)) return false;
      } else {
        *out += c;
        if (at_ < text_.size() && (Peek() == '\\' || Peek() == end[0])) *out += text_[at_++];
      }
    }
    at_ += end.size();
    return true;
  }

  bool Escape(std::string* out) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kCharacters = "\\'\"\a\b\f\n\r\t\v";
    if (at_ >= text_.size()) return false;
    const char c = text_[at_++];
    if (c == '\n') return true;  // the line goes on
    if (const size_t letter = kLetters.find(c); letter != std::string_view::npos) {
      *out += kCharacters[letter];
      return true;
    }
    if (c == 'x') return Code(16, 2, out);
    if (c == 'u') return Code(16, 4, out);
    if (c == 'U') return Code(16, 8, out);
    if (c >= '0' && c <= '7') {
      --at_;
      int digits = 0;
      while (digits < 3 && Peek() >= '0' && Peek() <= '7') {
        ++digits;
        ++at_;
      }
      at_ -= static_cast<size_t>(digits);
      return Code(8, digits, out);
    }
    // Python keeps the backslash of another character.
    *out += '\\';
    *out += c;
    return c != 'N';
  }

  bool CodeOf(int base, int digits, uint32_t* code) {
    for (*code = 0; digits > 0; --digits) {
      const int value = DigitOf(Peek());
      if (value >= base) return false;
      *code = *code * static_cast<uint32_t>(base) + static_cast<uint32_t>(value);
      ++at_;
    }
    return true;
  }

  // Reads `digits` digits of a character, or of the first half of one as JSON writes it:
  // \ud83d\ude00.
  bool Code(int base, int digits, std::string* out) {
    uint32_t code = 0, low = 0;
    if (!CodeOf(base, digits, &code)) return false;
    if (code >= 0xd800 && code < 0xdc00 && text_.substr(at_).starts_with("\\u")) {
      at_ += 2;
      if (!CodeOf(16, 4, &low) || low < 0xdc00 || low >= 0xe000) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    chat::AppendUtf8(code, out);
    return true;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<PythonCall> ParsePythonCall(std::string_view text) { return Reader(text).Call(); }

}  // namespace polysketch
