#include "engine/grammar_source/ebnf.h"

#include <cstdint>
#include <cstdio>

#include "base/status.h"
#include "base/utf8.h"

namespace polysketch {
namespace {

bool IsPlain(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// An escape whose length is fixed.
std::string Escape(char32_t c) {
  char text[16];
  std::snprintf(text, sizeof(text), c <= 0xffff ? "\\u%04x" : "\\U%08x", static_cast<uint32_t>(c));
  return text;
}

std::string InClass(char32_t c) {
  return IsPlain(c) ? std::string(1, static_cast<char>(c)) : Escape(c);
}

}  // namespace

std::string EbnfLiteral(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const Utf8Char next = DecodeUtf8(text);
    const char32_t c = next.code_point;
    const bool itself = (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') || c >= 0xa0;
    quoted += itself ? std::string(text.substr(0, static_cast<size_t>(next.length))) : Escape(c);
    text.remove_prefix(static_cast<size_t>(next.length));
  }
  return quoted + "\"";
}

std::string EbnfClass(const CodePoints& set) {
  std::string text = "[";
  for (const CodePoints::Range& range : set.ranges()) {
    text += InClass(range.first);
    if (range.last > range.first) text += StrCat('-', InClass(range.last));
  }
  return text + "]";
}

Ebnf Ebnf::Literal(std::string_view text) {
  return text.empty() ? Ebnf() : Ebnf(EbnfLiteral(text), Level::kAtom);
}

Ebnf Ebnf::Sequence(const std::vector<Ebnf>& parts) {
  Ebnf whole;
  int count = 0;
  for (const Ebnf& part : parts) {
    if (part.empty()) continue;
    if (++count == 1) {
      whole = part;
      continue;
    }
    if (count == 2) whole = Ebnf(whole.Within(Level::kSequence), Level::kSequence);
    whole.text_ += ' ';
    whole.text_ += part.Within(Level::kSequence);
  }
  return whole;
}

Ebnf Ebnf::Choice(const std::vector<Ebnf>& choices) {
  if (choices.size() == 1) return choices[0];
  std::string text;
  for (const Ebnf& choice : choices) {
    if (!text.empty()) text += " | ";
    text += choice.text();
  }
  return Ebnf(std::move(text), Level::kChoice);
}

Ebnf Ebnf::Repeat(const Ebnf& part, long long min, long long max) {
  if (part.empty() || max == 0) return Ebnf();
  if (min == 1 && max == 1) return part;
  std::string text = part.Within(Level::kAtom);
  if (min == 0 && max < 0) {
    text += "*";
  } else if (min == 1 && max < 0) {
    text += "+";
  } else if (min == 0 && max == 1) {
    text += "?";
  } else {
    text += StrCat('{', min);
    if (max != min) text += max < 0 ? "," : StrCat(',', max);
    text += '}';
  }
  return Ebnf(std::move(text), Level::kSequence);
}

Ebnf EbnfRules::Add(const Ebnf& body) {
  const auto [at, inserted] = names_.try_emplace(body.text());
  if (inserted) {
    at->second = Declare();
    Define(at->second, body);
  }
  return Ebnf::Rule(at->second);
}

std::string EbnfRules::Declare() { return StrCat('r', count_++); }

void EbnfRules::DefineOnce(const std::string& name, const Ebnf& body) {
  if (defined_.insert(name).second) Define(name, body);
}

void EbnfRules::Define(const std::string& name, const Ebnf& body) {
  text_ += StrCat(name, " ::= ", body.text(), '\n');
}

}  // namespace polysketch
