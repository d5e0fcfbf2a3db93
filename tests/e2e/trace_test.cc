// --otlp-endpoint and the variables of OpenTelemetry: what a collector of OpenTelemetry gets from
// the real server.
#include <signal.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/e2e/model_folder.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/collector.h"

namespace polysketch::e2e {
namespace {

using Json = nlohmann::json;
using std::chrono::steady_clock;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParent[] = "b7ad6b7169203331";
constexpr char kPrompt[] = "It was late in the afternoon";

std::string Traceparent(const char* flags) {
  return StrCat("00-", kTrace, "-", kParent, "-", flags);
}

ServerOptions Traced(const testing::Collector& collector, std::vector<std::string> flags = {}) {
  flags.insert(flags.end(), {"--otlp-endpoint", collector.url()});
  return {.flags = std::move(flags), .environment = {{"no_proxy", "127.0.0.1"}}};
}

struct ReceivedSpan {
  std::string trace, id, parent, name;
  int64_t start = 0, end = 0;
  std::map<std::string, Json> attributes = {};
  Json json;
};

// All spans that the collector has.
std::vector<ReceivedSpan> Received(const testing::Collector& collector) {
  std::vector<ReceivedSpan> spans;
  for (const std::string& body : collector.bodies()) {
    const Json request = Json::parse(body);
    for (const Json& json : request["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
      ReceivedSpan& span = spans.emplace_back();
      span = {.trace = json["traceId"],
              .id = json["spanId"],
              .parent = json.value("parentSpanId", ""),
              .name = json["name"],
              .start = std::stoll(json["startTimeUnixNano"].get<std::string>()),
              .end = std::stoll(json["endTimeUnixNano"].get<std::string>()),
              .json = json};
      for (const Json& attribute : json["attributes"])
        span.attributes[attribute["key"]] = attribute["value"];
    }
  }
  return spans;
}

const ReceivedSpan& Named(const std::vector<ReceivedSpan>& spans, const std::string& name) {
  const auto found = std::ranges::find(spans, name, &ReceivedSpan::name);
  static const ReceivedSpan none;
  EXPECT_NE(found, spans.end()) << name;
  return found == spans.end() ? none : *found;
}

int64_t Integer(const ReceivedSpan& span, const std::string& key) {
  const auto found = span.attributes.find(key);
  return found == span.attributes.end() ? -1
                                        : std::stoll(found->second["intValue"].get<std::string>());
}

std::string Text(const ReceivedSpan& span, const std::string& key) {
  const auto found = span.attributes.find(key);
  return found == span.attributes.end() ? "" : found->second["stringValue"].get<std::string>();
}

// Waits for `count` calls of `rpc`, then returns all spans.
std::vector<ReceivedSpan> WaitForCalls(const testing::Collector& collector, const std::string& rpc,
                                       int64_t count) {
  const std::string name = "polysketch.v1.PolySketch/" + rpc;
  EXPECT_TRUE(WaitUntil([&] {
    return std::ranges::count(Received(collector), name, &ReceivedSpan::name) >= count;
  })) << rpc;
  return Received(collector);
}

std::vector<int32_t> LongPrompt(int tokens) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int i = 0; i < tokens; ++i) prompt[static_cast<size_t>(i)] = 5 + i % 300;
  return prompt;
}

TEST(Trace, ACallHasItsPartsBelowItsParent) {
  const testing::Collector collector;
  const Server server(
      Traced(collector, {"--max-step-tokens", "64", "--prefix-cache-min-tokens", "0"}));
  Client client(server.address());
  const auto before = std::chrono::system_clock::now();
  const Completion completion = client.Complete(
      Greedy(LongPrompt(200), 5),
      {.metadata = {
           {"traceparent", Traceparent("01")}, {"x-tenant-id", "acme"}, {"x-request-id", "r-1"}}});
  ASSERT_TRUE(completion.status.ok()) << completion.status.ToString();
  const auto spans = WaitForCalls(collector, "Complete", 1);

  const ReceivedSpan& call = Named(spans, "polysketch.v1.PolySketch/Complete");
  EXPECT_EQ(call.trace, kTrace);
  EXPECT_EQ(call.parent, kParent);
  EXPECT_EQ(call.json["kind"], 2);
  EXPECT_FALSE(call.json.contains("status"));
  EXPECT_EQ(Text(call, "rpc.system.name"), "grpc");
  EXPECT_EQ(Text(call, "rpc.method"), "polysketch.v1.PolySketch/Complete");
  EXPECT_EQ(Text(call, "rpc.response.status_code"), "OK");
  EXPECT_EQ(Text(call, "polysketch.request_id"), "r-1");
  EXPECT_EQ(Text(call, "polysketch.tenant"), "acme");
  EXPECT_EQ(Text(call, "gen_ai.operation.name"), "text_completion");
  EXPECT_EQ(Text(call, "gen_ai.request.model"), "demo");
  EXPECT_EQ(Integer(call, "gen_ai.usage.input_tokens"), 200);
  EXPECT_EQ(Integer(call, "gen_ai.usage.output_tokens"), 5);
  EXPECT_EQ(call.attributes.at("gen_ai.response.finish_reasons"),
            Json::parse(R"({"arrayValue": {"values": [{"stringValue": "length"}]}})"));
  // Within the time that the client measured, on its clock.
  EXPECT_GE(call.start, std::chrono::nanoseconds(before.time_since_epoch()).count());
  EXPECT_LE(call.end,
            std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());

  const ReceivedSpan& queue = Named(spans, "queue");
  const ReceivedSpan& prefill = Named(spans, "prefill");
  const ReceivedSpan& decode = Named(spans, "decode");
  EXPECT_EQ(queue.end, prefill.start);
  EXPECT_EQ(prefill.end, decode.start);
  EXPECT_EQ(Integer(prefill, "polysketch.tokens"), 200);
  EXPECT_EQ(Integer(decode, "polysketch.tokens"), 5);
  EXPECT_EQ(call.json["events"][0]["name"], "first_token");

  std::vector<int64_t> chunks;
  int64_t last_end = prefill.start;
  for (const ReceivedSpan& span : spans) {
    EXPECT_EQ(span.trace, kTrace) << span.name;
    EXPECT_LE(span.start, span.end) << span.name;
    if (span.id == call.id) continue;
    const ReceivedSpan& parent = span.name == "chunk" ? prefill : call;
    EXPECT_EQ(span.parent, parent.id) << span.name;
    EXPECT_GE(span.start, parent.start) << span.name;
    EXPECT_LE(span.end, parent.end) << span.name;
    EXPECT_EQ(span.json["kind"], 1) << span.name;
    if (span.name != "chunk") continue;
    EXPECT_GE(span.start, last_end);
    last_end = span.end;
    chunks.push_back(Integer(span, "polysketch.tokens"));
  }
  EXPECT_EQ(chunks, (std::vector<int64_t>{64, 64, 64, 8}));
  EXPECT_TRUE(WaitUntil([&] {
    return server.Metric("polysketch_trace_spans_exported_total") ==
           static_cast<double>(spans.size());
  }));
}

TEST(Trace, ATraceThatItsCallerDoesNotRecordHasNoSpans) {
  const testing::Collector collector;
  const Server server(Traced(collector, {"--http-listen", "127.0.0.1:0"}));
  Client client(server.address());
  ASSERT_TRUE(
      client.Complete(Greedy(kPrompt, 2), {.metadata = {{"traceparent", Traceparent("00")}}})
          .status.ok());
  // Over HTTP the header counts in the same way; a call without one begins a trace.
  const std::string body = R"({"prompt": "It was late", "max_tokens": 2})";
  for (const HttpHeaders& headers :
       {HttpHeaders{{"traceparent", Traceparent("00")}},
        HttpHeaders{{"traceparent", Traceparent("01")}}, HttpHeaders{}}) {
    EXPECT_EQ(Http(server.http_address(), "/v1/completions", body, headers).status, 200);
  }
  const auto spans = WaitForCalls(collector, "Complete", 2);
  std::vector<ReceivedSpan> calls;
  std::ranges::copy_if(spans, std::back_inserter(calls),
                       [](const ReceivedSpan& span) { return span.json["kind"] == 2; });
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].parent, kParent);
  EXPECT_EQ(Text(calls[0], "network.protocol.name"), "http");
  EXPECT_EQ(Text(calls[0], "rpc.system.name"), "");
  EXPECT_EQ(calls[1].parent, "");
  EXPECT_NE(calls[1].trace, kTrace);
}

