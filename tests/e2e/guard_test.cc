// --api-keys of the real server: who may call what, over gRPC and HTTP.
#include <google/protobuf/descriptor.h>
#include <openssl/sha.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>

#include "grpc/reflection/v1/reflection.pb.h"
#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"
#include "vllm_engine.pb.h"

namespace polysketch::e2e {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

constexpr char kUnauthenticated[] = "authorization: expected \"Bearer KEY\", found none";

std::string Sha256Hex(const std::string& text) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), hash);
  std::ostringstream hex;
  for (const int byte : hash) hex << std::hex << std::setw(2) << std::setfill('0') << byte;
  return hex.str();
}

// The key "key-of-NAME" of the tenant "tenant-of-NAME".
std::string KeyLine(const std::string& name, json more = json::object()) {
  more["name"] = name;
  more["sha256"] = Sha256Hex("key-of-" + name);
  more["tenant"] = "tenant-of-" + name;
  return more.dump() + "\n";
}

std::pair<std::string, std::string> Authorization(const std::string& name) {
  return {"authorization", "Bearer key-of-" + name};
}

CallOptions As(const std::string& name) { return {.metadata = {Authorization(name)}}; }

class Guarded : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = NewTemporaryFolder();
    WriteKeys("");
    server_ = std::make_unique<Server>(
        ServerOptions{.flags = {"--http-listen", "127.0.0.1:0", "--api-keys", KeysFile()}});
  }
  static void TearDownTestSuite() {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  static std::string KeysFile() { return folder_ / "keys.jsonl"; }
  static void WriteKeys(const std::string& more) {
    WriteFile(KeysFile(), KeyLine("a") + KeyLine("b", {{"max_priority", 2}}) +
                              KeyLine("requests", {{"requests_per_minute", 4}}) +
                              KeyLine("tokens", {{"tokens_per_minute", 40}}) +
                              KeyLine("parallel", {{"tokens_per_minute", 1000}}) + more);
  }
  static HttpAnswer Get(const std::string& path, const std::string& name = "") {
    return Http(server_->http_address(), path, "", Headers(name));
  }
  static HttpAnswer Post(const std::string& path, const json& body, const std::string& name) {
    return Http(server_->http_address(), path, body.dump(), Headers(name));
  }
  static HttpHeaders Headers(const std::string& name) {
    if (name.empty()) return {};
    return {Authorization(name)};
  }
  // Runs the command line client with a key.
  static ProcessResult Run(const std::string& name, Strings arguments) {
    arguments.insert(arguments.begin(), Binary("polysketch"));
    arguments.insert(arguments.end(), {"--server", server_->address()});
    return RunProcess({.arguments = std::move(arguments),
                       .environment = {{"POLYSKETCH_API_KEY", "key-of-" + name}}});
  }

  static inline std::filesystem::path folder_;
  static inline std::unique_ptr<Server> server_;
};

// The services that the server lists, from reflection.
Strings Services(Client* client) {
  grpc::reflection::v1::ServerReflectionRequest request;
  request.set_list_services("*");
  const auto stream =
      client->StartRaw("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", As("a"));
  stream->Write(request.SerializeAsString());
  stream->WritesDone();
  std::string bytes;
  EXPECT_TRUE(stream->Read(&bytes));
  EXPECT_TRUE(stream->Finish().ok());
  grpc::reflection::v1::ServerReflectionResponse response;
  EXPECT_TRUE(response.ParseFromString(bytes));
  Strings names;
  for (const auto& service : response.list_services_response().service())
    names.push_back(service.name());
  return names;
}

Strings MethodsOf(const std::string& service) {
  EXPECT_NE(vllm::grpc::engine::GenerateRequest::descriptor(), nullptr);  // links its service
  // v1alpha is v1 under its former name, which the pool does not know.
  const std::string known = std::regex_replace(service, std::regex("v1alpha"), "v1");
  const auto* descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(known);
  EXPECT_NE(descriptor, nullptr) << service;
  Strings methods;
  for (int i = 0; descriptor != nullptr && i < descriptor->method_count(); ++i)
    methods.push_back("/" + service + "/" + descriptor->method(i)->name());
  return methods;
}

