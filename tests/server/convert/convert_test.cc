#include "server/convert/convert.h"

#include <google/rpc/errors.pb.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>

#include "server/convert/request_id.h"
#include "server/convert/status_map.h"
#include "server/convert/wire.h"
#include "tests/server/rpc/fake_tokenizer.h"

namespace polysketch {
namespace {

using testing::FakeTokenizer;

class ConvertTest : public ::testing::Test {
 protected:
  const FakeTokenizer tokenizer_;
  RequestRules rules_ = {.tokenizer = &tokenizer_,
                         .add_bos = true,
                         .bos_id = FakeTokenizer::kBos,
                         .vocab_size = FakeTokenizer::kVocabulary,
                         .max_prompt_tokens = 8,
                         .max_new_tokens = 100};

  std::string ParamsError(const v1::CompleteRequest& request) {
    const auto params = ToGenerateParams(request, rules_);
    return params.ok() ? "OK" : params.status().ToString();
  }
};

TEST_F(ConvertTest, UnsetFieldsTakeTheDocumentedDefaults) {
  const auto params = ToGenerateParams(v1::CompleteRequest(), rules_);
  ASSERT_TRUE(params.ok()) << params.status().ToString();
  EXPECT_EQ(params->sampling.temperature, 1.0f);
  EXPECT_EQ(params->sampling.top_k, 0);
  EXPECT_EQ(params->sampling.top_p, 1.0f);
  EXPECT_EQ(params->sampling.min_p, 0.0f);
  EXPECT_EQ(params->sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(params->sampling.frequency_penalty, 0.0f);
  EXPECT_EQ(params->sampling.presence_penalty, 0.0f);
  EXPECT_FALSE(params->sampling.seed.has_value());
  EXPECT_FALSE(params->max_tokens.has_value());
  EXPECT_FALSE(params->logprobs.has_value());
  EXPECT_FALSE(params->ignore_eos || params->echo || params->include_stop_in_output);
  EXPECT_TRUE(params->skip_special_tokens);
}

TEST_F(ConvertTest, CacheOptions) {
  v1::CacheOptions options;
  const auto unset = ToCacheParams(options);
  ASSERT_TRUE(unset.ok());
  EXPECT_TRUE(unset->read && unset->write && unset->points.empty());
  options.set_read(false);
  options.set_write(false);
  options.set_salt("of a group");
  options.add_points(1);
  options.add_points(700);
  const auto set = ToCacheParams(options);
  ASSERT_TRUE(set.ok());
  EXPECT_FALSE(set->read || set->write);
  EXPECT_EQ(set->salt, "of a group");
  v1::CacheOptions salted;
  salted.set_salt(std::string(257, 'a'));
  EXPECT_EQ(ToCacheParams(salted).status().ToString(),
            "INVALID_ARGUMENT: cache.salt: expected at most 256 bytes, found 257");
  EXPECT_EQ(set->points, (std::vector<int64_t>{1, 700}));
  options.add_points(700);
  EXPECT_EQ(ToCacheParams(options).status().ToString(),
            "INVALID_ARGUMENT: cache.points: expected increasing numbers above 0, found 700 after "
            "700");
  options.clear_points();
  options.add_points(0);
  EXPECT_FALSE(ToCacheParams(options).ok());
  options.clear_points();
  for (int i = 1; i <= 65; ++i) options.add_points(i);
  EXPECT_FALSE(ToCacheParams(options).ok());
}

// As vLLM: without a space and, if that is another sequence of as many tokens, with one. The tokens
// of the fake tokenizer are bytes.
TEST_F(ConvertTest, BadWordsAreSequencesOfTokens) {
  v1::CompleteRequest request;
  request.mutable_sampling()->add_bad_words(" \t ab");
  request.mutable_sampling()->add_bad_words("\xE2\x82\xAC");
  const auto params = ToGenerateParams(request, rules_);
  ASSERT_TRUE(params.ok()) << params.status().ToString();
  EXPECT_EQ(params->sampling.bad_words,
            (std::vector<std::vector<int32_t>>{*tokenizer_.Encode("ab"),
                                               *tokenizer_.Encode("\xE2\x82\xAC")}));
  const auto error = [&](const std::string& word) {
    v1::CompleteRequest one;
    one.mutable_sampling()->add_bad_words(word);
    return ParamsError(one);
  };
  EXPECT_EQ(error(""), "INVALID_ARGUMENT: sampling.bad_words[0]: expected 1 to 256 bytes, found 0");
  EXPECT_EQ(error(std::string(257, 'a')),
            "INVALID_ARGUMENT: sampling.bad_words[0]: expected 1 to 256 bytes, found 257");
  EXPECT_EQ(error("  "),
            "INVALID_ARGUMENT: sampling.bad_words[0]: expected a text, found white space");
  for (int i = 0; i < 257; ++i) request.mutable_sampling()->add_bad_words("a");
  EXPECT_EQ(ParamsError(request),
            "INVALID_ARGUMENT: sampling.bad_words: expected at most 256 texts, found 259");
  v1::CompleteRequest ids;
  ids.mutable_sampling()->add_allowed_token_ids(-1);
  EXPECT_TRUE(ParamsError(ids).starts_with("INVALID_ARGUMENT: sampling.allowed_token_ids[0]:"));
  v1::CompleteRequest least;
  least.set_max_tokens(2);
  least.set_min_tokens(3);
  EXPECT_EQ(ParamsError(least), "INVALID_ARGUMENT: min_tokens: expected 0 to 2, found 3");
  rules_.tokenizer = nullptr;
  EXPECT_TRUE(error("a").starts_with("FAILED_PRECONDITION: sampling.bad_words:"));
}

TEST_F(ConvertTest, EveryFieldArrives) {
  v1::CompleteRequest request;
  v1::Sampling* sampling = request.mutable_sampling();
  sampling->set_temperature(0);  // set to zero is not unset
  sampling->set_top_k(5);
  sampling->set_top_p(0.5f);
  sampling->set_min_p(0.25f);
  sampling->set_repetition_penalty(1.5f);
  sampling->set_frequency_penalty(-0.5f);
  sampling->set_presence_penalty(0.75f);
  (*sampling->mutable_logit_bias())[7] = -3;
  sampling->set_seed(~uint64_t{0});
  request.set_max_tokens(0);
  request.add_stop("end");
  request.add_stop_token_ids(9);
  request.set_ignore_eos(true);
  request.set_include_stop_in_output(true);
  request.set_skip_special_tokens(false);
  request.set_logprobs(0);
  request.set_echo(true);
  request.set_n(1);
  request.set_draft_tokens(9);
  request.set_priority(-3);
  const auto params = ToGenerateParams(request, rules_);
  ASSERT_TRUE(params.ok()) << params.status().ToString();
  EXPECT_EQ(params->sampling.temperature, 0.0f);
  EXPECT_EQ(params->sampling.top_k, 5);
  EXPECT_EQ(params->sampling.top_p, 0.5f);
  EXPECT_EQ(params->sampling.min_p, 0.25f);
  EXPECT_EQ(params->sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(params->sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(params->sampling.presence_penalty, 0.75f);
  EXPECT_EQ(params->sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -3.0f}}));
  EXPECT_EQ(params->sampling.seed, ~uint64_t{0});
  EXPECT_EQ(params->max_tokens, 0);
  EXPECT_EQ(params->stop, std::vector<std::string>{"end"});
  EXPECT_EQ(params->stop_token_ids, std::vector<int32_t>{9});
  EXPECT_EQ(params->logprobs, 0);
  EXPECT_TRUE(params->ignore_eos && params->echo && params->include_stop_in_output);
  EXPECT_FALSE(params->skip_special_tokens);
  EXPECT_EQ(params->n, 1);
  EXPECT_EQ(params->best_of, 1);
  EXPECT_EQ(params->draft_tokens, 9);
  EXPECT_EQ(*ToPriority(request, 3), -3);
  EXPECT_EQ(ToPriority(request, 2).status().message(), "priority: expected -2 to 2, found -3");
  EXPECT_EQ(ToPriority(request, 0).status().message(),
            "priority: expected 0 (--max-priority, or max_priority of the API key), found -3");
  request.set_max_tokens(4);
  request.set_n(3);
  EXPECT_EQ(ToGenerateParams(request, rules_)->best_of, 3);
  request.set_best_of(5);
  EXPECT_EQ(ToGenerateParams(request, rules_)->best_of, 5);
}

TEST_F(ConvertTest, DefaultsOfTheModelGiveWayToTheRequest) {
  rules_.sampling.temperature = 0.5f;
  rules_.sampling.top_k = 20;
  rules_.sampling.repetition_penalty = 1.25f;
  v1::CompleteRequest request;
  EXPECT_EQ(ToGenerateParams(request, rules_)->sampling, rules_.sampling);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_top_k(0);
  const SamplingParams sampling = ToGenerateParams(request, rules_)->sampling;
  EXPECT_EQ(sampling.temperature, 1.0f);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.repetition_penalty, 1.25f);
  v1::Sampling message;
  ToProto(rules_.sampling, &message);
  *request.mutable_sampling() = message;
  EXPECT_EQ(ToGenerateParams(request, {.vocab_size = 258, .max_new_tokens = 100})->sampling,
            rules_.sampling);
}

TEST_F(ConvertTest, ErrorsNameTheField) {
  const auto error = [this](const std::function<void(v1::CompleteRequest*)>& change) {
    v1::CompleteRequest request;
    change(&request);
    return ParamsError(request);
  };
  EXPECT_EQ(error([](auto* r) { r->set_n(0); }), "INVALID_ARGUMENT: n: expected 1 to 64, found 0");
  EXPECT_EQ(error([](auto* r) { r->set_n(65); }),
            "INVALID_ARGUMENT: n: expected 1 to 64, found 65");
  EXPECT_EQ(error([](auto* r) {
              r->set_n(3);
              r->set_best_of(2);
            }),
            "INVALID_ARGUMENT: best_of: expected n (3) to 64, found 2");
  EXPECT_EQ(error([](auto* r) {
              r->set_n(2);
              r->set_max_tokens(0);
            }),
            "INVALID_ARGUMENT: max_tokens: expected at least 1 for more than one choice, found 0");
  EXPECT_EQ(error([](auto* r) { r->set_draft_tokens(65); }),
            "INVALID_ARGUMENT: draft_tokens: expected 0 to 64, found 65");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error([](auto* r) { r->mutable_sampling()->set_top_p(1.5f); }),
            "INVALID_ARGUMENT: sampling.top_p: expected a number in (0, 1], found 1.5");
  EXPECT_EQ(error([nan](auto* r) { r->mutable_sampling()->set_temperature(nan); }),
            "INVALID_ARGUMENT: sampling.temperature: expected a number in [0, 100], found nan");
  EXPECT_EQ(
      error([nan](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[3] = nan; }),
      "INVALID_ARGUMENT: sampling.logit_bias[3]: expected a number in [-100, 100], found nan");
  EXPECT_EQ(error([](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[258] = 1; }),
            "INVALID_ARGUMENT: sampling.logit_bias: expected ids in [0, 258), found 258");
  EXPECT_EQ(error([](auto* r) { r->set_max_tokens(101); }),
            "INVALID_ARGUMENT: max_tokens: expected 0 to 100, found 101");
  EXPECT_EQ(error([](auto* r) { r->set_logprobs(-1); }),
            "INVALID_ARGUMENT: logprobs: expected 0 to 20, found -1");
  EXPECT_EQ(error([](auto* r) { r->add_stop(""); }),
            "INVALID_ARGUMENT: stop[0]: expected 1 to 1024 bytes, found 0");
  EXPECT_EQ(error([](auto* r) { r->add_stop_token_ids(-1); }),
            "INVALID_ARGUMENT: stop_token_ids[0]: expected an id in [0, 258), found -1");
}

