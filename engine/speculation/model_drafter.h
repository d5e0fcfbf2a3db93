// A draft model: a smaller model with the same vocabulary goes on greedily. It has a state of its
// own for the sequence, made with the first draft, within the memory of a pool that all drafters
// share. One that gets none drafts nothing: the sequence goes on token by token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/model.h"
#include "engine/model/state_pool.h"
#include "engine/speculation/drafter.h"

namespace polysketch {

class ModelDrafter : public Drafter {
 public:
  // Both outlive it; shared by the sequences of an engine. `states` is of `model`.
  ModelDrafter(LanguageModel* model, StatePool* states);
  ~ModelDrafter() override { GiveBack(); }

  void Append(std::span<const int32_t> tokens) override;
  // Reads what it has not yet seen, at most one step of the draft model a call: behind a long
  // prompt it proposes nothing until it has caught up, so that no other sequence waits for it.
  std::vector<int32_t> Propose(int64_t most) override;

 private:
  // Memory for `tokens` more; false when there is none.
  bool MakeRoom(int64_t tokens);
  void GiveBack();
  // Runs tokens through the model and keeps the last row.
  void Run(std::span<const int32_t> tokens);
  int32_t MostLikely();

  LanguageModel* const model_;
  StatePool* const states_;
  std::unique_ptr<SequenceState> state_;
  size_t reserved_ = 0;          // bytes for it
  bool given_up_ = false;        // a state that grows was too large: nothing is drafted any more
  std::vector<int32_t> unseen_;  // certain tokens that the state has not seen
  std::vector<float> hidden_;    // [hidden_size] of the last token seen
  std::vector<float> logits_;    // [vocab_size]
};

}  // namespace polysketch
