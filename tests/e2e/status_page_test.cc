// --http-listen beside gRPC: what tests/deploy/status_page_test.py says in a browser, here for the
// sanitizers too.
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

constexpr char kPrompt[] = "It was late in the afternoon";

TEST(StatusPage, PathsOfProbesAndOfThePage) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  EXPECT_EQ(Http(server.http_address(), "/nowhere").status, 404);
  EXPECT_EQ(Http(server.http_address(), "/api/complete", "{}").status, 404);
  EXPECT_EQ(Http(server.http_address(), "/readyz").status, 200);
  EXPECT_TRUE(nlohmann::json::parse(HttpGet(server.http_address(), "/api/status")).at("ready"));
}

// POSTs the JSON of a request and returns that of the response.
nlohmann::json Post(const Server& server, const std::string& path, const nlohmann::json& request) {
  const HttpAnswer answer = Http(server.http_address(), path, request.dump());
  EXPECT_EQ(answer.status, 200) << path << ": " << answer.body;
  return nlohmann::json::parse(answer.body, nullptr, false);
}

std::string CompleteInSession(const Server& server, const std::string& session,
                              const std::string& prompt) {
  nlohmann::json request = {{"session", session}, {"max_tokens", 20}, {"temperature", 0}};
  if (!prompt.empty()) request["prompt"] = prompt;
  return Post(server, "/v1/completions", request)["choices"][0]["text"];
}

TEST(StatusPage, SessionsContinueForkAndRestore) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  Client client(server.address());
  const std::string whole = client.Complete(Greedy(kPrompt, 40)).text;

  const std::string id = Post(server, "/api/sessions/create", nlohmann::json::object())["session"];
  const std::string first = CompleteInSession(server, id, kPrompt);
  const auto forks = Post(server, "/api/sessions/fork", {{"session", id}})["sessions"];
  ASSERT_EQ(forks.size(), 1u);
  const std::string key = Post(server, "/api/sessions/snapshot", {{"session", id}})["snapshot"];
  // The session, its fork and its snapshot continue the same text in the same way.
  EXPECT_EQ(first + CompleteInSession(server, id, ""), whole);
  EXPECT_EQ(first + CompleteInSession(server, forks[0]["session"], ""), whole);
  const std::string restored =
      Post(server, "/api/sessions/restore", {{"snapshot", key}})["session"];
  EXPECT_EQ(first + CompleteInSession(server, restored, ""), whole);

  nlohmann::json list = Post(server, "/api/sessions/list", nlohmann::json::object());
  EXPECT_EQ(list["sessions"].size(), 3u);
  EXPECT_EQ(list["snapshots"].size(), 1u);
  Post(server, "/api/sessions/delete", {{"session", id}});
  list = Post(server, "/api/sessions/list", nlohmann::json::object());
  EXPECT_EQ(list["sessions"].size(), 2u);
}

TEST(StatusPage, SessionsThatRestAreInTheMemoryOfStates) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const auto metric = [&](const char* name) {
    const auto status = nlohmann::json::parse(HttpGet(server.http_address(), "/api/status"));
    return status["metrics"][name][0]["value"].get<double>();
  };
  EXPECT_EQ(metric("polysketch_session_memory_bytes"), 0);
  const std::string id = Post(server, "/api/sessions/create", nlohmann::json::object())["session"];
  CompleteInSession(server, id, kPrompt);
  ASSERT_TRUE(server.BecomesIdle());
  EXPECT_EQ(metric("polysketch_slot_memory_bytes"), 0);
  const auto listed = Post(server, "/api/sessions/list", nlohmann::json::object())["sessions"];
  EXPECT_GT(metric("polysketch_session_memory_bytes"), 0);
  EXPECT_EQ(metric("polysketch_session_memory_bytes"),
            std::stod(listed[0]["bytes"].get<std::string>()));
  EXPECT_FALSE(nlohmann::json::parse(HttpGet(server.http_address(), "/api/status"))["state_store"]);
}