TEST(Trace, NoCallBeginsATraceWithAShareOfZero) {
  const testing::Collector collector;
  const Server server(Traced(collector, {"--otlp-sample-percent", "0"}));
  Client client(server.address());
  ASSERT_TRUE(client.Complete(Greedy(kPrompt, 2)).status.ok());
  ASSERT_TRUE(
      client.Complete(Greedy(kPrompt, 2), {.metadata = {{"traceparent", Traceparent("01")}}})
          .status.ok());
  for (const ReceivedSpan& span : WaitForCalls(collector, "Complete", 1))
    EXPECT_EQ(span.trace, kTrace) << span.name;
}

TEST(Trace, SessionsAndScoresHaveTheirParts) {
  const testing::Collector collector;
  const Server server(Traced(collector));
  Client client(server.address());
  const Result<v1::Session> session = client.CreateSession();
  ASSERT_TRUE(session.ok());
  v1::CompleteRequest request = Greedy(kPrompt, 3);
  request.set_session(session->session());
  ASSERT_TRUE(client.Complete(request).status.ok());
  ASSERT_TRUE(client.ScoreTokens(LongPrompt(50), 10).status.ok());
  request.set_session("00");
  EXPECT_FALSE(client.Complete(request).status.ok());

  WaitForCalls(collector, "Score", 1);
  const auto spans = WaitForCalls(collector, "Complete", 2);
  const ReceivedSpan& call = Named(spans, "polysketch.v1.PolySketch/Complete");
  std::vector<std::string> parts;
  std::vector<std::string> of_score;
  const ReceivedSpan& score = Named(spans, "polysketch.v1.PolySketch/Score");
  EXPECT_EQ(Text(score, "gen_ai.operation.name"), "score");
  for (const ReceivedSpan& span : spans) {
    if (span.parent == call.id) parts.push_back(span.name);
    if (span.parent == score.id) of_score.push_back(span.name);
  }
  EXPECT_EQ(parts,
            (std::vector<std::string>{"load state", "save state", "queue", "prefill", "decode"}));
  EXPECT_EQ(of_score, (std::vector<std::string>{"queue", "prefill"}));
  EXPECT_LE(Named(spans, "load state").end, Named(spans, "queue").start);
  EXPECT_LE(Named(spans, "decode").end, Named(spans, "save state").start);
  // A refused call has its status, and no part of its message.
  const auto refused = std::ranges::find_if(spans, [](const ReceivedSpan& span) {
    return Text(span, "error.type") == "NOT_FOUND" ||
           Text(span, "error.type") == "INVALID_ARGUMENT";
  });
  ASSERT_NE(refused, spans.end());
  EXPECT_FALSE(refused->json.contains("status"));  // an error of the client
  EXPECT_EQ(refused->attributes.count("gen_ai.request.model"), 0u);
}

