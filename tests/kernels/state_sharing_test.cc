// Copies of a state share its blocks of tokens, which changes neither: against whole copies, and by
// bytes.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "kernels/new_backend.h"
#include "kernels/saved_state.h"
#include "tests/kernels/attention_case.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Layers;
using testing::Random;
using testing::Runner;
using testing::Sequence;

class StateSharingTest : public ::testing::Test {
 protected:
  StateSharingTest() : backend_(NewCpuBackend(2).value()) {}

  // One model of each kind of KV layer, mixtures, and models that share nothing.
  static std::vector<Layers> Models() {
    std::vector<Layers> models = testing::Mixtures();
    AttentionSpec full = testing::MakeSpec(AttentionKind::kSoftmax, 4, 10, 0, 8);
    full.kv_heads = 2;
    for (const StateFormat format : {StateFormat::kF32, StateFormat::kF16, StateFormat::kQ8}) {
      full.state_format = format;
      models.emplace_back(full, 3);
    }
    models.emplace_back(testing::MakeSpec(AttentionKind::kPolynomial, 2, 10, 0, 8), 2);
    models.emplace_back(testing::MakeSpec(AttentionKind::kRandomSketch, 2, 16, 11, 8), 2);
    return models;
  }
  static std::vector<uint8_t> Saved(const SequenceState& state) {
    std::vector<uint8_t> bytes(state.SavedBytes());
    state.Save(bytes);
    return bytes;
  }

  const std::unique_ptr<Backend> backend_;
};

// What states hold together, by their blocks and by those of all their layers.
struct Held {
  size_t by_blocks = 0, by_layers = 0;

  static Held Of(const std::vector<const SequenceState*>& states) {
    std::map<const void*, size_t> blocks, layers;
    Held held;
    for (const SequenceState* state : states) {
      const StateMemory memory = state->Memory();
      for (const StateBlock& block : memory.blocks) blocks[block.id] = block.bytes;
      const auto& host = static_cast<const HostState&>(*state);
      size_t of_state = memory.bytes(), references = 0;
      for (int i = 0; i < host.parts(); ++i) {
        for (const StateBlock& block : host.layer(i).Blocks()) {
          layers[block.id] = block.bytes;
          references += kBlockReferenceBytes;
        }
      }
      EXPECT_EQ(of_state, state->bytes() + references);
    }
    for (const auto& [id, bytes] : blocks) held.by_blocks += bytes;
    for (const auto& [id, bytes] : layers) held.by_layers += bytes;
    return held;
  }
};

TEST_F(StateSharingTest, ACopyHoldsTheBlocksAndWritesToItsOwn) {
  Random random(1);
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kSoftmax, 4, 10, 0, 8);
  const Layers layers(spec, 3);
  const size_t block = backend_->StateBytes(layers, 1);
  const Sequence whole = testing::RandomSequence(layers, 60, &random);
  Runner original(*backend_, layers, whole), copy(*backend_, layers, whole);
  testing::Step(*backend_, layers, {{&original, 43}});  // five full blocks, and three tokens
  ASSERT_TRUE(original.state->shares());
  EXPECT_EQ(original.state->BytesToCopy(), 0u);

  copy.state->CopyFrom(*original.state);
  EXPECT_EQ(Held::Of({original.state.get(), copy.state.get()}).by_blocks, 6 * block);
  EXPECT_EQ(original.state->BytesToCopy(), block);
  EXPECT_EQ(copy.state->BytesToCopy(), block);
  const std::vector<uint8_t> before = Saved(*original.state);

  testing::Step(*backend_, layers, {{&copy, 5}});  // to the end of the block
  EXPECT_EQ(Saved(*original.state), before);
  EXPECT_EQ(copy.state->BytesToCopy(), 0u);
  EXPECT_EQ(Held::Of({original.state.get(), copy.state.get()}).by_blocks, 7 * block);
  testing::Step(*backend_, layers, {{&copy, 1}});
  EXPECT_EQ(Held::Of({original.state.get(), copy.state.get()}).by_blocks, 8 * block);

  // A full block that both hold is not written to by one that is cut in the middle of it.
  copy.state->Truncate(20);
  EXPECT_EQ(copy.state->BytesToCopy(), block);
  const Sequence other = testing::RandomSequence(layers, 60, &random);
  copy.sequence = &other;
  testing::Step(*backend_, layers, {{&copy, 30}});
  EXPECT_EQ(Saved(*original.state), before);
  EXPECT_EQ(Held::Of({original.state.get(), copy.state.get()}).by_blocks, (6 + 5) * block);
}

