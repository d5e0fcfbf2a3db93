#include "server/openai/completion_request.h"
#include "server/openai/chat_request.h"

#include "gtest/gtest.h"
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

Result<CompletionJob> Parse(const std::string& body) {
  PS_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(body));
  return ToCompletionJob(json);
}

std::string ErrorOf(const std::string& body) {
  const Result<CompletionJob> job = Parse(body);
  return job.ok() ? "" : job.status().message();
}

TEST(CompletionRequest, DefaultsAreOpenAis) {
  const Result<CompletionJob> job = Parse(R"({"model": "m", "prompt": "x"})");
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  ASSERT_EQ(job->calls(), 1u);
  const v1::CompleteRequest request = job->Request(0);
  EXPECT_EQ(request.prompt().text(), "x");
  EXPECT_EQ(request.max_tokens(), 16);
  EXPECT_EQ(request.n(), 1);
  EXPECT_FALSE(request.has_best_of());
  EXPECT_FALSE(request.has_logprobs());
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_EQ(job->options.model, "m");
  EXPECT_FALSE(job->options.stream);
}

TEST(CompletionRequest, EveryParameterArrives) {
  const Result<CompletionJob> job = Parse(R"({
      "prompt": [[5, 6], [7]], "max_tokens": 3, "temperature": 0.5, "top_p": 0.25, "top_k": 4, "min_p": 0.125,
      "n": 2, "best_of": 3, "logprobs": 5, "echo": true, "stop": ["a", "b"], "stop_token_ids": [9], "seed": -1,
      "presence_penalty": 1, "frequency_penalty": -1.5, "repetition_penalty": 2, "logit_bias": {"8": -100},
      "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true, "user": "someone",
      "include_stop_str_in_output": true, "skip_special_tokens": false,
      "spaces_between_special_tokens": true, "priority": -2, "draft_tokens": 1, "session": "s",
      "expected_position": 12, "cache": {"read": false, "write": true, "points": [1, 2]}, "suffix": null})");
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  ASSERT_EQ(job->calls(), 2u);
  EXPECT_EQ(job->Request(1).prompt().tokens().ids_size(), 1);
  const v1::CompleteRequest request = job->Request(0);
  EXPECT_EQ(request.prompt().tokens().ids(1), 6);
  EXPECT_EQ(request.max_tokens(), 3);
  EXPECT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().top_p(), 0.25f);
  EXPECT_EQ(request.sampling().top_k(), 4);
  EXPECT_EQ(request.sampling().min_p(), 0.125f);
  EXPECT_EQ(request.sampling().presence_penalty(), 1);
  EXPECT_EQ(request.sampling().frequency_penalty(), -1.5f);
  EXPECT_EQ(request.sampling().repetition_penalty(), 2);
  EXPECT_EQ(request.sampling().logit_bias().at(8), -100);
  EXPECT_EQ(request.sampling().seed(), ~uint64_t{0});
  EXPECT_EQ(request.n(), 2);
  EXPECT_EQ(request.best_of(), 3);
  EXPECT_EQ(request.logprobs(), 5);
  EXPECT_TRUE(request.echo());
  EXPECT_EQ(request.stop(1), "b");
  EXPECT_EQ(request.stop_token_ids(0), 9);
  EXPECT_TRUE(request.ignore_eos());
  EXPECT_TRUE(request.include_stop_in_output());
  EXPECT_TRUE(request.has_skip_special_tokens() && !request.skip_special_tokens());
  EXPECT_EQ(request.priority(), -2);
  EXPECT_EQ(request.draft_tokens(), 1);
  EXPECT_EQ(request.session(), "s");
  EXPECT_EQ(request.expected_position(), 12);
  EXPECT_FALSE(request.cache().read());
  EXPECT_EQ(request.cache().points(1), 2);
  EXPECT_TRUE(job->options.stream);
  EXPECT_TRUE(job->options.include_usage);
  EXPECT_TRUE(job->options.logprobs);
  EXPECT_EQ(job->options.choices, 2);
}