TEST_F(ConvertTest, StopStringsNeedATokenizer) {
  rules_.tokenizer = nullptr;
  v1::CompleteRequest request;
  request.add_stop("a");
  EXPECT_EQ(ToGenerateParams(request, rules_).status().code(), Code::kFailedPrecondition);
}

TEST_F(ConvertTest, TokensKeepTheirLogprobs) {
  v1::Delta delta;
  TokenEvent event;
  event.token = 97;
  event.text = "a";
  AppendToken(event, true, &tokenizer_, &delta);
  event.token = 98;
  event.text = "b";
  event.logprob = -0.5f;
  event.top = {{99, -0.25f}};
  AppendToken(event, true, &tokenizer_, &delta);
  EXPECT_EQ(delta.text(), "ab");
  ASSERT_EQ(delta.logprobs_size(), 2);
  EXPECT_FALSE(delta.logprobs(0).has_logprob());
  EXPECT_EQ(delta.logprobs(1).logprob(), -0.5f);
  EXPECT_EQ(delta.logprobs(1).top(0).piece(), "c");
  AppendToken(event, false, nullptr, &delta);
  EXPECT_EQ(delta.tokens_size(), 3);
  EXPECT_EQ(delta.logprobs_size(), 2);
}

TEST_F(ConvertTest, Perplexity) {
  FinishEvent event;
  event.usage.prompt_tokens = 3;
  event.logprob_sum = -2 * std::log(4.0);
  v1::ScoreFinish finish;
  ToProto(event, 0, &finish);
  EXPECT_EQ(finish.tokens(), 3);
  EXPECT_DOUBLE_EQ(finish.perplexity(), 4.0);
  event.usage.prompt_tokens = 1;
  v1::ScoreFinish single;
  ToProto(event, 0, &single);
  EXPECT_EQ(single.perplexity(), 0);
}

