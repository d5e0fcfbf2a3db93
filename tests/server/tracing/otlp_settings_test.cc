#include "server/tracing/otlp_settings.h"

#include <gtest/gtest.h>

#include <map>

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
