// `truncation` of responses.
#include <gmock/gmock.h>

#include "server/openai/responses_request.h"
#include "tests/server/openai/chat_fixture.h"

namespace polysketch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Truncation : public testing::ChatModel {
 protected:
  void SetUp() override {
    ChatModel::SetUp();
    UseTemplate(
        "{%- for m in messages %}{{- bos_token + m.role + ': ' + m.content + eos_token }}"
        "{%- endfor %}{{- bos_token + 'assistant:' }}");
  }
  Result<ResponseJob> Respond(const std::string& truncation, int max_tokens) {
    const auto body = ParseCompletionBody(StrCat(
        R"({"instructions": "Be kind", "input": [{"role": "user", "content": "first words"},
            {"role": "assistant", "content": "one"}, {"role": "user", "content": "second words"},
            {"role": "assistant", "content": "two"}, {"role": "user", "content": "third words"}],
            "max_output_tokens": )",
        max_tokens, truncation, "}"));
    EXPECT_TRUE(body.ok()) << body.status().ToString();
    return ToResponseJob(*body, model_);
  }
  static int Tokens(const ResponseJob& job) { return job.job.common.prompt().tokens().ids_size(); }
  std::string Text(const ResponseJob& job) const {
    const auto& ids = job.job.common.prompt().tokens().ids();
    std::string text;
    IncrementalDecoder decoder(tokenizer_.get(), /*continued=*/false);
    for (const int32_t id : ids) text += decoder.Append(id);
    return text;
  }
};

TEST_F(Truncation, DropsAsFewOfTheOldestTurnsAsMayBe) {
  const std::string automatic = R"(, "truncation": "auto")";
  const auto whole = Respond(automatic, 10);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  const int all = Tokens(*whole);
  EXPECT_EQ(Tokens(*Respond("", 10)), all);

  model_.description.set_context_limit(all + 10);
  EXPECT_EQ(Tokens(*Respond(automatic, 10)), all);
  // A token more than there is room for: the first turn goes, and the instructions stay.
  const auto less = Respond(automatic, 11);
  ASSERT_TRUE(less.ok()) << less.status().ToString();
  EXPECT_LT(Tokens(*less), all);
  EXPECT_THAT(Text(*less), HasSubstr("Be kind"));
  EXPECT_THAT(Text(*less), Not(HasSubstr("first words")));
  EXPECT_THAT(Text(*less), Not(HasSubstr("one")));
  EXPECT_THAT(Text(*less), HasSubstr("second words"));
  EXPECT_THAT(Text(*less), HasSubstr("third words"));
  // The last turn stays, even if it does not fit: the engine refuses it then.
  const auto last = Respond(automatic, all + 10);
  ASSERT_TRUE(last.ok());
  EXPECT_THAT(Text(*last), Not(HasSubstr("second words")));
  EXPECT_THAT(Text(*last), HasSubstr("third words"));
  // Without it nothing is dropped.
  EXPECT_EQ(Tokens(*Respond("", 11)), all);
  EXPECT_EQ(Tokens(*Respond(R"(, "truncation": "disabled")", 11)), all);
}

// Templates that take neither tools nor messages of the system get the tools in the first message
// of the user.
TEST_F(Truncation, KeepsTheDescriptionOfTools) {
  UseTemplate(
      "{%- if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
      "{%- for m in messages %}{{- bos_token + m.role + ': ' + m.content + eos_token }}"
      "{%- endfor %}{{- bos_token + 'assistant:' }}");
  const auto respond = [&](int64_t limit) {
    model_.description.set_context_limit(limit);
    const auto body = ParseCompletionBody(
        R"({"input": [{"role": "user", "content": "first words"},
            {"type": "function_call", "call_id": "a", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "noon"},
            {"role": "assistant", "content": "one"}, {"role": "user", "content": "second words"}],
            "tools": [{"type": "function", "name": "clock"}], "max_output_tokens": 1,
            "truncation": "auto"})");
    return ToResponseJob(*body, model_);
  };
  const auto whole = respond(0);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  EXPECT_THAT(Text(*whole), HasSubstr("noon"));
  const auto less = respond(Tokens(*whole));
  ASSERT_TRUE(less.ok()) << less.status().ToString();
  EXPECT_THAT(Text(*less), Not(HasSubstr("first words")));
  EXPECT_THAT(Text(*less), Not(HasSubstr("noon")));
  EXPECT_THAT(Text(*less), HasSubstr("You can call the following tools"));
  EXPECT_THAT(Text(*less), HasSubstr("second words"));
}

TEST_F(Truncation, IsRepeatedAndChecked) {
  EXPECT_THAT(Respond(R"(, "truncation": "auto")", 1)->echo, HasSubstr(R"("truncation":"auto")"));
  EXPECT_THAT(Respond("", 1)->echo, HasSubstr(R"("truncation":"disabled")"));
  EXPECT_THAT(Respond(R"(, "truncation": "some")", 1).status().message(),
              HasSubstr("truncation: expected auto or disabled"));
  EXPECT_THAT(Respond(R"(, "background": true)", 1).status().message(),
              HasSubstr("background: expected none"));
  EXPECT_TRUE(Respond(R"(, "background": false)", 1).ok());
}

}  // namespace
}  // namespace polysketch
