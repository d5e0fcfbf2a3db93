// Generated bad requests, each with the status and the field that its answer must name, beside a
// stream that must not notice.
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <thread>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/random.h"

namespace polysketch::e2e {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
constexpr int kVocabulary = 4096;
constexpr char kComplete[] = "/polysketch.v1.PolySketch/Complete";
constexpr char kCompleteUnary[] = "/polysketch.v1.PolySketch/CompleteUnary";
constexpr char kScore[] = "/polysketch.v1.PolySketch/Score";
constexpr char kTokenize[] = "/polysketch.v1.PolySketch/Tokenize";
constexpr char kDetokenize[] = "/polysketch.v1.PolySketch/Detokenize";
const std::vector<int32_t> kBadIds = {1, 2, kVocabulary};

// A request as bytes, so that it may hold what no client library would send.
struct BadRequest {
  std::string method;
  std::string bytes;
  std::string names;  // what the message of its INVALID_ARGUMENT must contain
};

v1::CompleteRequest GoodRequest() { return Greedy("It was late", 2); }

// Strings that are not UTF-8.
const std::string kBadTexts[] = {"\xFF",
                                 "ab\xC3",
                                 "\xC0\x80",
                                 "\xED\xA0\x80",
                                 "\xF4\x90\x80\x80",
                                 "fine until \x80 here",
                                 std::string("nul \0 then \xFE", 12)};

class Generator {
 public:
  std::vector<BadRequest> Generate() {
    Numbers();
    Maps();
    Stops();
    Prompts();
    Scores();
    Texts();
    WireDamage();
    // What is left up to the promised number: the same kinds with values drawn at random.
    while (bad_.size() < 200) AddRandom();
    return std::move(bad_);
  }

 private:
  // Both forms of a completion.
  void Add(const v1::CompleteRequest& request, const std::string& names) {
    bad_.push_back({kComplete, request.SerializeAsString(), names});
    bad_.push_back({kCompleteUnary, request.SerializeAsString(), names});
  }

  void AddFloat(void (v1::Sampling::*set)(float), const std::string& field,
                const std::vector<float>& values) {
    for (const float value : values) {
      v1::CompleteRequest request = GoodRequest();
      (request.mutable_sampling()->*set)(value);
      bad_.push_back({kComplete, request.SerializeAsString(), "sampling." + field});
    }
  }

  void AddInt(void (v1::CompleteRequest::*set)(int32_t), const std::string& field,
              const std::vector<int32_t>& values) {
    for (const int32_t value : values) {
      v1::CompleteRequest request = GoodRequest();
      (request.*set)(value);
      bad_.push_back({kComplete, request.SerializeAsString(), field});
    }
  }

  void Numbers() {
    AddFloat(&v1::Sampling::set_temperature, "temperature",
             {-1, -1e-30f, 100.5f, 1e30f, kNan, kInf, -kInf});
    AddFloat(&v1::Sampling::set_top_p, "top_p", {0, -0.5f, 1.0001f, 1e30f, kNan, kInf, -kInf});
    AddFloat(&v1::Sampling::set_min_p, "min_p", {-0.001f, 1.5f, kNan, kInf, -kInf});
    AddFloat(&v1::Sampling::set_repetition_penalty, "repetition_penalty",
             {0, -1, 0.001f, 101, kNan, kInf});
    AddFloat(&v1::Sampling::set_frequency_penalty, "frequency_penalty",
             {-2.5f, 2.5f, kNan, kInf, -kInf});
    AddFloat(&v1::Sampling::set_presence_penalty, "presence_penalty",
             {-2.5f, 2.5f, kNan, kInf, -kInf});
    AddInt(&v1::CompleteRequest::set_max_tokens, "max_tokens", {-1, kMin, kMax});
    AddInt(&v1::CompleteRequest::set_logprobs, "logprobs", {-1, 21, 1000, kMin, kMax});
    for (const int32_t top_k : {-1, kMin}) {
      v1::CompleteRequest request = GoodRequest();
      request.mutable_sampling()->set_top_k(top_k);
      Add(request, "sampling.top_k");
    }
  }