// States that are copied, and beside each one a twin that is only ever loaded from bytes.
TEST_F(StateSharingTest, RandomOperationsAgainstWholeCopies) {
  constexpr int kStates = 5, kTokens = 120;
  Random random(2);
  for (const Layers& layers : Models()) {
    std::vector<Sequence> texts;
    for (int i = 0; i < 4; ++i) {
      texts.push_back(testing::RandomSequence(layers, kTokens, &random));
    }
    std::vector<Runner> copies, twins;
    for (int i = 0; i < kStates; ++i) {
      copies.emplace_back(*backend_, layers, texts[0]);
      twins.emplace_back(*backend_, layers, texts[0]);
    }
    size_t shared = 0;
    for (int round = 0; round < testing::Count(150, 3000); ++round) {
      const auto to = static_cast<size_t>(random.Int(0, kStates - 1)),
                 from = static_cast<size_t>(random.Int(0, kStates - 1));
      SequenceState &copy = *copies[to].state, &twin = *twins[to].state;
      const double what = random.Uniform();
      if (what < 0.4) {
        copy.CopyFrom(*copies[from].state);
        ASSERT_TRUE(twin.Load(twins[from].state->position(), Saved(*twins[from].state)).ok());
      } else if (what < 0.55) {
        const int64_t end = copy.position();
        const int64_t position = random.Int(copy.EarliestTruncation(), end);
        copy.Truncate(position);
        twin.Truncate(position);
      } else if (what < 0.6) {
        const std::vector<uint8_t> bytes = Saved(*copies[from].state);
        ASSERT_TRUE(copy.Load(copies[from].state->position(), bytes).ok());
        ASSERT_TRUE(twin.Load(twins[from].state->position(), Saved(*twins[from].state)).ok());
      } else if (what < 0.63) {
        copies[to].state = copies[from].state->Clone();
        ASSERT_TRUE(twin.Load(twins[from].state->position(), Saved(*twins[from].state)).ok());
      } else if (what < 0.65) {
        copy.Reset();
        twin.Reset();
      } else if (copy.position() < kTokens) {
        const auto rows =
            static_cast<int>(random.Int(1, std::min<int64_t>(20, kTokens - copy.position())));
        copies[to].sequence = twins[to].sequence = &texts[static_cast<size_t>(random.Int(0, 3))];
        testing::Step(*backend_, layers, {{&copies[to], rows}});
        testing::Step(*backend_, layers, {{&twins[to], rows}});
        ASSERT_EQ(copies[to].outputs, twins[to].outputs);
      }
      copies[to].outputs.assign(layers.size(), {});
      twins[to].outputs.assign(layers.size(), {});

      std::vector<const SequenceState*> states;
      size_t alone = 0;
      for (size_t i = 0; i < kStates; ++i) {
        ASSERT_EQ(copies[i].state->position(), twins[i].state->position());
        ASSERT_EQ(Saved(*copies[i].state), Saved(*twins[i].state))
            << testing::Describe(layers) << " round " << round << ": state " << i << " of " << to;
        states.push_back(copies[i].state.get());
        for (const StateBlock& block : states.back()->Memory().blocks) alone += block.bytes;
      }
      const Held held = Held::Of(states);
      ASSERT_EQ(held.by_blocks, held.by_layers) << "layers of one spec share alike";
      shared = std::max(shared, alone - held.by_blocks);
    }
    EXPECT_EQ(shared > 0, copies[0].state->shares()) << testing::Describe(layers);
  }
}

// The bytes in pieces are those of Save.
TEST_F(StateSharingTest, SavesInPieces) {
  Random random(3);
  for (const Layers& layers : Models()) {
    const Sequence sequence = testing::RandomSequence(layers, 40, &random);
    Runner runner(*backend_, layers, sequence);
    testing::Step(*backend_, layers, {{&runner, 37}});
    std::vector<uint8_t> bytes;
    runner.state->SaveInPieces([&](std::span<const uint8_t> piece) {
      EXPECT_EQ(piece.size() % sizeof(float), 0u);
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    });
    EXPECT_EQ(bytes, Saved(*runner.state)) << testing::Describe(layers);
  }
}

}  // namespace
}  // namespace polysketch
