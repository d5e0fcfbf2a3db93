// Prompts over a real connection, whole and in chunks, with an engine that keeps them.
#include "tests/server/rpc/server_fixture.h"

namespace polysketch {
namespace {

using grpc::StatusCode;

class PromptServiceTest : public testing::ServerFixture {
 protected:
  static v1::CompleteStreamRequest Part(const v1::CompleteRequest& request) {
    v1::CompleteStreamRequest part;
    *part.mutable_request() = request;
    return part;
  }
  static v1::CompleteStreamRequest Text(const std::string& text) {
    v1::CompleteStreamRequest part;
    part.set_text(text);
    return part;
  }
  static v1::CompleteStreamRequest Tokens(const std::vector<int32_t>& ids) {
    v1::CompleteStreamRequest part;
    part.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
    return part;
  }
  static v1::CompleteRequest NoPrompt() {
    v1::CompleteRequest request;
    request.set_max_tokens(2);
    return request;
  }

  // Sends the parts and reads the responses.
  grpc::Status Stream(const std::vector<v1::CompleteStreamRequest>& parts) {
    grpc::ClientContext context;
    const auto stream = stub_->CompleteStream(&context);
    for (const auto& part : parts) {
      if (!stream->Write(part)) break;
    }
    stream->WritesDone();
    v1::CompleteResponse response;
    finished_ = false;
    while (stream->Read(&response)) finished_ = response.has_finish();
    return stream->Finish();
  }
  grpc::Status Unary(const v1::Prompt& prompt) {
    v1::CompleteRequest request = NoPrompt();
    *request.mutable_prompt() = prompt;
    grpc::ClientContext context;
    v1::CompleteUnaryResponse response;
    return stub_->CompleteUnary(&context, request, &response);
  }