TEST(CompletionRequest, RulesOfTokensAndSalts) {
  const auto job = Parse(R"({"prompt": "x", "min_tokens": 3, "bad_words": ["no", "never"],
      "allowed_token_ids": [5, 6], "cache_salt": "s"})");
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_EQ(job->common.min_tokens(), 3);
  EXPECT_EQ(job->common.sampling().bad_words(1), "never");
  EXPECT_EQ(job->common.sampling().allowed_token_ids(1), 6);
  EXPECT_EQ(job->common.cache().salt(), "s");
  EXPECT_EQ(ErrorOf(R"({"prompt": "x", "min_tokens": null, "bad_words": null,
      "allowed_token_ids": null, "cache_salt": null})"),
            "");
  EXPECT_EQ(ErrorOf(R"({"prompt": "x", "min_tokens": -1})"),
            "min_tokens: expected 0 to 2147483647, found -1");
  EXPECT_EQ(ErrorOf(R"({"prompt": "x", "allowed_token_ids": []})"),
            "allowed_token_ids: expected at least one id, found none");
  EXPECT_EQ(ErrorOf(R"({"prompt": "x", "cache_salt": ""})"),
            "cache_salt: expected at least one byte, found none");
  for (const char* const wrong :
       {R"("bad_words": [5])", R"("allowed_token_ids": ["a"])", R"("cache_salt": 5)"})
    EXPECT_NE(ErrorOf(StrCat(R"({"prompt": "x", )", wrong, "}")), "") << wrong;
}

TEST(CompletionRequest, FormsOfThePrompt) {
  EXPECT_EQ(Parse(R"({"prompt": ["a", "b", "c"]})")->calls(), 3u);
  EXPECT_EQ(Parse(R"({"prompt": [1, 2, 3]})")->calls(), 1u);
  EXPECT_EQ(Parse(R"({"prompt": ["a", [1]]})")->Request(1).prompt().tokens().ids(0), 1);
  EXPECT_FALSE(Parse(R"({"session": "s"})")->Request(0).has_prompt());
  EXPECT_EQ(Parse(R"({"prompt": "x", "top_k": -1})")->Request(0).sampling().top_k(), 0);
  EXPECT_EQ(Parse(R"({"prompt": "x", "stop": "a"})")->Request(0).stop(0), "a");
}

TEST(CompletionRequest, AResumeTokenSaysEverything) {
  const Result<CompletionJob> job = Parse(R"({"resume_token": "t", "stream": true})");
  ASSERT_TRUE(job.ok());
  v1::CompleteRequest expected;
  expected.set_resume_token("t");
  EXPECT_EQ(job->Request(0).SerializeAsString(), expected.SerializeAsString());
}

TEST(CompletionRequest, NestingIsBounded) {
  const auto nested = [](size_t levels) {
    return R"({"prompt": "x]]\\\"]", "metadata": )" + std::string(levels - 1, '[') +
           std::string(levels - 1, ']') + "}";
  };
  EXPECT_EQ(ErrorOf(nested(100)), "");
  EXPECT_EQ(ErrorOf(nested(101)),
            "the body: expected at most 100 levels of arrays and objects, found more");
  EXPECT_EQ(ErrorOf(nested(1'000'000)), ErrorOf(nested(101)));
}

// A schema is passed on as it was written: no number is rounded, no name is moved.
TEST(CompletionRequest, SchemasKeepOrderAndDigits) {
  const std::string schema =
      R"({"properties":{"b":{"const":12345678901234567890123},"a\"]":{"enum":[1.10,"x \\"]}}})";
  const std::string spaced =
      "{\n \"properties\": {\"b\" : {\"const\": 12345678901234567890123 },\t\"a\\\"]\":"
      " {\"enum\": [1.10, \"x \\\\\"]} }}";
  for (const std::string& body :
       {R"({"prompt": "a", "guided_json": )" + spaced + "}",
        R"({"prompt": "}", "structured_outputs" : {"json":)" + spaced + R"(, "regex": null}})",
        R"({"guided_json": {"const": 1}, "prompt": "a", "guided_json":)" + spaced + "}",
        R"({"guided\u005fjson":)" + spaced + R"(,"prompt":"a"})",
        R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": )" +
            spaced + R"(}}, "prompt": "a"})"}) {
    const auto parsed = ParseCompletionBody(body);
    ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
    const auto job = ToCompletionJob(*parsed);
    ASSERT_TRUE(job.ok()) << job.status().ToString() << body;
    EXPECT_EQ(job->Request(0).structured_output().json_schema(), schema) << body;
  }
}

TEST(CompletionRequest, TemplateVariablesKeepTheirOrder) {
  const auto body = ParseCompletionBody(
      R"({"messages": [], "chat_template_kwargs": {"x": {"b": 1, "a": [{"z": " ", "y": 2}]}}})");
  ASSERT_TRUE(body.ok()) << body.status().ToString();
  JsonFields fields(*body, "");
  ChatOptions options;
  ReadTemplateVariables(&fields, &options);
  EXPECT_EQ(options.variables.dump(), R"({"x":{"b":1,"a":[{"z":" ","y":2}]}})");
  for (const char* other : {"[]", "\"{}\"", "1"}) {
    const auto wrong = ParseCompletionBody(StrCat(R"({"chat_template_kwargs": )", other, "}"));
    JsonFields of_wrong(*wrong, "");
    ReadTemplateVariables(&of_wrong, &options);
    EXPECT_FALSE(of_wrong.Finish().ok()) << other;
  }
}