  void Maps() {
    for (const int32_t id : {-1, kVocabulary, kMin, kMax}) {
      v1::CompleteRequest request = GoodRequest();
      (*request.mutable_sampling()->mutable_logit_bias())[id] = 1;
      Add(request, "sampling.logit_bias");
    }
    for (const float bias : {-100.5f, 1e10f, kNan, kInf}) {
      v1::CompleteRequest request = GoodRequest();
      (*request.mutable_sampling()->mutable_logit_bias())[7] = bias;
      Add(request, "sampling.logit_bias[7]");
    }
  }

  void Stops() {
    for (const size_t length : {size_t{0}, size_t{1025}, size_t{100000}}) {
      v1::CompleteRequest request = GoodRequest();
      request.add_stop("fine");
      request.add_stop(std::string(length, 'x'));
      Add(request, "stop[1]");
    }
    v1::CompleteRequest many = GoodRequest();
    for (int i = 0; i < 17; ++i) many.add_stop("stop");
    Add(many, "stop");
    for (const int32_t id : {-1, kVocabulary, kMax}) {
      v1::CompleteRequest request = GoodRequest();
      request.add_stop_token_ids(3);
      request.add_stop_token_ids(id);
      Add(request, "stop_token_ids[1]");
    }
    v1::CompleteRequest many_ids = GoodRequest();
    for (int i = 0; i < 1025; ++i) many_ids.add_stop_token_ids(i);
    Add(many_ids, "stop_token_ids");
  }

  void Prompts() {
    v1::CompleteRequest request = GoodRequest();
    request.clear_prompt();
    Add(request, "prompt");
    request.mutable_prompt();
    Add(request, "prompt");
    request.mutable_prompt()->mutable_tokens();  // no ids
    Add(request, "prompt");
    for (const int32_t id : {-1, kVocabulary, kMin, kMax}) {
      request = Greedy(std::vector<int32_t>{1, 2, id, 4}, 2);
      Add(request, "prompt.tokens.ids[2]");
    }
    bad_.push_back({kComplete, "", "prompt"});
    bad_.push_back({kCompleteUnary, "", "prompt"});
  }

  void Scores() {
    bad_.push_back({kScore, "", "input"});
    for (const int32_t id : {-1, kVocabulary, kMax}) {
      v1::ScoreRequest request;
      request.mutable_tokens()->add_ids(1);
      request.mutable_tokens()->add_ids(id);
      bad_.push_back({kScore, request.SerializeAsString(), "tokens.ids[1]"});
    }
    for (const int32_t id : {-1, kVocabulary, kMin}) {
      v1::DetokenizeRequest request;
      request.add_tokens(id);
      bad_.push_back({kDetokenize, request.SerializeAsString(), "tokens[0]"});
    }
  }

  void Texts() {
    for (const std::string& text : kBadTexts) {
      bad_.push_back(
          {kComplete, GoodRequest().SerializeAsString() + Field(1, Field(1, text)), "prompt.text"});
      bad_.push_back({kCompleteUnary, GoodRequest().SerializeAsString() + Field(4, text), "stop"});
      bad_.push_back({kScore, Field(1, text), "text"});
      bad_.push_back({kTokenize, Field(1, text), "text"});
    }
  }

  // Bytes that are no message at all. There is no field to name; the answer says which message was
  // expected.
  void WireDamage() {
    const std::string good = GoodRequest().SerializeAsString();
    for (const char* method : {kComplete, kCompleteUnary, kScore, kTokenize, kDetokenize}) {
      bad_.push_back({method, "\xFF\xFF\xFF\xFF", ""});
      bad_.push_back({method, Field(1, "x").substr(0, 1), ""});  // a tag without its value
      bad_.push_back({method, "\x0A\x7F", ""});                  // longer than the message
    }
    for (size_t cut = 1; cut < good.size(); cut += 3) {
      if (v1::CompleteRequest().ParseFromString(good.substr(0, cut))) continue;
      bad_.push_back({kComplete, good.substr(0, cut), ""});
    }
  }

