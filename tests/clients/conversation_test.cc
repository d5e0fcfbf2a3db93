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
json Ended(const std::string& id) {
  return {{"type", "response.completed"}, {"response", {{"id", id}, {"error", nullptr}}}};
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

TEST(Conversation, ATurnSendsItsLineAlone) {
  Conversation conversation({.system = "Be kind", .temperature = 0.5f, .max_tokens = 9});
  const json first = json::parse(conversation.Request("One?", false));
  const json user = {{"role", "user"}, {"content", "One?"}};
  EXPECT_EQ(first, json({{"stream", true},
                         {"temperature", 0.5},
                         {"max_output_tokens", 9},
                         {"instructions", "Be kind"},
                         {"input", json::array({user})}}));
  EXPECT_FALSE(conversation.MustBeWhole(404, ""));

  conversation.Add("One?", ReadInPieces(Event(Delta("1")) + Event(Ended("resp_1")), 99)->answer);
  EXPECT_EQ(conversation.last_id(), "resp_1");
  const json second = json::parse(conversation.Request("Two?", false));
  EXPECT_EQ(second.at("previous_response_id"), "resp_1");
  EXPECT_EQ(second.at("input").size(), 1u);
  EXPECT_EQ(second.at("instructions"), "Be kind");

  const json whole = json::parse(conversation.Request("Two?", true));
  EXPECT_FALSE(whole.contains("previous_response_id"));
  const json all = {
      user, {{"role", "assistant"}, {"content", "1"}}, {{"role", "user"}, {"content", "Two?"}}};
  EXPECT_EQ(whole.at("input"), all);

  const auto error = [](const char* param) { return json({{"error", {{"param", param}}}}).dump(); };
  EXPECT_TRUE(conversation.MustBeWhole(404, error("previous_response_id")));
  EXPECT_TRUE(conversation.MustBeWhole(400, error("previous_response_id")));
  EXPECT_FALSE(conversation.MustBeWhole(429, error("previous_response_id")));
  EXPECT_FALSE(conversation.MustBeWhole(404, error("model")));
  EXPECT_FALSE(conversation.MustBeWhole(404, "<html>"));
}

TEST(Conversation, WithoutOptionsTheServerDecides) {
  const json body = json::parse(Conversation({}).Request("a\"\n", false));
  EXPECT_EQ(body.size(), 2u);
  EXPECT_EQ(body.at("input").at(0).at("content"), "a\"\n");
}

TEST(ApiError, IsTheMessageOfTheServer) {
  EXPECT_EQ(ApiError(400, R"({"error": {"message": "no chat template"}})"), "no chat template");
  EXPECT_EQ(ApiError(502, "<html>"), "HTTP status 502: <html>");
  EXPECT_NE(ApiError(401, R"({"error": {"message": "no key"}})").find("--api-key"),
            std::string::npos);
}

}  // namespace
}  // namespace polysketch
