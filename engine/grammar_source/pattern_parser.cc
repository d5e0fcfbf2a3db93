#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <utility>

#include "base/utf8.h"
#include "engine/grammar_source/pattern.h"
#include "engine/grammar_source/shorthand_classes.h"

namespace polysketch {
namespace {

constexpr char32_t kEndOfText = 0xffffffff;

bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }
bool IsLetter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

Pattern Character(char32_t c) { return {.kind = Pattern::Kind::kClass, .set = {{c, c}}}; }
Pattern Class(CodePoints set) { return {.kind = Pattern::Kind::kClass, .set = std::move(set)}; }

class PatternParser {
 public:
  explicit PatternParser(std::string_view text) : text_(ToCodePoints(text)) {}

  Result<Pattern> Parse() {
    Pattern pattern = Choice(0);
    if (error_.ok() && at_ < text_.size()) Fail("expected no ) without (");
    if (!error_.ok()) return error_;
    return pattern;
  }

 private:
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : kEndOfText;
  }
  bool Take(char32_t c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  bool TakeAll(std::string_view ascii) {
    for (size_t i = 0; i < ascii.size(); ++i) {
      if (Peek(i) != static_cast<char32_t>(ascii[i])) return false;
    }
    at_ += ascii.size();
    return true;
  }
  Pattern Fail(const std::string& message) {
    if (error_.ok())
      error_ = InvalidArgument("at character ", at_ + 1, " of the pattern: ", message);
    at_ = text_.size();  // ends every loop
    return {};
  }

  Pattern Choice(int depth) {
    if (depth > kMaxPatternDepth)
      return Fail(
          StrCat("expected at most ", kMaxPatternDepth, " groups within groups, found more"));
    Pattern choice{.kind = Pattern::Kind::kChoice};
    do {
      choice.parts.push_back(Sequence(depth));
    } while (Take('|'));
    return choice.parts.size() == 1 ? std::move(choice.parts[0]) : std::move(choice);
  }

  Pattern Sequence(int depth) {
    Pattern sequence{.kind = Pattern::Kind::kSequence};
    while (Peek() != kEndOfText && Peek() != '|' && Peek() != ')') {
      Pattern part = Repeated(Atom(depth));
      if (part.kind != Pattern::Kind::kEmpty) sequence.parts.push_back(std::move(part));
    }
    if (sequence.parts.empty()) return {};
    return sequence.parts.size() == 1 ? std::move(sequence.parts[0]) : std::move(sequence);
  }

  Pattern Atom(int depth) {
    const char32_t c = Peek();
    switch (c) {
      case '(':
        return Group(depth);
      case '[':
        return Bracket();
      case '\\':
        return Escape();
      case '*':
      case '+':
      case '?':
        return Fail("expected something to repeat before the repetition");
      case '{':
        if (BoundsFollow()) return Fail("expected something to repeat before the repetition");
        break;
      default:
        break;
    }
    ++at_;
    if (c == '^') return {.kind = Pattern::Kind::kBegin};
    if (c == '$') return {.kind = Pattern::Kind::kEnd};
    if (c == '.') return Class(LineClass().in);
    return Character(c);
  }

  Pattern Group(int depth) {
    ++at_;
    if (TakeAll("?")) {
      if (TakeAll("=") || TakeAll("!")) return Fail("look-ahead is not supported");
      if (TakeAll("<=") || TakeAll("<!")) return Fail("(?<= and (?<! are not supported");
      if (TakeAll("P=")) return Fail("a back-reference is not supported");
      if (TakeAll("P>") || TakeAll("R")) return Fail("recursion is not supported");
      if (TakeAll(">")) return Fail("an atomic group is not supported");
      if (TakeAll("(")) return Fail("a conditional group is not supported");
      if (TakeAll("P<") || TakeAll("<")) {
        const size_t begin = at_;
        while (IsLetter(Peek()) || IsDigit(Peek()) || Peek() == '_') ++at_;
        if (at_ == begin || IsDigit(text_[begin]) || !Take('>'))
          return Fail("expected the name of a group and >");
      } else if (TakeAll("#")) {
        return Fail("a comment is not supported");
      } else if (!Take(':')) {
        return Fail("a flag is not supported: expected (?: or a named group after (?");
      }
    }
    Pattern inside = Choice(depth + 1);
    if (!Take(')')) return Fail("expected ) at the end of a group");
    // A group that is empty can be repeated, so it stays a part.
    if (inside.kind == Pattern::Kind::kEmpty) return {.kind = Pattern::Kind::kSequence};
    return inside;
  }

  // Whether a repetition's bounds begin here: {2}, {2,}, {2,3}, and {,3}, {,} of Python. Another { is
  // a character.
  bool BoundsFollow() const {
    size_t i = 1;
    bool any = false;
    for (; IsDigit(Peek(i)); ++i) any = true;
    if (Peek(i) == ',') {
      any = true;
      for (++i; IsDigit(Peek(i));) ++i;
    }
    return Peek() == '{' && Peek(i) == '}' && any;
  }

  int Count() {
    int64_t count = 0;
    while (IsDigit(Peek())) {
      count = std::min<int64_t>(count * 10 + (Peek() - '0'), int64_t{kMaxRepetitions} + 1);
      ++at_;
    }
    if (count > kMaxRepetitions)
      Fail(StrCat("expected at most ", kMaxRepetitions, " repetitions, found more"));
    return static_cast<int>(count);
  }

  Pattern Repeated(Pattern part) {
    Pattern repeat{.kind = Pattern::Kind::kRepeat};
    if (Take('*')) {
    } else if (Take('+')) {
      repeat.min = 1;
    } else if (Take('?')) {
      repeat.max = 1;
    } else if (BoundsFollow()) {
      ++at_;
      // ECMA-262 has these characters there.
      if (Peek() == ',') return Fail("{,N} is not supported: expected {0,N}");
      repeat.min = Count();
      repeat.max = repeat.min;
      if (Take(',')) repeat.max = Peek() == '}' ? -1 : Count();
      if (repeat.max >= 0 && repeat.max < repeat.min)
        return Fail("expected bounds of a repetition in order");
      if (!Take('}')) return Fail("expected } after the bounds of a repetition");
    } else {
      return part;
    }
    const bool anchor = part.kind == Pattern::Kind::kBegin || part.kind == Pattern::Kind::kEnd;
    if (anchor) return Fail("expected something to repeat before the repetition");
    if (Peek() == '+') return Fail("a possessive repetition is not supported");
    Take('?');  // lazy: the same texts
    if (Peek() == '*' || Peek() == '+' || Peek() == '?' || BoundsFollow())
      return Fail("expected one repetition, found another after it");
    repeat.parts.push_back(std::move(part));
    return repeat;
  }

  std::optional<char32_t> Hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const char32_t c = Peek();
      const bool hex = c < 0x80 && std::isxdigit(static_cast<int>(c)) != 0;
      if (!hex) {
        Fail(StrCat("expected ", digits, " hexadecimal digits of an escape"));
        return std::nullopt;
      }
      value = value * 16 + (IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return value;
  }

  std::optional<char32_t> Scalar(std::optional<char32_t> c) {
    if (c && ((*c >= 0xd800 && *c <= 0xdfff) || *c > 0x10ffff)) {
      Fail("expected an escape of a character, found half of a pair or a number above U+10FFFF");
      return std::nullopt;
    }
    return c;
  }

  // After \u: XXXX, a pair of surrogates, or {X}.
  std::optional<char32_t> UnicodeEscape() {
    if (Take('{')) {
      size_t digits = 0;
      while (Peek(digits) != '}' && Peek(digits) != kEndOfText && digits < 8) ++digits;
      const auto c = Hex(std::max(static_cast<int>(digits), 1));
      if (c && !Take('}')) Fail("expected } at the end of an escape");
      return Scalar(c);
    }
    const auto c = Hex(4);
    if (c && *c >= 0xd800 && *c <= 0xdbff && TakeAll("\\u")) {
      const auto low = Hex(4);
      if (low && *low >= 0xdc00 && *low <= 0xdfff)
        return 0x10000 + ((*c - 0xd800) << 10) + (*low - 0xdc00);
      return Scalar(c);
    }
    return Scalar(c);
  }

  // After \: an escape of one character, in a class and outside; nullopt after an error.
  std::optional<char32_t> CharacterEscape() {
    const char32_t c = Peek();
    if (c == kEndOfText) {
      Fail("expected a character after \\");
      return std::nullopt;
    }
    ++at_;
    switch (c) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'x':
        return Hex(2);
      case 'u':
        return UnicodeEscape();
      case '0':
        if (!IsDigit(Peek())) return 0;
        Fail("an octal escape is not supported");
        return std::nullopt;
      case 'c':
        if (IsLetter(Peek())) return text_[at_++] & 31;
        break;
      default:
        break;
    }
    if (!IsLetter(c) && !IsDigit(c)) return c;
    --at_;
    Fail(Unsupported(c));
    return std::nullopt;
  }

