// The past of a sequence: copies are independent, Reset empties, sizes are what StateBytes says.
#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/backend.h"
#include "kernels/new_backend.h"
#include "kernels/saved_state.h"
#include "tests/kernels/attention_case.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

using testing::Layers;
using testing::Random;
using testing::Runner;
using testing::Sequence;

class StateTest : public testing::BackendTest {
 protected:
  static std::vector<Layers> Specs() {
    std::vector<AttentionSpec> specs;
    specs.reserve(kAttentionKinds);
    for (const AttentionKind kind : testing::kAllKinds) {
      specs.push_back(testing::MakeSpec(kind, 2, 10, 11, 8));
    }
    AttentionSpec grouped = testing::MakeSpec(AttentionKind::kSoftmax, 6, 10, 0, 8);
    grouped.kv_heads = 2;
    specs.push_back(grouped);
    specs.push_back(testing::MakeSpec(AttentionKind::kSymmetricPower, 6, 10, 0, 8));
    specs.back().kv_heads = 2;
    specs = testing::WithDecayGates(testing::WithStateFormats(specs));
    AttentionSpec window = grouped;
    window.window = 7;
    specs.push_back(window);
    window.sinks = 9;
    specs.push_back(window);
    window.window_kind = WindowKind::kBlocks;
    window.window = 3;
    specs.push_back(window);
    window.window = 8;
    window.far_size = 16;
    window.far_length = 20;
    AttentionSpec linear = window;
    linear.far_kind = AttentionKind::kLinear;
    for (const AttentionSpec& spec : testing::WithStateFormats({window, linear})) {
      specs.push_back(spec);
    }
    std::vector<Layers> models = testing::InLayers(specs, 3);
    const std::vector<Layers> mixtures = testing::Mixtures();
    models.insert(models.end(), mixtures.begin(), mixtures.end());
    return models;
  }
};

TEST_P(StateTest, AttendedTokens) {
  for (const Layers& layers : Specs()) {
    const AttentionSpec& spec = layers[0];
    for (int64_t t = 0; t < 60; ++t) {
      int64_t visible = 0;
      for (int64_t s = spec.kv_cache() ? 0 : t / spec.block * spec.block; s <= t; ++s) {
        if (spec.Visible(s, t)) ++visible;
      }
      ASSERT_EQ(spec.Attended(t), visible) << testing::Describe(layers) << " token " << t;
    }
  }
}

// Of 100 tokens of a cache, with a scale for each key and value of 8 bits.
TEST_P(StateTest, BytesOfCachesThatAStepReads) {
  const auto backend = NewBackend(1);
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kSoftmax, 6, 10, 0, 8);
  spec.kv_heads = 2;
  EXPECT_EQ(backend->ReadBytes(spec, 100), 2 * 100 * 2 * 10 * 4);
  spec.state_format = StateFormat::kF16;
  EXPECT_EQ(backend->ReadBytes(spec, 100), 2 * 100 * 2 * 10 * 2);
  spec.state_format = StateFormat::kQ8;
  EXPECT_EQ(backend->ReadBytes(spec, 100), 2 * 100 * 2 * (10 + 4));
}

TEST_P(StateTest, ClonesAreIndependent) {
  const auto backend = NewBackend(1);
  Random random(1);
  for (const Layers& spec : Specs()) {
    // Cloned in the middle of a block, at its end (full, not folded), and after it.
    for (const int cut : {0, 5, 8, 9, 21}) {
      const Sequence whole = testing::RandomSequence(spec, 40, &random);
      const Sequence other = testing::RandomSequence(spec, 40, &random);
      const auto want = testing::RunAlone(*backend, spec, whole, {40});

      Runner original(*backend, spec, whole);
      if (cut > 0) testing::Step(*backend, spec, {{&original, cut}});
      Runner copy(*backend, spec, whole);
      copy.state = original.state->Clone();
      copy.outputs = original.outputs;
      EXPECT_EQ(copy.state->position(), cut);
      EXPECT_EQ(copy.state->bytes(), original.state->bytes());
      // The original goes another way, first; then the copy goes on as if nothing had happened.
      original.sequence = &other;
      testing::Step(*backend, spec, {{&original, 40 - cut}});
      testing::Step(*backend, spec, {{&copy, 40 - cut}});
      EXPECT_EQ(copy.outputs, want) << testing::Describe(spec) << " cut at " << cut;
      EXPECT_NE(original.outputs, want);
    }
  }
}