TEST(StatusPage, ErrorsOfSessionsHaveTheirStatus) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const auto post = [&](const std::string& path, const std::string& body,
                        const HttpHeaders& headers = {}) {
    return Http(server.http_address(), path, body, headers).status;
  };
  const std::string unknown = R"({"session": "00000000000000000000000000000000"})";
  EXPECT_EQ(post("/api/sessions/fork", unknown), 404);
  EXPECT_EQ(post("/api/sessions/delete", unknown), 404);
  EXPECT_EQ(post("/api/sessions/fork", R"({"sesion": ""})"), 400);
  EXPECT_EQ(post("/api/sessions/create", R"({"durable": true})"), 400);  // no state store
  EXPECT_EQ(post("/api/sessions/create", "{}", {{"Origin", "http://elsewhere.example"}}), 403);
  EXPECT_EQ(post("/api/sessions/append", "{}"), 404);
  EXPECT_EQ(Http(server.http_address(), "/api/sessions/list").status, 405);
}

// A page of evil.example whose name now leads to this server: its requests have the same name in
// Host and Origin.
TEST(StatusPage, APageWhoseNameIsReboundIsRefused) {
  char machine[256] = "";
  ASSERT_EQ(gethostname(machine, sizeof(machine)), 0);
  const std::string completion = R"({"model": "demo", "prompt": "It was", "max_tokens": 1})";
  const auto status = [](const Server& server, const std::string& path, const std::string& body,
                         const std::string& host, const std::string& origin = "") {
    HttpHeaders headers = {{"Host", host}};
    if (!origin.empty()) headers.emplace_back("Origin", origin);
    const HttpAnswer answer = Http(server.http_address(), path, body, headers);
    if (answer.status == 403) {
      EXPECT_NE(answer.body.find("--http-hosts"), std::string::npos) << answer.body;
    }
    return answer.status;
  };
  const Server open({.flags = {"--http-listen", "0.0.0.0:0", "--insecure", "--http-origins",
                               "https://app.example"}});
  const std::string evil = "evil.example:8000";
  for (const char* path :
       {"/", "/status.js", "/favicon.ico", "/api/status", "/%61pi/status", "/metrics"})
    EXPECT_EQ(status(open, path, "", evil), 403) << path;
  EXPECT_EQ(status(open, "/v1/completions", completion, evil, "http://" + evil), 403);
  EXPECT_EQ(status(open, "/v1/models", "", evil, "http://" + evil), 403);
  EXPECT_EQ(status(open, "/v1/models", "", evil, "null"), 403);
  EXPECT_EQ(status(open, "/api/sessions/list", "{}", evil, "http://" + evil), 403);
  // Clients that are no browsers use names of services; pages of --http-origins are trusted.
  EXPECT_EQ(status(open, "/v1/completions", completion, "polysketch.models.svc:8000"), 200);
  EXPECT_EQ(status(open, "/readyz", "", "polysketch"), 200);
  EXPECT_EQ(status(open, "/v1/models", "", "polysketch", "https://app.example"), 200);
  const std::string own = StrCat(machine, ":8000");
  for (const std::string& host : {std::string("127.0.0.1:8000"), std::string("localhost:8000"),
                                  std::string("page.localhost"), own}) {
    EXPECT_EQ(status(open, "/api/status", "", host), 200) << host;
    EXPECT_EQ(status(open, "/metrics", "", host), 200) << host;
    EXPECT_EQ(status(open, "/v1/completions", completion, host, "http://" + host), 200) << host;
    EXPECT_EQ(status(open, "/api/sessions/list", "{}", host, "http://" + host), 200) << host;
  }
  const Server named(
      {.flags = {"--http-listen", "0.0.0.0:0", "--insecure", "--http-hosts", "models.example"}});
  EXPECT_EQ(status(named, "/api/status", "", "models.example"), 200);
  EXPECT_EQ(status(named, "/v1/models", "", "models.example", "http://models.example"), 200);
  EXPECT_EQ(status(named, "/v1/models", "", "polysketch"), 403);
}

TEST(StatusPage, MetricsOnLoopbackHaveNoForeignName) {
  const Server server;
  const auto status = [&](const std::string& host) {
    return Http(server.metrics_address(), "/metrics", "", {{"Host", host}}).status;
  };
  EXPECT_EQ(status("evil.example:9464"), 403);
  EXPECT_EQ(status("localhost:9464"), 200);
  EXPECT_EQ(status("127.0.0.1:9464"), 200);
}

