#include "clients/cpp/batch_files.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

using Ids = std::unordered_set<std::string>;

class BatchFiles : public ::testing::Test {
 protected:
  BatchFiles() { std::filesystem::remove(path_); }
  ~BatchFiles() override { std::filesystem::remove(path_); }

  void Write(const std::string& content) const {
    std::ofstream(path_, std::ios::binary) << content;
  }
  std::string Read() const {
    std::ostringstream content;
    content << std::ifstream(path_, std::ios::binary).rdbuf();
    return content.str();
  }
  BatchInput Input(const std::string& content, Ids done = {}) const {
    Write(content);
    return {*InputFile::Open(path_), std::move(done)};
  }

  const std::string path_ = std::filesystem::path(testing::TempDir()) / "batch_files_test.jsonl";
};

constexpr char kLine[] =
    R"({"custom_id": "a", "body": {"prompt": {"text": "x"}, "max_tokens": 3}})";

TEST_F(BatchFiles, ReadLinesOfOpenAi) {
  const auto parse = [](const std::string& rest) {
    return ParseBatchItem(R"({"custom_id": "a", )" + rest + "}", 7);
  };
  const BatchItem item =
      parse(R"("method": "POST", "url": "/v1/chat/completions", "body": {"b": 1, "a": 0.1})");
  ASSERT_TRUE(item.status.ok()) << item.status.ToString();
  EXPECT_EQ(item.url, "/v1/chat/completions");
  EXPECT_EQ(item.body, R"({"b":1,"a":0.1})") << "in its order";
  EXPECT_EQ(item.line, 7);
  EXPECT_TRUE(parse(R"("url": "/v1/embeddings", "body": {"stream": false})").status.ok());
  const std::pair<const char*, const char*> cases[] = {
      {R"("url": 3, "body": {})", "line 7: url: expected a path such as"},
      {R"("url": "http://a.example/v1/x", "body": {})", "line 7: url: expected a path such as"},
      {R"("url": "/v1/a b", "body": {})", "line 7: url: expected a path such as"},
      {R"("url": "/v1/a\r\nx: y", "body": {})", "line 7: url: expected a path such as"},
      {R"("url": "/v1/x", "method": "GET", "body": {})",
       "line 7: method: expected \"POST\", found \"GET\""},
      {R"("url": "/v1/x")", "line 7: body: expected a JSON object, found none"},
      {R"("url": "/v1/x", "body": {"stream": true})",
       "line 7: body.stream: expected false, found true"},
  };
  for (const auto& [rest, message] : cases)
    EXPECT_TRUE(parse(rest).status.message().starts_with(message)) << parse(rest).status.ToString();
}

TEST_F(BatchFiles, WriteLinesOfOpenAi) {
  BatchItem item;
  item.custom_id = "a";
  item.line = 7;
  const Json good = BatchHttpResponse(item, {200, "r-1", R"({"x": 1})"});
  EXPECT_EQ(good.dump(), R"({"id":"batch_req_7","custom_id":"a","response":{"status_code":200,)"
                         R"("request_id":"r-1","body":{"x":1}},"error":null})");
  EXPECT_TRUE(IsAnswered(good));
  const Json bad = BatchHttpResponse(item, {400, "", "no JSON"});
  EXPECT_EQ(bad["response"]["body"], "no JSON");
  EXPECT_FALSE(IsAnswered(bad)) << "it is sent again";
  EXPECT_TRUE(IsAnswered(BatchResponse(item, Json::object())));
  EXPECT_FALSE(IsAnswered(BatchError(item, Code::kInternal, "x")));
  EXPECT_FALSE(IsAnswered(3));
}

TEST_F(BatchFiles, ReadTheJsonFormOfTheRequest) {
  const BatchItem item = ParseBatchItem(
      R"({"custom_id": "a", "body": {"prompt": {"tokens": {"ids": [1, 2]}}, "max_tokens": 0,
          "sampling": {"seed": "18446744073709551615", "logit_bias": {"7": -1}}}})",
      1);
  ASSERT_TRUE(item.status.ok()) << item.status.ToString();
  EXPECT_EQ(item.custom_id, "a");
  EXPECT_EQ(item.request.prompt().tokens().ids_size(), 2);
  EXPECT_TRUE(item.request.has_max_tokens());
  EXPECT_EQ(item.request.sampling().seed(), 18446744073709551615u);
  EXPECT_EQ(item.request.sampling().logit_bias().at(7), -1);
}