// A copy into a state that was somewhere else, further or less far.
TEST_P(StateTest, CopyIntoAUsedState) {
  const auto backend = NewBackend(1);
  Random random(11);
  for (const Layers& spec : Specs()) {
    for (const auto& [cut, before] : {std::pair(21, 3), {3, 30}, {8, 9}, {9, 8}, {0, 20}}) {
      const Sequence whole = testing::RandomSequence(spec, 40, &random);
      const Sequence other = testing::RandomSequence(spec, 40, &random);
      Runner original(*backend, spec, whole);
      if (cut > 0) testing::Step(*backend, spec, {{&original, cut}});
      Runner copy(*backend, spec, other);
      testing::Step(*backend, spec, {{&copy, before}});
      copy.state->CopyFrom(*original.state);
      copy.sequence = &whole;
      copy.outputs = original.outputs;
      EXPECT_EQ(copy.state->position(), cut);
      EXPECT_EQ(copy.state->bytes(), original.state->bytes());
      testing::Step(*backend, spec, {{&copy, 40 - cut}});
      EXPECT_EQ(copy.outputs, testing::RunAlone(*backend, spec, whole, {40}))
          << testing::Describe(spec) << " cut at " << cut << " over " << before;
    }
  }
}

// The earliest position that a state of `end` tokens can be cut back to.
int Earliest(const Layers& layers, int end) {
  int earliest = 0;
  for (const AttentionSpec& spec : layers) {
    const int block_start = (end - 1) / spec.block * spec.block;
    // The first token that the token after the cut may read, if the block before it is gone.
    int read =
        block_start + 1 - (spec.window_kind == WindowKind::kBlocks ? 2 : 1) * spec.window + 1;
    if (spec.window == 1 && spec.window_kind == WindowKind::kSliding) --read;
    const bool drops =
        spec.window > 0 && read / spec.block > (spec.sinks + spec.block - 1) / spec.block;
    const bool folds =
        spec.far_part() ? end > 2 * spec.window : !spec.kv_cache() && end > spec.block;
    if (drops || folds) earliest = std::max(earliest, block_start + 1);
  }
  return earliest;
}

// From every position, of which a spec has some, to every one that it may be cut back to, then on
// with other tokens.
TEST_P(StateTest, CutForgets) {
  const int stride = testing::FullCounts() ? 1 : testing::kSanitized ? 5 : 3;
  const auto backend = NewBackend(1);
  Random random(12);
  int begin = 0;
  for (const Layers& spec : Specs()) {
    const Sequence first = testing::RandomSequence(spec, 20, &random);
    Sequence second = testing::RandomSequence(spec, 20, &random);
    for (int end = begin++ % stride; end <= 20; end += stride) {
      Runner runner(*backend, spec, first);
      if (end > 0) testing::Step(*backend, spec, {{&runner, end}});
      const int earliest = static_cast<int>(runner.state->EarliestTruncation());
      EXPECT_EQ(earliest, Earliest(spec, end)) << testing::Describe(spec) << " at " << end;
      for (int cut = earliest; cut <= end; ++cut) {
        Runner again(*backend, spec, first);
        again.state = runner.state->Clone();
        again.state->Truncate(cut);
        EXPECT_EQ(again.state->position(), cut);
        EXPECT_EQ(again.state->EarliestTruncation(),
                  cut == end ? earliest : again.state->EarliestTruncation());
        Runner straight(*backend, spec, first);
        if (cut > 0) testing::Step(*backend, spec, {{&straight, cut}});
        EXPECT_EQ(again.state->bytes(), straight.state->bytes());
        straight.outputs.assign(spec.size(), {});
        again.sequence = straight.sequence = &second;
        if (cut == 20) continue;
        testing::Step(*backend, spec, {{&again, 20 - cut}});
        testing::Step(*backend, spec, {{&straight, 20 - cut}});
        EXPECT_EQ(again.outputs, straight.outputs)
            << testing::Describe(spec) << " from " << end << " to " << cut;
      }
    }
  }
}

std::vector<uint8_t> Saved(const SequenceState& state) {
  std::vector<uint8_t> bytes(state.SavedBytes());
  state.Save(bytes);
  return bytes;
}