TEST(Trace, NothingThatClientsWriteIsInASpan) {
  const testing::Collector collector;
  const Server server(Traced(collector));
  Client client(server.address());
  v1::CompleteRequest request = Greedy("Zanzibar", 5);
  request.add_stop("Quetzal");
  const Completion completion = client.Complete(request);
  ASSERT_TRUE(completion.status.ok());
  WaitForCalls(collector, "Complete", 1);
  for (const std::string& body : collector.bodies()) {
    for (const std::string& text : {std::string("Zanzibar"), std::string("Quetzal")})
      EXPECT_EQ(body.find(text), std::string::npos) << body;
    if (completion.text.size() > 3) {
      EXPECT_EQ(body.find(completion.text), std::string::npos) << body;
    }
  }
}

TEST(Trace, ADrainSendsTheLastSpans) {
  const testing::Collector collector;
  Server server(Traced(collector));
  Client client(server.address());
  ASSERT_TRUE(client.Complete(Greedy(kPrompt, 2)).status.ok());
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  Named(Received(collector), "polysketch.v1.PolySketch/Complete");
}

TEST(Trace, ACollectorThatHangsHoldsUpNeitherCallsNorTheDrain) {
  testing::Collector collector;
  collector.hangs = true;
  Server server(Traced(collector, {"--drain-timeout", "5s"}));
  Client client(server.address());
  ASSERT_TRUE(client.Complete(Greedy(kPrompt, 2)).status.ok());
  ASSERT_TRUE(WaitUntil([&] { return collector.requests == 1; }));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(client.Complete(Greedy(kPrompt, 2)).status.ok());
  EXPECT_EQ(server.Metric("polysketch_trace_spans_exported_total"), 0);
  const auto start = steady_clock::now();
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0) << server.process().StandardError();
  // The bound of every drain: its timeout and 2 s.
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(7));
}

