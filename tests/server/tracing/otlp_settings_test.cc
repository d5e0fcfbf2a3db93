#include "server/tracing/otlp_settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "polysketch_build_info.h"

namespace polysketch {
namespace {

Attributes Of(const std::map<std::string, std::string>& environment) {
  return ResourceAttributes([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

TEST(OtlpSettings, TheUrlEndsWithThePathOfTraces) {
  for (const auto& [endpoint, url] : std::map<std::string, std::string>{
           {"http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"},
           {"http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"},
           {"https://otel.example", "https://otel.example/v1/traces"},
           {"http://[::1]:4318/otlp", "http://[::1]:4318/otlp/v1/traces"},
           {"http://otel:4318/v1/traces", "http://otel:4318/v1/traces"}}) {
    const Result<std::string> found = TracesUrl(endpoint);
    ASSERT_TRUE(found.ok()) << endpoint;
    EXPECT_EQ(*found, url);
  }
}

TEST(OtlpSettings, OtherEndpointsAreRefused) {
  for (const char* endpoint :
       {"127.0.0.1:4318", "grpc://a:4317", "http://", "http:///v1/traces", "http://user:word@a",
        "http://a/?key=1", "http://a/#b", "http://a b", "http://a\n", "file:///etc/passwd"}) {
    EXPECT_EQ(TracesUrl(endpoint).status().code(), Code::kInvalidArgument) << endpoint;
  }
}

using Variables = std::map<std::string, std::string>;

Result<OtlpTarget> TargetOf(const std::string& flag, const Variables& variables) {
  return OtlpTargetOf(flag, "--otlp-endpoint", [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(OtlpSettings, TheFlagWinsOverTheEnvironment) {
  const std::string base = "OTEL_EXPORTER_OTLP_ENDPOINT",
                    traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                    protocol = "OTEL_EXPORTER_OTLP_PROTOCOL";
  struct Case {
    std::string flag;
    Variables variables;
    std::string url;
  };
  for (const Case& c : std::vector<Case>{
           {"", {}, ""},
           {"", {{base, ""}}, ""},
           {"http://f:1",
            {{base, "http://e:2"}, {"OTEL_SDK_DISABLED", "true"}},
            "http://f:1/v1/traces"},
           {"http://f:1", {{protocol, "grpc"}}, "http://f:1/v1/traces"},
           {"", {{base, "http://e:2/"}, {protocol, "http/protobuf"}}, "http://e:2/v1/traces"},
           {"", {{base, "http://e:2/otlp"}}, "http://e:2/otlp/v1/traces"},
           // The variable of traces is the URL itself.
           {"", {{base, "http://e:2"}, {traces, "http://t:3/spans"}}, "http://t:3/spans"},
           {"", {{traces, "https://t:3"}}, "https://t:3"},
           {"", {{base, "http://e:2"}, {"OTEL_SDK_DISABLED", "True"}}, ""},
           {"", {{base, "http://e:2"}, {"OTEL_SDK_DISABLED", "no"}}, "http://e:2/v1/traces"},
           {"", {{base, "http://e:2"}, {"OTEL_TRACES_EXPORTER", "none"}}, ""},
           {"",
            {{base, "http://e:2"}, {"OTEL_TRACES_EXPORTER", "console, otlp"}},
            "http://e:2/v1/traces"},
       }) {
    const Result<OtlpTarget> target = TargetOf(c.flag, c.variables);
    ASSERT_TRUE(target.ok()) << target.status().ToString();
    EXPECT_EQ(target->url, c.url);
    EXPECT_TRUE(target->headers.empty());
  }
}

TEST(OtlpSettings, HeadersArePercentDecoded) {
  const Variables both = {{"OTEL_EXPORTER_OTLP_HEADERS", "a=1"},
                          {"OTEL_EXPORTER_OTLP_TRACES_HEADERS",
                           " Authorization = Basic%20dTpw%3D= ,x-scope=a%2Cb,,empty="}};
  const PostHeaders traces = {{"Authorization", "Basic dTpw=="}, {"x-scope", "a,b"}, {"empty", ""}};
  EXPECT_EQ(TargetOf("http://f:1", both)->headers, traces);
  EXPECT_EQ(TargetOf("http://f:1", {{"OTEL_EXPORTER_OTLP_HEADERS", "a=1"}})->headers,
            (PostHeaders{{"a", "1"}}));
  EXPECT_TRUE(TargetOf("", both)->headers.empty());  // there is no collector
}

TEST(OtlpSettings, WrongVariablesAreNamedAndCredentialsAreNotQuoted) {
  const auto error = [](Variables variables) {
    variables.emplace("OTEL_EXPORTER_OTLP_ENDPOINT", "http://e:2");
    const Result<OtlpTarget> target = TargetOf("", variables);
    return target.ok() ? "" : target.status().message();
  };
  EXPECT_TRUE(TargetOf("e:2", {}).status().message().starts_with("--otlp-endpoint: expected http"));
  EXPECT_TRUE(error({{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "e:2"}})
                  .starts_with("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: expected http://"));
  EXPECT_EQ(error({{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}),
            "OTEL_EXPORTER_OTLP_PROTOCOL: expected http/json or http/protobuf, found \"grpc\"");
  for (const char* headers :
       {"secret", "a=1,secret", "a=secret%0D%0Ab:1", "b c=secret", "=secret"}) {
    const std::string message = error({{"OTEL_EXPORTER_OTLP_HEADERS", headers}});
    EXPECT_TRUE(message.starts_with("OTEL_EXPORTER_OTLP_HEADERS: expected ")) << message;
    EXPECT_EQ(message.find("secret"), std::string::npos) << message;
  }
}

TEST(OtlpSettings, TheEnvironmentNamesTheService) {
  const Attributes own = {{"service.name", "polysketch-server"},
                          {"service.version", POLYSKETCH_VERSION}};
  EXPECT_EQ(Of({}), own);
  EXPECT_EQ(Of({{"OTEL_SERVICE_NAME", ""}, {"OTEL_RESOURCE_ATTRIBUTES", ""}}), own);
  EXPECT_EQ(Of({{"OTEL_RESOURCE_ATTRIBUTES", "service.name=a, host.name = n%20 1 ,bad,=x,z=%4"}}),
            (Attributes{{"service.name", "a"},
                        {"service.version", POLYSKETCH_VERSION},
                        {"host.name", "n  1"},
                        {"z", "%4"}}));
  EXPECT_EQ(
      Of({{"OTEL_RESOURCE_ATTRIBUTES", "service.name=a"}, {"OTEL_SERVICE_NAME", "b"}}).front(),
      (Attributes::value_type{"service.name", "b"}));
}

}  // namespace
}  // namespace polysketch
