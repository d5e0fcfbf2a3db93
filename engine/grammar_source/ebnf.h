// Grammars in the EBNF that xgrammar reads.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/grammar_source/code_points.h"

namespace polysketch {

// A quoted string of EBNF that matches `text`, which is UTF-8. No escape of it runs into a
// character that follows: those of variable length (\x) are not used.
std::string EbnfLiteral(std::string_view text);
// A character class; `set` is not empty.
std::string EbnfClass(const CodePoints& set);

// An expression, with how tightly it binds.
class Ebnf {
 public:
  // Matches the empty text.
  Ebnf() = default;
  static Ebnf Literal(std::string_view text);
  static Ebnf Class(const CodePoints& set) { return Ebnf(EbnfClass(set), Level::kAtom); }
  static Ebnf Rule(std::string name) { return Ebnf(std::move(name), Level::kAtom); }
  static Ebnf Sequence(const std::vector<Ebnf>& parts);
  // `choices` is not empty.
  static Ebnf Choice(const std::vector<Ebnf>& choices);
  // `max` < 0: without a bound.
  static Ebnf Repeat(const Ebnf& part, long long min, long long max);

  bool empty() const { return text_.empty(); }
  std::string text() const { return empty() ? "\"\"" : text_; }

 private:
  enum class Level { kAtom, kSequence, kChoice };
  Ebnf(std::string text, Level level) : text_(std::move(text)), level_(level) {}
  std::string Within(Level level) const {
    return level_ > level ? StrCat('(', text(), ')') : text();
  }

  std::string text_;
  Level level_ = Level::kAtom;
};

// The rules of a grammar.
class EbnfRules {
 public:
  // A rule for `body`; one rule for equal bodies.
  Ebnf Add(const Ebnf& body);
  // A rule that Define gives a body.
  std::string Declare();
  void Define(const std::string& name, const Ebnf& body);
  // A rule of a name of its own, which may refer to itself.
  void DefineOnce(const std::string& name, const Ebnf& body);
  size_t bytes() const { return text_.size(); }
  // The grammar whose root is `root`.
  std::string Finish(const Ebnf& root) const {
    return StrCat("root ::= ", root.text(), '\n', text_);
  }

 private:
  std::string text_;
  std::map<std::string, std::string> names_;  // by body
  std::set<std::string> defined_;             // by DefineOnce
  int count_ = 0;
};

}  // namespace polysketch