// Gateways ask for it at the port that they send requests to.
TEST(StatusPage, MetricsAreOnThePortOfTheApi) {
  const Server server(
      {.flags = {"--http-listen", "127.0.0.1:0", "--served-model-name", "novelist"}});
  const HttpAnswer page = Http(server.http_address(), "/metrics");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.head.find("text/plain"), std::string::npos) << page.head;
  for (const char* line :
       {"vllm:num_requests_running{model_name=\"novelist\"} 0\n",
        "vllm:num_requests_waiting{model_name=\"novelist\"} 0\n",
        "vllm:kv_cache_usage_perc{model_name=\"novelist\"} 0\n", "polysketch_ready 1\n"}) {
    EXPECT_NE(page.body.find(line), std::string::npos) << line;
  }
  EXPECT_EQ(Http(server.http_address(), "/metrics", "{}").status, 405);
}

TEST(StatusPage, ABodyThatIsNotUtf8IsRefusedInUtf8) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const HttpAnswer answer =
      Http(server.http_address(), "/api/sessions/fork", "{\"session\":\"\xff\"}");
  EXPECT_EQ(answer.status, 400);
  const auto error = nlohmann::json::parse(answer.body)["error"]["message"].get<std::string>();
  EXPECT_EQ(error, "the body: expected UTF-8, found another byte at position 12");
}

TEST(StatusPage, ErrorsOfSessionsNameTheField) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"create", R"({"durable": "yes"})", "durable: expected true or false, found \"yes\""},
      {"create", R"({"ttl_seconds": 1.5})",
       "ttl_seconds: expected an integer of 64 bits, found 1.5"},
      {"create", R"({"ttlSeconds": "x"})",
       "ttlSeconds: expected an integer of 64 bits, found \"x\""},
      {"create", R"({"foo": 1})",
       "foo: expected a field of CreateSessionRequest, found an unknown one"},
      {"create", "[]", "the body: expected a JSON object, found []"},
      {"fork", R"({"session": 5})", "session: expected a string, found 5"},
      {"fork", R"({"count": 2147483648})",
       "count: expected an integer of 32 bits, found 2147483648"}};
  for (const auto& [name, body, message] : cases) {
    const HttpAnswer answer = Http(server.http_address(), StrCat("/api/sessions/", name), body);
    EXPECT_EQ(answer.status, 400) << body;
    const auto error = nlohmann::json::parse(answer.body).at("error");
    EXPECT_EQ(error.at("message"), message);
    const std::string text = message;
    EXPECT_EQ(error.at("param"), text.starts_with("the ")
                                     ? nlohmann::json()
                                     : nlohmann::json(text.substr(0, text.find(':'))));
  }
  EXPECT_TRUE(Post(server, "/api/sessions/create", {{"ttlSeconds", "5"}, {"evictable", nullptr}})
                  .contains("session"));
}

TEST(StatusPage, ABrowserFindsAllThatItAsksFor) {
  const Server server({.flags = {"--http-listen", "127.0.0.1:0"}});
  const std::string page = HttpGet(server.http_address(), "/");
  for (const char* file : {"favicon.svg", "status.css", "status.js", "playground.js"}) {
    EXPECT_NE(page.find(file), std::string::npos) << file;
    EXPECT_EQ(Http(server.http_address(), StrCat("/", file)).status, 200) << file;
  }
  const HttpAnswer icon = Http(server.http_address(), "/favicon.ico");
  EXPECT_EQ(icon.status, 200);
  EXPECT_NE(icon.head.find("Content-Type: image/svg+xml"), std::string::npos) << icon.head;
}

TEST(StatusPage, AnAddressThatIsTakenEndsTheStart) {
  const Server first({.flags = {"--http-listen", "127.0.0.1:0"}});
  for (const char* flag : {"--http-listen", "--metrics-listen"}) {
    const std::string taken =
        std::string(flag) == "--http-listen" ? first.http_address() : first.metrics_address();
    Server second({.flags = {flag, taken}}, Server::Wait::kNot);
    EXPECT_EQ(second.process().Wait(), 1);
    EXPECT_NE(second.process().StandardError().find(
                  StrCat(flag, ": cannot listen on ", taken, ": Address already in use")),
              std::string::npos)
        << second.process().StandardError();
  }
}

TEST(StatusPage, AWrongAddressIsNamed) {
  for (const char* address :
       {"80 80", "127.0.0.1:99999", "nowhere.invalid:80", "1.2.3.4:1,1.2.3.4:2"}) {
    Server server({.flags = {"--http-listen", address}}, Server::Wait::kNot);
    EXPECT_NE(server.process().Wait(), 0);
    EXPECT_NE(server.process().StandardError().find("--http-listen"), std::string::npos) << address;
  }
}

}  // namespace
}  // namespace polysketch::e2e