TEST(CompletionRequest, ASchemaMayBeABoolean) {
  for (const std::string schema : {"true", "false"}) {
    for (const std::string& body :
         {R"({"prompt": "a", "guided_json": )" + schema + "}",
          R"({"prompt": "a", "structured_outputs": {"json": )" + schema + "}}",
          R"({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": )" +
              schema + R"( }}, "prompt": "a"})"}) {
      const auto parsed = ParseCompletionBody(body);
      ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
      const auto job = ToCompletionJob(*parsed);
      ASSERT_TRUE(job.ok()) << job.status().ToString() << body;
      EXPECT_EQ(job->Request(0).structured_output().json_schema(), schema) << body;
    }
  }
}

TEST(CompletionRequest, WhiteSpaceIsDisabledForASchemaOfAnyField) {
  for (const std::string format :
       {R"("response_format": {"type": "json_object"})",
        R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}})",
        R"("guided_json": {})"}) {
    for (const bool compact : {false, true}) {
      const auto body = ParseCompletionBody(
          StrCat(R"({"prompt": "a", "structured_outputs": {"disable_any_whitespace": )",
                 compact ? "true" : "false", "}, ", format, "}"));
      ASSERT_TRUE(body.ok()) << body.status().ToString();
      const auto job = ToCompletionJob(*body);
      ASSERT_TRUE(job.ok()) << job.status().ToString();
      EXPECT_EQ(job->Request(0).structured_output().compact_json(), compact) << format;
    }
  }
}

// A schema may be a string, which the checks of the body do not look into.
TEST(CompletionRequest, NestingOfASchemaInAStringIsBounded) {
  const std::string deep(131'000, '[');
  const auto body = ParseCompletionBody(
      R"({"text": {"format": {"type": "json_schema", "schema": ")" + deep + "\"}}}");
  ASSERT_TRUE(body.ok());
  EXPECT_EQ(EchoedText(*body).at("format").at("schema"), deep);
}

// What 256 prompts have in common is there once, and counted for each before it is copied.
TEST(CompletionRequest, ManyPromptsShareTheirFields) {
  std::string prompts;
  for (int i = 0; i < 256; ++i) prompts += i == 0 ? R"("x")" : R"(,"x")";
  const std::string stop(size_t{4} << 20, 's');
  const auto job = Parse(StrCat(R"({"stop": ")", stop, R"(", "prompt": [)", prompts, "]}"));
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->calls(), 256u);
  EXPECT_EQ(job->common.stop(0).size(), stop.size());
  EXPECT_FALSE(job->common.has_prompt());
  const auto each = static_cast<int64_t>(job->Request(255).SpaceUsedLong());
  EXPECT_GE(job->MemoryBytes(), 256 * each);
  EXPECT_LE(job->MemoryBytes(), 256 * (each + 256) + 2 * each);
}

