// The service over a real connection, with an engine whose every step is known.
#include "server/rpc/service.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/generic/generic_stub.h>

#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "grpc/health/v1/health_list.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "server/convert/wire.h"
#include "tests/server/rpc/server_fixture.h"

namespace polysketch {
namespace {

using grpc::StatusCode;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class ServiceTest : public testing::ServerFixture {
 protected:
  struct Completion {
    grpc::Status status;
    std::string text;
    std::vector<int32_t> tokens;
    std::optional<v1::Finish> finish;
  };
  Completion Complete(const v1::CompleteRequest& request, grpc::ClientContext* context) {
    Completion all;
    const auto reader = stub_->Complete(context, request);
    v1::CompleteResponse response;
    while (reader->Read(&response)) {
      EXPECT_FALSE(all.finish.has_value()) << "a message after the last";
      if (response.has_delta()) {
        all.text += response.delta().text();
        all.tokens.insert(all.tokens.end(), response.delta().tokens().begin(),
                          response.delta().tokens().end());
      }
      if (response.has_finish()) all.finish = response.finish();
    }
    all.status = reader->Finish();
    return all;
  }
  Completion Complete(const v1::CompleteRequest& request) {
    grpc::ClientContext context;
    return Complete(request, &context);
  }
  HealthCheckResponse::ServingStatus Health(const std::string& name, StatusCode* code = nullptr) {
    const auto stub = grpc::health::v1::Health::NewStub(channel_);
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(name);
    HealthCheckResponse response;
    const grpc::Status status = stub->Check(&context, request, &response);
    if (code != nullptr) *code = status.error_code();
    return response.status();
  }
  // A message of raw bytes to a method; what no generated client would send.
  grpc::Status CallRaw(const std::string& method, const std::string& bytes,
                       grpc::ByteBuffer* response) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::Status status;
    call->Finish(response, &status, this);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }
};

TEST_F(ServiceTest, NotServingUntilTheModelIsThere) {
  EXPECT_EQ(Health(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Complete(Request("a", 1)).status.error_code(), StatusCode::UNAVAILABLE);
  Ready();
  EXPECT_EQ(Health(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(Health("polysketch.v1.PolySketch"), HealthCheckResponse::SERVING);
  StatusCode code;
  Health("other", &code);
  EXPECT_EQ(code, StatusCode::NOT_FOUND);
  EXPECT_TRUE(Complete(Request("a", 1)).status.ok());
}

TEST_F(ServiceTest, HealthListHasEveryName) {
  const std::string method = "/grpc.health.v1.Health/List";
  const auto expect = [&](HealthCheckResponse::ServingStatus serving) {
    grpc::ByteBuffer bytes;
    ASSERT_TRUE(CallRaw(method, "", &bytes).ok());
    grpc::health::v1::HealthListResponse response;
    ASSERT_TRUE(ParseMessage(bytes, &response).ok());
    ASSERT_EQ(response.statuses_size(), 2);
    for (const char* name : {"", "polysketch.v1.PolySketch"}) {
      ASSERT_TRUE(response.statuses().contains(name)) << name;
      EXPECT_EQ(response.statuses().at(name).status(), serving) << name;
    }
  };
  expect(HealthCheckResponse::NOT_SERVING);
  Ready();
  expect(HealthCheckResponse::SERVING);
  grpc::ByteBuffer bytes;
  EXPECT_EQ(CallRaw(method, "\xff", &bytes).error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServiceTest, WatchFollowsTheHealth) {
  const auto stub = grpc::health::v1::Health::NewStub(channel_);
  grpc::ClientContext context;
  const auto watch = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  Ready();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  std::jthread drain([this] { server_->Drain(std::chrono::seconds(5)); });
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(ServiceTest, StreamsTokensAndAFinish) {
  Ready();
  const Completion all = Complete(Request("prompt", 5));
  ASSERT_TRUE(all.status.ok()) << all.status.error_message();
  EXPECT_EQ(all.text, "abcde");
  EXPECT_EQ(all.tokens, (std::vector<int32_t>{'a', 'b', 'c', 'd', 'e'}));
  ASSERT_TRUE(all.finish.has_value());
  EXPECT_EQ(all.finish->reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(all.finish->usage().prompt_tokens(), 6);
  EXPECT_EQ(all.finish->usage().completion_tokens(), 5);
}

TEST_F(ServiceTest, UnaryGivesTheSame) {
  Ready();
  grpc::ClientContext context;
  v1::CompleteUnaryResponse response;
  ASSERT_TRUE(stub_->CompleteUnary(&context, Request("prompt", 5), &response).ok());
  EXPECT_EQ(response.text(), "abcde");
  EXPECT_EQ(response.tokens_size(), 5);
  EXPECT_EQ(response.finish().reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(ServiceTest, ManyAtOnce) {
  Ready();
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 5; ++j)
        good += Complete(Request("p", 26)).text == "abcdefghijklmnopqrstuvwxyz" ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
  // Calls that ended well are not aborted calls, and are all freed.
  EXPECT_TRUE(Eventually([this] { return engine_.stats().running == 0; }));
  EXPECT_EQ(engine_.cancelled(), 0);
}

TEST_F(ServiceTest, CancellationReachesTheEngine) {
  Ready();
  grpc::ClientContext context;
  const auto reader = stub_->Complete(&context, Endless());
  v1::CompleteResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_TRUE(Eventually([this] { return engine_.cancelled() == 1; }));
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);

  grpc::ClientContext unary;
  v1::CompleteUnaryResponse never;
  std::thread canceller([&] {
    EXPECT_TRUE(Eventually([this] { return engine_.submitted() == 2; }));
    unary.TryCancel();
  });
  EXPECT_EQ(stub_->CompleteUnary(&unary, Endless(), &never).error_code(), StatusCode::CANCELLED);
  canceller.join();
  EXPECT_TRUE(Eventually([this] { return engine_.cancelled() == 2; }));
}

TEST_F(ServiceTest, DeadlineEndsTheRequest) {
  Ready();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  EXPECT_EQ(Complete(Endless(), &context).status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([this] { return engine_.stats().running == 0; }));
}

TEST_F(ServiceTest, AClientThatNeverReadsIsEnded) {
  Ready();
  grpc::ClientContext context;
  const auto reader = stub_->Complete(&context, Endless());
  EXPECT_TRUE(Eventually([this] { return engine_.cancelled() == 1; }));
}

TEST_F(ServiceTest, TextMethods) {
  Ready();
  grpc::ClientContext first;
  v1::TokenizeRequest tokenize;
  tokenize.set_text("ab");
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&first, tokenize, &tokens).ok());
  EXPECT_EQ(tokens.tokens_size(), 2);
  EXPECT_EQ(tokens.pieces(1), "b");
  grpc::ClientContext second;
  tokenize.set_add_bos(true);
  ASSERT_TRUE(stub_->Tokenize(&second, tokenize, &tokens).ok());
  EXPECT_EQ(tokens.tokens(0), testing::FakeTokenizer::kBos);
  tokenize.set_text("a</s>");
  for (const bool parse : {false, true}) {
    grpc::ClientContext context;
    if (parse) tokenize.set_parse_special(true);
    ASSERT_TRUE(stub_->Tokenize(&context, tokenize, &tokens).ok());
    EXPECT_EQ(tokens.tokens_size(), parse ? 3 : 6);
    EXPECT_EQ(*tokens.tokens().rbegin(), parse ? 257 : '>');
  }
  // An answer of no bytes.
  for (const bool parse : {false, true}) {
    grpc::ClientContext context;
    v1::TokenizeRequest none;
    none.set_add_bos(false);
    none.set_parse_special(parse);
    const grpc::Status status = stub_->Tokenize(&context, none, &tokens);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(tokens.tokens_size() + tokens.pieces_size(), 0);
  }
  grpc::ClientContext third;
  v1::DetokenizeRequest detokenize;
  for (const int id : {256, 0x61, 0xC3}) detokenize.add_tokens(id);
  v1::DetokenizeResponse text;
  ASSERT_TRUE(stub_->Detokenize(&third, detokenize, &text).ok());
  EXPECT_EQ(text.text(), "a\xEF\xBF\xBD");
  grpc::ClientContext fourth;
  v1::GetModelResponse model;
  ASSERT_TRUE(stub_->GetModel(&fourth, v1::GetModelRequest(), &model).ok());
  EXPECT_EQ(model.name(), "fake");
}

TEST_F(ServiceTest, LargeRequestsAreTokenizedElsewhere) {
  Ready();
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text(std::string(200000, 'a'));
  v1::TokenizeResponse response;
  const grpc::Status status = stub_->Tokenize(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.tokens_size(), 200000);
  EXPECT_TRUE(Complete(Request(std::string(100000, 'p'), 3)).status.ok());
}

TEST_F(ServiceTest, WithoutATokenizer) {
  served_.rules.tokenizer = nullptr;
  Ready();
  EXPECT_EQ(Complete(Request("a", 1)).status.error_code(), StatusCode::FAILED_PRECONDITION);
  v1::CompleteRequest ids;
  ids.mutable_prompt()->mutable_tokens()->add_ids(5);
  ids.set_max_tokens(2);
  EXPECT_EQ(Complete(ids).tokens.size(), 2U);
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  EXPECT_EQ(stub_->Tokenize(&context, v1::TokenizeRequest(), &response).error_code(),
            StatusCode::FAILED_PRECONDITION);
}

TEST_F(ServiceTest, BytesThatAreNoMessage) {
  Ready();
  grpc::ByteBuffer response;
  const std::string bad_text("\x0a\x04\x0a\x02\xC3\x28", 6);
  for (const char* method : {"Complete", "CompleteUnary"}) {
    const grpc::Status status =
        CallRaw(StrCat("/polysketch.v1.PolySketch/", method), bad_text, &response);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_EQ(status.error_message(),
              "prompt.text: expected UTF-8, found an invalid byte at offset 0");
  }
  EXPECT_EQ(CallRaw("/polysketch.v1.PolySketch/Tokenize", "\xFF\xFF", &response).error_code(),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(CallRaw("/polysketch.v1.PolySketch/Nothing", "", &response).error_code(),
            StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(CallRaw("/unknown/method", "", &response).error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(engine_.submitted(), 0);
}

// Every field of a request and of its answer may be absent: both are messages of no bytes. The call
// gets an answer, or an error that says what is missing.
TEST_F(ServiceTest, MessagesOfNoBytes) {
  Ready();
  const auto* service = v1::CompleteRequest::descriptor()->file()->FindServiceByName("PolySketch");
  ASSERT_NE(service, nullptr);
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string path = "/" + service->full_name() + "/" + service->method(i)->name();
    grpc::ByteBuffer response;
    const grpc::Status status = CallRaw(path, "", &response);
    EXPECT_TRUE(status.ok() || status.error_code() == StatusCode::INVALID_ARGUMENT ||
                status.error_code() == StatusCode::NOT_FOUND)
        << path << ": " << status.error_message();
  }
  EXPECT_TRUE(server_ != nullptr && Complete(Request("a", 1)).status.ok());
}

TEST_F(ServiceTest, TooLargeAMessage) {
  Ready();
  EXPECT_EQ(Complete(Request(std::string(5 << 20, 'a'), 1)).status.error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(engine_.submitted(), 0);
}

TEST_F(ServiceTest, QueueFull) {
  Ready();
  engine_.set_full(true);
  grpc::ClientContext context;
  const Completion all = Complete(Request("a", 1), &context);
  EXPECT_EQ(all.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(all.status.error_message(), "the queue is full");
  const auto& trailers = context.GetServerTrailingMetadata();
  ASSERT_EQ(trailers.count("retry-after-ms"), 1U);
  EXPECT_EQ(trailers.find("retry-after-ms")->second, "2345");

  // google.rpc.Status and RetryInfo, declared here as google publishes them.
  google::protobuf::FileDescriptorProto file;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(name: "rpc.proto" package: "google.rpc" syntax: "proto3"
         dependency: "google/protobuf/any.proto" dependency: "google/protobuf/duration.proto"
         message_type { name: "Status"
           field { name: "code" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
           field { name: "message" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
           field { name: "details" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE
                   type_name: ".google.protobuf.Any" } }
         message_type { name: "RetryInfo"
           field { name: "retry_delay" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
                   type_name: ".google.protobuf.Duration" } })",
      &file));
  google::protobuf::Any::descriptor();
  google::protobuf::Duration::descriptor();
  google::protobuf::DescriptorPool pool(google::protobuf::DescriptorPool::generated_pool());
  const auto* built = pool.BuildFile(file);
  ASSERT_NE(built, nullptr);
  google::protobuf::DynamicMessageFactory factory(&pool);
  const std::unique_ptr<google::protobuf::Message> status(
      factory.GetPrototype(built->message_type(0))->New());
  ASSERT_TRUE(status->ParseFromString(all.status.error_details()));
  const auto* reflection = status->GetReflection();
  const auto* fields = status->GetDescriptor();
  EXPECT_EQ(reflection->GetInt32(*status, fields->field(0)), 8);
  EXPECT_EQ(reflection->GetString(*status, fields->field(1)), "the queue is full");
  ASSERT_EQ(reflection->FieldSize(*status, fields->field(2)), 2);
  google::protobuf::Any detail;
  ASSERT_TRUE(detail.ParseFromString(
      reflection->GetRepeatedMessage(*status, fields->field(2), 0).SerializeAsString()));
  EXPECT_EQ(detail.type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  ASSERT_TRUE(detail.ParseFromString(
      reflection->GetRepeatedMessage(*status, fields->field(2), 1).SerializeAsString()));
  EXPECT_EQ(detail.type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  const std::unique_ptr<google::protobuf::Message> info(
      factory.GetPrototype(built->message_type(1))->New());
  ASSERT_TRUE(info->ParseFromString(detail.value()));
  google::protobuf::Duration delay;
  ASSERT_TRUE(delay.ParseFromString(info->GetReflection()
                                        ->GetMessage(*info, info->GetDescriptor()->field(0))
                                        .SerializeAsString()));
  EXPECT_EQ(delay.seconds(), 2);
  EXPECT_EQ(delay.nanos(), 345'000'000);
}

TEST_F(ServiceTest, IdsComeBack) {
  Ready();
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "my-id.7");
  context.AddMetadata("traceparent", trace);
  ASSERT_TRUE(Complete(Request("a", 1), &context).status.ok());
  const auto& metadata = context.GetServerInitialMetadata();
  ASSERT_EQ(metadata.count("x-request-id"), 1U);
  EXPECT_EQ(metadata.find("x-request-id")->second, "my-id.7");
  ASSERT_EQ(metadata.count("traceparent"), 1U);
  EXPECT_EQ(metadata.find("traceparent")->second, trace);

  grpc::ClientContext bad;
  bad.AddMetadata("x-request-id", "not an id");
  bad.AddMetadata("traceparent", "nonsense");
  // Also with an error.
  EXPECT_FALSE(Complete(v1::CompleteRequest(), &bad).status.ok());
  const auto& replaced = bad.GetServerInitialMetadata();
  ASSERT_EQ(replaced.count("x-request-id"), 1U);
  EXPECT_TRUE(replaced.find("x-request-id")->second.starts_with("ps-"));
  EXPECT_EQ(replaced.count("traceparent"), 0U);
}

TEST_F(ServiceTest, TenantReachesTheEngine) {
  Ready();
  ASSERT_TRUE(Complete(Request("a", 1)).status.ok());
  EXPECT_EQ(engine_.last_request().info.tenant, "");
  EXPECT_EQ(engine_.last_request().info.principal, (Principal{"host 127.0.0.1"}));
  grpc::ClientContext context;
  context.AddMetadata("x-tenant-id", "acme:eu.1");
  ASSERT_TRUE(Complete(Request("a", 1), &context).status.ok());
  EXPECT_EQ(engine_.last_request().info.tenant, "acme:eu.1");

  const std::vector<std::vector<std::string>> refused = {
      {""}, {"a b"}, {"a", "b"}, {"a", "a"}, {std::string(129, 'x')}};
  for (const auto& values : refused) {
    grpc::ClientContext bad;
    for (const std::string& value : values) bad.AddMetadata("x-tenant-id", value);
    const Completion answer = Complete(Request("a", 1), &bad);
    EXPECT_EQ(answer.status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_TRUE(answer.status.error_message().starts_with("x-tenant-id: expected"));
  }
}

TEST_F(ServiceTest, Reflection) {
  // The file that a version of the service has of a symbol.
  const auto described = [this](const std::string& version, const std::string& symbol) {
    grpc::reflection::v1::ServerReflectionRequest request;
    request.set_file_containing_symbol(symbol);
    grpc::ByteBuffer bytes;
    const grpc::Status status =
        CallRaw(StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo"),
                request.SerializeAsString(), &bytes);
    EXPECT_TRUE(status.ok()) << status.error_message();
    grpc::Slice slice;
    EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
    grpc::reflection::v1::ServerReflectionResponse response;
    EXPECT_TRUE(response.ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    const auto& files = response.file_descriptor_response();
    EXPECT_EQ(files.file_descriptor_proto_size(), 1) << response.ShortDebugString();
    google::protobuf::FileDescriptorProto file;
    if (files.file_descriptor_proto_size() > 0) {
      EXPECT_TRUE(file.ParseFromString(files.file_descriptor_proto(0)));
    }
    return file;
  };
  for (const std::string version : {"v1", "v1alpha"}) {
    EXPECT_EQ(described(version, "polysketch.v1.PolySketch").name(),
              "polysketch/v1/polysketch.proto");
    const auto own = described(version, StrCat("grpc.reflection.", version, ".ServerReflection"));
    EXPECT_EQ(own.name(), StrCat("grpc/reflection/", version, "/reflection.proto"));
    ASSERT_EQ(own.service_size(), 1);
    EXPECT_EQ(own.service(0).name(), "ServerReflection");
  }
}

TEST_F(ServiceTest, DrainFinishesWhatRunsAndRefusesTheRest) {
  Ready();
  grpc::ClientContext context;
  const auto reader = stub_->Complete(&context, Request("p", 2000));
  v1::CompleteResponse response;
  ASSERT_TRUE(reader->Read(&response));
  bool all_ended = false;
  std::thread drain([&] { all_ended = server_->Drain(std::chrono::seconds(20)); });
  EXPECT_TRUE(Eventually([this] { return Health("") == HealthCheckResponse::NOT_SERVING; }));
  EXPECT_EQ(Complete(Request("a", 1)).status.error_code(), StatusCode::UNAVAILABLE);
  int tokens = response.delta().tokens_size();
  while (reader->Read(&response)) tokens += response.delta().tokens_size();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 2000);
  drain.join();
  EXPECT_TRUE(all_ended);
}

TEST_F(ServiceTest, DrainCutsWhatRunsTooLong) {
  Ready();
  grpc::ClientContext context;
  const auto reader = stub_->Complete(&context, Endless());
  v1::CompleteResponse response;
  ASSERT_TRUE(reader->Read(&response));
  std::thread reading([&] {
    while (reader->Read(&response)) {
    }
  });
  EXPECT_FALSE(server_->Drain(std::chrono::milliseconds(100)));
  reading.join();
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace polysketch
