// The service vllm.grpc.engine over a real connection, with an engine whose every step is known.
#include "server/gateway/vllm_engine.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/hex.h"
#include "server/credentials/api_keys.h"
#include "tests/server/rpc/server_fixture.h"
#include "vllm_engine.grpc.pb.h"

namespace polysketch {
namespace {

namespace vllm_engine = ::vllm::grpc::engine;
using grpc::StatusCode;
using vllm_engine::GenerateResponse;

class VllmEngineTest : public testing::ServerFixture {
 protected:
  void SetUp() override {
    ServerFixture::SetUp();
    vllm_ = vllm_engine::VllmEngine::NewStub(channel_);
  }

  static vllm_engine::GenerateRequest Generation(const std::string& prompt, uint32_t max_tokens,
                                                 bool stream) {
    vllm_engine::GenerateRequest request;
    request.mutable_tokenized();
    for (const char c : prompt)
      request.mutable_tokenized()->add_input_ids(static_cast<unsigned char>(c));
    request.mutable_sampling_params()->set_max_tokens(max_tokens);
    request.set_stream(stream);
    return request;
  }
  static vllm_engine::GenerateRequest EndlessGeneration(const std::string& id) {
    vllm_engine::GenerateRequest request =
        Generation(std::string(1, FakeEngine::kEndless), 1, true);
    request.set_request_id(id);
    return request;
  }
  std::vector<GenerateResponse> Generate(const vllm_engine::GenerateRequest& request,
                                         grpc::Status* status) {
    grpc::ClientContext context;
    const auto reader = vllm_->Generate(&context, request);
    std::vector<GenerateResponse> all(1);
    while (reader->Read(&all.back())) all.emplace_back();
    all.pop_back();
    *status = reader->Finish();
    return all;
  }
  vllm_engine::HealthCheckResponse Health() {
    grpc::ClientContext context;
    vllm_engine::HealthCheckResponse response;
    EXPECT_TRUE(vllm_->HealthCheck(&context, {}, &response).ok());
    return response;
  }
  grpc::Status Abort(const std::string& id, const std::string& tenant = "") {
    grpc::ClientContext context;
    if (!tenant.empty()) context.AddMetadata("x-tenant-id", tenant);
    vllm_engine::AbortRequest request;
    request.add_request_ids("another");
    request.add_request_ids(id);
    vllm_engine::AbortResponse response;
    return vllm_->Abort(&context, request, &response);
  }