TEST(CompletionRequest, ErrorsNameTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "the body: expected JSON, found an error at byte 1: expected a value"},
      {"{\"prompt\": \"x",
       "the body: expected JSON, found an error at byte 14: expected a character or the end of the "
       "string"},
      {"[]", "the body: expected a JSON object, found an array"},
      {R"({"prompt": NaN})",
       "the body: expected JSON, found an error at byte 12: expected a value"},
      {"{\"prompt\": \"\xff\"}",
       "the body: expected JSON, found an error at byte 13: expected UTF-8"},
      {R"({"prompt": 5})",
       "prompt: expected a string, or an array of strings, of token ids or of arrays of token ids, "
       "found an integer"},
      {R"({"prompt": []})",
       "prompt: expected a string, or an array of strings, of token ids or of arrays of token ids, "
       "found an empty array"},
      {R"({"prompt": [1, "a"]})", "prompt[1]: expected an integer of 32 bits, found a string"},
      {R"({"prompt": [[1, 99999999999]]})",
       "prompt[0][1]: expected an integer of 32 bits, found 99999999999"},
      {R"({"prompt": [18446744073709551615]})",
       "prompt[0]: expected an integer of 32 bits, found 18446744073709551615"},
      {R"({"prompt": "x", "n": 65})", "n: expected 1 to 64, found 65"},
      {R"({"prompt": "x", "spaces_between_special_tokens": 1})",
       "spaces_between_special_tokens: expected true or false, found an integer"},
      {R"({"prompt": "x", "n": 18446744073709551615})",
       "n: expected 1 to 64, found 18446744073709551615"},
      {R"({"prompt": "x", "n": 1.5})", "n: expected an integer, found a number with a fraction"},
      {R"({"prompt": "x", "n": -99999999999999999999})",
       "n: expected an integer, found a number of more than 64 bits"},
      {R"({"prompt": "x", "temperature": "hot"})",
       "temperature: expected a number, found a string"},
      {R"({"prompt": "x", "stream": 1})", "stream: expected true or false, found an integer"},
      {R"({"prompt": "x", "stop": ["a", 1]})", "stop[1]: expected a string, found an integer"},
      {R"({"prompt": "x", "stop": 5})",
       "stop: expected a string or an array of strings, found an integer"},
      {R"({"prompt": "x", "bad_words": [["a"]]})",
       "bad_words[0]: expected a string, found an array"},
      {R"({"prompt": "x", "guided_choice": [null]})",
       "guided_choice[0]: expected a string, found null"},
      {R"({"prompt": "x", "logit_bias": {"a": 1}})",
       "logit_bias: expected token ids as keys, found \"a\""},
      {R"({"prompt": "x", "logit_bias": {"5": "a"}})",
       "logit_bias[5]: expected a number, found a string"},
      {R"({"prompt": "x", "logit_bias": {"5": -1e39}})",
       "logit_bias[5]: expected a number in [-100, 100], found -1e+39"},
      {R"({"prompt": "x", "max_tokens": 9223372036854775808})",
       "max_tokens: expected 0 to 2147483647, found 9223372036854775808"},
      {R"({"prompt": "x", "max_tokens": -1})", "max_tokens: expected 0 to 2147483647, found -1"},
      {R"({"prompt": "x", "n_predict": -2})", "n_predict: expected -1 to 2147483647, found -2"},
      {R"({"prompt": "x", "request_id": "a b"})",
       "request_id: expected an id as x-request-id may be, 1 to 128 of [A-Za-z0-9._:-], found \"a "
       "b\""},
      {R"({"prompt": "x", "logit_bias": [1]})", "logit_bias: expected an object, found an array"},
      {R"({"prompt": "x", "stream_options": {}})",
       "stream_options: expected \"stream\": true beside it"},
      {R"({"prompt": "x", "cache": {"reed": true}})",
       "cache.reed: expected a field of the API, found an unknown one: read was perhaps meant"},
      {R"({"prompt": "x", "temprature": 1})",
       "temprature: expected a field of the API, found an unknown one: temperature was perhaps "
       "meant"},
      {R"({"prompt": "x", "suffix": "y"})",
       "suffix: expected none: the model continues text and does not fill gaps"},
  };
  for (const auto& [body, message] : cases) EXPECT_EQ(ErrorOf(body), message) << body;
}

// They are float64 in JSON, and parameters are float32.
TEST(CompletionRequest, NumbersAreCheckedAsTheyAreWritten) {
  struct Case {
    const char *field, *value, *range;
    const char* found = nullptr;  // as the error writes it; null: as it is
  };
  for (const auto& [field, value, range, found] : std::vector<Case>{
           {"temperature", "1e39", "[0, 100]", "1e+39"},
           {"temperature", "-1e-50", "[0, 100]"},
           {"top_p", "1.0000000001", "(0, 1]"},
           {"top_p", "0", "(0, 1]"},
           {"min_p", "1.0000000001", "[0, 1]"},
           {"repeat_penalty", "1e39", "[0.01, 100]", "1e+39"},
           {"frequency_penalty", "2.0000000001", "[-2, 2]"},
           {"presence_penalty", "-2.0000000001", "[-2, 2]"},
       }) {
    EXPECT_EQ(ErrorOf(StrCat(R"({"prompt": "x", ")", field, "\": ", value, "}")),
              StrCat(field, ": expected a number in ", range, ", found ",
                     found == nullptr ? value : found));
  }
  // Neither greedy nor refused as 0.
  EXPECT_GT(Parse(R"({"prompt": "x", "temperature": 1e-46})")->common.sampling().temperature(), 0);
  EXPECT_GT(Parse(R"({"prompt": "x", "top_p": 1e-50})")->common.sampling().top_p(), 0);
  EXPECT_EQ(Parse(R"({"prompt": "x", "temperature": 0.0})")->common.sampling().temperature(), 0);
}

TEST(CompletionRequest, DeepAndLongBodiesAreErrors) {
  EXPECT_NE(ErrorOf(std::string(1 << 20, '[')), "");
  EXPECT_NE(ErrorOf(R"({"prompt": )" + std::string(100000, '[') + std::string(100000, ']') + "}"),
            "");
  std::string prompts = R"({"prompt": ["a")";
  for (size_t i = 0; i < kMaxPrompts; ++i) prompts += ", \"a\"";
  EXPECT_EQ(ErrorOf(prompts + "]}"), "prompt: expected at most 256 prompts, found 257");
}

}  // namespace
}  // namespace polysketch