TEST_F(BatchFiles, SayWhichLineIsWrong) {
  const std::string deep(200000, '[');
  const std::pair<std::string, const char*> cases[] = {
      {"{", "line 9: expected JSON, found an error at byte 2"},
      {"[]", "line 9: expected a JSON object"},
      {deep, "line 9: expected at most 100 levels of arrays and objects"},
      {R"({"body": {}})", "line 9: custom_id: expected a string, found none"},
      {R"({"custom_id": 7, "body": {}})", "line 9: custom_id: expected a string, found 7"},
      {R"({"custom_id": "a"})",
       "line 9: body: expected a CompleteRequest as a JSON object, found none"},
      {R"({"custom_id": "a", "body": {"promt": {}}})", "line 9: body: "},
      {R"({"custom_id": "a", "body": {"max_tokens": "many"}})", "line 9: body: "},
      {R"({"custom_id": "a", "body": {"return_state": true}})",
       "line 9: body.return_state: expected false, found true"},
  };
  for (const auto& [line, message] : cases) {
    const BatchItem item = ParseBatchItem(line, 9);
    EXPECT_EQ(item.status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(item.status.message().starts_with(message)) << item.status.ToString();
  }
}

TEST_F(BatchFiles, InputSkipsWhatIsDoneAndRefusesIdsThatComeTwice) {
  std::string content;
  for (const char* id : {"a", "b", "a", "c", "b"}) {
    content += StrCat(R"({"custom_id": ")", id, R"(", "body": {"max_tokens": 1}})", "\n\n");
  }
  content += std::string(3 << 20, ' ') + "\nbad";  // no newline at the end
  BatchInput input = Input(content, {"b"});
  std::vector<std::string> got;
  while (true) {
    const auto item = input.Next();
    ASSERT_TRUE(item.ok());
    if (!*item) break;
    EXPECT_EQ((*item)->index, static_cast<int64_t>(got.size()));
    got.push_back(StrCat(JsonText((*item)->custom_id), (*item)->status.message()));
  }
  EXPECT_EQ(
      got, (std::vector<std::string>{
               "\"a\"",
               "\"a\"line 5: custom_id: expected another one than those of earlier lines, found "
               "'a'",
               "\"c\"", "nullline 12: expected JSON, found an error at byte 1: expected a value"}));
  EXPECT_EQ(input.skipped(), 2);
}

TEST_F(BatchFiles, OutputIsContinued) {
  const BatchItem item = ParseBatchItem(kLine, 1);
  BatchItem other = item;
  other.custom_id = "b";
  const std::string answer = JsonText(BatchResponse(item, {{"text", "y"}})) + "\n";
  const std::string error = JsonText(BatchError(other, Code::kUnavailable, "gone")) + "\n";
  EXPECT_EQ(answer, R"({"custom_id":"a","response":{"text":"y"},"error":null})"
                    "\n");
  EXPECT_EQ(error,
            R"({"custom_id":"b","response":null,"error":{"code":"UNAVAILABLE","message":"gone"}})"
            "\n");
  EXPECT_EQ(BatchError(other, Code::kAborted, "x", "SESSION_IN_USE").at("error").at("reason"),
            "SESSION_IN_USE");
  Write(answer + error + R"({"custom_id": "c", "resp)");  // killed
  Ids done;
  const auto output = BatchOutput::Open(path_, false, &done);
  ASSERT_TRUE(output.ok()) << output.status().ToString();
  EXPECT_EQ(done, Ids{"a"});
  EXPECT_TRUE((*output)->Write(5, BatchResponse(other, {{"text", "z"}})));
  EXPECT_EQ(Read(), answer + error +
                        R"({"custom_id":"b","response":{"text":"z"},"error":null})"
                        "\n");
}

TEST_F(BatchFiles, OutputHasARefusalOnce) {
  const BatchItem bad = ParseBatchItem("{", 3), other = ParseBatchItem(R"({"custom_id": "a"})", 4);
  const auto line = [](const BatchItem& item) {
    return BatchError(item, item.status.code(), item.status.message());
  };
  // Of a server: the request is sent again.
  const Json refused = BatchError(other, Code::kInvalidArgument, "prompt: expected x");
  EXPECT_TRUE(IsRefusal(line(bad)));
  EXPECT_FALSE(IsRefusal(refused));
  EXPECT_FALSE(IsRefusal(3));
  EXPECT_FALSE(IsRefusal(BatchResponse(other, {{"text", "line 3: "}})));
  const std::string earlier = JsonText(line(bad)) + "\n" + JsonText(refused) + "\n";
  for (const bool in_order : {false, true}) {
    Write(earlier);
    Ids done;
    const auto output = BatchOutput::Open(path_, in_order, &done);
    ASSERT_TRUE(output.ok()) << output.status().ToString();
    EXPECT_TRUE(done.empty());
    EXPECT_TRUE((*output)->Write(0, line(bad)));
    EXPECT_TRUE((*output)->Write(1, line(other)));
    EXPECT_TRUE((*output)->Write(2, refused));
    EXPECT_EQ(Read(), earlier + JsonText(line(other)) + "\n" + JsonText(refused) + "\n");
  }
}

TEST_F(BatchFiles, OutputKeepsTheOrderOfTheInput) {
  Ids done;
  const auto output = BatchOutput::Open(path_, true, &done);
  ASSERT_TRUE(output.ok()) << output.status().ToString();
  for (const int64_t index : {2, 1}) EXPECT_TRUE((*output)->Write(index, Json(index)));
  EXPECT_EQ(Read(), "");
  EXPECT_EQ((*output)->waiting(), 2u);
  EXPECT_TRUE((*output)->Write(0, Json(0)));
  EXPECT_EQ(Read(), "0\n1\n2\n");
  for (const int64_t index : {5, 4}) EXPECT_TRUE((*output)->Write(index, Json(index)));
  EXPECT_TRUE((*output)->Flush());
  EXPECT_EQ(Read(), "0\n1\n2\n4\n5\n");
  EXPECT_EQ((*output)->waiting(), 0u);
}

TEST_F(BatchFiles, OutputThatCannotBeWrittenIsAnError) {
  Ids done;
  EXPECT_EQ(BatchOutput::Open("/nonexistent/out", false, &done).status().message(),
            "--output: cannot write /nonexistent/out");
  const auto full = BatchOutput::Open("/dev/full", false, &done);
  ASSERT_TRUE(full.ok()) << full.status().ToString();
  EXPECT_FALSE((*full)->Write(0, Json(1)));
}

}  // namespace
}  // namespace polysketch