grpc::ByteBuffer Bytes(const std::string& text, size_t first_slice = 1) {
  // More than one slice, as the network delivers it.
  const size_t cut = std::min(first_slice, text.size());
  const grpc::Slice slices[] = {grpc::Slice(text.substr(0, cut)), grpc::Slice(text.substr(cut))};
  return grpc::ByteBuffer(slices, 2);
}

// The field with this number and these bytes.
std::string Field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) +
         bytes;
}

std::string ParseError(const std::string& bytes, google::protobuf::Message* message) {
  return ParseMessage(Bytes(bytes), message).ToString();
}

TEST(Wire, RoundTrip) {
  v1::CompleteRequest request;
  request.mutable_prompt()->set_text("grün");
  request.add_stop("x");
  v1::CompleteRequest parsed;
  ASSERT_TRUE(ParseMessage(SerializeMessage(request), &parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), request.SerializeAsString());
  EXPECT_TRUE(ParseMessage(Bytes(""), &parsed).ok());
}

TEST(Wire, MessagesOfEverySize) {
  for (const size_t size : {0, 1, 23, 24, 1023, 1024, 1025, (1 << 20) - 1, 1 << 20, (1 << 20) + 1,
                            (1 << 20) + 20, 3 << 20}) {
    const grpc::ByteBuffer bytes =
        MakeMessage(size, [&](google::protobuf::io::CodedOutputStream* out) {
          out->WriteRaw(std::string(size, 'x').data(), static_cast<int>(size));
        });
    EXPECT_TRUE(bytes.Valid());
    EXPECT_EQ(bytes.Length(), size);
    v1::TokenizeRequest message;
    if (size < 4) continue;
    message.set_text(std::string(size - (size < 130       ? 2
                                         : size < 16387   ? 3
                                         : size < 2097156 ? 4
                                                          : 5),
                                 'x'));
    ASSERT_EQ(message.ByteSizeLong(), size);
    v1::TokenizeRequest parsed;
    ASSERT_TRUE(ParseMessage(SerializeMessage(message), &parsed).ok()) << size;
    EXPECT_EQ(parsed.text(), message.text());
  }
}