  bool finished_ = false;
};

TEST_F(PromptServiceTest, WholePrompts) {
  served_.rules.add_bos = true;
  served_.rules.max_prompt_tokens = 8;
  Ready();
  v1::Prompt prompt;
  EXPECT_EQ(Unary(prompt).error_message(), "prompt: expected text or tokens, found neither");
  prompt.set_text("ab");
  EXPECT_TRUE(Unary(prompt).ok());
  EXPECT_EQ(engine_.last_request().prompt, (std::vector<int32_t>{256, 97, 98}));
  prompt.set_text("12345678");
  EXPECT_EQ(Unary(prompt).error_message(), "prompt: expected at most 8 tokens, found 9");
  prompt.mutable_tokens()->add_ids(97);
  EXPECT_TRUE(Unary(prompt).ok());
  EXPECT_EQ(engine_.last_request().prompt, (std::vector<int32_t>{97}));  // verbatim
  prompt.mutable_tokens()->add_ids(258);
  EXPECT_EQ(Unary(prompt).error_message(),
            "prompt.tokens.ids[1]: expected an id in [0, 258), found 258");
  prompt.mutable_tokens()->clear_ids();
  EXPECT_EQ(Unary(prompt).error_message(), "prompt: expected at least one token, found none");
}

TEST_F(PromptServiceTest, ChunksAreTheWholePrompt) {
  served_.rules.add_bos = true;
  Ready();
  v1::CompleteRequest begun = NoPrompt();
  begun.mutable_prompt()->set_text("a\xC3\xA9");
  for (const auto& parts : std::vector<std::vector<v1::CompleteStreamRequest>>{
           {Part(Request("a\xC3\xA9 b", 2))},
           {Part(NoPrompt()), Text("a\xC3\xA9 b")},
           {Part(begun), Text(" "), Text(""), Text("b")}}) {
    const grpc::Status status = Stream(parts);
    EXPECT_TRUE(status.ok() && finished_) << status.error_message();
    EXPECT_EQ(engine_.last_request().prompt,
              (std::vector<int32_t>{256, 'a', 0xC3, 0xA9, ' ', 'b'}));
    EXPECT_EQ(engine_.last_request().params.max_tokens, 2);
  }
  EXPECT_TRUE(Stream({Part(NoPrompt()), Tokens({5, 6}), Tokens({}), Tokens({7})}).ok());
  EXPECT_EQ(engine_.last_request().prompt, (std::vector<int32_t>{5, 6, 7}));
}

TEST_F(PromptServiceTest, ChunksFollowASession) {
  served_.rules.add_bos = true;
  Ready();
  const SessionInfo session = sessions_->Create({""}, false, std::chrono::seconds(0)).value();
  v1::CompleteRequest request = NoPrompt();
  request.set_session(session.id);
  request.set_expected_position(3);
  EXPECT_EQ(Stream({Part(request), Text("a")}).error_code(), StatusCode::FAILED_PRECONDITION);
  request.clear_expected_position();
  // The fake engine returns no snapshot to commit.
  (void)Stream({Part(request), Text("a"), Text("b")});
  EXPECT_EQ(engine_.last_request().prompt, (std::vector<int32_t>{256, 'a', 'b'}));
  EXPECT_TRUE(engine_.last_request().keep);
}

TEST_F(PromptServiceTest, APromptAboveTheLimitOfMessages) {
  served_.rules.max_prompt_tokens = 8 << 20;
  Ready();
  std::vector<int32_t> prompt(5 << 20);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i * i % 251 + 2);
  std::vector<v1::CompleteStreamRequest> parts = {Part(NoPrompt())};
  for (size_t at = 0; at < prompt.size(); at += 1 << 20)
    parts.push_back(Tokens({prompt.begin() + static_cast<ptrdiff_t>(at),
                            prompt.begin() + static_cast<ptrdiff_t>(at + (1 << 20))}));
  const grpc::Status status = Stream(parts);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(engine_.last_request().prompt, prompt);
}

TEST_F(PromptServiceTest, BadParts) {
  served_.rules.max_prompt_tokens = 8;
  Ready();
  const auto error = [this](const std::vector<v1::CompleteStreamRequest>& parts) {
    const grpc::Status status = Stream(parts);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  v1::CompleteStreamRequest state;
  state.set_state("x");
  const v1::CompleteStreamRequest request = Part(NoPrompt());
  EXPECT_EQ(error({}), "request: expected one, found none");
  EXPECT_EQ(error({request}), "prompt: expected text or tokens, found neither");
  EXPECT_EQ(error({Text("a"), request}), "request: expected one before the prompt");
  EXPECT_EQ(error({request, request}), "request: expected one, found another");
  EXPECT_EQ(error({request, state}), "state: expected before the request");
  EXPECT_EQ(error({v1::CompleteStreamRequest()}),
            "part: expected a state, a request, text or tokens, found none");
  EXPECT_EQ(error({request, Text("a"), Tokens({5})}),
            "input: expected chunks of one kind, found text and tokens");
  EXPECT_EQ(error({request, Tokens({5, 258})}),
            "tokens.ids[1]: expected an id in [0, 258), found 258");
  EXPECT_EQ(error({request, Tokens({1, 2, 3, 4, 5, 6}), Tokens({7, 8, 9})}),
            "prompt: expected at most 8 tokens, found 9 or more");
  v1::CompleteRequest bad = NoPrompt();
  bad.mutable_sampling()->set_top_p(2);
  EXPECT_EQ(error({Part(bad)}), "sampling.top_p: expected a number in (0, 1], found 2");
  EXPECT_EQ(engine_.submitted(), 0);
}

TEST_F(PromptServiceTest, AClientThatStopsSendingIsEnded) {
  Ready();
  grpc::ClientContext context;
  const auto stream = stub_->CompleteStream(&context);
  ASSERT_TRUE(stream->Write(Part(NoPrompt())));
  v1::CompleteResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "the client sent no input for longer than the stall deadline");
  EXPECT_EQ(engine_.submitted(), 0);
}

TEST_F(PromptServiceTest, TextNeedsATokenizer) {
  served_.rules.tokenizer = nullptr;
  Ready();
  EXPECT_EQ(Stream({Part(NoPrompt()), Text("a")}).error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(Stream({Part(NoPrompt()), Tokens({5})}).ok());
}

}  // namespace
}  // namespace polysketch
