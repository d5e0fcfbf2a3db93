#include "server/openai/other_parameters.h"

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "server/net/ignored_parameters.h"
#include "server/openai/completion_request.h"
#include "server/openai/json_fields.h"
#include "server/openai/structured_output.h"
#include "tests/testing/environment.h"

namespace polysketch {
namespace {

Result<CompletionJob> Job(const std::string& more) {
  const auto body = ParseCompletionBody(R"({"prompt": "x", )" + more + "}");
  EXPECT_TRUE(body.ok()) << body.status().ToString() << more;
  return ToCompletionJob(*body);
}
std::string FieldError(const std::string& more) {
  const auto job = Job(more);
  return job.ok() ? "" : job.status().message();
}
uint64_t Ignored(const std::string& name) {
  const auto counts = IgnoredParameters();
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

TEST(OtherParameters, EachHasOneEntryAndIsDocumented) {
  std::ifstream file(testing::SourceDir() / "docs/openai-api.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  std::set<std::string_view> names;
  for (const OtherParameter& other : OtherParameters()) {
    EXPECT_TRUE(names.insert(other.name).second) << other.name;
    EXPECT_NE(docs.find("`" + std::string(other.name) + "`"), std::string::npos) << other.name;
  }
}

// An endpoint that does not read a parameter of another refuses or ignores it by name: a name that
// no table has would be accepted in silence.
TEST(OtherParameters, HaveThoseOfEveryEndpoint) {
  std::ifstream file(testing::SourceDir() / "docs/openai-api.md");
  const std::string docs{std::istreambuf_iterator<char>(file), {}};
  const size_t begin = docs.find("| parameter | completions |"),
               end = docs.find("| of an answer |");
  ASSERT_LT(begin, end);
  std::istringstream table(docs.substr(begin, end - begin));
  std::set<std::string> names;
  const std::regex quoted("`([a-z_]+)`");
  for (std::string line; std::getline(table, line);) {
    if (!line.starts_with("| ")) continue;
    const std::string cell = line.substr(0, line.find(" | ", 2));
    for (std::sregex_iterator i(cell.begin(), cell.end(), quoted), last; i != last; ++i)
      names.insert((*i)[1]);
  }
  EXPECT_GT(names.size(), 60u);
  // Members of others, and what all endpoints read.
  for (const char* common : {"include_usage",
                             "continuous_usage_stats",
                             "include_obfuscation",
                             "summary",
                             "json_object",
                             "json_schema",
                             "model",
                             "temperature",
                             "top_p",
                             "seed",
                             "presence_penalty",
                             "frequency_penalty",
                             "logit_bias",
                             "stop",
                             "stream",
                             "top_k",
                             "min_p",
                             "repetition_penalty",
                             "stop_token_ids",
                             "ignore_eos",
                             "include_stop_str_in_output",
                             "skip_special_tokens",
                             "priority",
                             "draft_tokens",
                             "min_tokens",
                             "bad_words",
                             "allowed_token_ids",
                             "spaces_between_special_tokens",
                             "guided_json",
                             "guided_regex",
                             "guided_choice",
                             "guided_grammar",
                             "structured_outputs",
                             "cache",
                             "cache_salt",
                             "request_id"})
    names.erase(common);
  for (const OtherParameter& other : OtherParameters()) names.erase(std::string(other.name));
  EXPECT_EQ(names, std::set<std::string>());
}

TEST(OtherParameters, FalseIsOffUnlessTheDefaultIsTrue) {
  EXPECT_EQ(FieldError(R"("parallel_tool_calls": true)"), "");
  EXPECT_NE(FieldError(R"("parallel_tool_calls": false)"), "");
  EXPECT_NE(FieldError(R"("include_reasoning": false)"), "");
  EXPECT_EQ(FieldError(R"("continue_final_message": false)"), "");
  EXPECT_NE(FieldError(R"("continue_final_message": true)"), "");
  EXPECT_EQ(FieldError(R"("thinking": {"type": "disabled"}, "top_logprobs": 0)"), "");
  EXPECT_NE(FieldError(R"("top_logprobs": 3)"), "");
}

TEST(OtherParameters, ThoseWithoutAnEffectAreIgnored) {
  const uint64_t before = Ignored("id_slot"), unknown = Ignored("frobnicate");
  EXPECT_EQ(FieldError(R"("id_slot": 3, "user": "me", "store": true, "frobnicate": {"a": 1})"), "");
  EXPECT_EQ(Ignored("id_slot"), before + 1);
  EXPECT_EQ(Ignored("frobnicate"), unknown + 1);
  // Null counts as absent.
  EXPECT_EQ(FieldError(R"("id_slot": null)"), "");
  EXPECT_EQ(Ignored("id_slot"), before + 1);
}

TEST(OtherParameters, OneObjectHasAFewThatAreNotKnown) {
  std::string many = R"("f0": 1)";
  for (int i = 1; i < kMaxUnreadFields; ++i) many += StrCat(", \"f", i, "_unknown\": 1");
  EXPECT_EQ(FieldError(many), "");
  EXPECT_NE(FieldError(many + R"(, "zz_unknown": 1)").find("expected at most 1000 fields"),
            std::string::npos);
}

TEST(OtherParameters, ThoseThatWouldChangeAnOutputAreRefused) {
  EXPECT_EQ(FieldError(R"("mirostat": 2)"),
            "mirostat: expected none: the server has no such sampler");
  EXPECT_EQ(FieldError(R"("messages": [{"role": "user"}])"),
            "messages: expected none: it is a parameter of another endpoint");
  EXPECT_EQ(FieldError(R"("truncation_side": "right")"),
            "truncation_side: expected none: a prompt that is truncated keeps its last tokens");
  for (const char* const off :
       {R"("mirostat": 0, "mirostat_tau": 5.0)", R"("typical_p": 1.0)", R"("typical_p": 1)",
        R"("use_beam_search": false)", R"("lora": [])", R"("suffix": "")", R"("tools": [])",
        R"("tool_choice": "auto")", R"("top_n_sigma": -1.0)", R"("min_tokens": 0)",
        R"("truncation_side": "left", "n_cmpl": 1, "reasoning_budget_tokens": -1)"})
    EXPECT_EQ(FieldError(off), "") << off;
}

TEST(OtherParameters, NamesThatResembleOthersAreMistakes) {
  EXPECT_NE(FieldError(R"("max_token": 5)").find("max_tokens was perhaps meant"),
            std::string::npos);
  EXPECT_NE(FieldError(R"("tmeperature": 5)").find("temperature was perhaps"), std::string::npos);
  EXPECT_NE(FieldError(R"("top-p": 1)").find("top_p was perhaps meant"), std::string::npos);
  EXPECT_EQ(FieldError(R"("provider": 5, "x": 1, "id": 2)"), "");
}

TEST(OtherParameters, StrictRefusesAllOfThem) {
  SetStrictParameters(true);
  for (const char* const name : {"user", "frobnicate", "id_slot"}) {
    EXPECT_EQ(FieldError(std::string("\"") + name + "\": 5"),
              std::string(name) +
                  ": expected a parameter with an effect, found one that the "
                  "server does not read (--strict-parameters)");
  }
  EXPECT_EQ(FieldError(R"("stream": true, "stream_options": {"include_obfuscation": true})")
                .find("stream_options.include_obfuscation: expected a parameter with an effect"),
            0u);
  EXPECT_EQ(FieldError(R"("temperature": 0, "mirostat": 0)"), "");
  SetStrictParameters(false);
}

TEST(OtherParameters, CountsAreBounded) {
  for (int i = 0; i < 300; ++i) CountIgnoredParameter("name" + std::to_string(i));
  CountIgnoredParameter(std::string(1000, 'a'));
  const auto counts = IgnoredParameters();
  EXPECT_LE(counts.size(), kMaxIgnoredNames + 1);
  EXPECT_GE(Ignored("other"), 200u);
  for (const auto& [name, count] : counts) EXPECT_LE(name.size(), kMaxIgnoredNameBytes);
}

TEST(OtherNames, OfLlamaCpp) {
  const auto job = Job(
      R"("n_predict": 7, "repeat_penalty": 1.5, "cache_prompt": false, "json_schema": {"const": 1})");
  ASSERT_TRUE(job.ok()) << job.status().ToString();
  EXPECT_EQ(job->common.max_tokens(), 7);
  EXPECT_EQ(job->common.sampling().repetition_penalty(), 1.5f);
  EXPECT_FALSE(job->common.cache().read());
  EXPECT_EQ(job->common.structured_output().json_schema(), R"({"const":1})");
  EXPECT_EQ(Job(R"("grammar": "root ::= \"a\"")")->common.structured_output().ebnf(),
            "root ::= \"a\"");
  EXPECT_FALSE(Job(R"("n_predict": -1)")->common.has_max_tokens());
  EXPECT_EQ(Job(R"("n_predict": 3, "max_tokens": 5)")->common.max_tokens(), 5);
  EXPECT_EQ(FieldError(R"("max_tokens": -1)"), "max_tokens: expected 0 to 2147483647, found -1");
  EXPECT_EQ(FieldError(R"("repeat_penalty": 1.5, "repeat_last_n": 64)"),
            "repeat_last_n: expected -1 beside a penalty, found 64");
  EXPECT_EQ(FieldError(R"("repeat_penalty": 1.0, "repeat_last_n": 64)"), "");
}

TEST(TokenIds, OfPromptsThatAreTexts) {
  const auto tokenizer =
      Tokenizer::Load((testing::SourceDir() / "models/demo/tokenizer.model").string());
  ASSERT_TRUE(tokenizer.ok());
  ServedModel model;
  model.rules.tokenizer = tokenizer->get();
  model.rules.add_bos = true;
  model.rules.bos_id = (*tokenizer)->bos_id();
  model.rules.max_prompt_tokens = 3;
  const auto ids = [&](const std::string& more) {
    const auto body =
        ParseCompletionBody(R"({"prompt": ["It was late", [5, 6, 7, 8]], )" + more + "}");
    const auto job = ToCompletionJob(*body, &model);
    EXPECT_TRUE(job.ok()) << job.status().ToString();
    std::vector<std::vector<int32_t>> all;
    for (const v1::Prompt& prompt : job->prompts)
      all.emplace_back(prompt.tokens().ids().begin(), prompt.tokens().ids().end());
    return all;
  };
  std::vector<int32_t> text = *(*tokenizer)->Encode("It was late");
  EXPECT_EQ(ids(R"("add_special_tokens": false)")[0], text);
  text.insert(text.begin(), (*tokenizer)->bos_id());
  EXPECT_EQ(ids(R"("return_token_ids": true)")[0], text);
  const std::vector<std::vector<int32_t>> cut = ids(R"("truncate_prompt_tokens": 2)");
  EXPECT_EQ(cut[0], std::vector<int32_t>(text.end() - 2, text.end()));
  EXPECT_EQ(cut[1], (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(ids(R"("truncate_prompt_tokens": -1)")[1], (std::vector<int32_t>{6, 7, 8}));
  // Without these the call makes the ids.
  EXPECT_EQ(ids(R"("truncate_prompt_tokens": null)")[0], std::vector<int32_t>());
  EXPECT_NE(FieldError(R"("truncate_prompt_tokens": 0)"), "");
}

}  // namespace
}  // namespace polysketch