TEST_F(Guarded, EveryRpcButHealth) {
  Client client(server_->address());
  int methods = 0;
  for (const std::string& service : Services(&client)) {
    for (const std::string& method : MethodsOf(service)) {
      if (service == "grpc.health.v1.Health") continue;
      ++methods;
      EXPECT_EQ(client.StartRaw(method)->Finish().ToString(),
                StrCat("UNAUTHENTICATED: ", kUnauthenticated))
          << method;
      for (const char* value : {"Bearer key-of-stranger", "key-of-a", "Basic a2V5LW9mLWE=", ""}) {
        const CallOptions wrong = {.metadata = {{"authorization", value}}};
        EXPECT_EQ(client.StartRaw(method, wrong)->Finish().code(), Code::kUnauthenticated)
            << method << " " << value;
      }
    }
  }
  EXPECT_GT(methods, 26);
  EXPECT_EQ(client.StartRaw("/polysketch.v1.PolySketch/None")->Finish().code(),
            Code::kUnauthenticated);
  EXPECT_EQ(client.StartRaw("/polysketch.v1.PolySketch/None", As("a"))->Finish().code(),
            Code::kUnimplemented);
  EXPECT_EQ(*client.CheckHealth(""), Health::kServing);
  Health health = Health::kUnknown;
  EXPECT_TRUE(client.WatchHealth("")->Read(&health));
  EXPECT_EQ(health, Health::kServing);
  EXPECT_NE(server_->MetricsPage(), "");
}