TEST(Wire, BadStringsAreNamed) {
  v1::CompleteRequest request;
  EXPECT_EQ(ParseError(Field(1, Field(1, "ab\xC3")), &request),
            "INVALID_ARGUMENT: prompt.text: expected UTF-8, found an invalid byte at offset 2");
  EXPECT_EQ(ParseError(Field(1, Field(1, "ok")) + Field(4, "\xED\xA0\x80"), &request),
            "INVALID_ARGUMENT: stop: expected UTF-8, found an invalid byte at offset 0");
  v1::ScoreRequest score;
  EXPECT_EQ(ParseError(Field(1, "\xFF"), &score),
            "INVALID_ARGUMENT: text: expected UTF-8, found an invalid byte at offset 0");
}

TEST(Wire, BrokenMessagesAreRefused) {
  v1::CompleteRequest request;
  const std::string none =
      "INVALID_ARGUMENT: expected a polysketch.v1.CompleteRequest, found bytes that do not parse";
  EXPECT_EQ(ParseError("\xFF\xFF\xFF", &request), none);
  EXPECT_EQ(ParseError(std::string("\x0a\x7f", 2) + "short", &request), none);
  EXPECT_EQ(ParseError("\x0f", &request), none);  // wire type 7
  EXPECT_EQ(ParseMessage(grpc::ByteBuffer(), &request).code(), Code::kInvalidArgument);
}

