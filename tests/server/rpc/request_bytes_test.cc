// What a completion makes the engine hold is counted for each choice.
#include "server/rpc/request_bytes.h"

#include "engine/speculation/ngram_drafter.h"
#include "gtest/gtest.h"

namespace polysketch {
namespace {

int64_t Bytes(const GenerateRequest& request) { return EngineRequestBytes(request, 0, 16); }

TEST(RequestBytes, EachChoiceHasItsParameters) {
  GenerateRequest request;
  request.params.grammar = GrammarSource{GrammarSource::Kind::kEbnf, std::string(100'000, 'g')};
  const int64_t one = Bytes(request);
  EXPECT_GE(one, 100'000);
  request.params.n = request.params.best_of = 64;
  EXPECT_EQ(Bytes(request), 64 * one);
}

TEST(RequestBytes, EachChoiceHasAHistoryForDrafts) {
  GenerateRequest request;
  request.prompt.resize(200'000);
  request.params.n = request.params.best_of = 64;
  const int64_t without = Bytes(request);
  EXPECT_EQ(EngineRequestBytes(request, 4, 16), without + 64 * NgramDrafter::MemoryBytes(200'000));
  request.params.draft_tokens = 4;
  EXPECT_EQ(Bytes(request), without + 64 * NgramDrafter::MemoryBytes(200'000));
  request.params.draft_tokens = 0;
  EXPECT_EQ(EngineRequestBytes(request, 4, 16), without);
}

TEST(RequestBytes, EachChoiceKeepsItsOutput) {
  GenerateRequest request;
  request.params.n = request.params.best_of = 4;
  const int64_t few = Bytes(request);
  request.params.max_tokens = 1'000'016;
  EXPECT_EQ(Bytes(request), few + 4 * 8 * 1'000'000);
}

TEST(RequestBytes, ChoicesWaitForTheirRanking) {
  GenerateRequest request;
  request.params.n = 1;
  request.params.best_of = 64;
  request.params.logprobs = 20;
  request.params.max_tokens = 16384;
  EXPECT_GE(Bytes(request), int64_t{64} * 16384 * 160);
  request.params.max_tokens.reset();
  EXPECT_LE(Bytes(request), int64_t{64} * 16 * 400 + 64 * 4096);
}

}  // namespace
}  // namespace polysketch
