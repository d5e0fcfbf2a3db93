// Logits of a request are the same bits whatever the split of its prompt, the number of threads and
// the requests beside it, and whether its state was saved or truncated: every attention kind, with
// and without a decay gate, mixtures, all state formats, all weight types, on each instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/new_backend.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/backend_test.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using testing::Count;
using testing::Random;
using testing::Request;
using testing::RequestPart;

// A model folder and how it is loaded.
struct Variant {
  std::filesystem::path folder;
  LoadOptions options;
  std::string name;
  DataType type;  // of the weights in the folder
};

class DeterminismTest : public testing::IsaTest {
 protected:
  // Every kind with all state formats; the weight types take turns, and the largest model meets
  // them all.
  static const std::vector<Variant>& Variants() {
    static const testing::TemporaryFolder folder;
    static const std::vector<Variant> variants = [] {
      std::vector<Variant> result;
      const auto add = [&](const ModelConfig& config, const std::string& name, DataType type) {
        const std::filesystem::path path = folder.path() / StrCat(name, "-", DataTypeName(type));
        testing::WriteRandomModel(path, config, type, 7 + result.size());
        for (const StateFormat format :
             {StateFormat::kF32, StateFormat::kBf16, StateFormat::kF16, StateFormat::kQ8}) {
          // Formats that would compute as another one.
          if (format == StateFormat::kBf16 && !testing::HasRecurrentLayers(config)) continue;
          if (format == StateFormat::kF16 && !testing::HasCaches(config)) continue;
          LoadOptions options;
          options.state_format = format;
          result.push_back(
              {path, options,
               StrCat(path.filename().string(), " ", StateFormatName(format), " state"), type});
          if (name != "wide" || type != DataType::kF32) continue;
          const Variant unquantized = result.back();
          for (const DataType quantized : {DataType::kQ8, DataType::kQ4}) {
            result.push_back(unquantized);
            result.back().options.weights = quantized;
            result.back().name += StrCat(" ", DataTypeName(quantized));
          }
        }
      };
      const DataType types[] = {DataType::kF32, DataType::kBf16, DataType::kF16};
      int next = 0;
      for (const std::string& name : testing::TinyModelNames()) {
        add(testing::TinyConfig(name), name, types[next++ % 3]);
      }
      // Widths beyond one weight panel and one register tile, more heads than threads, sketches of
      // degree 4.
      ModelConfig wide = testing::TinyConfig(AttentionKind::kLearnedSketchMixed);
      wide.vocab_size = 300;
      wide.emb_dim = 160;
      wide.num_heads = 5;
      wide.sketch_size = 19;
      wide.grain_size = 16;
      for (const DataType type : types) {
        if (type == DataType::kF32 || !testing::kSanitized || testing::FullCounts()) {
          add(wide, "wide", type);
        }
      }
      ModelConfig degree4 = testing::TinyConfig(AttentionKind::kRandomSketchMixed);
      degree4.power = 8;
      add(degree4, "degree4", DataType::kF32);
      return result;
    }();
    return variants;
  }