TEST_P(StateTest, SavedStatesGoOn) {
  const auto backend = NewBackend(1);
  Random random(13);
  for (const Layers& spec : Specs()) {
    for (const int cut : {0, 5, 8, 9, 16, 21}) {
      const Sequence whole = testing::RandomSequence(spec, 40, &random);
      const Sequence other = testing::RandomSequence(spec, 40, &random);
      Runner original(*backend, spec, whole);
      if (cut > 0) testing::Step(*backend, spec, {{&original, cut}});
      const std::vector<uint8_t> bytes = Saved(*original.state);
      // Into a new state, and into one that was further.
      for (const int before : {0, 30}) {
        Runner restored(*backend, spec, other);
        if (before > 0) testing::Step(*backend, spec, {{&restored, before}});
        const Status status = restored.state->Load(cut, bytes);
        ASSERT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(restored.state->position(), cut);
        EXPECT_EQ(restored.state->bytes(), original.state->bytes());
        EXPECT_EQ(Saved(*restored.state), bytes) << testing::Describe(spec) << " at " << cut;
        restored.sequence = &whole;
        restored.outputs = original.outputs;
        testing::Step(*backend, spec, {{&restored, 40 - cut}});
        EXPECT_EQ(restored.outputs, testing::RunAlone(*backend, spec, whole, {40}))
            << testing::Describe(spec) << " at " << cut;
      }
    }
  }
}

// A new state is the empty one, whether its memory is cleared before its use, in part, or by it.
TEST_P(StateTest, ClearedBeforeOrByTheirFirstUse) {
  const auto backend = NewBackend(1);
  Random random(14);
  for (const Layers& spec : Specs()) {
    const Sequence whole = testing::RandomSequence(spec, 40, &random);
    const Sequence other = testing::RandomSequence(spec, 40, &random);
    const auto want = testing::RunAlone(*backend, spec, whole, {40});
    Runner source(*backend, spec, whole);
    testing::Step(*backend, spec, {{&source, 21}});
    const std::vector<uint8_t> bytes = Saved(*source.state);

    Runner cleared(*backend, spec, whole), partly(*backend, spec, whole);
    cleared.state->Clear();
    EXPECT_TRUE(cleared.state->cleared());
    partly.state->ClearPart(partly.state->parts() - 1);
    partly.state->Reset();
    // A used state becomes a copy of one that is not cleared.
    Runner copy(*backend, spec, other), clone(*backend, spec, whole);
    testing::Step(*backend, spec, {{&copy, 30}});
    copy.state->CopyFrom(*clone.state);
    clone.state = clone.state->Clone();
    copy.sequence = &whole;
    copy.outputs.assign(spec.size(), {});
    for (Runner* runner : {&cleared, &partly, &copy, &clone}) {
      EXPECT_EQ(Saved(*runner->state), std::vector<uint8_t>(runner->state->SavedBytes()));
      testing::Step(*backend, spec, {{runner, 40}});
      EXPECT_TRUE(runner->state->cleared());
      EXPECT_EQ(runner->outputs, want) << testing::Describe(spec);
    }
    // Loaded in part before the rest is cleared.
    Runner loaded(*backend, spec, whole);
    for (int part = 0; part < loaded.state->parts(); ++part) {
      ASSERT_TRUE(loaded.state->LoadPart(part, 21, bytes).ok());
    }
    loaded.state->EndParts(21);
    loaded.outputs = source.outputs;
    testing::Step(*backend, spec, {{&loaded, 19}});
    EXPECT_EQ(loaded.outputs, want) << testing::Describe(spec);
  }
}

// Nothing from outside gets in half: the state is then that of the empty sequence.
TEST_P(StateTest, BadBytesAreRefused) {
  const auto backend = NewBackend(1);
  Random random(14);
  for (const Layers& spec : Specs()) {
    const Sequence whole = testing::RandomSequence(spec, 40, &random);
    Runner runner(*backend, spec, whole);
    testing::Step(*backend, spec, {{&runner, 21}});
    const std::vector<uint8_t> good = Saved(*runner.state);
    const auto want = testing::RunAlone(*backend, spec, whole, {40});
    const auto refuse = [&](int64_t position, std::span<const uint8_t> bytes) {
      Runner refused(*backend, spec, whole);
      refused.state->CopyFrom(*runner.state);
      EXPECT_EQ(refused.state->Load(position, bytes).code(), Code::kInvalidArgument)
          << testing::Describe(spec) << " " << position << " " << bytes.size();
      EXPECT_EQ(refused.state->position(), 0);
      testing::Step(*backend, spec, {{&refused, 40}});
      EXPECT_EQ(refused.outputs, want) << testing::Describe(spec);
    };
    const std::span<const uint8_t> all(good);
    refuse(20, all);
    refuse(22, all);
    refuse(-1, all);
    refuse(INT64_MAX, all);
    refuse(INT64_MIN, all);
    refuse(21, all.first(good.size() - 4));
    refuse(21, all.first(good.size() - 1));
    refuse(21, {});
    std::vector<uint8_t> longer = good;
    longer.resize(good.size() + 4);
    refuse(21, longer);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
      for (const size_t place : {size_t{0}, good.size() / 8 * 4, good.size() - 4}) {
        std::vector<uint8_t> damaged = good;
        std::memcpy(damaged.data() + place, &bad, sizeof(bad));
        refuse(21, damaged);
      }
    }
  }
}

