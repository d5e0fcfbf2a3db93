#include "clients/cpp/conversation.h"

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

using nlohmann::json;

std::string Event(const json& data) {
  return StrCat("event: ", data.value("type", "error"), "\ndata: ", data.dump(), "\n\n");
}
json Delta(const std::string& text) {
  return {{"type", "response.output_text.delta"}, {"delta", text}};
}
json Ended(const std::string& id, const json& output = json::array()) {
  return {{"type", "response.completed"},
          {"response", {{"id", id}, {"error", nullptr}, {"output", output}}}};
}

struct Read {
  std::string shown;
  AnswerStream answer{[this](std::string_view text) { shown += text; }};
};

std::unique_ptr<Read> ReadInPieces(const std::string& bytes, size_t piece) {
  auto read = std::make_unique<Read>();
  for (size_t at = 0; at < bytes.size(); at += piece)
    EXPECT_TRUE(read->answer.Add(std::string_view(bytes).substr(at, piece)).ok());
  return read;
}

TEST(AnswerStream, ShowsPiecesHoweverTheyArrive) {
  const std::string bytes =
      StrCat(": waiting\n\n", Event({{"type", "response.created"}}), Event(Delta("data: 1\n\n")),
             Event(Delta("é")), Event(Ended("resp_7")));
  for (const size_t piece : {1u, 3u, 1000u}) {
    const auto read = ReadInPieces(bytes, piece);
    EXPECT_EQ(read->shown, "data: 1\n\né");
    EXPECT_EQ(read->answer.text(), read->shown);
    EXPECT_EQ(read->answer.id(), "resp_7");
    EXPECT_EQ(read->answer.cut(), "");
    EXPECT_TRUE(read->answer.Finish().ok());
  }
}

TEST(AnswerStream, SaysWhyAnAnswerIsNotWhole) {
  const json cut = {
      {"type", "response.incomplete"},
      {"response", {{"id", "resp_8"}, {"incomplete_details", {{"reason", "max_output_tokens"}}}}}};
  const auto incomplete = ReadInPieces(Event(Delta("a")) + Event(cut), 1000);
  EXPECT_EQ(incomplete->answer.cut(), "max_output_tokens");
  EXPECT_TRUE(incomplete->answer.Finish().ok());

  const auto lost = ReadInPieces(Event(Delta("a")), 1000);
  EXPECT_EQ(lost->answer.Finish().message(), "the server ended the connection before the answer");

  const json failed = {{"type", "response.failed"},
                       {"response", {{"error", {{"message", "the queue is full"}}}}}};
  EXPECT_EQ(ReadInPieces(Event(failed), 7)->answer.Finish().message(), "the queue is full");
  const json error = {{"error", {{"message", "draining"}}}};
  EXPECT_EQ(ReadInPieces(Event(error), 7)->answer.Finish().message(), "draining");

  AnswerStream no_json([](std::string_view) {});
  EXPECT_EQ(no_json.Add("data: {\n\n").code(), Code::kInvalidArgument);
  AnswerStream endless([](std::string_view) {});
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = endless.Add(std::string(1 << 20, 'x'));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
}

json Input(const Conversation& conversation, bool whole = false) {
  return json::parse(conversation.Request(whole)).at("input");
}
json User(const std::string& text) { return {{"role", "user"}, {"content", text}}; }
json Assistant(const std::string& text) { return {{"role", "assistant"}, {"content", text}}; }

TEST(Conversation, ATurnSendsItsLineAlone) {
  Conversation conversation({.system = "Be kind", .temperature = 0.5f, .max_tokens = 9});
  conversation.Say("One?");
  const json first = json::parse(conversation.Request(false));
  EXPECT_EQ(first, json({{"stream", true},
                         {"temperature", 0.5},
                         {"max_output_tokens", 9},
                         {"instructions", "Be kind"},
                         {"input", json::array({User("One?")})}}));
  EXPECT_FALSE(conversation.MustBeWhole(404, ""));

  conversation.Add(ReadInPieces(Event(Delta("1")) + Event(Ended("resp_1")), 99)->answer);
  EXPECT_EQ(conversation.last_id(), "resp_1");
  conversation.Say("Two?");
  const json second = json::parse(conversation.Request(false));
  EXPECT_EQ(second.at("previous_response_id"), "resp_1");
  EXPECT_EQ(second.at("input"), json::array({User("Two?")}));
  EXPECT_EQ(second.at("instructions"), "Be kind");

  const json whole = json::parse(conversation.Request(true));
  EXPECT_FALSE(whole.contains("previous_response_id"));
  EXPECT_EQ(whole.at("input"), json({User("One?"), Assistant("1"), User("Two?")}));

  const auto error = [](const char* param) { return json({{"error", {{"param", param}}}}).dump(); };
  EXPECT_TRUE(conversation.MustBeWhole(404, error("previous_response_id")));
  EXPECT_TRUE(conversation.MustBeWhole(400, error("previous_response_id")));
  EXPECT_FALSE(conversation.MustBeWhole(429, error("previous_response_id")));
  EXPECT_FALSE(conversation.MustBeWhole(404, error("model")));
  EXPECT_FALSE(conversation.MustBeWhole(404, "<html>"));
}