// The paths in the sources of the HTTP server, and some that it does not have.
Strings Paths() {
  std::set<std::string> paths = {"/",
                                 "/nowhere",
                                 "/healthz/",
                                 "//healthz",
                                 "/HEALTHZ",
                                 "/ready",
                                 "/healthz/../v1/models",
                                 "/healthz%00",
                                 "/v1/models/demo"};
  const std::filesystem::path sources = testing::SourceDir() / "server";
  for (const char* room : {"http", "openai", "anthropic"}) {
    for (const auto& entry : std::filesystem::directory_iterator(sources / room)) {
      if (entry.path().extension() != ".cc") continue;
      const std::string text = ReadFile(entry.path());
      static const std::regex path(R"re("(/[a-z0-9_/]+)")re");
      for (auto at = std::sregex_iterator(text.begin(), text.end(), path);
           at != std::sregex_iterator(); ++at)
        paths.insert((*at)[1]);
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(sources / "http" / "web"))
    paths.insert("/" + entry.path().filename().string());
  return {paths.begin(), paths.end()};
}

TEST_F(Guarded, EveryPathButHealth) {
  const Strings paths = Paths();
  EXPECT_GT(paths.size(), 18U);
  const std::set<std::string> files = {
      "/", "//", "/favicon.svg", "/favicon.ico", "/status.css", "/playground.js", "/status.js"};
  for (const std::string& path : paths) {
    // Empty segments count as absent.
    const bool open = path == "/healthz" || path == "/readyz" || path == "/health" ||
                      path == "/healthz/" || path == "//healthz";
    if (open) {
      EXPECT_EQ(Get(path).status, 200) << path;
      continue;
    }
    // A browser that has no key yet loads the page, which asks for one.
    if (files.contains(path)) {
      EXPECT_EQ(Get(path).status, 200) << path;
      EXPECT_EQ(Get(path, "stranger").status, 200) << path;
      EXPECT_EQ(Post(path, {{"prompt", "x"}}, "stranger").status, 401) << path;
      continue;
    }
    for (const HttpAnswer& answer :
         {Get(path), Get(path, "stranger"), Post(path, {{"prompt", "x"}}, "stranger")}) {
      EXPECT_EQ(answer.status, 401) << path << answer.body;
      EXPECT_NE(answer.head.find("\r\nWWW-Authenticate: Bearer\r\n"), std::string::npos);
      const json error = json::parse(answer.body).at("error");
      EXPECT_EQ(error.at("type"), "authentication_error");
      EXPECT_TRUE(error.at("message").get<std::string>().starts_with("authorization: expected"));
    }
  }
  EXPECT_EQ(json::parse(Get("/v1/models").body).at("error").at("message"), kUnauthenticated);
  EXPECT_EQ(Get("/v1/models", "a").status, 200);
  EXPECT_EQ(Get("/", "a").status, 200);
  EXPECT_EQ(Get("/api/status").status, 401);
  EXPECT_EQ(Get("/api/status", "a").status, 200);
  EXPECT_EQ(Get("/metrics").status, 401);
  EXPECT_EQ(Get("/metrics", "a").status, 200);
}

TEST_F(Guarded, AKeyMayBeInAHeaderOfItsOwn) {
  const auto status = [](const HttpHeaders& headers) {
    return Http(server_->http_address(), "/v1/models", "", headers).status;
  };
  EXPECT_EQ(status({{"x-api-key", "key-of-a"}}), 200);
  EXPECT_EQ(status({{"x-api-key", "key-of-stranger"}}), 401);
  EXPECT_EQ(status({{"x-api-key", ""}}), 401);
  // Authorization counts.
  EXPECT_EQ(status({{"x-api-key", "key-of-stranger"}, Authorization("a")}), 200);
  EXPECT_EQ(status({{"x-api-key", "key-of-a"}, Authorization("stranger")}), 401);
  const json refused = json::parse(Get("/v1/messages").body);
  EXPECT_EQ(refused.at("type"), "error");
  EXPECT_EQ(refused.at("error").at("type"), "authentication_error");
}

TEST_F(Guarded, ABodyIsNotReadWithoutAKey) {
  // The answer comes although the body does not.
  const HttpAnswer answer =
      Http(server_->http_address(), "/v1/completions", "",
           {{"Content-Type", "application/json"}, {"Content-Length", "1000000"}});
  EXPECT_EQ(answer.status, 401);
}

TEST_F(Guarded, AnotherTenantSeesNothing) {
  const std::string text = ReadFile(testing::SourceDir() / "README.md").substr(0, 3000);
  const ProcessResult created = Run("a", {"session", "create"});
  ASSERT_EQ(created.exit_status, 0) << created.standard_error;
  const std::string session = created.standard_output.substr(0, created.standard_output.find('\n'));
  ASSERT_EQ(Run("a", {"session", "append", session, "-p", "It was"}).exit_status, 0);
  const ProcessResult taken = Run("a", {"session", "snapshot", session});
  ASSERT_EQ(taken.exit_status, 0) << taken.standard_error;
  const std::string snapshot = taken.standard_output.substr(0, taken.standard_output.find('\n'));
  EXPECT_NE(Run("a", {"session", "list"}).standard_output.find(session), std::string::npos);

  EXPECT_EQ(Run("b", {"session", "list"}).standard_output.find(session), std::string::npos);
  for (const Strings& command : std::vector<Strings>{{"session", "append", session, "-p", "x"},
                                                     {"session", "fork", session},
                                                     {"session", "snapshot", session},
                                                     {"session", "restore", snapshot},
                                                     {"session", "delete", session},
                                                     {"complete", "--session", session}}) {
    // The metadata of the tenant does not help.
    Strings with_tenant = command;
    with_tenant.insert(with_tenant.end(), {"--tenant", "tenant-of-a"});
    for (const Strings& arguments : {command, with_tenant}) {
      const ProcessResult result = Run("b", arguments);
      EXPECT_EQ(result.exit_status, 1) << command[1];
      EXPECT_NE(result.standard_error.find("NOT_FOUND"), std::string::npos)
          << result.standard_error;
    }
  }
  const json in_session = {{"prompt", "x"}, {"max_tokens", 1}, {"session", session}};
  EXPECT_EQ(Post("/v1/completions", in_session, "b").status, 404);
  EXPECT_EQ(Post("/v1/completions", in_session, "a").status, 200);
  // With keys, x-tenant-id is ignored, even a malformed one.
  EXPECT_EQ(Run("a", {"session", "fork", session, "--tenant", "tenant-of-b"}).exit_status, 0);
  CallOptions malformed = As("a");
  malformed.metadata.emplace_back("x-tenant-id", "a b");
  Client client(server_->address());
  EXPECT_TRUE(client.Complete(Greedy("x", 1), malformed).status.ok());

  const auto cached = [&](const std::string& name) {
    return client.Complete(Greedy(text, 1), As(name)).finish.usage().cached_tokens();
  };
  EXPECT_EQ(cached("a"), 0);
  EXPECT_GT(cached("a"), 256);
  EXPECT_EQ(cached("b"), 0);
}

TEST_F(Guarded, PrioritiesAreThoseOfTheKey) {
  Client client(server_->address());
  const auto status = [&](const std::string& name, int priority) {
    v1::CompleteRequest request = Greedy("x", 1);
    request.set_priority(priority);
    return client.Complete(request, As(name)).status;
  };
  for (const int priority : {1, -1}) {
    EXPECT_EQ(status("a", priority).ToString(),
              StrCat("INVALID_ARGUMENT: priority: expected 0 (--max-priority, or max_priority of "
                     "the API key), found ",
                     priority));
  }
  EXPECT_TRUE(status("a", 0).ok());
  EXPECT_TRUE(status("b", 2).ok());
  EXPECT_TRUE(status("b", -2).ok());
  EXPECT_EQ(status("b", 3).ToString(), "INVALID_ARGUMENT: priority: expected -2 to 2, found 3");
  const HttpAnswer answer =
      Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}, {"priority", 3}}, "b");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(json::parse(answer.body).at("error").at("param"), "priority");
}

