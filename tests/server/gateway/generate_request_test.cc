// GenerateRequest of vllm.grpc.engine as CompleteRequest: what a field becomes, and what is
// refused.
#include "server/gateway/generate_request.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

#include "server/convert/status_map.h"

namespace polysketch {
namespace {

constexpr RequestRules kRules = {.bos_id = 1, .vocab_size = 100, .max_prompt_tokens = 50};

vllm_engine::GenerateRequest Parsed(const std::string& text) {
  vllm_engine::GenerateRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

Result<v1::CompleteRequest> Convert(const std::string& text, RequestRules rules = kRules) {
  return ToCompleteRequest(Parsed(text), rules);
}

std::string Error(const std::string& text) { return Convert(text).status().ToString(); }

TEST(GenerateRequestTest, EveryFieldArrives) {
  const auto got = Convert(R"(
    tokenized { input_ids: 5 input_ids: 6 }
    sampling_params {
      temperature: 0.5 top_p: 0.25 top_k: 7 min_p: 0.125 frequency_penalty: 1 presence_penalty: -1
      repetition_penalty: 1.5 max_tokens: 9 stop: "a" stop: "b" stop_token_ids: 3 ignore_eos: true n: 2
      logprobs: 4 seed: 11 include_stop_str_in_output: true logit_bias { key: 8 value: -2 }
      skip_special_tokens: true spaces_between_special_tokens: true grammar_from_first_token: true
    })");
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  v1::CompleteRequest want;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    prompt { tokens { ids: 5 ids: 6 } }
    sampling {
      temperature: 0.5 top_p: 0.25 top_k: 7 min_p: 0.125 frequency_penalty: 1 presence_penalty: -1
      repetition_penalty: 1.5 seed: 11 logit_bias { key: 8 value: -2 }
    }
    max_tokens: 9 stop: "a" stop: "b" stop_token_ids: 3 ignore_eos: true include_stop_in_output: true
    n: 2 logprobs: 4 echo: false)",
                                                            &want));
  EXPECT_EQ(got->DebugString(), want.DebugString());
}

TEST(GenerateRequestTest, ZeroIsUnset) {
  const auto got = Convert(R"(text: "a" sampling_params {})");
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->prompt().text(), "a");
  EXPECT_FALSE(got->sampling().has_temperature());
  EXPECT_FALSE(got->sampling().has_top_p());
  EXPECT_FALSE(got->sampling().has_top_k());
  EXPECT_FALSE(got->sampling().has_min_p());
  EXPECT_FALSE(got->sampling().has_repetition_penalty());
  EXPECT_FALSE(got->sampling().has_seed());
  EXPECT_FALSE(got->has_n());
  EXPECT_FALSE(got->has_max_tokens());
  EXPECT_FALSE(got->has_logprobs());
}

TEST(GenerateRequestTest, BosPrecedesAPromptThatLacksIt) {
  RequestRules rules = kRules;
  rules.add_bos = true;
  const auto ids = [&](const std::string& text) {
    const auto got = Convert(text, rules);
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    const auto& found = got->prompt().tokens().ids();
    return std::vector<int32_t>(found.begin(), found.end());
  };
  EXPECT_EQ(ids("tokenized { input_ids: 5 }"), (std::vector<int32_t>{1, 5}));
  EXPECT_EQ(ids("tokenized { input_ids: 1 input_ids: 5 }"), (std::vector<int32_t>{1, 5}));
  EXPECT_EQ(ids("tokenized {}"), (std::vector<int32_t>{1}));
}

TEST(GenerateRequestTest, LogprobsOfPromptAndOutput) {
  const std::string text =
      R"(text: "a" stream: true sampling_params { prompt_logprobs: 5 logprobs: 2 })";
  const auto got = Convert(text);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_TRUE(got->echo());
  EXPECT_EQ(got->logprobs(), 5);  // the greater; the responses hold what each asks for
  const GenerateForm form = FormOf(Parsed(text));
  EXPECT_TRUE(form.stream);
  EXPECT_EQ(form.logprobs, 2);
  EXPECT_EQ(form.prompt_logprobs, 5);
  EXPECT_EQ(FormOf(Parsed(R"(text: "a")")).logprobs, std::nullopt);
}