TEST(Conversation, WithoutOptionsTheServerDecides) {
  Conversation conversation({});
  conversation.Say("a\"\n");
  const json body = json::parse(conversation.Request(false));
  EXPECT_EQ(body.size(), 2u);
  EXPECT_EQ(body.at("input").at(0).at("content"), "a\"\n");
}

TEST(Conversation, CallsOfToolsAndTheirResultsAreItems) {
  ChatOptions options;
  options.tools = {{{"type", "function"}, {"name", "clock"}}};
  Conversation conversation(options);
  conversation.Say("What time is it?");
  EXPECT_EQ(json::parse(conversation.Request(false)).at("tools").at(0).at("name"), "clock");
  const json call = {
      {"type", "function_call"}, {"call_id", "c1"}, {"name", "clock"}, {"arguments", "{}"}};
  json with_id = call;
  with_id["id"] = "fc_1";
  const auto read = ReadInPieces(Event(Ended("resp_1", json::array({with_id}))), 99);
  ASSERT_EQ(read->answer.calls().size(), 1u);
  EXPECT_EQ(read->answer.calls()[0].name, "clock");
  conversation.Add(read->answer);
  conversation.Return("c1", "noon");
  const json result = {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "noon"}};
  EXPECT_EQ(Input(conversation), json::array({result}));
  EXPECT_EQ(Input(conversation, true), json({User("What time is it?"), call, result}));
  EXPECT_EQ(conversation.TakeBack(), "What time is it?") << "with what follows it";
  EXPECT_EQ(conversation.Request(true), conversation.Request(false));
  EXPECT_EQ(conversation.TakeBack(), std::nullopt);
}

TEST(Conversation, IsSavedAndLoaded) {
  Conversation conversation({.system = "Be kind", .temperature = 0.5f, .max_tokens = 3});
  conversation.Say("One?");
  conversation.Add(ReadInPieces(Event(Delta("1")) + Event(Ended("resp_1")), 99)->answer);
  Conversation loaded({.system = "another", .temperature = 0.5f, .max_tokens = 4});
  ASSERT_TRUE(loaded.Load(conversation.Save()).ok());
  EXPECT_EQ(loaded.system(), "Be kind");
  EXPECT_EQ(loaded.last_id(), "") << "the server's session may be gone";
  EXPECT_EQ(loaded.turns(), 1);
  loaded.Say("Two?");
  EXPECT_EQ(Input(loaded), json({User("One?"), Assistant("1"), User("Two?")}));
  for (const char* bad : {"", "[]", "{}", R"({"input": "x"})", R"({"input": [1]})",
                          R"({"input": [{"type": "reasoning"}]})"}) {
    EXPECT_FALSE(loaded.Load(bad).ok()) << bad;
    EXPECT_EQ(loaded.turns(), 2) << "as before";
  }
  conversation.SetSystem("Be brief");
  EXPECT_EQ(conversation.last_id(), "") << "the session has the former system message";
}

TEST(ParseTools, TakesBothForms) {
  const json flat = {{{"type", "function"}, {"name", "a"}, {"parameters", json::object()}}};
  EXPECT_EQ(ParseTools(flat.dump()).value(), flat);
  const json nested = {
      {{"type", "function"}, {"function", {{"name", "a"}, {"parameters", json::object()}}}}};
  EXPECT_EQ(ParseTools(nested.dump()).value(), flat);
  for (const char* bad : {"", "{}", "[]", "[3]", R"([{"type": "function"}])",
                          R"([{"type": "web_search", "name": "a"}])"})
    EXPECT_FALSE(ParseTools(bad).ok()) << bad;
}

TEST(ApiError, IsTheMessageOfTheServer) {
  EXPECT_EQ(ApiError(400, R"({"error": {"message": "no chat template"}})"), "no chat template");
  EXPECT_EQ(ApiError(502, "<html>"), "HTTP status 502: <html>");
  EXPECT_NE(ApiError(401, R"({"error": {"message": "no key"}})").find("--api-key"),
            std::string::npos);
}

}  // namespace
}  // namespace polysketch
