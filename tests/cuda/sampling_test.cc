// Tokens that the device draws against those of the host's sampler for the same logits: any
// parameters, rows with ties, zeros of both signs, NaN and infinities. The tokens must be the same
// ones, and the logits must be left as they were.
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "engine/sampler/sampler.h"
#include "tests/cuda/cuda_test.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;

class CudaDrawTest : public testing::CudaTest {
 protected:
  // Draws `count` tokens by both from rows of its own; returns how many the device could tell.
  int Compare(const SamplingParams& params, int width, int count, Random* random);
};

std::vector<float> RandomRow(int width, Random* random) {
  std::vector<float> row = random->Normals(static_cast<size_t>(width), random->Uniform(0, 8));
  switch (random->Int(0, 7)) {
    case 0:  // ties
      for (float& x : row) x = std::round(x);
      break;
    case 1:  // nothing but ties
      std::fill(row.begin(), row.end(), row[0]);
      break;
    case 2:  // zeros are equal whatever their sign
      for (float& x : row) x = std::copysign(0.0f, x);
      break;
    case 3:  // huge
      for (float& x : row) x *= 1e30f;
      break;
    default:
      break;
  }
  return row;
}

SamplingParams RandomParams(int width, Random* random) {
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[random->Int(0, std::ssize(values) - 1)];
  };
  SamplingParams params;
  params.temperature = one_of({0, 0, 1e-38f, 0.3f, 1, 1, 2, 100});
  params.top_k = static_cast<int32_t>(one_of({0, 0, 0, 1, 2, 5, 40, 1000}));
  params.top_p = one_of({1, 1, 0.95f, 0.5f, 1e-6f});
  params.min_p = one_of({0, 0, 0, 0.02f, 0.5f, 1});
  if (random->Int(0, 2) == 0) {
    params.repetition_penalty = one_of({1, 1.3f, 0.5f});
    params.frequency_penalty = one_of({0, 0.7f, -1});
    params.presence_penalty = one_of({0, 1.5f});
  }
  if (random->Int(0, 2) == 0) {
    for (int32_t token = 0; token < width; token += static_cast<int32_t>(random->Int(1, 90))) {
      params.logit_bias.emplace_back(token, static_cast<float>(random->Uniform(-5, 5)));
    }
  }
  return params;
}

int CudaDrawTest::Compare(const SamplingParams& params, int width, int count, Random* random) {
  Backend& device = cuda_->device();
  const std::vector<int32_t> prompt = {0, width - 1, width / 2};
  const uint64_t seed = static_cast<uint64_t>(random->Int(0, 1 << 30));
  Sampler host(params, seed, width, prompt), remote(params, seed, width, prompt);
  SamplerScratch scratch;
  int told = 0;
  for (int i = 0; i < count; ++i) {
    const std::vector<float> row = RandomRow(width, random);
    const Result<int32_t> want = host.Sample(row, {}, &scratch);
    EXPECT_TRUE(want.ok());
    SampleQuery query;
    SampleResult answer;
    if (remote.MakeQuery(0, &query)) {
      BackendArray logits(&device, row.size());
      logits.CopyIn(row.data());
      device.SampleRows(logits.data(), width, {&query, 1}, {&answer, 1});
      std::vector<float> left(row.size());
      device.CopyOut(logits.data(), left.size(), left.data());
      for (size_t t = 0; t < row.size(); ++t) {
        EXPECT_EQ(std::bit_cast<uint32_t>(left[t]), std::bit_cast<uint32_t>(row[t]))
            << "element " << t;
      }
    }
    const bool answered =
        answer.kind != SampleResult::Kind::kNone && answer.kind != SampleResult::Kind::kTooMany;
    told += answered ? 1 : 0;
    const Result<int32_t> got =
        answered ? remote.Sample(answer, &scratch) : remote.Sample(row, {}, &scratch);
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    if (!got.ok()) break;
    EXPECT_EQ(*got, *want) << "element " << i << " of width " << width;
  }
  EXPECT_EQ(remote.Counts(), host.Counts());
  return told;
}

TEST_F(CudaDrawTest, TokensAreTheSamplers) {
  ASSERT_TRUE(cuda_->device().samples_rows());
  Random random(1);
  int drawn = 0, told = 0;
  for (int i = 0; i < Scale(60, 1000); ++i) {
    const int widths[] = {1, 16, 255, 256, 700, 2049, 5000};
    const int width = widths[random.Int(0, std::ssize(widths) - 1)];
    const SamplingParams params = RandomParams(width, &random);
    SCOPED_TRACE(StrCat("case ", i, ": temperature ", params.temperature, " top_k ", params.top_k,
                        " top_p ", params.top_p, " min_p ", params.min_p));
    constexpr int kCount = 4;
    drawn += kCount;
    told += Compare(params, width, kCount, &random);
    if (HasFailure()) return;
  }
  // The others: top_k of 1000 beside 20 blocks, or most of a row at a temperature of 100.
  EXPECT_GT(told, drawn * 7 / 10);
  RecordProperty("told", StrCat(told, " of ", drawn));
}

