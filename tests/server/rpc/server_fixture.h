// A server in this process with a fake engine, and a channel to it.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/logging.h"
#include "polysketch/v1/polysketch.grpc.pb.h"
#include "server/app/server.h"
#include "tests/server/rpc/fake_engine.h"
#include "tests/server/rpc/fake_tokenizer.h"

namespace polysketch::testing {

class ServerFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    config_.listen = "127.0.0.1:0";
    config_.metrics_listen = "";
    config_.http_listen = "127.0.0.1:0";
    config_.stall_deadline = std::chrono::milliseconds(400);
    Configure(&config_);
    Result<std::unique_ptr<Server>> server = Server::Start(config_, &metrics_);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
    served_.engine = &engine_;
    SessionOptions sessions;
    sessions.memory = 1 << 20;
    sessions_ = std::make_unique<SessionTable>(std::move(sessions));
    served_.sessions = sessions_.get();
    served_.rules = {.tokenizer = &tokenizer_,
                     .add_bos = false,
                     .bos_id = FakeTokenizer::kBos,
                     .vocab_size = FakeTokenizer::kVocabulary,
                     .max_prompt_tokens = 1 << 20,
                     .max_new_tokens = 1 << 20};
    served_.description.set_name("fake");
    channel_ = NewChannel();
    stub_ = v1::PolySketch::NewStub(channel_);
  }
  // The server's threads use members of derived fixtures, which end before those of this class.
  void TearDown() override { server_.reset(); }
  virtual void Configure(ServerConfig*) {}

  // A connection of its own: gRPC shares them among channels with equal arguments.
  std::shared_ptr<grpc::Channel> NewChannel() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    return grpc::CreateCustomChannel(server_->address(), ChannelCredentials(), arguments);
  }
  virtual std::shared_ptr<grpc::ChannelCredentials> ChannelCredentials() {
    return grpc::InsecureChannelCredentials();
  }
  void Ready() { server_->SetModel(&served_); }

  static v1::CompleteRequest Request(const std::string& prompt, int max_tokens) {
    v1::CompleteRequest request;
    request.mutable_prompt()->set_text(prompt);
    request.set_max_tokens(max_tokens);
    return request;
  }
  static v1::CompleteRequest Endless() {
    v1::CompleteRequest request;
    request.mutable_prompt()->mutable_tokens()->add_ids(FakeEngine::kEndless);
    request.set_max_tokens(1);
    return request;
  }
  // Waits for a condition that other threads make true.
  template <typename Condition>
  static bool Eventually(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  ServerConfig config_;
  Metrics metrics_;
  FakeTokenizer tokenizer_;
  FakeEngine engine_;
  std::unique_ptr<SessionTable> sessions_;
  ServedModel served_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::PolySketch::Stub> stub_;
};

}  // namespace polysketch::testing
