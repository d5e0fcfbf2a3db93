// A draft model: a smaller model with the same vocabulary goes on greedily. It has a state of its
// own for the sequence, made with the first draft.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/model.h"
#include "engine/speculation/drafter.h"

namespace polysketch {

class ModelDrafter : public Drafter {
 public:
  // `model` outlives it; shared by the sequences of an engine.
  explicit ModelDrafter(LanguageModel* model);

  void Append(std::span<const int32_t> tokens) override;
  // Reads what it has not yet seen, at most one step of the draft model a call: behind a long
  // prompt it proposes nothing until it has caught up, so that no other sequence waits for it.
  std::vector<int32_t> Propose(int64_t most) override;

 private:
  // Runs tokens through the model and keeps the last row.
  void Run(std::span<const int32_t> tokens);
  int32_t MostLikely();

  LanguageModel* const model_;
  std::unique_ptr<SequenceState> state_;
  std::vector<int32_t> unseen_;  // certain tokens that the state has not seen
  std::vector<float> hidden_;    // [hidden_size] of the last token seen
  std::vector<float> logits_;    // [vocab_size]
};

}  // namespace polysketch