  // The error of an escape of a letter or digit.
  static std::string Unsupported(char32_t c) {
    switch (c) {
      case 'k':
        return "a back-reference is not supported";
      case 'p':
      case 'P':
        return "a Unicode property is not supported";
      case 'b':
      case 'B':
        return "a word boundary is not supported";
      // Of Python alone: ECMA-262 has letters there.
      case 'A':
        return "\\A is not supported: expected ^";
      case 'Z':
        return "\\Z is not supported: expected $";
      case 'U':
        return "\\U is not supported: expected \\u{X}";
      default:
        return IsDigit(c) ? "a back-reference is not supported"
                          : StrCat("\\", static_cast<char>(c), " is not supported");
    }
  }

  // After \: \d and its like.
  std::optional<TwoSided> Shorthand() {
    const char32_t c = Peek();
    const TwoSided* const found = c == 'd' || c == 'D'   ? &DigitClass()
                                  : c == 'w' || c == 'W' ? &WordClass()
                                  : c == 's' || c == 'S' ? &SpaceClass()
                                                         : nullptr;
    if (found == nullptr) return std::nullopt;
    ++at_;
    return c < 'a' ? found->Negated() : *found;
  }

  Pattern Escape() {
    ++at_;
    if (const auto shorthand = Shorthand()) return Class(shorthand->in);
    const auto c = CharacterEscape();
    return c ? Character(*c) : Pattern{};
  }

