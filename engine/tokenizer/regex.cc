#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/tokenizer/regex.h"

#include <pcre2.h>

#include <array>
#include <cctype>
#include <utility>

#include "base/bounded_json.h"
#include "base/check.h"

namespace polysketch {
namespace {

// Members of a character class, for \s, \w, \d, \h and their complements: Oniguruma's definitions.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
// Outside a class Oniguruma has a table for Latin-1, in which superscript digits and fractions belong to words.
constexpr std::string_view kWordAlone =
    R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kHex = "0-9a-fA-F";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> Run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      Status status;
      if (c == '\\') {
        status = Escape(/*in_class=*/false);
      } else if (c == '[') {
        status = CharacterClass();
      } else if (c == '(') {
        status = Group();
      } else if (c == '{') {
        status = Interval();
      } else {
        Copy(1);
      }
      PS_RETURN_IF_ERROR(status);
    }
    return out_;
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }
  void Copy(size_t bytes) {
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }
  Status Unsupported(std::string_view what) const {
    return InvalidArgument(
        "expected a regular expression that PCRE2 reads as Oniguruma does, found ", what,
        " at byte ", at_);
  }

  // A class of `members`, or only the members inside of a class.
  void Members(std::string_view members, bool in_class, bool negated = false) {
    if (in_class)
      out_ += members;
    else
      out_ += StrCat(negated ? "[^" : "[", members, "]");
    at_ += 2;
  }

  Status Escape(bool in_class) {
    if (rest().size() < 2) return Unsupported("a backslash at its end");
    const char c = rest()[1];
    switch (c) {
      case 's':
        Members(kSpace, in_class);
        return Status();
      case 'S':
        Members(kNotSpace, in_class);
        return Status();
      case 'd':
        Members(R"(\p{Nd})", in_class);
        return Status();
      case 'D':
        Members(R"(\P{Nd})", in_class);
        return Status();
      case 'h':
        Members(kHex, in_class);
        return Status();
      case 'w':
        Members(in_class ? kWord : kWordAlone, in_class);
        return Status();
      case 'W':
        if (in_class) return Unsupported("\\W in a character class");
        Members(kWordAlone, false, /*negated=*/true);
        return Status();
      case 'v':
        Members(R"(\x{b})", in_class);
        return Status();
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        Copy(2);
        return Status();
      case 'p':
      case 'P':
        return Property();
      case 'x':
      case 'u':
        return CodePoint();
      case 'b':
      case 'B':
        if (in_class) return Unsupported("\\b in a character class");
        WordBoundary(c == 'b');
        return Status();
      default:
        break;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte)) return Unsupported(StrCat("\\", c));
    if (byte >= 0x80) {
      ++at_;  // the character itself
      return Status();
    }
    Copy(2);
    return Status();
  }

  void WordBoundary(bool boundary) {
    const std::string before = StrCat("(?<=[", kWordAlone, "])"),
                      not_before = StrCat("(?<![", kWordAlone, "])");
    const std::string after = StrCat("(?=[", kWordAlone, "])"),
                      not_after = StrCat("(?![", kWordAlone, "])");
    out_ += boundary ? StrCat("(?:", before, not_after, "|", not_before, after, ")")
                     : StrCat("(?:", before, after, "|", not_before, not_after, ")");
    at_ += 2;
  }

  Status Property() {
    const size_t end = rest().find('}');
    if (rest().size() < 3 || rest()[2] != '{' || end == std::string_view::npos)
      return Unsupported(StrCat("\\", rest()[1], " without {...}"));
    Copy(end + 1);
    return Status();
  }

  // \xHH below 80, \x{H...} and \uHHHH: a code point.
  Status CodePoint() {
    std::string_view digits = rest().substr(2);
    size_t length = 0;
    if (rest()[1] == 'x' && digits.starts_with('{')) {
      const size_t end = digits.find('}');
      if (end == std::string_view::npos) return Unsupported("\\x{ without }");
      digits = digits.substr(1, end - 1);
      length = 2 + end + 1;
    } else {
      const size_t wanted = rest()[1] == 'x' ? 2 : 4;
      if (digits.size() < wanted) return Unsupported("an unfinished code point");
      digits = digits.substr(0, wanted);
      length = 2 + wanted;
      // A byte of an encoding, not a code point.
      if (wanted == 2 && digits[0] >= '8') return Unsupported("\\x above 7F without {...}");
    }
    for (const char c : digits) {
      if (!std::isxdigit(static_cast<unsigned char>(c)))
        return Unsupported("a code point that is not hexadecimal");
    }
    if (digits.empty() || digits.size() > 6)
      return Unsupported("a code point of 0 or more than 6 digits");
    out_ += StrCat("\\x{", digits, "}");
    at_ += length;
    return Status();
  }

  Status CharacterClass() {
    Copy(1);
    if (rest().starts_with('^')) Copy(1);
    if (rest().starts_with(']')) return Unsupported("] first in a character class");
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == ']') {
        Copy(1);
        return Status();
      }
      if (c == '[') return Unsupported("[ in a character class");
      if (rest().starts_with("&&")) return Unsupported("&& in a character class");
      if (c == '\\') {
        PS_RETURN_IF_ERROR(Escape(/*in_class=*/true));
      } else {
        Copy(1);
      }
    }
    return Unsupported("a character class without ]");
  }

  Status Group() {
    for (const std::string_view open :
         {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (rest().starts_with(open)) {
        Copy(open.size());
        return Status();
      }
    }
    // An option without a group ends elsewhere in Ruby, except at the beginning.
    if (at_ == 0 && rest().starts_with("(?i)")) {
      Copy(4);
      return Status();
    }
    if (rest().starts_with("(?") || rest().starts_with("(*"))
      return Unsupported(rest().substr(0, 3));
    Copy(1);
    return Status();
  }

  // {n}, {n,} and {n,m}; else a literal.
  Status Interval() {
    const size_t end = rest().find('}');
    bool counts = end != std::string_view::npos && end > 1;
    for (size_t i = 1; counts && i < end; ++i)
      counts = rest()[i] == ',' || std::isdigit(static_cast<unsigned char>(rest()[i]));
    if (!counts) {
      out_ += "\\{";
      ++at_;
      return Status();
    }
    if (rest()[1] == ',') return Unsupported("{,n}");
    Copy(end + 1);
    if (rest().starts_with('+'))
      return Unsupported("+ after {n,m}, which is not possessive in Oniguruma");
    return Status();
  }

  const std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

std::string PcreError(int code) {
  std::array<PCRE2_UCHAR, 200> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct FreeContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// One a thread: a match writes to it.
pcre2_match_data* MatchData() {
  static thread_local const std::unique_ptr<pcre2_match_data, FreeContext> data(
      pcre2_match_data_create(1, nullptr));
  PS_CHECK(data != nullptr);
  return data.get();
}

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : pcre(compiled) {}
  ~Code() { pcre2_code_free(pcre); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  pcre2_code* const pcre;
};

Result<std::string> TranslateRegex(std::string_view pattern) { return Translator(pattern).Run(); }

Result<Regex> Regex::Compile(std::string_view pattern) {
  PS_ASSIGN_OR_RETURN(const std::string translated, TranslateRegex(pattern));
  return CompilePcre(translated, /*literal=*/false);
}

Result<Regex> Regex::Literal(std::string_view text) { return CompilePcre(text, /*literal=*/true); }

Result<Regex> Regex::CompilePcre(std::string_view pattern, bool literal) {
  const std::unique_ptr<pcre2_compile_context, FreeContext> context(
      pcre2_compile_context_create(nullptr));
  PS_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 50);
  const uint32_t options =
      PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* const compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                    &offset, context.get());
  if (compiled == nullptr) {
    return InvalidArgument("expected a regular expression, found an error at byte ", offset, " of ",
                           Abbreviate(pattern), ": ", PcreError(error));
  }
  auto code = std::make_shared<const Code>(compiled);
  // Without JIT (a system that forbids executable memory) the interpreter matches.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  uint32_t lookbehind = 0;
  pcre2_pattern_info(compiled, PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
  return Regex(std::move(code), lookbehind);
}

Result<Regex::Match> Regex::Find(std::string_view text, size_t from, bool final) const {
  pcre2_match_data* const data = MatchData();
  const auto run = [&](uint32_t more) {
    return pcre2_match(code_->pcre, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | (final ? 0U : PCRE2_PARTIAL_HARD) | more, data,
                       nullptr);
  };
  int found = run(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return Match{};
  const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data);
  if (found == PCRE2_ERROR_PARTIAL) return Match{Outcome::kUndecided, range[0], range[1]};
  if (found < 0)
    return InvalidArgument("the text cannot be divided into words: ", PcreError(found));
  return Match{Outcome::kMatch, range[0], range[1]};
}

}  // namespace polysketch
