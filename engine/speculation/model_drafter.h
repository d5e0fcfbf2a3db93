// A draft model: a smaller model with the same vocabulary continues the sequence greedily. Its
// state is made for the first draft, from a pool that all drafters share. Without memory for a
// state the drafter proposes nothing.
//
// Used by the engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/language_model.h"
#include "engine/model/state_pool.h"
#include "engine/speculation/drafter.h"

namespace polysketch {

class ModelDrafter : public Drafter {
 public:
  // `model`, and `states`, the pool of its states, outlive the drafter. All drafters share both.
  // context_limit: tokens of its longest sequence, after which it proposes nothing; 0: no limit.
  ModelDrafter(LanguageModel* model, StatePool* states, int64_t context_limit = 0);
  ~ModelDrafter() override { ReleaseState(); }

  void Append(std::span<const int32_t> tokens) override;
  // Processes the tokens that it has not processed yet, in at most one step of the draft model for
  // each call, so that other sequences do not wait. After a long prompt it proposes nothing until
  // it has processed every token.
  std::vector<int32_t> Propose(int64_t max) override;

 private:
  // Reserves memory for `tokens` more tokens, and acquires a state if there is none yet. Returns
  // false if memory is lacking, or the context limit is reached.
  bool MakeRoom(int64_t tokens);
  void ReleaseState();
  // Processes tokens; hidden_ becomes the row of the last one.
  void Run(std::span<const int32_t> tokens);
  int32_t MostLikely();

  LanguageModel* const model_;
  StatePool* const states_;
  const int64_t context_limit_;
  std::unique_ptr<SequenceState> state_;
  size_t reserved_ = 0;          // bytes reserved for state_
  bool gave_up_ = false;         // a KV cache exceeded the memory or the limit: no more drafts
  std::vector<int32_t> unseen_;  // tokens of the sequence that are not in the state
  std::vector<float> hidden_;    // [hidden_size], of the last token in the state
  std::vector<float> logits_;    // [vocab_size]
};

}  // namespace polysketch