  using FakeEngine = testing::FakeEngine;
  std::unique_ptr<vllm_engine::VllmEngine::Stub> vllm_;
};

TEST_F(VllmEngineTest, AStreamHasChunksAndItsEnd) {
  Ready();
  grpc::Status status;
  const auto all = Generate(Generation("prompt", 5, true), &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::string tokens;
  ASSERT_GE(all.size(), 2u);
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    ASSERT_TRUE(all[i].has_chunk());
    for (const uint32_t id : all[i].chunk().token_ids()) tokens += static_cast<char>(id);
    EXPECT_EQ(all[i].chunk().prompt_tokens(), 6u);
    EXPECT_EQ(all[i].chunk().completion_tokens(), tokens.size());
  }
  EXPECT_EQ(tokens, "abcde");
  const auto& complete = all.back().complete();
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.prompt_tokens(), 6u);
  EXPECT_EQ(complete.completion_tokens(), 5u);
  EXPECT_EQ(complete.output_ids_size(), 0);  // the chunks have them
}

TEST_F(VllmEngineTest, WithoutAStreamTheEndHasAllTokens) {
  Ready();
  grpc::Status status;
  const auto all = Generate(Generation("prompt", 5, false), &status);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(all.size(), 1u);
  const auto& ids = all[0].complete().output_ids();
  EXPECT_EQ(std::string(ids.begin(), ids.end()), "abcde");
  EXPECT_EQ(all[0].complete().completion_tokens(), 5u);
  EXPECT_FALSE(engine_.last_request().migrates);
}

TEST_F(VllmEngineTest, ErrorsNameTheFieldsOfTheRequest) {
  Ready();
  const auto error = [this](const vllm_engine::GenerateRequest& request) {
    grpc::Status status;
    EXPECT_TRUE(Generate(request, &status).empty());
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  vllm_engine::GenerateRequest request = Generation("a", 1, false);
  request.mutable_sampling_params()->set_top_p(2);
  EXPECT_EQ(error(request), "sampling_params.top_p: expected a number in (0, 1], found 2");
  EXPECT_EQ(error(Generation("", 1, true)).substr(0, 20), "tokenized.input_ids:");
  request = Generation("a", 1, true);
  request.set_request_id(std::string(513, 'x'));
  EXPECT_EQ(error(request), "request_id: expected at most 512 bytes, found 513");
}

TEST_F(VllmEngineTest, AbortEndsTheGenerationsOfItsTenant) {
  Ready();
  grpc::ClientContext context;
  context.AddMetadata("x-tenant-id", "t");
  const auto reader = vllm_->Generate(&context, EndlessGeneration("one"));
  GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(Abort("one").ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(engine_.cancelled(), 0);  // another tenant's
  EXPECT_TRUE(Abort("one", "t").ok());
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(engine_.cancelled(), 1);
  EXPECT_TRUE(Abort("one", "t").ok());  // it has ended
}

TEST_F(VllmEngineTest, AClientThatLeavesFreesItsSlot) {
  Ready();
  grpc::ClientContext context;
  const auto reader = vllm_->Generate(&context, EndlessGeneration(""));
  GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_TRUE(Eventually([this] { return engine_.cancelled() == 1; }));
}

TEST_F(VllmEngineTest, HealthFollowsTheServerAndAStreamOutlivesTheStartOfADrain) {
  EXPECT_FALSE(Health().healthy());
  EXPECT_EQ(Health().message(), "the server is loading its model");
  Ready();
  EXPECT_TRUE(Health().healthy());
  grpc::ClientContext context;
  const auto reader = vllm_->Generate(&context, Generation("p", 2000, true));
  GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  std::jthread drain([this] { EXPECT_TRUE(server_->Drain(std::chrono::seconds(20))); });
  EXPECT_TRUE(Eventually([this] { return !Health().healthy(); }));
  EXPECT_EQ(Health().message(), "the server is draining");
  grpc::Status refused;
  EXPECT_TRUE(Generate(Generation("p", 1, true), &refused).empty());
  EXPECT_EQ(refused.error_code(), StatusCode::UNAVAILABLE);
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(response.complete().completion_tokens(), 2000u);
}

TEST_F(VllmEngineTest, ModelAndLoad) {
  served_.description.add_eos_ids(257);
  served_.description.add_eos_ids(3);
  served_.description.set_bos_id(256);
  served_.description.set_vocab_size(258);
  served_.description.mutable_limits()->set_max_sequences(4);
  served_.architecture = "Qwen3ForCausalLM";
  served_.model_type = "qwen3";
  Ready();
  grpc::ClientContext model, server, loads, running;
  vllm_engine::GetModelInfoResponse info;
  ASSERT_TRUE(vllm_->GetModelInfo(&model, {}, &info).ok());
  EXPECT_EQ(info.served_model_name(), "fake");
  EXPECT_EQ(info.eos_token_ids(0), 257);
  EXPECT_EQ(info.eos_token_ids(1), 3);
  EXPECT_TRUE(info.is_generation());
  EXPECT_EQ(info.model_type(), "qwen3");
  ASSERT_EQ(info.architectures_size(), 1);
  EXPECT_EQ(info.architectures(0), "Qwen3ForCausalLM");
  const auto reader = vllm_->Generate(&running, EndlessGeneration(""));
  GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  vllm_engine::GetServerInfoResponse facts;
  ASSERT_TRUE(vllm_->GetServerInfo(&server, {}, &facts).ok());
  EXPECT_EQ(facts.active_requests(), 1u);
  EXPECT_EQ(facts.max_num_seqs(), 4);
  vllm_engine::GetLoadsResponse load;
  ASSERT_TRUE(vllm_->GetLoads(&loads, {}, &load).ok());
  ASSERT_EQ(load.loads_size(), 1);
  EXPECT_EQ(load.loads(0).num_running_reqs(), 1);
  EXPECT_EQ(load.loads(0).max_running_requests(), 4);
  EXPECT_DOUBLE_EQ(load.loads(0).utilization(), 0.25);
  running.TryCancel();
}

TEST_F(VllmEngineTest, TheTokenizerArrivesInChunks) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "vllm_engine_test";
  std::filesystem::create_directories(folder);
  served_.folder = folder.string();
  Ready();
  const auto get = [this](std::string* archive, std::string* sum, int* chunks) {
    grpc::ClientContext context;
    const auto reader = vllm_->GetTokenizer(&context, {});
    smg::grpc::common::GetTokenizerChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_TRUE(sum->empty()) << "a chunk after the last";
      ++*chunks;
      *archive += chunk.data();
      *sum = chunk.sha256();
    }
    return reader->Finish();
  };
  std::string archive, sum;
  int chunks = 0;
  std::filesystem::remove(folder / "tokenizer.json");
  EXPECT_EQ(get(&archive, &sum, &chunks).error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(chunks, 0);

  std::string noise(3 << 20, '\0');  // does not compress, and takes several chunks
  uint32_t state = 1;
  for (char& c : noise) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  std::ofstream(folder / "tokenizer.json", std::ios::binary) << noise;
  std::ofstream(folder / "chat_template.jinja", std::ios::binary) << "{{ messages }}";
  ASSERT_TRUE(get(&archive, &sum, &chunks).ok());
  EXPECT_GE(chunks, 4);
  EXPECT_EQ(sum, HexDigits(Sha256Of(archive)));
  // Python reads what the archive holds.
  std::ofstream(folder / "archive.zip", std::ios::binary) << archive;
  const std::string check = StrCat(
      "python3 -c 'import zipfile, pathlib; f = pathlib.Path(\"", folder.string(),
      "\"); z = zipfile.ZipFile(f / \"archive.zip\"); n = z.namelist(); ",
      "assert n == [\"tokenizer.json\", \"chat_template.jinja\"], n; ",
      "assert z.testzip() is None; assert all(z.read(x) == (f / x).read_bytes() for x in n)'");
  EXPECT_EQ(std::system(check.c_str()), 0);
  std::filesystem::remove_all(folder);
}

TEST_F(VllmEngineTest, WhatTheServerLacksSaysSo) {
  Ready();
  grpc::ClientContext embed, flush, events;
  vllm_engine::EmbedResponse embedding;
  const grpc::Status status = vllm_->Embed(&embed, {}, &embedding);
  EXPECT_EQ(status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(status.error_message(), "this server computes no embeddings");
  smg::grpc::common::FlushCacheResponse flushed;
  EXPECT_EQ(vllm_->FlushCache(&flush, {}, &flushed).error_code(), StatusCode::UNIMPLEMENTED);
  const auto reader = vllm_->SubscribeKvEvents(&events, {});
  smg::grpc::common::KvEventBatch batch;
  EXPECT_FALSE(reader->Read(&batch));
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace polysketch
