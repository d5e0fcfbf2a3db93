// Scores of texts of any length: constant memory, and results that do not depend on how the text is
// cut.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/e2e/evaluation.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch::e2e {
namespace {

// Sanitizers keep freed memory in quarantine, so that the peak says nothing about the server.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMemoryIsMeasurable = false;
#else
constexpr bool kMemoryIsMeasurable = true;
#endif

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Scores `tokens` in chunks of `chunk`, and notes the server's peak memory when the results for
// `head` tokens have come. Input goes on meanwhile: what is bounded is the server, not the test.
struct MeasuredScore {
  Score score;
  int64_t head_peak = 0;
  int64_t peak = 0;
};

MeasuredScore ScoreAndMeasure(const Server& server, const std::vector<int32_t>& tokens,
                              size_t chunk, size_t head) {
  MeasuredScore measured;
  Client client(server.address());
  const auto stream = client.StartScore();
  std::thread writer([&] {
    v1::ScoreRequest request;
    for (size_t sent = 0; sent < tokens.size();) {
      const auto begin = tokens.begin() + static_cast<ptrdiff_t>(sent);
      const size_t count = std::min(chunk, tokens.size() - sent);
      request.mutable_tokens()->mutable_ids()->Assign(begin, begin + static_cast<ptrdiff_t>(count));
      if (!stream->Write(request)) return;
      sent += count;
    }
    stream->WritesDone();
  });
  v1::ScoreResponse response;
  while (stream->Read(&response)) {
    const auto& values = response.logprobs().logprobs();
    measured.score.logprobs.insert(measured.score.logprobs.end(), values.begin(), values.end());
    if (measured.head_peak == 0 && measured.score.logprobs.size() >= head) {
      measured.head_peak = server.PeakMemoryBytes();
    }
    if (response.has_finish()) measured.score.finish = response.finish();
  }
  writer.join();
  measured.score.status = stream->Finish();
  measured.peak = server.PeakMemoryBytes();
  return measured;
}

TEST(ScoreStream, TakesALongTextInConstantMemoryAndAnyChunks) {
  const size_t head = testing::FullCounts() ? 64 << 10 : 8 << 10;
  const std::optional<std::vector<int32_t>> eval =
      testing::FullCounts() ? EvalTokens() : EvalTokens(testing::kSanitized ? 12 << 10 : 48 << 10);
  if (!eval) GTEST_SKIP() << "no " << testing::SharedDir();

  const Server server;
  const MeasuredScore first = ScoreAndMeasure(server, *eval, 4096, head);
  ASSERT_TRUE(first.score.status.ok()) << first.score.status.ToString();
  ASSERT_EQ(first.score.logprobs.size(), eval->size() - 1);
  EXPECT_EQ(first.score.finish.tokens(), static_cast<int64_t>(eval->size()));
  if (kMemoryIsMeasurable) {
    EXPECT_LT(first.peak - first.head_peak, 16 << 20)
        << "peak of the first " << head << " tokens: " << first.head_peak;
  }
  RecordProperty("tokens", static_cast<int>(eval->size()));
  RecordProperty("head_peak_kib", static_cast<int>(first.head_peak >> 10));
  RecordProperty("peak_kib", static_cast<int>(first.peak >> 10));
  RecordProperty("perplexity", std::to_string(first.score.finish.perplexity()));
  std::printf(
      "%zu tokens: perplexity %.4f, peak memory %.1f MiB, %.1f MiB more than after %zu tokens\n",
      eval->size(), first.score.finish.perplexity(), double(first.peak) / (1 << 20),
      double(first.peak - first.head_peak) / (1 << 20), head);

  const MeasuredScore second = ScoreAndMeasure(server, *eval, 777, head);
  ASSERT_TRUE(second.score.status.ok()) << second.score.status.ToString();
  EXPECT_TRUE(SameBits(first.score.logprobs, second.score.logprobs));
  EXPECT_EQ(first.score.finish.logprob_sum(), second.score.finish.logprob_sum());
}

// Text in chunks of whole characters gives what its tokens give.
TEST(ScoreStream, TakesTextLikeItsTokens) {
  const Server server;
  Client client(server.address());
  std::string text;
  const char* const phrases[] = {"It was late in the afternoon, ", "caf\xC3\xA9  \xE2\x82\xAC\n\n",
                                 "\xF0\x9F\x98\x80\"Sir,\" said he; ", "<s> </s>\t",
                                 "aaaaaaaaaaaaaaa"};
  testing::Random random(5);
  while (text.size() < 6000) text += phrases[random.Int(0, 4)];

  v1::TokenizeRequest tokenize;
  tokenize.set_text(text);
  v1::TokenizeResponse tokenized;
  const Status status = client.Tokenize(tokenize, &tokenized);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const std::vector<int32_t> tokens(tokenized.tokens().begin(), tokenized.tokens().end());
  EXPECT_EQ(tokens[0], 1) << "add_bos";
  const Score by_tokens = client.ScoreTokens(tokens, 100);
  ASSERT_TRUE(by_tokens.status.ok()) << by_tokens.status.ToString();

  for (const size_t max_bytes : {4, 61, 100000}) {
    size_t sent = 0;
    const Score by_text = client.ScoreAll([&](v1::ScoreRequest* request) {
      size_t end = std::min(sent + max_bytes, text.size());
      while (end < text.size() && (text[end] & 0xC0) == 0x80) --end;  // not inside a character
      request->set_text(text.substr(sent, end - sent));
      sent = end;
      return !request->text().empty();
    });
    ASSERT_TRUE(by_text.status.ok()) << by_text.status.ToString();
    EXPECT_EQ(by_text.finish.tokens(), static_cast<int64_t>(tokens.size()));
    EXPECT_TRUE(SameBits(by_text.logprobs, by_tokens.logprobs)) << max_bytes;
  }
}

// A session is read once for any number of endings, and stays as it is.
TEST(ScoreStream, ContinuesASession) {
  const Server server;
  Client client(server.address());
  std::vector<int32_t> tokens = {1};
  testing::Random random(6);
  while (tokens.size() < 900) tokens.push_back(static_cast<int32_t>(random.Int(3, 4095)));
  const Completion greedy = client.Complete(Greedy(tokens, 3));
  tokens.insert(tokens.end(), greedy.tokens.begin(), greedy.tokens.end());
  const Score whole = client.ScoreTokens(tokens, 100);
  ASSERT_TRUE(whole.status.ok()) << whole.status.ToString();
  ASSERT_EQ(whole.greedy.size(), whole.logprobs.size());
  EXPECT_EQ(std::vector<bool>(whole.greedy.end() - 3, whole.greedy.end()),
            std::vector<bool>(3, true));
  EXPECT_LT(std::count(whole.greedy.begin(), whole.greedy.end(), true), 100);

  for (const size_t cut : {size_t{1}, size_t{300}, tokens.size() - 3}) {
    const v1::Session session = client.CreateSession().value();
    const auto middle = tokens.begin() + static_cast<ptrdiff_t>(cut);
    ASSERT_TRUE(client.AppendSession(session.session(), {tokens.begin(), middle}, 0).ok());
    for (int again = 0; again < 2; ++again) {
      bool sent = false;
      const Score score = client.ScoreAll([&](v1::ScoreRequest* request) {
        request->set_session(session.session());
        request->set_expected_position(static_cast<int64_t>(cut));
        request->mutable_tokens()->mutable_ids()->Assign(middle, tokens.end());
        return !std::exchange(sent, true);
      });
      ASSERT_TRUE(score.status.ok()) << score.status.ToString();
      EXPECT_EQ(score.first, static_cast<int64_t>(cut));
      const auto skipped = static_cast<ptrdiff_t>(cut) - 1;
      EXPECT_TRUE(
          SameBits(score.logprobs, {whole.logprobs.begin() + skipped, whole.logprobs.end()}));
      EXPECT_EQ(score.greedy,
                std::vector<bool>(whole.greedy.begin() + skipped, whole.greedy.end()));
      EXPECT_EQ(score.finish.tokens(), static_cast<int64_t>(tokens.size() - cut));
      EXPECT_NEAR(std::log(score.finish.perplexity()),
                  -score.finish.logprob_sum() / static_cast<double>(tokens.size() - cut), 1e-9);
    }
  }
  v1::ScoreRequest other;
  other.set_session("00");
  const auto unknown = client.StartScore();
  unknown->Write(other);
  unknown->WritesDone();
  EXPECT_EQ(unknown->Finish().code(), Code::kNotFound);
}

// The same far masses however the text is cut, and after a session.
TEST(ScoreStream, ReturnsFarMasses) {
  const Server server;
  Client client(server.address());
  std::vector<int32_t> tokens = {1};
  testing::Random random(7);
  while (tokens.size() < 700) tokens.push_back(static_cast<int32_t>(random.Int(3, 4095)));
  // The tokens from `first` on, in chunks.
  const auto score = [&](size_t first, size_t chunk, const std::string& session) {
    size_t sent = first;
    return client.ScoreAll([&](v1::ScoreRequest* request) {
      request->set_far_mass(sent == first);
      request->set_session(sent == first ? session : "");
      const auto begin = tokens.begin() + static_cast<ptrdiff_t>(sent);
      const size_t count = std::min(chunk, tokens.size() - sent);
      request->mutable_tokens()->mutable_ids()->Assign(begin,
                                                       begin + static_cast<ptrdiff_t>(count));
      sent += count;
      return count > 0;
    });
  };
  const Score whole = score(0, 1000, "");
  ASSERT_TRUE(whole.status.ok()) << whole.status.ToString();
  const v1::ScoreFinish& finish = whole.finish;
  ASSERT_EQ(finish.far_mass_size(), 4 * 5) << "layers, and ranges from 0, 64, 128, 256 and 512";
  int64_t queries = 0;
  for (const v1::FarMass& range : finish.far_mass()) {
    queries += range.queries();
    ASSERT_EQ(range.shares_size(), 3);
    for (const double share : range.shares()) {
      EXPECT_EQ(share > 0, range.first() >= 128) << "blocks have 128 tokens";
      EXPECT_LT(share, 1);
    }
  }
  EXPECT_EQ(queries, 4 * 699);
  const Score cut = score(0, 90, "");
  ASSERT_EQ(cut.finish.far_mass_size(), finish.far_mass_size());
  for (int i = 0; i < finish.far_mass_size(); ++i) {
    EXPECT_EQ(cut.finish.far_mass(i).SerializeAsString(), finish.far_mass(i).SerializeAsString());
  }

  const v1::Session session = client.CreateSession().value();
  ASSERT_TRUE(
      client.AppendSession(session.session(), {tokens.begin(), tokens.begin() + 513}, 0).ok());
  const Score rest = score(513, 1000, session.session());
  ASSERT_TRUE(rest.status.ok()) << rest.status.ToString();
  ASSERT_EQ(rest.finish.far_mass_size(), 4) << "the ranges from 512";
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(rest.finish.far_mass(i).SerializeAsString(),
              finish.far_mass(5 * i + 4).SerializeAsString());
  }
}

TEST(ScoreStream, TakesTheShortestInputs) {
  const Server server;
  Client client(server.address());
  const Score one = client.ScoreTokens({5}, 1);
  ASSERT_TRUE(one.status.ok()) << one.status.ToString();
  EXPECT_TRUE(one.logprobs.empty());
  EXPECT_EQ(one.finish.tokens(), 1);
  EXPECT_EQ(one.finish.perplexity(), 0);
  const Score two = client.ScoreTokens({5, 6}, 1);
  ASSERT_TRUE(two.status.ok()) << two.status.ToString();
  EXPECT_EQ(two.logprobs.size(), 1u);
  EXPECT_EQ(client.ScoreTokens({}, 1).status.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace polysketch::e2e