  static std::vector<int32_t> RandomTokens(const LanguageModel& model, int count, Random* random) {
    std::vector<int32_t> tokens(count);
    for (int32_t& token : tokens) token = random->Int(0, model.vocab_size() - 1);
    return tokens;
  }
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr int kLength = 45;

TEST_P(DeterminismTest, AnySplit) {
  const auto backend = NewBackend(1);
  Random random(1);
  for (const Variant& variant : Variants()) {
    const auto model = testing::LoadModel(variant.folder, backend.get(), variant.options);
    const std::vector<int32_t> tokens = RandomTokens(*model, kLength, &random);
    const std::vector<float> whole = testing::LogitsOf(*model, tokens, {kLength});
    for (const float logit : whole) ASSERT_TRUE(std::isfinite(logit)) << variant.name;
    EXPECT_TRUE(SameBits(testing::LogitsOf(*model, tokens, std::vector<int>(kLength, 1)), whole))
        << variant.name << " token by token";
    for (int i = 0; i < Count(10, 100); ++i) {
      const std::vector<int> parts = random.Split(kLength);
      EXPECT_TRUE(SameBits(testing::LogitsOf(*model, tokens, parts), whole))
          << variant.name << " split " << ::testing::PrintToString(parts);
    }
    // Asking for the last row only gives that row.
    Request last(*model, tokens);
    testing::StepRequests(*model, {{&last, kLength, false}});
    EXPECT_TRUE(SameBits(last.logits, {whole.end() - model->vocab_size(), whole.end()}))
        << variant.name;
  }
}

TEST_P(DeterminismTest, AnyThreads) {
  std::map<std::string, std::vector<float>> want;
  for (const int threads : {1, 2, 3, 16}) {
    const auto backend = NewBackend(threads);
    for (const Variant& variant : Variants()) {
      Random random(2);
      const auto model = testing::LoadModel(variant.folder, backend.get(), variant.options);
      const std::vector<int32_t> tokens = RandomTokens(*model, kLength, &random);
      const std::vector<float> got = testing::LogitsOf(*model, tokens, random.Split(kLength));
      const auto [expected, first] = want.emplace(variant.name, got);
      EXPECT_TRUE(SameBits(got, expected->second)) << variant.name << " " << threads << " threads";
    }
  }
}

// The request runs in random chunks among others that prefill, decode, begin and end around it.
TEST_P(DeterminismTest, AnyNeighbours) {
  const auto backend = NewBackend(2);
  Random random(3);
  for (const Variant& variant : Variants()) {
    LoadOptions options = variant.options;
    options.max_step_tokens = 4096;
    const auto model = testing::LoadModel(variant.folder, backend.get(), options);
    const std::vector<int32_t> tokens = RandomTokens(*model, kLength, &random);
    const std::vector<float> alone = testing::LogitsOf(*model, tokens, {kLength});
    const std::vector<int> counts =
        testing::FullCounts() ? std::vector<int>{1, 2, 7, 15, 31, 63} : std::vector<int>{1, 7, 63};
    for (const int neighbours : counts) {
      Request request(*model, tokens);
      std::vector<Request> others;
      others.reserve(static_cast<size_t>(neighbours));
      for (int i = 0; i < neighbours; ++i) {
        others.emplace_back(*model, RandomTokens(*model, random.Int(1, 60), &random));
      }
      while (request.left() > 0) {
        std::vector<RequestPart> parts;
        const int chunk = random.Int(0, 1) == 0 ? 1 : random.Int(1, request.left());
        parts.push_back({&request, chunk, true});
        for (Request& other : others) {
          if (random.Int(0, 3) == 0) continue;
          if (other.left() == 0) {  // ends: another takes its place
            other = Request(*model, RandomTokens(*model, random.Int(1, 60), &random));
          }
          const bool decodes = random.Int(0, 1) == 0;
          parts.push_back({&other, decodes ? 1 : static_cast<int>(random.Int(1, other.left())),
                           random.Int(0, 3) == 0});
        }
        std::swap(parts[0], parts[random.Int(0, parts.size() - 1)]);
        testing::StepRequests(*model, parts);
      }
      EXPECT_TRUE(SameBits(request.logits, alone)) << variant.name << " beside " << neighbours;
    }
  }
}

// A state that was saved and loaded, or truncated within its block, goes on as if it never was.
TEST_P(DeterminismTest, SavedAndTruncatedStatesGoOn) {
  const auto backend = NewBackend(1);
  Random random(5);
  for (const Variant& variant : Variants()) {
    const auto model = testing::LoadModel(variant.folder, backend.get(), variant.options);
    const std::vector<int32_t> tokens = RandomTokens(*model, kLength, &random);
    const std::vector<float> whole = testing::LogitsOf(*model, tokens, {kLength});
    for (const int cut : {3, 8, 17, 29, 40}) {
      std::vector<int32_t> other = tokens;
      for (size_t i = cut; i < other.size(); ++i) other[i] = (other[i] + 1) % model->vocab_size();
      Request request(*model, other);
      const int64_t removable = request.state->Removable(cut);
      testing::StepRequests(
          *model, {{&request, static_cast<int>(std::min<int64_t>(kLength, cut + removable))}});
      request.state->Truncate(cut);
      std::vector<uint8_t> saved(request.state->SavedBytes());
      request.state->Save(saved);
      Request restored(*model, tokens);
      ASSERT_TRUE(restored.state->Load(cut, saved).ok()) << variant.name;
      request.tokens = tokens;
      request.logits.clear();
      testing::StepRequests(*model, {{&request, kLength - cut}});
      testing::StepRequests(*model, {{&restored, kLength - cut}});
      const std::vector<float> want(whole.begin() + int64_t{cut} * model->vocab_size(),
                                    whole.end());
      EXPECT_TRUE(SameBits(request.logits, want)) << variant.name << " truncated to " << cut;
      EXPECT_TRUE(SameBits(restored.logits, want)) << variant.name << " saved at " << cut;
    }
  }
}

// Every kind's model against the reference: the kinds that no recording covers have no other
// whole-model check.
TEST_P(DeterminismTest, AgreesWithTheReference) {
  const auto backend = NewBackend(2);
  const auto reference = NewReferenceBackend();
  Random random(4);
  for (const Variant& variant : Variants()) {
    // Where a rounding flips, an 8-bit activation or a bf16 one or a narrow read jumps by far more
    // than float32's error: op tests cover them.
    if (variant.options.state_format != StateFormat::kF32 || variant.options.weights) continue;
    if (RoundsToBf16(variant.type)) continue;
    const auto model = testing::LoadModel(variant.folder, backend.get(), variant.options);
    const auto expected = testing::LoadModel(variant.folder, reference.get(), variant.options);
    const std::vector<int32_t> tokens = RandomTokens(*model, kLength, &random);
    const std::vector<float> got = testing::LogitsOf(*model, tokens, {kLength});
    const std::vector<float> want = testing::LogitsOf(*expected, tokens, {kLength});
    double largest = 0;
    for (const float logit : want) largest = std::max<double>(largest, std::abs(logit));
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 2e-4 * largest) << variant.name;  // as for recorded models
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, DeterminismTest, ::testing::ValuesIn(testing::TestedIsas()),
                         testing::ParamName);

}  // namespace
}  // namespace polysketch
