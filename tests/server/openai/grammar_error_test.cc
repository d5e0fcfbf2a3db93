#include "gtest/gtest.h"
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

TEST(OutputField, IsTheOneThatConstrains) {
  const auto field = [](const char* body) { return OutputField(nlohmann::json::parse(body)); };
  EXPECT_EQ(field(R"({"guided_json": "{}"})"), "guided_json");
  EXPECT_EQ(field(R"({"response_format": {"type": "json_object"}})"), "response_format");
  EXPECT_EQ(field(R"({"response_format": {"json_schema": {"schema": "{}"}}})"),
            "response_format.json_schema.schema");
  EXPECT_EQ(field(R"({"structured_outputs": {"choice": ["a"]}})"), "structured_outputs.choice");
  EXPECT_EQ(field(R"({"guided_json": null, "text": [1], "response_format": "x"})"),
            "response_format");
  EXPECT_EQ(field(R"({"prompt": "x"})"), "");
}

TEST(NameGrammarField, NamesTheFieldOfTheRequest) {
  const GrammarFields fields{.output = "guided_json",
                             .tools = {"tools[0].parameters", "tools[2].parameters"}};
  const auto name = [&](const char* message) { return NameGrammarField(message, fields); };
  EXPECT_EQ(name("structured_output: /type: expected x"), "guided_json: /type: expected x");
  EXPECT_EQ(name("structured_output: expected x"), "guided_json: expected x");
  EXPECT_EQ(name("structured_output.choice[1]: expected x"), "guided_json[1]: expected x");
  EXPECT_EQ(name("structured_output.choice: expected x"), "guided_json: expected x");
  EXPECT_EQ(name("structured_output: /format/elements/1/json_schema/type: expected x"),
            "guided_json: /type: expected x");
  EXPECT_EQ(name("structured_output: /format/elements/1/json_schema: expected x"),
            "guided_json: expected x");
  EXPECT_EQ(name("structured_output: /format/elements/1/pattern: expected x"),
            "guided_json: expected x");
  EXPECT_EQ(name("structured_output: /format/tags/1/content/json_schema/type: expected x"),
            "tools[2].parameters: /type: expected x");
  EXPECT_EQ(name("structured_output: /format/tags/0/content/tags/0/content/json_schema/properties/"
                 "tags/1/json_schema: expected x"),
            "tools[0].parameters: /properties/tags/1/json_schema: expected x");
  EXPECT_EQ(name("structured_output: /format/tags/9/content: expected x"),
            "guided_json: expected x");
  EXPECT_EQ(name("sampling.top_p: expected x"), "sampling.top_p: expected x");
  EXPECT_EQ(NameGrammarField("structured_output: expected x", {}), "structured_output: expected x");
}

}  // namespace
}  // namespace polysketch