TEST_F(Guarded, RequestsOfBothProtocolsCountTogether) {
  Client client(server_->address());
  const json body = {{"prompt", {"x", "y", "z"}}, {"max_tokens", 1}};
  EXPECT_TRUE(client.Complete(Greedy("x", 1), As("requests")).status.ok());
  EXPECT_EQ(Post("/v1/completions", body, "requests").status, 200);  // one request, three prompts
  EXPECT_TRUE(client.Complete(Greedy("x", 1), As("requests")).status.ok());
  EXPECT_EQ(Get("/v1/models", "requests").status, 200);
  const HttpAnswer refused = Post("/v1/completions", body, "requests");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(json::parse(refused.body).at("error").at("message"),
            "the API key requests: expected at most 4 requests a minute");
  EXPECT_TRUE(std::regex_search(refused.head, std::regex("\r\nRetry-After: 1[0-5]\r\n")))
      << refused.head;
  EXPECT_EQ(client.Complete(Greedy("x", 1), As("requests")).status.code(),
            Code::kResourceExhausted);
  EXPECT_TRUE(client.Complete(Greedy("x", 1), As("a")).status.ok());
  EXPECT_GE(server_->Metric("polysketch_credentials_refused_total{reason=\"requests_per_minute\"}"),
            2);
}

