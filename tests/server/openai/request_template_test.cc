// chat_template of a request, and log-probabilities of the prompt of a chat.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/openai/answer_form.h"
#include "tests/server/openai/chat_fixture.h"

namespace polysketch {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kRequestTemplate[] =
    "{%- for message in messages %}{{ bos_token + message.content + eos_token }}{% endfor %}";
constexpr char kTool[] = R"("tools": [{"type": "function", "function": {"name": "get_time"}}])";

std::string Written(const std::string& text) {
  return StrCat("\"chat_template\": ", nlohmann::json(text).dump());
}

class RequestTemplate : public testing::ChatModel {
 protected:
  void SetUp() override {
    ChatModel::SetUp();
    UseTemplate(kRequestTemplate);
    model_.trusts_request_template = true;
  }
  static std::vector<int32_t> Ids(const CompletionJob& job) {
    const auto& ids = job.common.prompt().tokens().ids();
    return {ids.begin(), ids.end()};
  }
};

TEST_F(RequestTemplate, NeedsTheFlag) {
  model_.trusts_request_template = false;
  EXPECT_THAT(ErrorOf(Written("a")), HasSubstr("--trust-request-chat-template"));
  EXPECT_TRUE(Job(R"("chat_template": null)").ok());
}

TEST_F(RequestTemplate, IsThatOfOneRequest) {
  const auto job = Job(Written(
      "{% for m in messages %}{{ bos_token + m.role + m.content + bos_token }}{% endfor %}"));
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  model_.trusts_request_template = false;
  UseTemplate(
      "{% for m in messages %}{{ bos_token + m.role + m.content + bos_token }}{% endfor %}");
  EXPECT_EQ(Ids(*job), Ids(*Job("")));
  UseTemplate(kRequestTemplate);
  EXPECT_NE(Ids(*job), Ids(*Job("")));
}

// Text of a message is no control piece in a template of a client either.
TEST_F(RequestTemplate, OfAModelWithoutOne) {
  model_.chat_template = nullptr;
  const auto job = Job(Written("{{ bos_token }}{{ messages[0].content }}</s>"));
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_EQ(Ids(*job).front(), tokenizer_->bos_id());
  EXPECT_EQ(Ids(*job).back(), tokenizer_->eos_id());
  model_.rules.tokenizer = nullptr;
  EXPECT_THAT(ErrorOf(Written("a")), StartsWith("chat_template: "));
}

TEST_F(RequestTemplate, BadOnesAreErrors) {
  EXPECT_THAT(ErrorOf(Written("{% for %}")), StartsWith("chat_template: line 1"));
  EXPECT_THAT(ErrorOf(R"("chat_template": 5)"), StartsWith("chat_template: expected a string"));
  EXPECT_THAT(ErrorOf(Written(std::string((64 << 10) + 1, 'a'))),
              StartsWith("chat_template: expected at most 65536 bytes, found 65537"));
  EXPECT_NE(ErrorOf(Written("{% for i in range(10000000) %}a{% endfor %}")), "");
}

TEST_F(RequestTemplate, SaysHowToolsAreCalled) {
  const auto described = Job(kTool);  // the server's template takes no tools
  ASSERT_TRUE(described.ok()) << described.status().ToString();
  EXPECT_EQ(described->options.tools->form, ToolForm::kJson);
  const auto job =
      Job(StrCat(kTool, ", ",
                 Written("{{ tools | tojson }}<tool_call>{{ messages[0].content }}</tool_call>")));
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  ASSERT_TRUE(job->options.tools.has_value());
  EXPECT_EQ(job->options.tools->form, ToolForm::kHermes);
  EXPECT_EQ(Job(StrCat(kTool, ", ", Written("{{ messages[0].content }}")))->options.tools->form,
            ToolForm::kJson);
  EXPECT_THAT(ErrorOf(StrCat(kTool, ", ",
                             Written("{{ tools | tojson }}<function={{ messages[0].content }}"))),
              StartsWith("tools: expected a chat template with a form of calls"));
}

// The response has them; a choice does not.
TEST_F(RequestTemplate, LogProbabilitiesOfThePromptOfAChat) {
  const auto job = Job(R"("prompt_logprobs": 2, "logprobs": true, "top_logprobs": 5)");
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_TRUE(job->common.echo());
  EXPECT_EQ(job->common.logprobs(), 5);
  EXPECT_EQ(job->options.alternatives, 5);
  EXPECT_FALSE(job->options.echo);

  v1::Delta delta;
  for (const int32_t id : {5, 6}) {
    delta.add_tokens(id);
    delta.add_logprobs();
  }
  v1::TokenLogprob& scored = *delta.mutable_logprobs(1);
  scored.set_logprob(-2);
  scored.set_rank(4);
  for (const int32_t id : {7, 8, 9}) scored.add_top()->set_token(id);
  scored.mutable_top(0)->set_logprob(-0.5f);
  Answer answer;
  answer.choices.resize(1);
  answer.echoes.resize(1);
  AppendPromptLogprobs(delta, 2, nullptr, &answer.echoes[0].prompt_logprobs);
  const auto body = nlohmann::json::parse(NewChatForm(job->options, {})->Whole(&answer));
  EXPECT_EQ(body.at("prompt_logprobs"), nlohmann::json::parse(R"([null, {
      "6": {"logprob": -2.0, "rank": 4, "decoded_token": "token_id:6"},
      "7": {"logprob": -0.5, "rank": 1, "decoded_token": "token_id:7"},
      "8": {"logprob": 0.0, "rank": 2, "decoded_token": "token_id:8"}}])"));
  EXPECT_FALSE(body.at("choices").at(0).contains("prompt_logprobs"));
}

}  // namespace
}  // namespace polysketch