  void AddRandom() {
    const auto beyond = [this] {
      return static_cast<float>(std::pow(10.0, random_.Uniform(2.1, 38)));
    };
    AddFloat(&v1::Sampling::set_temperature, "temperature", {-beyond(), beyond()});
    AddFloat(&v1::Sampling::set_top_p, "top_p", {-beyond(), beyond()});
    AddFloat(&v1::Sampling::set_frequency_penalty, "frequency_penalty", {-beyond(), beyond()});
    AddInt(
        &v1::CompleteRequest::set_logprobs, "logprobs",
        {static_cast<int32_t>(random_.Int(kMin, -1)), static_cast<int32_t>(random_.Int(21, kMax))});
    v1::DetokenizeRequest request;
    request.add_tokens(static_cast<int32_t>(random_.Int(kVocabulary, kMax)));
    bad_.push_back({kDetokenize, request.SerializeAsString(), "tokens[0]"});
  }

  // A field of type string, bytes or message, of fewer than 16384 bytes, as it stands on the wire.
  static std::string Field(int number, const std::string& content) {
    std::string bytes(1, static_cast<char>(number << 3 | 2));
    bytes += static_cast<char>((content.size() & 0x7F) | (content.size() > 0x7F ? 0x80 : 0));
    if (content.size() > 0x7F) bytes += static_cast<char>(content.size() >> 7);
    return bytes + content;
  }

  testing::Random random_{20261121};
  std::vector<BadRequest> bad_;
};

// Whether `path` ("sampling.logit_bias[7]") leads to a field of the request of `method`.
bool IsPath(std::string method, std::string_view path) {
  std::replace(method.begin(), method.end(), '/', '.');
  const auto* known =
      google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(method.substr(1));
  const google::protobuf::Descriptor* message = known->input_type();
  while (message != nullptr && !path.empty()) {
    const std::string_view step = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), step.size() + 1));
    const size_t name = std::min(step.size(), step.find('['));
    const auto* field = message->FindFieldByName(std::string(step.substr(0, name)));
    // The choice among the fields of a oneof has its name.
    if (field == nullptr) {
      return path.empty() && message->FindOneofByName(std::string(step)) != nullptr;
    }
    if (name < step.size() && !field->is_repeated()) return false;
    if (path.empty()) return true;
    message = field->message_type();
  }
  return false;
}

TEST(BadRequests, GetTheRightStatusAndLeaveAStreamAlone) {
  const Server server;
  Client client(server.address());
  v1::CompleteRequest sampled = Greedy("It was late in the afternoon", 400);
  sampled.mutable_sampling()->set_temperature(0.9f);
  sampled.mutable_sampling()->set_seed(7);
  const Completion undisturbed = client.Complete(sampled);
  ASSERT_TRUE(undisturbed.status.ok()) << undisturbed.status.ToString();

  Completion beside;
  int streams = 0;
  bool stop = false;
  std::mutex mutex;
  std::thread streamer([&] {  // a stream runs all the time
    while (true) {
      beside = Client(server.address()).Complete(sampled);
      const std::lock_guard lock(mutex);
      ++streams;
      if (stop || !beside.status.ok() || beside.tokens != undisturbed.tokens) return;
    }
  });
  EXPECT_TRUE(server.ComesToRun(1));
  const std::vector<BadRequest> bad_requests = Generator().Generate();
  EXPECT_GE(bad_requests.size(), 200u);
  Client other(server.address());
  for (size_t i = 0; i < bad_requests.size(); ++i) {
    const BadRequest& bad = bad_requests[i];
    const Status status = other.CallRaw(bad.method, bad.bytes);
    EXPECT_EQ(status.code(), Code::kInvalidArgument)
        << i << " " << bad.method << " " << bad.names << ": " << status.ToString();
    EXPECT_FALSE(status.message().empty()) << i << " " << bad.method;
    EXPECT_NE(status.message().find(bad.names), std::string::npos)
        << i << " " << bad.method << " must name " << bad.names << ": " << status.message();
    EXPECT_TRUE(bad.names.empty() || IsPath(bad.method, status.field()))
        << i << " " << bad.method << ": expected a path of the request, found " << status.field();
  }
  {
    const std::lock_guard lock(mutex);
    stop = true;
  }
  streamer.join();
  EXPECT_TRUE(beside.status.ok()) << beside.status.ToString();
  EXPECT_EQ(beside.tokens, undisturbed.tokens);
  EXPECT_EQ(beside.text, undisturbed.text);
  EXPECT_TRUE(server.BecomesIdle());
  std::printf("%zu bad requests beside %d streams\n", bad_requests.size(), streams);
}

