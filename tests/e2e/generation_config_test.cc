// generation_config.json of a model folder: what ends an output, and the sampling parameters of
// requests that set none.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;

class GenerationConfigTest : public ::testing::Test {
 protected:
  GenerationConfigTest()
      : folder_(std::filesystem::temp_directory_path() / StrCat("generation-config-", getpid())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::copy(DemoModel(), folder_);
  }
  ~GenerationConfigTest() override { std::filesystem::remove_all(folder_); }

  void Write(const json& config) const {
    std::ofstream(folder_ / "generation_config.json") << config;
  }
  ServerOptions Options(std::vector<std::string> flags = {}) const {
    flags.insert(flags.end(), {"--http-listen", "127.0.0.1:0"});
    return {.model = folder_.string(), .flags = std::move(flags)};
  }
  static json Complete(const Server& server, json body) {
    body["prompt"] = "It was late";
    const HttpAnswer answer = Http(server.http_address(), "/v1/completions", body.dump());
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body).at("choices").at(0);
  }

  const std::filesystem::path folder_;
};

TEST_F(GenerationConfigTest, EndsOutputsAndSetsWhatRequestsDoNot) {
  std::vector<int32_t> greedy;
  {
    const Server server(Options());
    v1::CompleteRequest request = Greedy("It was late", 20);
    greedy = Client(server.address()).Complete(request).tokens;
    ASSERT_EQ(greedy.size(), 20u);
  }
  const int32_t end = greedy[10];
  const auto count = std::find(greedy.begin(), greedy.end(), end) - greedy.begin() + 1;
  Write({{"eos_token_id", {end, 2}}, {"temperature", 0}, {"do_sample", true}});
  const Server server(Options());
  Client client(server.address());
  v1::GetModelResponse model;
  ASSERT_TRUE(client.GetModel(&model).ok());
  // EOS of the tokenizer is the first.
  EXPECT_EQ(std::vector<int32_t>(model.eos_ids().begin(), model.eos_ids().end()),
            (std::vector<int32_t>{2, end}));
  EXPECT_EQ(model.eos_id(), 2);
  EXPECT_EQ(model.default_sampling().temperature(), 0.0f);

  const json stopped = Complete(server, {{"max_tokens", 20}});
  EXPECT_EQ(stopped.at("finish_reason"), "stop");
  EXPECT_EQ(stopped.at("stop_reason"), end);
  v1::CompleteRequest request;
  request.mutable_prompt()->set_text("It was late");
  request.set_max_tokens(20);
  const Completion output = client.Complete(request);
  EXPECT_EQ(output.tokens, std::vector<int32_t>(greedy.begin(), greedy.begin() + count));
  EXPECT_EQ(output.finish.stop_token(), end);
  request.set_ignore_eos(true);
  EXPECT_EQ(client.Complete(request).tokens, greedy);
  // A request's own value wins.
  const json sampled =
      Complete(server, {{"max_tokens", 20}, {"temperature", 1}, {"seed", 5}, {"ignore_eos", true}});
  EXPECT_NE(sampled.at("text"),
            Complete(server, {{"max_tokens", 20}, {"ignore_eos", true}}).at("text"));

  const Server none(Options({"--generation-config", "none"}));
  EXPECT_EQ(Complete(none, {{"max_tokens", 20}, {"seed", 5}, {"ignore_eos", true}}).at("text"),
            sampled.at("text"));
  ASSERT_TRUE(Client(none.address()).GetModel(&model).ok());
  EXPECT_EQ(model.eos_ids_size(), 2);
  EXPECT_EQ(model.default_sampling().temperature(), 1.0f);
}

TEST_F(GenerationConfigTest, WrongValueEndsTheStart) {
  Write({{"eos_token_id", 4096}});
  const ProcessResult result =
      RunProcess({.arguments = {Binary("polysketch-server"), "--model", folder_.string(),
                                "--http-listen", "", "--metrics-listen", ""}});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_NE(result.standard_error.find(
                "generation_config.json: eos_token_id: expected token ids in [0, 4096), found"),
            std::string::npos)
      << result.standard_error;
}

}  // namespace
}  // namespace polysketch::e2e