TEST_F(Guarded, TokensOfBothProtocolsCountTogether) {
  Client client(server_->address());
  EXPECT_EQ(
      Post("/v1/completions", {{"prompt", "x"}, {"max_tokens", 20}, {"ignore_eos", true}}, "tokens")
          .status,
      200);
  v1::CompleteRequest request = Greedy("x", 60);
  request.set_ignore_eos(true);
  EXPECT_TRUE(client.Complete(request, As("tokens")).status.ok());
  const ProcessResult refused = Run("tokens", {"complete", "-p", "x"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_NE(refused.standard_error.find(
                "RESOURCE_EXHAUSTED: the API key tokens: expected at most 40 tokens a minute; "
                "again in "),
            std::string::npos)
      << refused.standard_error;
  EXPECT_EQ(Post("/v1/completions", {{"prompt", "x"}}, "tokens").status, 429);
}

// Streams at once process no more than a minute's tokens together, and what they leave is there for
// others when they end.
TEST_F(Guarded, TokensOfRequestsAtOnceAreReserved) {
  Client client(server_->address());
  v1::CompleteRequest request = Greedy("x", 400);
  request.set_ignore_eos(true);
  std::vector<std::unique_ptr<CompleteStream>> streams;
  for (int i = 0; i < 60; ++i) streams.push_back(client.StartComplete(request, As("parallel")));
  int64_t tokens = 0;
  int refused = 0;
  for (auto& stream : streams) {
    v1::CompleteResponse response;
    while (stream->Read(&response)) tokens += response.delta().tokens_size();
    const Status status = stream->Finish();
    refused += status.code() == Code::kResourceExhausted;
    EXPECT_TRUE(status.ok() || status.code() == Code::kResourceExhausted) << status.ToString();
  }
  EXPECT_GE(tokens, 400);
  // One that is left alone with a token of the minute is not cut.
  EXPECT_LE(tokens, 1000 + 400) << refused << " of 60 were refused";
  EXPECT_GE(refused, 57);
  EXPECT_GE(server_->Metric("polysketch_credentials_refused_total{reason=\"tokens_per_minute\"}"),
            refused);
}

TEST_F(Guarded, TheLogHasNamesAndNoKeys) {
  Client client(server_->address());
  EXPECT_TRUE(client.Complete(Greedy("x", 1), As("a")).status.ok());
  EXPECT_EQ(client.Complete(Greedy("x", 1), As("stranger")).status.code(), Code::kUnauthenticated);
  EXPECT_TRUE(server_->Logs(" key=a tenant=tenant-of-a rpc=Complete "));
  EXPECT_TRUE(
      server_->Logs(" reason=UNAUTHENTICATED message=\"authorization: expected an API key "));
  const std::string log = server_->process().StandardError();
  EXPECT_EQ(log.find("key-of-"), std::string::npos);
}

// What becomes no call has a line and is counted too, over both protocols.
TEST_F(Guarded, ARefusedRequestHasItsId) {
  // Tests before this one had many requests refused, and the log gets a bounded number in a second.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  Client client(server_->address());
  const auto refused = [](const char* reason) {
    return server_->Metric(StrCat("polysketch_requests_refused_total{reason=\"", reason, "\"}"));
  };
  const double strangers = refused("UNAUTHENTICATED"), unknown = refused("UNIMPLEMENTED");
  std::map<std::string, std::string> answer;
  CallOptions options = As("stranger");
  options.metadata.emplace_back("x-request-id", "stranger-1");
  options.initial_metadata = &answer;
  EXPECT_EQ(client.Complete(Greedy("x", 1), options).status.code(), Code::kUnauthenticated);
  EXPECT_EQ(answer["x-request-id"], "stranger-1");
  EXPECT_TRUE(server_->Logs(" request_refused id=stranger-1 "));
  EXPECT_EQ(
      Http(server_->http_address(), "/v1/models", "", {{"x-request-id", "stranger-2"}}).status,
      401);
  EXPECT_TRUE(server_->Logs(" request_refused id=stranger-2 "));
  options = As("a");
  options.metadata.emplace_back("x-request-id", "lost-1");
  EXPECT_EQ(client.StartRaw("/polysketch.v1.PolySketch/None", options)->Finish().code(),
            Code::kUnimplemented);
  EXPECT_TRUE(server_->Logs(" request_refused id=lost-1 "));
  EXPECT_EQ(refused("UNAUTHENTICATED"), strangers + 2);
  EXPECT_EQ(refused("UNIMPLEMENTED"), unknown + 1);
}

TEST_F(Guarded, TheFileIsReadAgain) {
  Client client(server_->address());
  const auto code = [&](const std::string& name) {
    return client.Complete(Greedy("x", 1), As(name)).status.code();
  };
  WriteKeys("{\"name\": 1}\n");
  EXPECT_TRUE(server_->Logs("api_keys_not_reloaded reason=\"" + KeysFile() +
                            ": line 6: name: expected 1 to 128 characters"))
      << server_->process().StandardError();
  EXPECT_EQ(code("a"), Code::kOk);
  EXPECT_EQ(code("new"), Code::kUnauthenticated);
  WriteKeys(KeyLine("new"));
  EXPECT_TRUE(WaitUntil([&] { return code("new") == Code::kOk; }));
  WriteKeys("");
  EXPECT_TRUE(WaitUntil([&] { return code("new") == Code::kUnauthenticated; }));
}

TEST(GuardedStart, WrongFilesAndOpenAddresses) {
  const auto fails = [](const Strings& flags, const std::string& message) {
    Server server({.flags = flags}, Server::Wait::kNot);
    EXPECT_EQ(server.process().Wait(), 2);
    EXPECT_NE(server.process().StandardError().find("polysketch-server: " + message),
              std::string::npos)
        << server.process().StandardError();
  };
  const std::filesystem::path folder = NewTemporaryFolder();
  const std::string file = folder / "keys";
  fails({"--api-keys", file}, "--api-keys: " + file + ": No such file or directory\n");
  WriteFile(file, KeyLine("a") + KeyLine("b", {{"limit", 1}}));
  fails({"--api-keys", file}, "--api-keys: " + file + ": line 2: limit: expected name, ");
  fails({"--listen", "0.0.0.0:0"},
        "--listen: expected a loopback address without --api-keys and --tls-client-ca, found "
        "0.0.0.0:0: anyone could use the server (--insecure allows it)\n");
  fails({"--http-listen", "0.0.0.0:0"}, "--http-listen: expected a loopback address ");
  WriteFile(file, KeyLine("a"));
  const Server guarded({.flags = {"--listen", "0.0.0.0:0", "--api-keys", file}});
  const Server open({.flags = {"--listen", "0.0.0.0:0", "--insecure"}});
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace polysketch::e2e