TEST(StatusMap, Finishes) {
  const auto code = [](FinishReason reason, Status status) {
    FinishEvent event;
    event.reason = reason;
    event.status = std::move(status);
    return FinishStatus(event).code();
  };
  EXPECT_EQ(code(FinishReason::kStop, Status()), Code::kOk);
  EXPECT_EQ(code(FinishReason::kLength, Status()), Code::kOk);
  EXPECT_EQ(code(FinishReason::kCancelled, Status()), Code::kCancelled);
  EXPECT_EQ(code(FinishReason::kCancelled, Unavailable("drain")), Code::kUnavailable);
  EXPECT_EQ(code(FinishReason::kDeadline, Status()), Code::kDeadlineExceeded);
  EXPECT_EQ(code(FinishReason::kStalled, Status()), Code::kAborted);
  EXPECT_EQ(code(FinishReason::kError, Status()), Code::kInternal);
  EXPECT_EQ(code(FinishReason::kError, InvalidArgument("x")), Code::kInvalidArgument);
}

TEST(StatusMap, AllCodes) {
  for (int i = 0; i <= 15; ++i) EXPECT_EQ(static_cast<int>(ToGrpcCode(static_cast<Code>(i))), i);
  EXPECT_EQ(ToGrpcStatus(NotFound("m")).error_message(), "m");
  EXPECT_EQ(ToGrpcStatus(NotFound(std::string(1024, 'm'))).error_message(), std::string(1024, 'm'));
  const std::string long_text = std::string(1023, 'm') + "\xc3\xa4" + std::string(1 << 20, 'm');
  EXPECT_EQ(ToGrpcStatus(NotFound(long_text)).error_message(), std::string(1023, 'm') + "...");
}

google::rpc::Status DetailsOf(const Status& status) {
  google::rpc::Status details;
  EXPECT_TRUE(details.ParseFromString(ToGrpcStatus(status).error_details()));
  return details;
}

TEST(StatusMap, ErrorInfoAndRetryInfo) {
  using std::chrono::milliseconds;
  const google::rpc::Status details = DetailsOf(
      ResourceExhausted("full").WithReason(Reason::kQueueFull).WithRetryAfter(milliseconds(2345)));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), "full");
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "QUEUE_FULL");
  EXPECT_EQ(info.domain(), "polysketch.v1");
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(1).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 2);
  EXPECT_EQ(retry.retry_delay().nanos(), 345'000'000);
}

TEST(StatusMap, BadRequestNamesTheField) {
  const google::rpc::Status details =
      DetailsOf(Prefixed("sampling.", InvalidArgument("top_p: expected 1, found 2")));
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::BadRequest request;
  ASSERT_TRUE(details.details(1).UnpackTo(&request));
  ASSERT_EQ(request.field_violations_size(), 1);
  EXPECT_EQ(request.field_violations(0).field(), "sampling.top_p");
  EXPECT_EQ(request.field_violations(0).description(), "expected 1, found 2");
  // Without a field, and with a code that is not about fields.
  EXPECT_EQ(DetailsOf(InvalidArgument("expected a message")).details_size(), 1);
  EXPECT_EQ(DetailsOf(FailedPrecondition("text: needs a tokenizer")).details_size(), 1);
  // A message and a field beyond all bounds: the details fit into a header of 8 KiB.
  const Status huge = InvalidArgument(std::string(5000, 'x'), ": ", std::string(5000, 'y'));
  EXPECT_LT(ToGrpcStatus(huge).error_details().size(), 4000U);
}

