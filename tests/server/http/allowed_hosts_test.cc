#include "server/http/allowed_hosts.h"

#include "gtest/gtest.h"

namespace polysketch {
namespace {

TEST(AllowedHosts, AddressesAndLocalhostAlwaysNameTheServer) {
  for (const char* host : {"127.0.0.1", "127.0.0.1:8000", "10.1.2.3:80", "[::1]", "[::1]:8000",
                           "localhost", "LOCALHOST:8000"}) {
    EXPECT_TRUE(IsAllowedHost(host, "")) << host;
  }
}

TEST(AllowedHosts, OtherNamesMustBeListed) {
  for (const char* host : {"", ":80", "evil.example", "evil.example:8000", "localhost.evil.example",
                           "127.0.0.1.evil.example", "1.2.3", "a,b"}) {
    EXPECT_FALSE(IsAllowedHost(host, "")) << host;
    EXPECT_FALSE(IsAllowedHost(host, "models.example,other.example")) << host;
    EXPECT_TRUE(IsAllowedHost(host, "*")) << host;
  }
  EXPECT_TRUE(IsAllowedHost("models.example", "models.example"));
  EXPECT_TRUE(IsAllowedHost("Models.Example:80", "other.example,models.example"));
}

TEST(AllowedHosts, OriginsMustBeListed) {
  const std::string list = "https://a.example,http://b.example:8080";
  EXPECT_EQ(AllowedOrigin("https://a.example", list), "https://a.example");
  EXPECT_EQ(AllowedOrigin("http://b.example:8080", list), "http://b.example:8080");
  for (const char* origin : {"", "null", "http://a.example", "https://a.example.evil", "a.example",
                             "https://a.example,http://b.example:8080"}) {
    EXPECT_EQ(AllowedOrigin(origin, list), "") << origin;
    EXPECT_EQ(AllowedOrigin(origin, ""), "") << origin;
  }
  EXPECT_EQ(AllowedOrigin("https://c.example", "*"), "*");
  EXPECT_EQ(AllowedOrigin("", "*"), "");
}

TEST(AllowedHosts, AnAddressOfThisMachineAloneAllowsNoName) {
  EXPECT_EQ(DefaultAllowedHosts("127.0.0.1:8000"), "");
  EXPECT_EQ(DefaultAllowedHosts("[::1]:8000"), "");
  EXPECT_EQ(DefaultAllowedHosts("0.0.0.0:8000"), "*");
  EXPECT_EQ(DefaultAllowedHosts("[::]:8000"), "*");
}

}  // namespace
}  // namespace polysketch
