#include "clients/cpp/completion_json.h"

#include "gtest/gtest.h"

namespace polysketch {
namespace {

v1::Delta DeltaOf(int choice, const std::string& text, int32_t token) {
  v1::Delta delta;
  delta.set_choice(choice);
  delta.set_text(text);
  delta.add_tokens(token);
  return delta;
}

v1::ChoiceFinish EndOf(int choice) {
  v1::ChoiceFinish finish;
  finish.set_choice(choice);
  finish.set_text("!");
  finish.set_reason(v1::FINISH_REASON_STOP);
  finish.set_seed(18446744073709551615u);
  finish.set_completion_tokens(1);
  return finish;
}

// 2^53 + 1 is the first integer that readers with float64 numbers round.
TEST(CompletionJson, SeedsAreStrings) {
  CompletionJson json((v1::CompleteRequest()));
  v1::Finish finish;
  finish.set_seed(9007199254740993u);
  EXPECT_EQ(json.Finish(finish).at("seed"), "9007199254740993");
  EXPECT_EQ(FinishToJson(finish).at("seed"), "9007199254740993");
  EXPECT_EQ(MessageToJson(finish).at("seed"), "9007199254740993");
  EXPECT_EQ(ChoiceFinishToJson(EndOf(0), CompletionFields{v1::CompleteRequest()}).at("seed"),
            "18446744073709551615");
}

TEST(CompletionJson, HasLogprobSumsOnlyIfTheServerComputesThem) {
  v1::CompleteRequest plain, with_logprobs, ranked;
  for (v1::CompleteRequest* request : {&plain, &with_logprobs, &ranked}) request->set_n(2);
  with_logprobs.set_logprobs(0);
  ranked.set_best_of(3);
  const auto has_sum = [](const v1::CompleteRequest& request) {
    CompletionJson json(request);
    json.Add(EndOf(0));
    return json.Finish({}).at("choices").at(0).contains("logprob_sum");
  };
  EXPECT_FALSE(has_sum(plain));
  EXPECT_TRUE(has_sum(with_logprobs));
  EXPECT_TRUE(has_sum(ranked));
}

TEST(CompletionJson, ACancelledCompletionHasWhatArrived) {
  v1::CompleteRequest request;
  CompletionJson one(request);
  one.Add(DeltaOf(0, "It ", 5));
  one.Add(DeltaOf(0, "was", 6));
  EXPECT_EQ(one.Cancel(), Json::parse(R"({"text": "It was", "finish_reason": "cancelled",
                            "usage": {"completion_tokens": 2}, "tokens": [5, 6]})"));

  request.set_n(2);
  CompletionJson several(request);
  several.Add(DeltaOf(1, "a", 5));
  several.Add(DeltaOf(0, "b", 6));
  several.Add(EndOf(1));
  const Json json = several.Cancel();
  EXPECT_EQ(json.at("usage").at("completion_tokens"), 2);
  EXPECT_EQ(json.at("choices").at(0),
            Json::parse(R"({"choice": 0, "text": "b", "finish_reason": "cancelled",
                            "tokens": [6]})"));
  EXPECT_EQ(json.at("choices").at(1),
            Json::parse(R"({"choice": 1, "text": "a!", "finish_reason": "stop",
                            "seed": "18446744073709551615", "completion_tokens": 1,
                            "tokens": [5]})"));
}

}  // namespace
}  // namespace polysketch