// The contract has the reasons of calls, the page of the OpenAI API those of the HTTP server alone.
TEST(StatusMap, TheContractListsEveryReason) {
  const char* root = std::getenv("POLYSKETCH_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  const auto read = [root](const char* path) {
    std::ifstream file(std::string(root) + path);
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  };
  const std::string contract = read("/proto/polysketch/v1/polysketch.proto");
  const std::string http = read("/docs/openai-api.md");
  for (int i = 1; i < kReasons; ++i) {
    const std::string_view name = ReasonName(static_cast<Reason>(i));
    const bool of_http = i >= static_cast<int>(Reason::kMalformedRequest);
    const std::string line = of_http ? StrCat("`", name, "`") : StrCat("//   ", name, " ");
    EXPECT_NE((of_http ? http : contract).find(line), std::string::npos) << line;
  }
}

TEST(RequestId, Charset) {
  EXPECT_TRUE(IsRequestId("Ab0._:-"));
  EXPECT_TRUE(IsRequestId(std::string(128, 'a')));
  EXPECT_FALSE(IsRequestId(""));
  EXPECT_FALSE(IsRequestId(std::string(129, 'a')));
  EXPECT_FALSE(IsRequestId("a b"));
  EXPECT_FALSE(IsRequestId("a\nb"));
  EXPECT_TRUE(IsRequestId(NewRequestId()));
  EXPECT_NE(NewRequestId(), NewRequestId());
}

TEST(RequestId, Traceparent) {
  const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  EXPECT_TRUE(IsTraceparent(good));
  EXPECT_FALSE(IsTraceparent(good + "-"));
  EXPECT_FALSE(IsTraceparent("ff" + good.substr(2)));
  EXPECT_FALSE(IsTraceparent("00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
  EXPECT_FALSE(IsTraceparent("00-00000000000000000000000000000000-00f067aa0ba902b7-01"));
  EXPECT_FALSE(IsTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"));
  EXPECT_FALSE(IsTraceparent(""));
}

// The memory of a message is known before it is made.
TEST(Wire, TheMemoryOfAMessageIsBoundedBeforeItIsParsed) {
  const auto bytes_of = [](const auto& change) {
    v1::CompleteRequest request;
    change(&request);
    return request.SerializeAsString();
  };
  std::string groups, numbers, texts;
  for (int i = 0; i < 100'000; ++i) {
    groups += "\xc3\xbb\x0b\xc4\xbb\x0b";  // fields that the message does not know
    numbers += "\xc0\xbb\x0b\x01";
    texts += std::string("\xc2\xbb\x0b\x00", 4);
  }
  const std::string messages[] = {
      bytes_of(
          [](auto* request) { request->mutable_prompt()->set_text(std::string(1 << 20, 'x')); }),
      bytes_of([](auto* request) {
        for (int i = 0; i < 100'000; ++i) request->add_stop("");
      }),
      bytes_of([](auto* request) {
        for (int i = 0; i < 100'000; ++i) request->add_stop("sixteen characters");
      }),
      bytes_of([](auto* request) {
        request->mutable_prompt()->mutable_tokens()->mutable_ids()->Resize(1 << 20, 1);
      }),
      bytes_of([](auto* request) {
        for (int i = 0; i < 20'000; ++i)
          (*request->mutable_sampling()->mutable_logit_bias())[i] = 1;
      }),
      bytes_of([](auto* request) {
        for (int i = 0; i < 100'000; ++i)
          request->mutable_structured_output()->mutable_choice()->add_texts("");
      }),
      groups,
      numbers,
      texts,
      std::string("\x0a\xff\xff\xff\x7f", 5),  // a prompt that is not there
      ""};
  for (const std::string& message : messages) {
    grpc::Slice slice(message);
    const grpc::ByteBuffer bytes(&slice, 1);
    v1::CompleteRequest request;
    const int64_t bound = ParsedMessageBytes(bytes, request);
    (void)ParseMessage(bytes, &request);
    EXPECT_GE(bound, static_cast<int64_t>(request.SpaceUsedLong())) << message.size();
    EXPECT_LE(bound, 4096 + 50 * std::ssize(message)) << message.size();
  }
}

}  // namespace
}  // namespace polysketch
