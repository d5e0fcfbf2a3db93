// How the ops of a layer divide their work: the number of tasks of each op for 8, 32 and 64
// threads, in the shape of the 110M model, and the same bits whatever the division. (Attention's
// bits: attention_determinism_test.cc.)
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "base/thread_pool.h"
#include "kernels/angles.h"
#include "kernels/backend.h"
#include "kernels/cpu/parts.h"
#include "kernels/new_backend.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels/weights.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::HostWeights;
using testing::Random;

TEST(PartTest, PartsCoverTheWholeOnceAndMeetAtUnits) {
  for (const cpu::Range whole : {cpu::Range{0, 640}, {100, 256}, {37, 41}, {0, 1}, {5, 5}}) {
    for (const int64_t unit : {1, 8, 12, 32}) {
      for (const int64_t count : {1, 2, 7, 64, 1000}) {
        int64_t next = whole.first;
        for (int64_t i = 0; i < count; ++i) {
          const cpu::Range range = cpu::Part{i, count}.Of(whole, unit);
          EXPECT_EQ(range.first, next);
          EXPECT_GE(range.size(), 0);
          if (range.first > whole.first && range.first < whole.last) {
            EXPECT_EQ(range.first % unit, 0);
          }
          next = range.last;
        }
        EXPECT_EQ(next, whole.last);
      }
    }
  }
}

TEST(PartTest, PiecesThatDivideEvenlyStayWhole) {
  for (const int64_t items : {1, 3, 12, 72}) EXPECT_EQ(cpu::PartsFor(1, items, 100), 1);
  EXPECT_EQ(cpu::PartsFor(2, 12, 100), 1);
  EXPECT_EQ(cpu::PartsFor(6, 12, 100), 1);
  EXPECT_EQ(cpu::PartsFor(2, 3, 100), 2);
  EXPECT_EQ(cpu::PartsFor(8, 12, 100), 2);
  EXPECT_EQ(cpu::PartsFor(64, 1, 3), 3);
  EXPECT_EQ(cpu::PartsFor(64, 1, 0), 1);
}

// Weights and activations in the shape of the 110M model. Their values do not matter here.
constexpr int kWidth = 768, kHeads = 12, kHeadDim = 64, kSketch = 32, kBlock = 256, kHidden = 2048;

AttentionSpec LayerSpec(AttentionKind kind, StateFormat format) {
  AttentionSpec spec = testing::MakeSpec(kind, kHeads, kHeadDim, kSketch, kBlock);
  if (kind == AttentionKind::kPerformer) spec.num_features = 4 * kHeadDim;
  spec.decay_gate = !spec.kv_cache();
  spec.state_format = format;
  return spec;
}

class TaskCountTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Backend>> backend = NewCpuBackend(GetParam());
    ASSERT_TRUE(backend.ok()) << backend.status().ToString();
    backend_ = std::move(backend).value();
  }

  // The numbers of tasks of the loops that `op` runs.
  template <typename Op>
  std::vector<int64_t> Count(const Op& op) {
    std::vector<int64_t> counts;
    backend_->pool()->RecordTaskCounts(&counts);
    op();
    backend_->pool()->RecordTaskCounts(nullptr);
    return counts;
  }

  // Every loop of `op` has a task for each thread, or `most`, into which its work can be cut.
  template <typename Op>
  void ExpectEnough(const std::string& name, const Op& op, int64_t most = 1 << 30) {
    const std::vector<int64_t> counts = Count(op);
    EXPECT_FALSE(counts.empty()) << name;
    for (const int64_t count : counts) {
      EXPECT_GE(count, std::min<int64_t>(GetParam(), most))
          << name << ": " << ::testing::PrintToString(counts);
    }
  }

  std::unique_ptr<const Matrix> Weights(int in, int out, DataType type) {
    const HostWeights w(std::vector<float>(static_cast<size_t>(in) * out, 0.5f), in, out,
                        DataType::kF32);
    return backend_->PackMatrix(w.matrix(), false, type);
  }

  // Loops of the attention of segments of `rows` tokens, each after `position` tokens. copies: of
  // the first state.
  std::vector<int64_t> CountAttention(const AttentionSpec& spec, int position,
                                      const std::vector<int>& rows, bool copies = false) {
    constexpr int64_t kStepRows = 1024;
    const auto array = [](int64_t size) { return std::vector<float>(size, 0.01f); };
    const std::vector<float> near = array(kStepRows * spec.heads * spec.near_dim()),
                             far = array(kStepRows * spec.heads * spec.far_dim()),
                             v = array(kStepRows * spec.heads * spec.head_dim),
                             log_decay(kStepRows * spec.heads, -0.01f),
                             coefficients = array(spec.heads * (spec.power + 1));
    std::vector<float> out(v.size());
    const AttentionInput input{near.data(),      near.data(),
                               far.data(),       far.data(),
                               v.data(),         int64_t{spec.heads} * spec.head_dim,
                               log_decay.data(), coefficients.data()};
    std::vector<std::unique_ptr<SequenceState>> states;
    std::vector<Segment> segments;
    for (const int count : rows) {
      states.push_back(backend_->NewState({&spec, 1}));
      Segment segment{states.back().get(), 0, position};
      if (copies && !segments.empty()) {
        states.back()->CopyFrom(*states.front());
      } else {
        if (position > 0) backend_->Attention(spec, 0, {&segment, 1}, input, out.data());
        states.back()->Advance(position);
      }
      const int first = segments.empty() ? 0 : segments.back().first_row + segments.back().rows;
      segments.push_back({states.back().get(), first, count});
    }
    return Count([&] { backend_->Attention(spec, 0, segments, input, out.data()); });
  }

  std::unique_ptr<Backend> backend_;
};

constexpr int kRows = 512;

TEST_P(TaskCountTest, ProductsOfAPromptHaveATaskForEachThread) {
  const std::vector<float> x(static_cast<size_t>(kRows) * kHidden, 0.5f);
  std::vector<float> out(static_cast<size_t>(kRows) * 2 * kHidden);
  for (const DataType type :
       {DataType::kF32, DataType::kBf16, DataType::kF16, DataType::kQ8, DataType::kQ4}) {
    for (const auto& [in, columns] : {std::pair(kWidth, 3 * kWidth), std::pair(kWidth, kWidth),
                                      std::pair(kWidth, 2 * kHidden), std::pair(kHidden, kWidth)}) {
      const auto w = Weights(in, columns, type);
      ExpectEnough(StrCat(in, " x ", columns, " ", DataTypeName(type)),
                   [&] { backend_->MatMul(x.data(), kRows, *w, nullptr, false, out.data()); });
    }
  }
  // The gate of a layer is one panel of columns: the rows are cut into parts of 48 and more.
  const auto gate = Weights(kWidth, kHeads, DataType::kF32);
  ExpectEnough(
      "gate", [&] { backend_->MatMul(x.data(), kRows, *gate, nullptr, false, out.data()); },
      kRows / 48);
}

TEST_P(TaskCountTest, RowOpsOfAPromptHaveATaskForEachThread) {
  const std::vector<float> x(static_cast<size_t>(kRows) * 2 * kHidden, 0.5f);
  std::vector<float> out(x.size()), q(kRows * kWidth), k(kRows * kWidth);
  const std::vector<float> ones(kHidden, 1.0f);
  const NormWeights norm{ones.data(), ones.data()};
  std::vector<int64_t> positions(kRows);
  for (int i = 0; i < kRows; ++i) positions[i] = i;
  const HeadShape shape{kHeads, kHeads, kHeadDim};
  const std::vector<float> thetas = RopeThetas(kHeadDim);
  const std::vector<int32_t> tokens(kRows, 1);
  const auto embedding = Weights(kWidth, 32, DataType::kF32);
  ExpectEnough("embed", [&] { backend_->Embed(*embedding, tokens, positions, out.data()); });
  ExpectEnough("norm", [&] { backend_->Norm(x.data(), kRows, kWidth, norm, out.data()); });
  ExpectEnough("rope",
               [&] { backend_->Rope(x.data(), positions, shape, thetas, q.data(), k.data()); });
  ExpectEnough("gelu gate",
               [&] { backend_->Gate(GateKind::kGelu, x.data(), kRows, kHidden, out.data()); });
  ExpectEnough("linear features", [&] {
    backend_->LinearFeatures(x.data(), 2 * kRows * kHeads, kHeadDim, nullptr, 1, out.data());
  });
  ExpectEnough("affine features", [&] {
    backend_->AffineFeatures(x.data(), 2 * kRows * kHeads, kHeadDim, nullptr, kHeads, out.data());
  });
  // 6144 numbers, of which a thread computes 4096 while threads meet.
  ExpectEnough(
      "log sigmoid", [&] { backend_->LogSigmoid(x.data(), kRows * kHeads, out.data()); }, 2);
}