  // One character of a class, or a shorthand in *shorthand.
  std::optional<char32_t> Member(std::optional<TwoSided>* shorthand) {
    if (!Take('\\')) return text_[at_++];
    *shorthand = Shorthand();
    if (*shorthand) return std::nullopt;
    if (Take('b')) return '\b';
    return CharacterEscape();
  }

  Pattern Bracket() {
    ++at_;
    const bool negated = Take('^');
    if (Peek() == ']') return Fail("expected a character in a class, or \\]");
    std::vector<CodePoints::Range> ranges;
    TwoSided all = TwoSided::Of({});
    while (error_.ok() && Peek() != ']') {
      if (Peek() == kEndOfText) return Fail("expected ] at the end of a class");
      std::optional<TwoSided> shorthand;
      const auto first = Member(&shorthand);
      const bool range = Peek() == '-' && Peek(1) != ']' && Peek(1) != kEndOfText;
      if (shorthand) {
        if (range) return Fail("expected a character before - in a class");
        all.Add(*shorthand);
        continue;
      }
      if (!first) return {};
      auto last = first;
      if (range) {
        ++at_;
        last = Member(&shorthand);
        if (shorthand) return Fail("expected a character after - in a class");
        if (!last) return {};
        if (*last < *first) return Fail("expected a range of a class in order");
      }
      ranges.push_back({*first, *last});
    }
    if (!error_.ok()) return {};
    ++at_;
    all.Add(TwoSided::Of(CodePoints(ranges)));
    Pattern result = Class(negated ? all.out : all.in);
    if (result.set.empty()) return Fail("expected a class with a character");
    return result;
  }

  const std::u32string text_;
  size_t at_ = 0;
  Status error_;
};

}  // namespace

std::u32string ToCodePoints(std::string_view text) {
  std::u32string characters;
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    characters += next.kind == Utf8Char::Kind::kValid ? next.code_point : U'\ufffd';
    text.remove_prefix(static_cast<size_t>(next.length));
  }
  return characters;
}

Result<Pattern> ParsePattern(std::string_view text) { return PatternParser(text).Parse(); }

}  // namespace polysketch