TEST(GenerateRequestTest, WhatTheServerLacksIsRefusedByName) {
  const std::string none = ": expected none: this server does not support it";
  const auto field = [&](const std::string& name) {
    return StrCat("INVALID_ARGUMENT: ", name, none);
  };
  EXPECT_EQ(Error(R"(text: "a" kv_transfer_params {})"), field("kv_transfer_params"));
  EXPECT_EQ(Error(R"(text: "a" kv_transfer_params_json: "{}")"), field("kv_transfer_params_json"));
  EXPECT_EQ(Error(R"(text: "a" mm_inputs {})"), field("mm_inputs"));
  EXPECT_EQ(Error(R"(text: "a" extra_mm_inputs {})"), field("extra_mm_inputs"));
  EXPECT_EQ(Error(R"(text: "a" media_refs {})"), field("media_refs"));
  EXPECT_EQ(Error(R"(text: "a" data_parallel_rank: 1)"), field("data_parallel_rank"));
  EXPECT_EQ(Convert(R"(text: "a" sampling_params { min_tokens: 1 })")->min_tokens(), 1);
  EXPECT_EQ(Error(R"(text: "a" sampling_params { truncate_prompt_tokens: 1 })"),
            field("sampling_params.truncate_prompt_tokens"));
  EXPECT_EQ(Error(R"(text: "a" sampling_params { structural_tag: "a" })"),
            field("sampling_params.structural_tag"));
}

TEST(GenerateRequestTest, Constraints) {
  const auto output = [](const std::string& constraint) {
    return Convert(StrCat(R"(text: "a" sampling_params { )", constraint, " }"))
        ->structured_output()
        .ShortDebugString();
  };
  EXPECT_EQ(output(R"(json_schema: "{}")"), R"(json_schema: "{}")");
  EXPECT_EQ(output("json_object: true"), "json_object: true");
  EXPECT_EQ(output(R"(regex: "a+")"), R"(regex: "a+")");
  EXPECT_EQ(output(R"(grammar: "root ::= x")"), R"(ebnf: "root ::= x")");
  EXPECT_EQ(output(R"(choice { choices: "a" choices: "b" })"),
            R"(choice { texts: "a" texts: "b" })");
  EXPECT_FALSE(Convert(R"(text: "a")")->has_structured_output());
  EXPECT_EQ(NameGenerateFields(InvalidArgument("structured_output: no")).message(),
            "sampling_params.constraint: no");
}

TEST(GenerateRequestTest, ValuesThatNoFieldHoldsAreRefused) {
  EXPECT_EQ(Error(""), "INVALID_ARGUMENT: input: expected tokenized or text, found neither");
  EXPECT_EQ(Error("tokenized { input_ids: 5 input_ids: 100 }"),
            "INVALID_ARGUMENT: tokenized.input_ids[1]: expected an id in [0, 100), found 100");
  EXPECT_EQ(Error(R"(text: "a" sampling_params { logprobs: -1 })"),
            "INVALID_ARGUMENT: sampling_params.logprobs: expected 0 to 20, found -1");
  EXPECT_EQ(Error(R"(text: "a" sampling_params { prompt_logprobs: -1 logprobs: 3 })"),
            "INVALID_ARGUMENT: sampling_params.prompt_logprobs: expected 0 to 20, found -1");
  EXPECT_EQ(Error(R"(text: "a" sampling_params { max_tokens: 4294967295 })"),
            "INVALID_ARGUMENT: sampling_params.max_tokens: expected at most 2147483647, found "
            "4294967295");
}

TEST(GenerateRequestTest, ErrorsOfACompletionNameTheFieldsOfAGeneration) {
  const auto named = [](const std::string& message) {
    return NameGenerateFields(InvalidArgument(message)).message();
  };
  EXPECT_EQ(named("sampling.top_p: x"), "sampling_params.top_p: x");
  EXPECT_EQ(named("prompt: x"), "tokenized.input_ids: x");
  EXPECT_EQ(named("prompt.text: x"), "text: x");
  EXPECT_EQ(named("stop_token_ids[0]: x"), "sampling_params.stop_token_ids[0]: x");
  EXPECT_EQ(named("n: x"), "sampling_params.n: x");
  EXPECT_EQ(named("stop[1]: x"), "sampling_params.stop[1]: x");
  EXPECT_EQ(named("structured_output: x"), "sampling_params.constraint: x");
  EXPECT_EQ(named("nothing: x"), "nothing: x");
  EXPECT_EQ(NameGenerateFields(FailedPrecondition("prompt: x")).message(), "prompt: x");
}

}  // namespace
}  // namespace polysketch
