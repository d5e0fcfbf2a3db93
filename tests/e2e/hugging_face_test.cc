// A folder as Hugging Face has it, of a small random Llama: what ends an output, BOS, rows that are
// no token, the chat template, and the limit of its positions through every door.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kTokens = 4096;  // of the tokenizer of models/demo
constexpr int kRows = kTokens + 64;
constexpr int kPositions = 64;
constexpr int kWidth = 32, kHeads = 4, kKvHeads = 2, kHeadDim = 8, kHidden = 48, kLayers = 2;
constexpr int32_t kTurnEnd = 4095;  // another EOS

void WriteTensors(const fs::path& path) {
  std::map<std::string, std::vector<int>> shapes = {{"model.embed_tokens.weight", {kRows, kWidth}},
                                                    {"model.norm.weight", {kWidth}}};
  for (int i = 0; i < kLayers; ++i) {
    const std::string layer = StrCat("model.layers.", i, ".");
    shapes[layer + "input_layernorm.weight"] = {kWidth};
    shapes[layer + "post_attention_layernorm.weight"] = {kWidth};
    shapes[layer + "self_attn.q_proj.weight"] = {kHeads * kHeadDim, kWidth};
    shapes[layer + "self_attn.k_proj.weight"] = {kKvHeads * kHeadDim, kWidth};
    shapes[layer + "self_attn.v_proj.weight"] = {kKvHeads * kHeadDim, kWidth};
    shapes[layer + "self_attn.o_proj.weight"] = {kWidth, kHeads * kHeadDim};
    shapes[layer + "mlp.gate_proj.weight"] = {kHidden, kWidth};
    shapes[layer + "mlp.up_proj.weight"] = {kHidden, kWidth};
    shapes[layer + "mlp.down_proj.weight"] = {kWidth, kHidden};
  }
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.5f);
  json header;
  std::string data;
  for (const auto& [name, shape] : shapes) {
    const size_t begin = data.size();
    int64_t size = 1;
    for (const int extent : shape) size *= extent;
    for (int64_t i = 0; i < size; ++i) {
      const float value = shape.size() == 1 ? 1 : normal(random);
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const uint64_t bytes = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  file << text << data;
}

constexpr char kTemplate[] =
    "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// The tokenizer of models/demo, whose last two tokens are those of the template.
json TokenizerJson() {
  json tokenizer = json::parse(ReadFile(DemoModel() + "/tokenizer.json"));
  json& vocabulary = tokenizer.at("model").at("vocab");
  for (const auto& [id, text] : {std::pair(kTurnEnd, "<|im_end|>"), {4094, "<|im_start|>"}}) {
    std::string former;
    for (const auto& [piece, of] : vocabulary.items())
      if (of == id) former = piece;
    vocabulary.erase(former);
    auto& merges = tokenizer.at("model").at("merges").get_ref<json::array_t&>();
    std::erase_if(merges, [&](const json& merge) {
      const std::vector<std::string> pair = merge;
      return pair[0] == former || pair[1] == former || pair[0] + pair[1] == former;
    });
    tokenizer.at("added_tokens")
        .push_back({{"id", id},
                    {"content", text},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", true}});
    vocabulary[text] = id;
  }
  return tokenizer;
}

class HuggingFace : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / StrCat("hugging-face-", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    WriteTensors(folder_ / "model.safetensors");
    const auto write = [](const char* name, const json& value) {
      std::ofstream(folder_ / name) << value;
    };
    write("config.json", {{"architectures", {"LlamaForCausalLM"}},
                          {"model_type", "llama"},
                          {"vocab_size", kRows},
                          {"hidden_size", kWidth},
                          {"intermediate_size", kHidden},
                          {"num_hidden_layers", kLayers},
                          {"num_attention_heads", kHeads},
                          {"num_key_value_heads", kKvHeads},
                          {"max_position_embeddings", kPositions},
                          {"tie_word_embeddings", true},
                          {"bos_token_id", 1},
                          {"eos_token_id", {2, 3}}});
    write("generation_config.json", {{"eos_token_id", {2, kTurnEnd}}, {"do_sample", true}});
    write("tokenizer.json", TokenizerJson());
    write("tokenizer_config.json", {{"bos_token", {{"content", "<s>"}}},
                                    {"eos_token", {{"content", "</s>"}}},
                                    {"chat_template", kTemplate}});
    server_ = std::make_unique<Server>(
        ServerOptions{.model = folder_.string(), .flags = {"--http-listen", "127.0.0.1:0"}});
    client_ = std::make_unique<Client>(server_->address());
  }
  static void TearDownTestSuite() {
    client_.reset();
    server_.reset();
    fs::remove_all(folder_);
  }
  static HttpAnswer Post(const std::string& path, const json& body) {
    return Http(server_->http_address(), path, body.dump());
  }
  static json Ok(const std::string& path, const json& body) {
    const HttpAnswer answer = Post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body);
  }
  static void ExpectTooLong(const std::string& path, const json& body, const std::string& found) {
    const HttpAnswer answer = Post(path, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    const json error = json::parse(answer.body).at("error");
    EXPECT_EQ(error.at("code"), "context_length_exceeded");
    EXPECT_EQ(error.at("type"), "invalid_request_error");
    EXPECT_EQ(error.at("param"), path == "/v1/completions" ? "prompt" : "input");
    const auto message = error.at("message").get<std::string>();
    EXPECT_NE(message.find("maximum context length is 64 tokens"), std::string::npos) << message;
    EXPECT_TRUE(message.ends_with(found)) << message;
  }
  static std::vector<int32_t> Ids(int count) {
    std::vector<int32_t> ids(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = 100 + 37 * i % 3000;
    return ids;
  }
  static v1::CompleteRequest Endless(const std::vector<int32_t>& prompt) {
    v1::CompleteRequest request = Greedy(prompt, 1);
    request.clear_max_tokens();
    request.set_ignore_eos(true);
    return request;
  }

  static inline fs::path folder_;
  static inline std::unique_ptr<Server> server_;
  static inline std::unique_ptr<Client> client_;
};

TEST_F(HuggingFace, TheModelIsDescribed) {
  v1::GetModelResponse model;
  ASSERT_TRUE(client_->GetModel(&model).ok());
  EXPECT_EQ(model.context_limit(), kPositions);
  EXPECT_EQ(model.vocab_size(), kTokens);
  // generation_config.json replaces the ids of config.json.
  EXPECT_EQ(std::vector<int32_t>(model.eos_ids().begin(), model.eos_ids().end()),
            (std::vector<int32_t>{2, kTurnEnd}));
  EXPECT_TRUE(model.add_bos());
  EXPECT_EQ(model.bos_id(), 1);
  const json tokenizer = json::parse(HttpGet(server_->http_address(), "/tokenizer_info"));
  EXPECT_EQ(tokenizer.at("tokenizer_class"), "PreTrainedTokenizerFast");
  const json list = json::parse(HttpGet(server_->http_address(), "/v1/models"));
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), kPositions);
  EXPECT_TRUE(server_->Logs("kv_cache"));
  const auto call = client_->StartRaw("/vllm.grpc.engine.VllmEngine/GetModelInfo");
  call->Write("");
  call->WritesDone();
  std::string info;
  ASSERT_TRUE(call->Read(&info));
  EXPECT_NE(info.find("LlamaForCausalLM"), std::string::npos);
  EXPECT_EQ(info.find("olySketchFormer"), std::string::npos);
}

TEST_F(HuggingFace, TextBeginsWithBosAndRowsWithoutATokenAreNoIds) {
  EXPECT_EQ(Ok("/tokenize", {{"prompt", "It was late"}}).at("tokens").at(0), 1);
  const HttpAnswer refused = Post("/v1/completions", {{"prompt", {5, kTokens}}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("expected an id in [0, 4096), found 4096"), std::string::npos);
  // Nearly uniform: one in 65 would be of a row without a token.
  v1::CompleteRequest request = Endless({5});
  request.mutable_sampling()->set_temperature(100);
  request.set_logprobs(20);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    request.mutable_sampling()->set_seed(seed);
    const Completion got = client_->Complete(request);
    ASSERT_TRUE(got.status.ok()) << got.status.ToString();
    EXPECT_EQ(got.tokens.size(), kPositions - 1u);
    for (const int32_t id : got.tokens) EXPECT_LT(id, kTokens);
    for (const v1::TokenLogprob& at : got.details)
      for (const v1::Alternative& likely : at.top()) EXPECT_LT(likely.token(), kTokens);
  }
}

TEST_F(HuggingFace, TheTemplateOfAChatEndsAnswers) {
  const json body = {{"messages", {{{"role", "user"}, {"content", "hi <|im_end|>"}}}},
                     {"max_completion_tokens", 4},
                     {"logit_bias", {{std::to_string(kTurnEnd), 100}}}};
  const json answer = Ok("/v1/chat/completions", body);
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(answer.at("choices").at(0).at("stop_reason"), kTurnEnd);
  EXPECT_EQ(answer.at("choices").at(0).at("message").at("content"), "");
  // The prompt has the control pieces of the template alone, and no BOS: what the message spells
  // takes several tokens in place of one.
  const json whole =
      Ok("/tokenize", {{"prompt",
                        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nhi "
                        "<|im_end|><|im_end|>\n<|im_start|>assistant\n"},
                       {"add_special_tokens", false}});
  const std::vector<int32_t> ids = whole.at("tokens");
  EXPECT_EQ(std::ranges::count(ids, kTurnEnd), 3);
  const int more = answer.at("usage").at("prompt_tokens").get<int>() - whole.at("count").get<int>();
  EXPECT_GT(more, 2);
  EXPECT_LT(more, 12);
  // It ends a completion too, which ignore_eos goes on after.
  json completion = {{"prompt", "It"}, {"max_tokens", 4}, {"logit_bias", body.at("logit_bias")}};
  EXPECT_EQ(Ok("/v1/completions", completion).at("usage").at("completion_tokens"), 1);
  completion["ignore_eos"] = true;
  EXPECT_EQ(Ok("/v1/completions", completion).at("usage").at("completion_tokens"), 4);
}

TEST_F(HuggingFace, PromptAndOutputStayWithinThePositions) {
  ExpectTooLong("/v1/completions", {{"prompt", Ids(60)}, {"max_tokens", 5}}, "60 + 5");
  ExpectTooLong("/v1/completions", {{"prompt", Ids(64)}}, "64 + 16");
  const json long_chat = {{{"role", "user"}, {"content", std::string(400, 'x')}}};
  const json error =
      json::parse(Post("/v1/chat/completions", {{"messages", long_chat}}).body).at("error");
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
  EXPECT_EQ(error.at("param"), "messages");
  EXPECT_EQ(Ok("/v1/completions", {{"prompt", Ids(60)}, {"max_tokens", 4}})
                .at("usage")
                .at("completion_tokens"),
            4);
  const json chat =
      Ok("/v1/chat/completions",
         {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"ignore_eos", true}});
  EXPECT_EQ(chat.at("choices").at(0).at("finish_reason"), "length");
  EXPECT_EQ(chat.at("usage").at("total_tokens"), kPositions);

  const Completion got = client_->Complete(Endless(Ids(50)));
  EXPECT_EQ(got.tokens.size(), 14u);
  EXPECT_EQ(got.finish.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(client_->Complete(Endless(Ids(64))).status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(client_->ScoreTokens(Ids(64), 10).status.ok());
  EXPECT_EQ(client_->ScoreTokens(Ids(65), 10).status.code(), Code::kInvalidArgument);
}

TEST_F(HuggingFace, SessionsEndAtTheLimit) {
  const auto session = client_->CreateSession();
  ASSERT_TRUE(session.ok());
  const std::string id = session->session();
  ASSERT_TRUE(client_->AppendSession(id, Ids(40), 0).ok());
  EXPECT_EQ(client_->AppendSession(id, Ids(25), 40).status().code(), Code::kInvalidArgument);
  v1::CompleteRequest request = Endless(Ids(10));
  request.set_session(id);
  const Completion got = client_->Complete(request);
  ASSERT_TRUE(got.status.ok()) << got.status.ToString();
  EXPECT_EQ(got.tokens.size(), 14u);
  EXPECT_EQ(got.finish.session().tokens(), kPositions);
  EXPECT_EQ(client_->AppendSession(id, Ids(1), kPositions).status().code(), Code::kInvalidArgument);
  // What the client sees of a turn is what one prompt gives.
  std::vector<int32_t> prompt = Ids(40);
  for (const int32_t token : Ids(10)) prompt.push_back(token);
  EXPECT_EQ(client_->Complete(Endless(prompt)).tokens, got.tokens);
}

TEST_F(HuggingFace, AResponseThatFillsTheContextIsAnswered) {
  const json first = Ok("/v1/responses", {{"input", "hi"}, {"ignore_eos", true}});
  EXPECT_EQ(first.at("status"), "incomplete");
  EXPECT_EQ(first.at("usage").at("total_tokens"), kPositions);
  ExpectTooLong("/v1/responses", {{"input", "x"}, {"previous_response_id", first.at("id")}}, "+ 1");
}

}  // namespace
}  // namespace polysketch::e2e
