// Grammars that the text of an output must match. A grammar is compiled, and its token masks are
// computed, by a process of its own (host_protocol.h). TokenMasks (token_masks.h) follows one
// sequence through a grammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/principal.h"
#include "base/status.h"
#include "engine/request/params.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

// Limits of a grammar's process, and of all. A grammar that exceeds one is refused, or ends its
// requests.
struct GrammarLimits {
  int compile_ms = 10'000;  // of processor time
  int mask_ms = 2'000;      // of processor time, for the masks of one step
  size_t memory_bytes = size_t{256} << 20;
  // Of all processes together: beyond it the one that holds the most ends.
  size_t total_bytes = size_t{1} << 30;
  // polysketch-grammar-host; empty: the one beside the running program.
  std::string program = {};
};

// A compiled grammar: the process that serves its masks, which ends with the last reference.
// Thread-safe. Shared by all sequences with the same source.
class Grammar {
 public:
  virtual ~Grammar() = default;
  // Tokens of the vocabulary that begin with a space which decoding drops at the beginning of a
  // text: bit i of (vocab_size + 31) / 32 words.
  virtual const std::vector<uint32_t>& dropped_spaces() const = 0;
  // Opens a walk: returns its socket, which the caller owns. UNAVAILABLE if the process has ended.
  virtual Result<int> OpenWalk() const = 0;
  // INVALID_ARGUMENT: the error of a request by which the process exceeded a limit.
  virtual Status ExceededLimits() const = 0;
  // RESOURCE_EXHAUSTED: the error of a request whose process ended because of all processes.
  virtual Status NoRoom() const = 0;
};

// Thread-safe. Keeps the kCachedGrammars grammars that were used last.
class GrammarCompiler {
 public:
  static constexpr size_t kCachedGrammars = 16;
  // Alive at once. A client has at most three times as many as are free: alone 96.
  static constexpr int kMaxGrammars = 128;
  static constexpr int kMaxCompilations = 3;

  // `tokenizer` outlives the compiler; vocab_size is the model's, at least the tokenizer's. Only
  // one of eos_ids ends a complete output.
  GrammarCompiler(const Tokenizer* tokenizer, int vocab_size, const std::vector<int32_t>& eos_ids,
                  const GrammarLimits& limits = {});
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Takes milliseconds to seconds. `principal`: whose share of kMaxGrammars it takes.
  // INVALID_ARGUMENT for a source that is no grammar, that xgrammar does not support, or that
  // exceeds a limit; RESOURCE_EXHAUSTED if the client's share is in use, or all processes take too
  // much memory; FAILED_PRECONDITION if the vocabulary has no EOS, or the program is missing.
  // Messages begin with "structured_output: ".
  Result<std::shared_ptr<const Grammar>> Compile(const GrammarSource& source,
                                                 const Principal& principal = {});
  // Returns the grammar if it has been compiled and is still kept, else null. Does not wait.
  std::shared_ptr<const Grammar> Find(const GrammarSource& source);
  // Ends all processes. Compilations end soon, with an error; new ones are UNAVAILABLE.
  void Stop();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace polysketch