// In any order and by several threads; a copy that was abandoned half way leaves no trace.
TEST_P(StateTest, PartsGoOn) {
  const auto backend = NewBackend(1);
  Random random(15);
  for (const Layers& spec : Specs()) {
    const Sequence whole = testing::RandomSequence(spec, 40, &random);
    const auto want = testing::RunAlone(*backend, spec, whole, {40});
    Runner original(*backend, spec, whole);
    testing::Step(*backend, spec, {{&original, 21}});
    const std::vector<uint8_t> bytes = Saved(*original.state);
    for (const bool loads : {true, false}) {
      const auto part = [&](int i, SequenceState* state) {
        if (!loads) return state->CopyPart(i, *original.state);
        EXPECT_TRUE(state->LoadPart(i, 21, bytes).ok());
      };
      Runner abandoned(*backend, spec, whole);
      part(0, abandoned.state.get());
      abandoned.state->Reset();
      testing::Step(*backend, spec, {{&abandoned, 40}});
      EXPECT_EQ(abandoned.outputs, want) << testing::Describe(spec);

      Runner copy(*backend, spec, whole);
      std::vector<std::thread> threads;
      for (int i = copy.state->parts() - 1; i >= 0; --i) {
        threads.emplace_back([&, i] { part(i, copy.state.get()); });
      }
      for (std::thread& thread : threads) thread.join();
      copy.state->EndParts(21);
      EXPECT_EQ(copy.state->bytes(), original.state->bytes());
      copy.outputs = original.outputs;
      testing::Step(*backend, spec, {{&copy, 19}});
      EXPECT_EQ(copy.outputs, want) << testing::Describe(spec);
    }
  }
}

TEST_P(StateTest, ResetIsANewState) {
  const auto backend = NewBackend(1);
  Random random(2);
  for (const Layers& spec : Specs()) {
    const Sequence first = testing::RandomSequence(spec, 30, &random);
    const Sequence second = testing::RandomSequence(spec, 30, &random);
    Runner runner(*backend, spec, first);
    testing::Step(*backend, spec, {{&runner, 30}});
    runner.state->Reset();
    EXPECT_EQ(runner.state->position(), 0);
    runner.sequence = &second;
    runner.outputs.assign(spec.size(), {});
    testing::Step(*backend, spec, {{&runner, 30}});
    EXPECT_EQ(runner.outputs, testing::RunAlone(*backend, spec, second, {30}))
        << testing::Describe(spec);
  }
}

// A state that was reset is cleared by parts, by a copy, by a load or by its first use, with the
// bits of a new one. What a sequence has used is not cleared again.
TEST_P(StateTest, AStateThatWasResetIsClearedLater) {
  const auto backend = NewBackend(1);
  Random random(16);
  for (const Layers& spec : Specs()) {
    const Sequence old = testing::RandomSequence(spec, 30, &random);
    const Sequence whole = testing::RandomSequence(spec, 40, &random);
    const auto want = testing::RunAlone(*backend, spec, whole, {40});
    for (const int start : {0, 5, 21}) {  // an empty state, one without and one with sums
      Runner source(*backend, spec, whole);
      if (start > 0) testing::Step(*backend, spec, {{&source, start}});
      const std::vector<uint8_t> bytes = Saved(*source.state);
      const auto used = [&] {
        Runner runner(*backend, spec, old);
        testing::Step(*backend, spec, {{&runner, 30}});
        runner.state->Reset();
        EXPECT_EQ(
            runner.state->cleared(),
            GetParam() == "reference" || std::ranges::none_of(spec, &AttentionSpec::has_far_part));
        EXPECT_EQ(Saved(*runner.state), std::vector<uint8_t>(runner.state->SavedBytes()));
        runner.sequence = &whole;
        runner.outputs = source.outputs;
        return runner;
      };
      Runner parts = used(), copied = used(), loaded = used();
      parts.state->Clear();
      EXPECT_TRUE(parts.state->cleared());
      parts.state->CopyFrom(*source.state);
      copied.state->CopyFrom(*source.state);
      ASSERT_TRUE(loaded.state->Load(start, bytes).ok());
      for (Runner* runner : {&parts, &copied, &loaded}) {
        testing::Step(*backend, spec, {{runner, 35 - start}});
        runner->state->Clear();  // no effect
        testing::Step(*backend, spec, {{runner, 5}});
        EXPECT_EQ(runner->outputs, want) << testing::Describe(spec) << " from " << start;
      }
    }
  }
}