TEST(Trace, ACollectorThatIsAwayIsReportedOnce) {
  std::string away;
  {
    const testing::Collector gone;
    away = gone.url();
  }
  Server server({.flags = {"--otlp-endpoint", away}, .environment = {{"no_proxy", "127.0.0.1"}}});
  Client client(server.address());
  for (int dropped = 0; dropped < 2; ++dropped) {
    const double before = server.Metric("polysketch_trace_spans_dropped_total");
    ASSERT_TRUE(client.Complete(Greedy(kPrompt, 2)).status.ok());
    EXPECT_TRUE(
        WaitUntil([&] { return server.Metric("polysketch_trace_spans_dropped_total") > before; }));
  }
  const std::string log = server.process().StandardError();
  const size_t first = log.find("traces_dropped");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("traces_dropped", first + 1), std::string::npos) << log;
}

// As a cluster sets the variables for all its programs.
TEST(Trace, TheEnvironmentNamesTheCollector) {
  const testing::Collector collector;
  const ModelFolder model(
      "{%- for message in messages %}{{ message.content + eos_token }}{%- endfor %}");
  const Server server({.model = model.path(),
                       .flags = {"--http-listen", "127.0.0.1:0"},
                       .environment = {{"no_proxy", "127.0.0.1"},
                                       {"OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()},
                                       {"OTEL_EXPORTER_OTLP_HEADERS", "x-scope=a%20b,api-key=k"},
                                       {"OTEL_SERVICE_NAME", "novelist"}}});
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "It was"}], "max_tokens": 2})";
  const std::string response = R"({"input": "It was", "max_output_tokens": 2})";
  const std::string text = R"({"prompt": "It was", "max_tokens": 2})";
  for (const auto& [path, body] :
       {std::pair{"/v1/chat/completions", chat}, std::pair{"/v1/responses", response},
        std::pair{"/v1/messages", chat}, std::pair{"/v1/completions", text}}) {
    EXPECT_EQ(Http(server.http_address(), path, body).status, 200) << path;
  }
  std::vector<std::string> operations;
  for (const ReceivedSpan& span : WaitForCalls(collector, "Complete", 4)) {
    if (span.name.ends_with("/Complete")) operations.push_back(Text(span, "gen_ai.operation.name"));
  }
  EXPECT_EQ(operations, (std::vector<std::string>{"chat", "chat", "chat", "text_completion"}));
  const std::string head = collector.head();
  EXPECT_NE(head.find("POST /v1/traces "), std::string::npos) << head;
  EXPECT_NE(head.find("x-scope: a b\r\n"), std::string::npos) << head;
  EXPECT_NE(head.find("api-key: k\r\n"), std::string::npos) << head;
  EXPECT_NE(collector.bodies()[0].find("novelist"), std::string::npos);
}

// A variable that is wrong for this server does not end it.
TEST(Trace, AWrongEnvironmentTurnsTracesOff) {
  Server server({.environment = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317"},
                                 {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}});
  EXPECT_TRUE(Client(server.address()).Complete(Greedy(kPrompt, 2)).status.ok());
  EXPECT_NE(server.process().StandardError().find(
                "traces_off reason=\"OTEL_EXPORTER_OTLP_PROTOCOL: expected http/json"),
            std::string::npos);
}

TEST(Trace, AWrongEndpointIsNamed) {
  Server server({.flags = {"--otlp-endpoint", "127.0.0.1:4318"}}, Server::Wait::kNot);
  EXPECT_EQ(server.process().Wait(), 2);
  EXPECT_NE(server.process().StandardError().find("--otlp-endpoint: expected http://"),
            std::string::npos);
}

}  // namespace
}  // namespace polysketch::e2e