TEST_P(TaskCountTest, SketchesOfAPromptHaveATaskForEachThread) {
  const int rows = 2 * kRows * kHeads;
  const std::vector<float> x(static_cast<size_t>(rows) * kHeadDim, 0.5f);
  std::vector<float> out(x.size());
  const std::vector<float> ones(kHidden, 1.0f);
  const auto first_up = Weights(kHeadDim, 8 * kSketch, DataType::kQ8),
             up = Weights(kSketch, 8 * kSketch, DataType::kQ8),
             down = Weights(8 * kSketch, kSketch, DataType::kQ8),
             wide = Weights(kHeadDim, kSketch, DataType::kF32);
  SketchNetwork net;
  net.input = kHeadDim;
  net.size = kSketch;
  for (auto& branch : net.branch) {
    branch[0] = {{ones.data(), ones.data()}, first_up.get(), down.get()};
    branch[1] = {{ones.data(), ones.data()}, up.get(), down.get()};
  }
  ExpectEnough("learned sketch", [&] { backend_->LearnedSketch(net, x.data(), rows, out.data()); });
  ExpectEnough("performer features",
               [&] { backend_->PerformerFeatures(*wide, x.data(), rows, out.data()); });
}

// Prompts from their beginning, from within a block and from the end of one. Every loop counts:
// preparation, folds, appends and queries of each block.
TEST_P(TaskCountTest, AttentionOfAPromptHasATaskForEachThread) {
  for (const StateFormat format : {StateFormat::kF32, StateFormat::kBf16, StateFormat::kQ8}) {
    for (const AttentionKind kind : testing::kAllKinds) {
      const AttentionSpec spec = LayerSpec(kind, format);
      if (spec.kv_cache() && format == StateFormat::kBf16) continue;
      for (const int position : {0, 100, kBlock, kBlock + 100}) {
        const std::vector<int64_t> counts = CountAttention(spec, position, {kRows});
        EXPECT_GE(counts.size(), 2) << testing::Describe(spec);
        for (const int64_t count : counts) {
          EXPECT_GE(count, GetParam()) << testing::Describe(spec) << " at " << position << ": "
                                       << ::testing::PrintToString(counts);
        }
      }
    }
  }
}

// What takes less time than threads need to meet: one loop, of whole heads.
TEST_P(TaskCountTest, AttentionOfFewTokensKeepsItsHeadsWhole) {
  const AttentionSpec spec = LayerSpec(AttentionKind::kLearnedSketchMixed, StateFormat::kBf16);
  for (const int rows : {1, 23}) {
    EXPECT_EQ(CountAttention(spec, 300, {rows}), std::vector<int64_t>{kHeads}) << rows;
  }
}