TEST_P(StateTest, BytesAreAsAnnounced) {
  const auto backend = NewBackend(1);
  Random random(3);
  for (const Layers& spec : Specs()) {
    const Sequence sequence = testing::RandomSequence(spec, 40, &random);
    Runner runner(*backend, spec, sequence);
    const size_t empty = runner.state->bytes();
    EXPECT_EQ(empty, backend->StateBytes(spec, 0)) << testing::Describe(spec);
    for (int token = 1; token <= 40; ++token) {
      testing::Step(*backend, spec, {{&runner, 1}});
      EXPECT_EQ(runner.state->bytes(), backend->StateBytes(spec, token))
          << testing::Describe(spec) << " after " << token;
    }
    if (std::ranges::none_of(spec, &AttentionSpec::grows)) {
      EXPECT_EQ(backend->StateBytes(spec, 1000000), backend->StateBytes(spec, 200))
          << testing::Describe(spec);
    } else {
      EXPECT_GT(backend->StateBytes(spec, 10000), backend->StateBytes(spec, 5000));
    }
    if (std::ranges::none_of(spec, &AttentionSpec::kv_cache)) {
      EXPECT_EQ(backend->StateBytes(spec, 1000000), empty) << testing::Describe(spec);
    }
    if (!spec[0].grows() || spec.size() > 3) continue;
    EXPECT_GE(backend->StateBytes(spec, 40),
              int64_t{40} * spec.size() * spec[0].key_heads() * 2 * spec[0].head_dim * 4);
    AttentionSpec one = spec[0];
    one.kv_heads = 0;
    const Layers ungrouped(one, spec.size());
    EXPECT_EQ(backend->StateBytes(ungrouped, 40),
              backend->StateBytes(spec, 40) * one.heads / spec[0].key_heads());
    EXPECT_EQ(SavedStateBytes(ungrouped, 40),
              runner.state->SavedBytes() * one.heads / spec[0].key_heads());
  }
}

// Removable says how far a state may go on so that it can be cut back.
TEST_P(StateTest, RemovableTokensCanBeRemoved) {
  const auto backend = NewBackend(1);
  for (const Layers& spec : Specs()) {
    const auto state = backend->NewState(spec);
    for (int position = 1; position <= 60; ++position) {
      const int64_t removable = std::min<int64_t>(state->Removable(position), 60);
      EXPECT_LE(EarliestTruncation(spec, position + removable), position)
          << testing::Describe(spec) << " at " << position;
      if (removable == 60) continue;
      EXPECT_GT(EarliestTruncation(spec, position + removable + 1), position)
          << testing::Describe(spec) << " at " << position;
    }
  }
}

// The bytes of a window stay within those of its tokens, two blocks and the sinks.
TEST_P(StateTest, WindowsAreBounded) {
  const auto backend = NewBackend(1);
  Random random(17);
  std::vector<AttentionSpec> specs = testing::WindowSpecs();
  for (const AttentionSpec& spec : testing::FarWindowSpecs()) specs.push_back(spec);
  for (const AttentionSpec& spec : specs) {
    const int64_t span = (spec.window_kind == WindowKind::kBlocks ? 2 : 1) * int64_t{spec.window};
    const int64_t tokens = std::max<int64_t>(span, 2) + 2 * spec.block + spec.SinkTokens();
    AttentionSpec full = spec;
    full.window = 0;
    const Sequence sequence = testing::RandomSequence(spec, 400, &random);
    Runner runner(*backend, spec, sequence);
    for (const int rows : {1, 199, 1, 1, 198}) {
      testing::Step(*backend, spec, {{&runner, rows}});
      EXPECT_LE(runner.state->bytes(), backend->StateBytes(Layers(full), tokens))
          << testing::Describe(spec);
    }
    EXPECT_EQ(runner.state->bytes(), backend->StateBytes(Layers(spec), 400));
  }
}

