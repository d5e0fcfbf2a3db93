// Every RPC, run to its answer: messages of no bytes, the inputs of the fuzz target `requests`, and
// mutations of these.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/logging.h"
#include "polysketch/v1/polysketch.pb.h"
#include "tests/server/rpc/call_runner.h"

namespace polysketch {
namespace {

using testing::CallRunner;

constexpr char kService[] = "/polysketch.v1.PolySketch/";

class CallAnswersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    google::protobuf::SetLogHandler(nullptr);  // as the server
  }
  CallRunner runner_;
};

std::vector<std::string> Corpus() {
  const char* root = std::getenv("POLYSKETCH_SOURCE_DIR");
  std::vector<std::string> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::string(root == nullptr ? "." : root) + "/tests/fuzz/corpus/requests")) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

TEST_F(CallAnswersTest, MessagesOfNoBytes) {
  for (const std::string& method : CallRunner::Methods()) {
    for (const std::vector<std::string>& messages :
         {std::vector<std::string>(), {""}, {"", ""}, {"", "", ""}})
      (void)runner_.Run(method, messages);
  }
}

TEST_F(CallAnswersTest, AnswersOfNoBytes) {
  v1::TokenizeRequest request;
  request.set_add_bos(false);
  for (const bool special : {false, true}) {
    request.set_parse_special(special);
    EXPECT_TRUE(
        runner_.Run(std::string(kService) + "Tokenize", {request.SerializeAsString()}).ok());
  }
  EXPECT_TRUE(runner_.Run(std::string(kService) + "Detokenize", {""}).ok());
  EXPECT_TRUE(runner_.Run(std::string(kService) + "ListSessions", {""}).ok());
  const std::string session = runner_.NewSession();
  v1::DeleteSessionRequest remove;
  remove.set_session(session);
  EXPECT_TRUE(
      runner_.Run(std::string(kService) + "DeleteSession", {remove.SerializeAsString()}).ok());
}

TEST_F(CallAnswersTest, CompletionsOfEveryForm) {
  for (int form = 0; form < 64; ++form) {
    v1::CompleteRequest request;
    if ((form & 1) != 0) request.mutable_prompt()->set_text("Hello </s> W\xc3\xb6rld");
    if ((form & 1) == 0) request.mutable_prompt()->mutable_tokens()->add_ids(5);
    request.set_max_tokens((form & 2) != 0 ? 20 : 0);
    if ((form & 4) != 0) request.set_logprobs(3);
    if ((form & 8) != 0) request.set_echo(true);
    if ((form & 16) != 0) request.set_n(3);
    if ((form & 32) != 0) request.add_stop("A");
    for (const char* rpc : {"Complete", "CompleteUnary"}) {
      const Status status = runner_.Run(std::string(kService) + rpc, {request.SerializeAsString()});
      EXPECT_TRUE(status.ok() || status.code() == Code::kInvalidArgument)
          << form << ": " << status.ToString();
    }
  }
}

// The end of the input is more than the feed has room for. RunnerCall checks that nothing is read
// when there is room again.
TEST_F(CallAnswersTest, AScoreThatEndsInAFullFeed) {
  v1::ScoreRequest request;
  request.set_text(std::string(20'000, 'A'));
  EXPECT_TRUE(runner_.Run(std::string(kService) + "Score", {request.SerializeAsString()}).ok());
}

TEST_F(CallAnswersTest, InputsOfTheFuzzer) {
  for (const std::string& bytes : Corpus()) {
    if (bytes.empty()) continue;
    runner_.RunInput(bytes);
  }
}

TEST_F(CallAnswersTest, MutationsOfTheInputs) {
  const char* full = std::getenv("POLYSKETCH_TEST_FULL");
  const int rounds = full != nullptr && std::string_view(full) == "1" ? 200'000 : 10'000;
  const std::vector<std::string> corpus = Corpus();
  std::mt19937 random(1);
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : random() % limit; };
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = corpus[below(corpus.size())];
    for (size_t i = 0; i <= below(4); ++i) {
      const size_t at = 1 + below(bytes.size());
      const std::string& other = corpus[below(corpus.size())];
      const size_t from = below(other.size()), size = below(16);
      switch (below(5)) {
        case 0:
          if (at < bytes.size()) bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.insert(std::min(at, bytes.size()), 1, static_cast<char>(random()));
          break;
        case 2:
          bytes.erase(std::min(at, bytes.size()), size);
          break;
        case 3:
          bytes.insert(std::min(at, bytes.size()), other, from, size);
          break;
        default:
          bytes[0] = static_cast<char>(below(std::size(testing::kFuzzedCalls)));
      }
    }
    runner_.RunInput(bytes);
  }
}

}  // namespace
}  // namespace polysketch