// Rows of a vocabulary like a model's: peaked, with a long tail.
TEST_F(CudaDrawTest, LargeVocabulary) {
  Random random(2);
  SamplingParams params;
  for (const auto& [top_k, top_p, min_p] :
       {std::tuple(0, 1.0f, 0.0f), std::tuple(40, 1.0f, 0.0f), std::tuple(0, 0.9f, 0.0f),
        std::tuple(0, 1.0f, 0.05f), std::tuple(50, 0.8f, 0.01f)}) {
    params.top_k = top_k;
    params.top_p = top_p;
    params.min_p = min_p;
    Sampler host(params, 3, 32000, {}), remote(params, 3, 32000, {});
    std::vector<float> row = random.Normals(32000, 2.5);
    for (int i = 0; i < 5; ++i) row[static_cast<size_t>(random.Int(0, 31999))] = 14;
    SamplerScratch scratch;
    SampleQuery query;
    SampleResult answer;
    ASSERT_TRUE(remote.MakeQuery(0, &query));
    BackendArray logits(&cuda_->device(), row.size());
    logits.CopyIn(row.data());
    cuda_->device().SampleRows(logits.data(), 32000, {&query, 1}, {&answer, 1});
    ASSERT_NE(answer.kind, SampleResult::Kind::kTooMany) << top_k << " " << top_p << " " << min_p;
    EXPECT_EQ(*remote.Sample(answer, &scratch), *host.Sample(row, {}, &scratch));
  }
}

TEST_F(CudaDrawTest, RowsOfABatchAreTheirOwn) {
  Random random(3);
  const int width = 600;
  std::vector<SamplingParams> params(5);
  params[0].temperature = 0;
  params[1].top_p = 0.5f;
  params[3].top_k = 3;
  params[4].logit_bias = {{599, 90.0f}};
  std::vector<float> rows;
  std::vector<SampleQuery> queries(6);
  std::vector<SampleResult> answers(6);
  std::vector<Sampler> hosts, remotes;
  for (size_t i = 0; i < 6; ++i) {
    const std::vector<float> row = random.Normals(width, 3);
    rows.insert(rows.end(), row.begin(), row.end());
    if (i == 5) break;  // no query is made for the last row
    hosts.emplace_back(params[i], i, width, std::vector<int32_t>{});
    remotes.push_back(hosts.back());
  }
  for (size_t i = 0; i < 5; ++i) ASSERT_TRUE(remotes[i].MakeQuery(0, &queries[i]));
  BackendArray logits(&cuda_->device(), rows.size());
  logits.CopyIn(rows.data());
  cuda_->device().SampleRows(logits.data(), width, queries, answers);
  EXPECT_EQ(answers[5].kind, SampleResult::Kind::kNone);
  SamplerScratch scratch;
  for (size_t i = 0; i < 5; ++i) {
    const auto row = std::span(rows).subspan(i * width, width);
    EXPECT_EQ(*remotes[i].Sample(answers[i], &scratch), *hosts[i].Sample(row, {}, &scratch)) << i;
  }
  EXPECT_EQ(answers[4].token, 599);
}

TEST_F(CudaDrawTest, ALogitThatIsNotFiniteIsFound) {
  Random random(4);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const int at : {0, 300, 699}) {
      std::vector<float> row = random.Normals(700);
      row[static_cast<size_t>(at)] = bad;
      SamplingParams params;
      params.temperature = at == 0 ? 0 : 1;
      params.top_k = at == 699 ? 2 : 0;
      Sampler sampler(params, 1, 700, {});
      SampleQuery query;
      SampleResult answer;
      ASSERT_TRUE(sampler.MakeQuery(0, &query));
      BackendArray logits(&cuda_->device(), row.size());
      logits.CopyIn(row.data());
      cuda_->device().SampleRows(logits.data(), 700, {&query, 1}, {&answer, 1});
      SamplerScratch scratch;
      EXPECT_EQ(sampler.Sample(answer, &scratch).status().ToString(),
                Sampler(params, 1, 700, {}).Sample(row, {}, &scratch).status().ToString());
    }
  }
}

// What the device is not asked.
TEST_F(CudaDrawTest, TheSamplerKnowsWhatItCannotAsk) {
  SampleQuery query;
  SamplingParams params;
  EXPECT_TRUE(Sampler(params, 1, 5000, {}).MakeQuery(3, &query));
  params.top_k = 21;  // of 20 blocks: no bound on what the device would find
  EXPECT_FALSE(Sampler(params, 1, 5000, {}).MakeQuery(0, &query));
  params.min_p = 0.1f;
  EXPECT_TRUE(Sampler(params, 1, 5000, {}).MakeQuery(0, &query));
  params.presence_penalty = 1;
  EXPECT_TRUE(Sampler(params, 1, 5000, {}).MakeQuery(0, &query));
  EXPECT_FALSE(Sampler(params, 1, 5000, {}).MakeQuery(1, &query));  // it depends on the first
  std::vector<int32_t> prompt(4097);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i);
  EXPECT_FALSE(Sampler(params, 1, 5000, prompt).MakeQuery(0, &query));
}

}  // namespace
}  // namespace polysketch