// Values are saved as float32: a state of one format is loaded under another one, whose cache then
// holds what it would hold of the tokens themselves.
TEST_P(StateTest, CachesAreLoadedUnderOtherFormats) {
  const auto backend = NewBackend(1);
  Random random(18);
  std::vector<AttentionSpec> specs = testing::GroupedSpecs();
  for (const AttentionSpec& spec : testing::WindowSpecs()) specs.push_back(spec);
  for (const AttentionSpec& spec : specs) {
    const Sequence sequence = testing::RandomSequence(spec, 60, &random);
    Runner exact(*backend, spec, sequence);
    testing::Step(*backend, spec, {{&exact, 40}});
    std::vector<uint8_t> bytes(exact.state->SavedBytes());
    exact.state->Save(bytes);
    for (const StateFormat format : testing::NarrowFormats(spec)) {
      AttentionSpec narrow = spec;
      narrow.state_format = format;
      const std::vector<float> want = testing::RunAlone(*backend, narrow, sequence, {40, 20})[0];
      Runner runner(*backend, narrow, sequence);
      ASSERT_TRUE(runner.state->Load(40, bytes).ok());
      testing::Step(*backend, narrow, {{&runner, 20}});
      const std::vector<float>& got = runner.outputs[0];
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.end() - std::ssize(got)))
          << testing::Describe(narrow);
      // What it saves is what another state of its format loads, and again the same bytes.
      std::vector<uint8_t> saved(runner.state->SavedBytes()), again(saved.size());
      runner.state->Save(saved);
      const auto copy = backend->NewState(Layers(narrow));
      ASSERT_TRUE(copy->Load(60, saved).ok());
      copy->Save(again);
      EXPECT_EQ(again, saved) << testing::Describe(narrow);
    }
  }
}

// SmolLM2's cache: 30 layers of 3 kv heads of 64.
TEST(CpuStateTest, CacheSizeByFormat) {
  const auto backend = NewCpuBackend(1);
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kSoftmax, 9, 64, 0, 64);
  spec.kv_heads = 3;
  constexpr size_t kRows = size_t{4096} * 30 * 3 * 2;  // keys and values
  const auto bytes = [&](StateFormat format) {
    spec.state_format = format;
    return backend.value()->StateBytes(Layers(spec, 30), 4096);
  };
  EXPECT_EQ(bytes(StateFormat::kF32), kRows * 64 * 4);
  EXPECT_EQ(bytes(StateFormat::kBf16), kRows * 64 * 4);
  EXPECT_EQ(bytes(StateFormat::kF16), kRows * 64 * 2);   // 94 MB
  EXPECT_EQ(bytes(StateFormat::kQ8), kRows * (64 + 4));  // 50 MB
}

// The paper's 110M model: 23.6 MB of float32 sums in 640 packed features, and the normaliser, one
// block's keys and values, and rounding to cache lines.
TEST(CpuStateTest, PaperModelStateSize) {
  AttentionSpec spec = testing::MakeSpec(AttentionKind::kLearnedSketchMixed, 12, 64, 32, 256);
  EXPECT_EQ(spec.features(), 640);
  const int64_t sums = int64_t{12} * 12 * 640 * 64 * 4;
  const int64_t normaliser = int64_t{12} * 12 * 640 * 4;
  const int64_t buffers = int64_t{12} * 12 * 256 * (64 + 64 + 32) * 4;
  const auto backend = NewCpuBackend(1);
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  const int64_t bytes = backend.value()->StateBytes(Layers(spec, 12), 0);
  EXPECT_GE(bytes, sums);
  EXPECT_LE(bytes, (sums + normaliser + buffers) * 11 / 10);
  // What q8 adds to bf16: a byte for each sum, key and value, and the scales of rows and columns of
  // S, of keys and of values.
  spec.state_format = StateFormat::kBf16;
  const size_t bf16 = backend.value()->StateBytes(Layers(spec, 12), 0);
  spec.state_format = StateFormat::kQ8;
  EXPECT_EQ(backend.value()->StateBytes(Layers(spec, 12), 0) - bf16,
            size_t{12 * 12} * (640 * 64 + 4 * (640 + 64) + 2 * 256 * (64 + 4)));
}

INSTANTIATE_TEST_SUITE_P(Backends, StateTest, ::testing::ValuesIn(testing::AllBackends()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