// Decoding sequences are computed first, in whole heads; the prompt beside them is divided.
TEST_P(TaskCountTest, AttentionOfAPromptBesideDecodingSequencesIsDivided) {
  const AttentionSpec spec = LayerSpec(AttentionKind::kLearnedSketchMixed, StateFormat::kBf16);
  const std::vector<int64_t> counts = CountAttention(spec, 100, {1, 1, kRows, 1});
  ASSERT_GT(counts.size(), 3u);
  for (size_t i = 1; i < counts.size(); ++i) {
    EXPECT_GE(counts[i], GetParam()) << ::testing::PrintToString(counts);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, TaskCountTest,
                         ::testing::ValuesIn(testing::kThreadSanitized && !testing::FullCounts()
                                                 ? std::vector<int>{32}
                                                 : std::vector<int>{8, 32, 64}));

class FewThreadsTest : public TaskCountTest {};

// On two threads twelve heads are four tasks of three, whatever the number of tokens.
TEST_P(FewThreadsTest, AttentionKeepsItsHeadsWhole) {
  const AttentionSpec spec = LayerSpec(AttentionKind::kLearnedSketchMixed, StateFormat::kBf16);
  for (const int rows : {1, 23, kRows}) {
    EXPECT_EQ(CountAttention(spec, 300, {rows}), std::vector<int64_t>{4}) << rows;
  }
}

// Three decoding sequences are a task each, and the prompt beside them four tasks of three heads.
TEST_P(FewThreadsTest, APromptBesideDecodingSequencesIsNotOneTask) {
  const AttentionSpec spec = LayerSpec(AttentionKind::kLearnedSketchMixed, StateFormat::kBf16);
  EXPECT_EQ(CountAttention(spec, 300, {1, 1, 1, kRows}), std::vector<int64_t>{7});
}

// Three sequences keep their heads whole. If they share the blocks of four spans, these are
// computed for all three, and the sums of each head are joined in a loop of their own.
TEST_P(FewThreadsTest, SpansOfSharedBlocksAreComputedOnce) {
  const AttentionSpec spec = LayerSpec(AttentionKind::kSoftmax, StateFormat::kF32);
  EXPECT_EQ(CountAttention(spec, 1024, {1, 1, 1}).size(), 1u);
  EXPECT_EQ(CountAttention(spec, 1023, {1, 1, 1}, /*copies=*/true).size(), 1u);
  const std::vector<int64_t> counts = CountAttention(spec, 1024, {1, 1, 1}, /*copies=*/true);
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts[1], 3 * kHeads);
}

INSTANTIATE_TEST_SUITE_P(Threads, FewThreadsTest, ::testing::Values(2));

class DividedOpTest : public testing::IsaTest {};

// Products that are cut into panels and rows, with both kinds of epilogue.
TEST_P(DividedOpTest, ProductsHaveTheSameBitsOnAnyNumberOfThreads) {
  Random random(1);
  constexpr int kIn = 100, kProductRows = 217;
  const auto one = NewBackend(1);
  for (const int threads : {2, 3, 16}) {
    const auto many = NewBackend(threads);
    for (const int columns : {12, 70, 200}) {
      const std::vector<float> values = random.Normals(size_t{kIn} * columns);
      const std::vector<float> x = random.Normals(size_t{kProductRows} * kIn),
                               bias = random.Normals(columns),
                               old = random.Normals(size_t{kProductRows} * columns);
      for (const DataType type :
           {DataType::kF32, DataType::kBf16, DataType::kF16, DataType::kQ8, DataType::kQ4}) {
        const HostWeights w(values, kIn, columns, DataType::kF32);
        const auto on_one = one->PackMatrix(w.matrix(), false, type);
        const auto on_many = many->PackMatrix(w.matrix(), false, type);
        for (const bool accumulate : {false, true}) {
          const float* bias_or_null = accumulate ? nullptr : bias.data();
          std::vector<float> want = old, got = old;
          one->MatMul(x.data(), kProductRows, *on_one, bias_or_null, accumulate, want.data());
          many->MatMul(x.data(), kProductRows, *on_many, bias_or_null, accumulate, got.data());
          EXPECT_NE(want, old);
          EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
              << columns << " columns " << DataTypeName(type) << " " << threads << " threads";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, DividedOpTest, ::testing::ValuesIn(testing::TestedIsas()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