TEST(BadRequests, KeepUnknownFieldsAndMethodsApart) {
  const Server server;
  Client client(server.address());
  // A field of a later version is ignored, as protobuf has it.
  const std::string later = GoodRequest().SerializeAsString() + "\xFA\x3F\x03new";
  const Status known = client.CallRaw(kComplete, later);
  EXPECT_TRUE(known.ok()) << known.ToString();
  EXPECT_EQ(client.CallRaw("/polysketch.v1.PolySketch/Frobnicate", "").code(),
            Code::kUnimplemented);
  EXPECT_EQ(client.CallRaw("/other.Service/Complete", "").code(), Code::kUnimplemented);
}

TEST(BadRequests, TooLargeAMessageIsRefused) {
  const Server server({.flags = {"--max-message-bytes", "64KiB"}});
  Client client(server.address());
  v1::GetModelResponse model;
  ASSERT_TRUE(client.GetModel(&model).ok());
  EXPECT_EQ(model.limits().max_message_bytes(), 64 << 10);
  for (const char* method : {kComplete, kCompleteUnary, kScore, kTokenize}) {
    EXPECT_EQ(client.CallRaw(method, std::string(70000, ' ')).code(), Code::kResourceExhausted)
        << method;
  }
  EXPECT_TRUE(client.Complete(GoodRequest()).status.ok());
}

TEST(BadRequests, AMixedScoreIsRefusedInTheMiddle) {
  const Server server;
  Client client(server.address());
  const auto stream = client.StartScore();
  v1::ScoreRequest request;
  request.set_text("some text, ");
  ASSERT_TRUE(stream->Write(request));
  request.mutable_tokens()->add_ids(5);
  stream->Write(request);
  stream->WritesDone();
  const Status status = stream->Finish();
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
  EXPECT_NE(status.message().find("input"), std::string::npos) << status.message();

  const auto bad_id = client.StartScore();
  request.mutable_tokens()->mutable_ids()->Assign(kBadIds.begin(), kBadIds.end());
  bad_id->Write(request);
  EXPECT_EQ(bad_id->Finish().code(), Code::kInvalidArgument);  // without the end of the input
  EXPECT_TRUE(server.BecomesIdle());
}

TEST(BadRequests, TextWithoutATokenizerFailsItsPrecondition) {
  const std::filesystem::path folder = NewTemporaryFolder();
  std::filesystem::copy(DemoModel() + "/config.json", folder);
  std::filesystem::create_symlink(DemoModel() + "/model.safetensors", folder / "model.safetensors");
  {
    const Server server({.model = folder, .flags = {"--model-root", DemoModel()}});
    Client client(server.address());
    EXPECT_EQ(client.Complete(GoodRequest()).status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(client.CompleteUnary(GoodRequest()).status.code(), Code::kFailedPrecondition);
    v1::CompleteRequest request = Greedy(std::vector<int32_t>{1, 542, 322}, 4);
    const Completion by_ids = client.Complete(request);
    EXPECT_TRUE(by_ids.status.ok()) << by_ids.status.ToString();
    EXPECT_EQ(by_ids.tokens.size(), 4u);
    EXPECT_EQ(by_ids.text, "");
    request.add_stop("text");
    EXPECT_EQ(client.Complete(request).status.code(), Code::kFailedPrecondition);
    v1::TokenizeResponse tokenized;
    EXPECT_EQ(client.Tokenize({}, &tokenized).code(), Code::kFailedPrecondition);
    v1::DetokenizeResponse detokenized;
    EXPECT_EQ(client.Detokenize({}, &detokenized).code(), Code::kFailedPrecondition);
    const Score score = client.ScoreAll([sent = false](v1::ScoreRequest* chunk) mutable {
      chunk->set_text("text");
      return !std::exchange(sent, true);
    });
    EXPECT_EQ(score.status.code(), Code::kFailedPrecondition);
    EXPECT_TRUE(client.ScoreTokens({1, 542, 322}, 2).status.ok());
    v1::GetModelResponse model;
    ASSERT_TRUE(client.GetModel(&model).ok());
    EXPECT_FALSE(model.has_tokenizer());
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace polysketch::e2e
