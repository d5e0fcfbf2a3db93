// Regular expressions of a tokenizer.json. Their syntax is Oniguruma's for Ruby, which Hugging
// Face's tokenizers run; PCRE2 with its JIT runs them here, because it can say that a match depends
// on text that has not arrived. What the two read differently is translated, or refused.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// Returns the pattern in PCRE2's syntax (UTF and UCP). INVALID_ARGUMENT names a construct that is
// not supported, and its offset.
Result<std::string> TranslateRegex(std::string_view pattern);

// Immutable and thread-safe.
class Regex {
 public:
  // INVALID_ARGUMENT for a pattern that is not supported.
  static Result<Regex> Compile(std::string_view pattern);
  // A regular expression that matches `text` itself.
  static Result<Regex> Literal(std::string_view text);

  enum class Outcome { kNone, kMatch, kUndecided };
  struct Match {
    Outcome outcome = Outcome::kNone;
    // kMatch: its bytes. kUndecided: `begin` is the first position whose match depends on what
    // follows the text; there is no match before it. kNone: the text has none.
    size_t begin = 0;
    size_t end = 0;
  };
  // Finds the first match at or after byte `from` of `text`, valid UTF-8. `final`: nothing follows
  // the text. INVALID_ARGUMENT if the search exceeds PCRE2's limits.
  Result<Match> Find(std::string_view text, size_t from, bool final) const;
  // Number of characters before a match that may decide it.
  size_t lookbehind() const { return lookbehind_; }

 private:
  struct Code;
  Regex(std::shared_ptr<const Code> code, size_t lookbehind)
      : code_(std::move(code)), lookbehind_(lookbehind) {}
  static Result<Regex> CompilePcre(std::string_view pattern, bool literal);

  std::shared_ptr<const Code> code_;
  size_t lookbehind_ = 0;
};

}  // namespace polysketch
