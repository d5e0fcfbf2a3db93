#include "engine/grammar_source/pattern_grammar.h"

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace polysketch {
namespace {

using Kind = Pattern::Kind;

// Bounds of a repetition up to which characters that JSON escapes are kept.
constexpr int kMaxUnrolled = 8;

// What lies beside a part of a pattern.
enum class Side {
  kOpen,    // any text, unless an anchor is here
  kEdge,    // the end of the text
  kInside,  // another part
};

// How JSON writes a character that it does not write as itself.
std::string JsonEscape(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default: {
      char text[8];
      std::snprintf(text, sizeof(text), "\\u%04x", static_cast<unsigned>(c));
      return text;
    }
  }
}

const CodePoints& EscapedInJson() {
  static const CodePoints kSet = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
  return kSet;
}

void AddUtf8(char32_t c, std::string* text) {
  if (c < 0x80) {
    *text += static_cast<char>(c);
  } else if (c < 0x800) {
    *text += {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    *text += {static_cast<char>(0xe0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 63)),
              static_cast<char>(0x80 | (c & 63))};
  } else {
    *text += {static_cast<char>(0xf0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 63)),
              static_cast<char>(0x80 | ((c >> 6) & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

class PatternWriter {
 public:
  PatternWriter(TextForm form, EbnfRules* rules) : form_(form), rules_(rules) {}

  Ebnf Write(const Pattern& pattern, Side left, Side right) {
    switch (pattern.kind) {
      case Kind::kBegin:
      case Kind::kEnd:
        return WriteSequence(std::span(&pattern, 1), left, right);
      case Kind::kSequence:
        return WriteSequence(pattern.parts, left, right);
      case Kind::kChoice: {
        std::vector<Ebnf> choices;
        for (const Pattern& part : pattern.parts) choices.push_back(Write(part, left, right));
        return Ebnf::Choice(choices);
      }
      case Kind::kEmpty:
        return Around(Ebnf(), left, right);
      case Kind::kClass:
        return Around(Character(pattern.set), left, right);
      case Kind::kRepeat: {
        const Pattern& part = pattern.parts[0];
        if (part.HasAnchor()) Fail("an anchor within a repetition is not supported");
        const bool loop = pattern.max < 0 || pattern.max > kMaxUnrolled;
        loops_ += loop ? 1 : 0;
        const Ebnf once = Write(part, Side::kInside, Side::kInside);
        loops_ -= loop ? 1 : 0;
        return Around(Ebnf::Repeat(once, pattern.min, pattern.max), left, right);
      }
    }
    return Ebnf();
  }

  const Status& error() const { return error_; }

 private:
  void Fail(const char* message) {
    if (error_.ok()) error_ = InvalidArgument(message);
  }

  // One character of `set`.
  Ebnf Character(const CodePoints& set) {
    const CodePoints escaped = form_ == TextForm::kJson ? set & EscapedInJson() : CodePoints();
    const CodePoints plain = set - escaped;
    if (escaped.empty() || (loops_ > 0 && !plain.empty())) return Ebnf::Class(plain);
    std::vector<Ebnf> choices;
    if (!plain.empty()) choices.push_back(Ebnf::Class(plain));
    for (const CodePoints::Range& range : escaped.ranges()) {
      for (char32_t c = range.first; c <= range.last; ++c)
        choices.push_back(Ebnf::Literal(JsonEscape(c)));
    }
    return choices.size() == 1 ? choices[0] : rules_->Add(Ebnf::Choice(choices));
  }
  Ebnf AnyText() const {
    return Ebnf::Repeat(Ebnf::Class(form_ == TextForm::kJson ? PlainInJson() : CodePoints::All()),
                        0, -1);
  }
  Ebnf Around(const Ebnf& part, Side left, Side right) {
    Ebnf any = left == Side::kOpen || right == Side::kOpen ? AnyText() : Ebnf();
    if (part.empty()) return any;
    return Ebnf::Sequence(
        {left == Side::kOpen ? any : Ebnf(), part, right == Side::kOpen ? any : Ebnf()});
  }

  // Anchors at an edge are dropped; an open side that has one becomes an edge.
  Ebnf WriteSequence(std::span<const Pattern> parts, Side left, Side right) {
    while (!parts.empty() && parts.front().kind == Kind::kBegin) {
      if (left == Side::kInside) Fail("^ within a pattern is not supported");
      left = Side::kEdge;
      parts = parts.subspan(1);
    }
    while (!parts.empty() && parts.back().kind == Kind::kEnd) {
      if (right == Side::kInside) Fail("$ within a pattern is not supported");
      right = Side::kEdge;
      parts = parts.first(parts.size() - 1);
    }
    if (parts.empty()) return Around(Ebnf(), left, right);
    if (parts.size() == 1) {
      const bool anchor = parts[0].kind == Kind::kBegin || parts[0].kind == Kind::kEnd;
      if (anchor) {  // $ before the end, ^ after the beginning
        Fail("an anchor within a pattern is not supported");
        return Ebnf();
      }
      return Write(parts[0], left, right);
    }
    std::vector<Ebnf> written;
    std::string run;  // characters that are written as one literal
    const auto flush = [&] { written.push_back(Ebnf::Literal(std::exchange(run, ""))); };
    for (size_t i = 0; i < parts.size(); ++i) {
      const Side before = i == 0 ? left : Side::kInside;
      const Side after = i + 1 == parts.size() ? right : Side::kInside;
      const bool inside = before != Side::kOpen && after != Side::kOpen;
      if (inside && parts[i].kind == Kind::kClass && parts[i].set.IsOne()) {
        const char32_t c = parts[i].set.ranges()[0].first;
        if (form_ == TextForm::kJson && EscapedInJson().Contains(c)) {
          run += JsonEscape(c);
        } else {
          AddUtf8(c, &run);
        }
        continue;
      }
      flush();
      written.push_back(Write(parts[i], before, after));
    }
    flush();
    return Ebnf::Sequence(written);
  }

  const TextForm form_;
  EbnfRules* const rules_;
  int loops_ = 0;  // repetitions around the part that is written
  Status error_;
};

bool IsRepeatedCharacter(const Pattern& pattern) {
  return pattern.kind == Kind::kRepeat && pattern.parts[0].kind == Kind::kClass;
}

// Narrows the bounds of the only repetition of `pattern` so that they hold the lengths. Returns
// whether there is one that decides the length.
bool NarrowLength(Pattern* pattern, int64_t min_length, int64_t max_length) {
  std::vector<Pattern*> varying;
  std::vector<Pattern*> parts;
  if (pattern->kind == Kind::kSequence) {
    for (Pattern& part : pattern->parts) parts.push_back(&part);
  } else {
    parts.push_back(pattern);
  }
  int64_t fixed = 0;
  for (Pattern* part : parts) {
    const PatternLength length = LengthOf(*part);
    if (length.min == length.max) {
      fixed += length.min;
    } else {
      varying.push_back(part);
    }
  }
  if (varying.size() != 1 || !IsRepeatedCharacter(*varying[0])) return false;
  if (max_length >= 0 && max_length < fixed) return false;
  Pattern& repeat = *varying[0];
  const int64_t min = std::max<int64_t>(repeat.min, min_length - fixed);
  int64_t max = repeat.max;
  if (max_length >= 0) max = max < 0 ? max_length - fixed : std::min(max, max_length - fixed);
  if (max >= 0 && max < min) return false;
  repeat.min = static_cast<int>(min);
  repeat.max = static_cast<int>(max);
  return true;
}

// Whether the pattern is one text's edges around parts without anchors; drops the anchors.
bool DropEdges(Pattern* pattern) {
  if (pattern->kind != Kind::kSequence || pattern->parts.size() < 2) return false;
  if (pattern->parts.front().kind != Kind::kBegin || pattern->parts.back().kind != Kind::kEnd)
    return false;
  pattern->parts.erase(pattern->parts.begin());
  pattern->parts.pop_back();
  if (pattern->HasAnchor()) return false;
  if (pattern->parts.size() == 1) {
    Pattern only = std::move(pattern->parts[0]);
    *pattern = std::move(only);
  }
  return true;
}

}  // namespace

const CodePoints& PlainInJson() {
  static const CodePoints kSet = EscapedInJson().Complement();
  return kSet;
}

Ebnf JsonStringEnd(int64_t min, EbnfRules* rules) {
  const Ebnf hex = Ebnf::Class({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  const Ebnf d = Ebnf::Class({{'D', 'D'}, {'d', 'd'}});
  const Ebnf unit = Ebnf::Choice(
      {Ebnf::Sequence({Ebnf::Class({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}),
                       Ebnf::Repeat(hex, 3, 3)}),
       Ebnf::Sequence({d, Ebnf::Class({{'0', '7'}}), Ebnf::Repeat(hex, 2, 2)}),
       Ebnf::Sequence({d, Ebnf::Class({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}),
                       Ebnf::Repeat(hex, 2, 2), Ebnf::Literal("\\u"), d,
                       Ebnf::Class({{'C', 'F'}, {'c', 'f'}}), Ebnf::Repeat(hex, 2, 2)})});
  const Ebnf escape = rules->Add(Ebnf::Choice({Ebnf::Class({{'"', '"'},
                                                            {'/', '/'},
                                                            {'\\', '\\'},
                                                            {'b', 'b'},
                                                            {'f', 'f'},
                                                            {'n', 'n'},
                                                            {'r', 'r'},
                                                            {'t', 't'}}),
                                               Ebnf::Sequence({Ebnf::Literal("u"), unit})}));
  const std::string loop = "json_string_end";
  const auto after = [&](const Ebnf& rest) {
    return std::vector<Ebnf>{Ebnf::Sequence({Ebnf::Class(PlainInJson()), rest}),
                             Ebnf::Sequence({Ebnf::Literal("\\"), escape, rest})};
  };
  std::vector<Ebnf> choices = after(Ebnf::Rule(loop));
  choices.insert(choices.begin(), Ebnf::Literal("\""));
  rules->DefineOnce(loop, Ebnf::Choice(choices));
  Ebnf end = Ebnf::Rule(loop);
  for (int64_t i = 0; i < min; ++i) end = rules->Add(Ebnf::Choice(after(end)));
  return end;
}

std::string JsonString(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool escaped = byte < 0x80 && EscapedInJson().Contains(byte);
    quoted += escaped ? JsonEscape(byte) : std::string(1, c);
  }
  return quoted + "\"";
}

Result<Ebnf> PatternToEbnf(const Pattern& pattern, const PatternUse& use, EbnfRules* rules) {
  const Side side = use.whole ? Side::kEdge : Side::kOpen;
  PatternWriter writer(use.form, rules);
  Pattern narrowed = pattern;
  const bool bounded = use.min_length > 0 || use.max_length >= 0;
  if (bounded) {
    const bool edges = DropEdges(&narrowed) || (use.whole && !narrowed.HasAnchor());
    PatternLength length = LengthOf(narrowed);
    if (!edges) length.max = -1;
    const bool holds = length.min >= use.min_length &&
                       (use.max_length < 0 || (length.max >= 0 && length.max <= use.max_length));
    if (!holds && !(edges && NarrowLength(&narrowed, use.min_length, use.max_length))) {
      return InvalidArgument(
          "expected lengths that follow from the pattern, or that bound its only repetition of a "
          "character");
    }
    if (edges) {
      const Ebnf whole = writer.Write(narrowed, Side::kEdge, Side::kEdge);
      PS_RETURN_IF_ERROR(writer.error());
      return whole;
    }
    narrowed = pattern;
  }
  const Ebnf text = writer.Write(narrowed, side, side);
  PS_RETURN_IF_ERROR(writer.error());
  return text;
}

}  // namespace polysketch
