// The way of one sequence through a grammar: which tokens may follow. The process of the grammar
// computes the masks of a step's rows while the model computes the step.
//
//   masks.Begin(drafts);           // before the step
//   mask = masks.Await(row, 5ms);  // when its logits are there
//   masks.Accept(token);           // the token that was sampled
//
// A mask is a function of the tokens of the output alone: results do not depend on when it arrives.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/sockets.h"

namespace polysketch {

// Bit i of [(vocab_size + 31) / 32] words: token i may follow. At least one may.
using TokenMask = std::span<const uint32_t>;

// Used by one thread at a time.
class TokenMasks {
 public:
  // begins_text: the output begins a text, where decoding drops a leading space
  // (Tokenizer::StripsLeadingSpace): no token that begins with such a space may be the first.
  TokenMasks(std::shared_ptr<const Grammar> grammar, bool begins_text)
      : grammar_(std::move(grammar)), begins_text_(begins_text) {}

  // Adds a token to the output.
  void Accept(int32_t token);
  // The rows that one Begin may have, one more than its drafts; at least 1.
  int64_t max_rows() const;
  // Starts to compute the masks of rows: row 0 follows the output, row i also the first i drafts.
  // Masks of an earlier call are invalid then.
  void Begin(std::span<const int32_t> drafts);
  // Waits at most `patience` for the mask of a row; nullopt if it is late. The mask is valid until
  // Begin. Rows after EOS, and after a draft that the grammar does not allow, have none.
  // INVALID_ARGUMENT if the grammar allows no token of the vocabulary or a mask exceeds a limit,
  // RESOURCE_EXHAUSTED if the process ended because of GrammarLimits::total_bytes, UNAVAILABLE if
  // the grammar's process ended otherwise, DATA_LOSS if the output does not match the grammar,
  // INTERNAL for an error of xgrammar.
  std::optional<Result<TokenMask>> Await(int64_t row, std::chrono::milliseconds patience);

 private:
  size_t words() const { return grammar_->dropped_spaces().size(); }
  void Send(const void* header, size_t header_bytes, std::span<const int32_t> tokens);
  // Takes the next answer. Returns false if none arrives in time.
  bool Receive(std::chrono::milliseconds patience);

  const std::shared_ptr<const Grammar> grammar_;
  const bool begins_text_;
  Descriptor socket_;              // opened by the first Begin
  std::vector<int32_t> accepted_;  // tokens that were not sent yet
  bool empty_ = true;              // no token was accepted
  uint32_t job_ = 0;               // of the last Begin
  std::vector<uint32_t> masks_;    // [rows_, words]
  int64_t rows_ = 0;
  Status error_;  // of row rows_, and of all that follow
};

}  // namespace polysketch
