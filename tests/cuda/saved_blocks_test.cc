// Full blocks of KV caches in saved states: a longer state of the sequence has the same, so that a turn of
// a session writes its new blocks alone (engine/session/stored_blocks.h).
#include <vector>

#include "engine/snapshot/snapshot.h"
#include "engine/snapshot/state_layout.h"
#include "tests/cuda/cuda_test.h"
#include "tests/kernels/attention_case.h"

namespace polysketch {
namespace {

using testing::Layers;

// Layers that grow, of two block sizes, one with a window, and a recurrent one.
Layers LayersThatDiffer() {
  AttentionSpec full = testing::MakeSpec(AttentionKind::kSoftmax, 4, 32, 16, 8);
  full.kv_heads = 2;
  AttentionSpec window = full, half = full, bytes = full, large = full;
  window.window = 11;
  window.sinks = 3;
  half.state_format = StateFormat::kBf16;
  bytes.state_format = StateFormat::kQ8;
  large.block = 16;
  return Layers(std::vector<AttentionSpec>{
      window, full, testing::MakeSpec(AttentionKind::kSymmetricPower, 2, 32, 16, 8), large, half,
      bytes});
}

class CudaSavedBlocksTest : public testing::CudaTest {
 protected:
  void ExpectSameBlocks(const Layers& layers, int64_t block) {
    testing::Random random(1);
    const testing::Sequence sequence = testing::RandomSequence(layers, 100, &random);
    testing::Runner runner(*cuda_, layers, sequence);
    const StateLayout layout(layers, /*block_order=*/runner.state->parts() == 1);
    std::vector<ByteBuffer> before;
    for (const int rows : {20, 1, 11, 40, 28}) {
      testing::Step(*cuda_, layers, {{&runner, rows}});
      SavedState saved;
      saved.position = runner.state->position();
      saved.bytes.resize(runner.state->SavedBytes());
      runner.state->Save(saved.bytes);
      ASSERT_TRUE(layout.Fits(saved));
      ASSERT_EQ(layout.FullBlocks(saved.position), saved.position / block);
      const std::vector<int64_t> each(static_cast<size_t>(saved.position / block), 1);
      std::vector<ByteBuffer> blocks(each.size() + 1);
      layout.Split(saved, each, [&](size_t group, std::span<const uint8_t> bytes) {
        blocks[group].insert(blocks[group].end(), bytes.begin(), bytes.end());
      });
      blocks.pop_back();  // the rest
      for (size_t i = 0; i < blocks.size(); ++i) {
        EXPECT_EQ(blocks[i].size(), layout.block_bytes());
        if (i < before.size()) {
          EXPECT_EQ(blocks[i], before[i]) << "block " << i << " at " << saved.position;
        }
      }
      before = blocks;
    }
  }
};

TEST_F(CudaSavedBlocksTest, OfLayersThatDiffer) { ExpectSameBlocks(LayersThatDiffer(), 16); }

TEST_F(CudaSavedBlocksTest, OfEqualLayers) {
  ExpectSameBlocks(Layers(testing::MakeSpec(AttentionKind::kSoftmax, 4, 32, 16, 8), 3), 8);
}

}  // namespace
}  // namespace polysketch
