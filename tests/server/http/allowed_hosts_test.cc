#include "server/http/allowed_hosts.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

TEST(AllowedHosts, AddressesAndLocalhostAlwaysNameTheServer) {
  for (const char* host : {"127.0.0.1", "127.0.0.1:8000", "10.1.2.3:80", "[::1]", "[::1]:8000",
                           "localhost", "LOCALHOST:8000", "page.localhost:80", "Page.LocalHost"}) {
    EXPECT_TRUE(IsAllowedHost(host, "")) << host;
  }
}

TEST(AllowedHosts, OtherNamesMustBeListed) {
  for (const char* host :
       {"", ":80", "evil.example", "evil.example:8000", "localhost.evil.example", "evillocalhost",
        ".localhost", "127.0.0.1.evil.example", "1.2.3", "a,b"}) {
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

TEST(AllowedHosts, ListsAreTrimmedAndChecked) {
  EXPECT_EQ(*ParseHostList(""), "");
  EXPECT_EQ(*ParseHostList(" a.example , *,b_1,[::1] ,10.0.0.1"), "a.example,*,b_1,[::1],10.0.0.1");
  for (const char* list : {" ", ",", "a,", ",a", "a,,b", "a b", "a:80", "[::1", "*.a.example",
                           "http://a", "a/b", "\xc3\xa9.example", "a\tb"})
    EXPECT_FALSE(ParseHostList(list).ok()) << list;
  EXPECT_EQ(ParseHostList("a, b:80").status().message(),
            "expected names of hosts without ports, or *, separated by commas, found \"b:80\"");

  EXPECT_EQ(*ParseOriginList(""), "");
  EXPECT_EQ(*ParseOriginList("*"), "*");
  const std::string right =
      "https://a.example,http://b.example:8080,HTTPS://C.example:80,http://[::1]:1,"
      "chrome-extension://abc";
  EXPECT_EQ(*ParseOriginList(" https://a.example ,http://b.example:8080, HTTPS://C.example:80,"
                             "http://[::1]:1, chrome-extension://abc"),
            right);
  EXPECT_EQ(AllowedOrigin("http://b.example:8080", right), "http://b.example:8080");
  for (const char* list :
       {"evil", "null", "evil, https://ok.example", "https://", "://a", "https:/a", "https://a/",
        "https://a/b", "https://a:", "https://a:0", "https://a:65536", "https://a:8x",
        "https://a:-1", "https://a:443", "HTTP://a:80", "https://u@a", "https://*.a", "https://a b",
        "https://a,"})
    EXPECT_FALSE(ParseOriginList(list).ok()) << list;
  EXPECT_TRUE(
      ParseOriginList("evil, https://ok.example").status().message().ends_with("found \"evil\""));
}

TEST(AllowedHosts, AnAddressOfThisMachineAloneAllowsNoName) {
  for (const char* address : {"127.0.0.1:8000", "[::1]:8000", "localhost:8000"}) {
    const AllowedHosts hosts = AllowedHostsOf("", address, "machine");
    EXPECT_EQ(hosts.any, "") << address;
    EXPECT_EQ(hosts.browser, "") << address;
  }
}

TEST(AllowedHosts, AnotherAddressAllowsAnyNameButToBrowsers) {
  for (const char* address : {"0.0.0.0:8000", "[::]:8000", "10.1.2.3:8000"}) {
    const AllowedHosts hosts = AllowedHostsOf("", address, "machine");
    for (const char* host : {"evil.example:8000", "machine.evil.example", "polysketch", ""}) {
      EXPECT_TRUE(CheckHost(host, /*browser=*/false, hosts).ok()) << host;
      const Status status = CheckHost(host, /*browser=*/true, hosts);
      EXPECT_EQ(status.code(), Code::kPermissionDenied) << host;
      EXPECT_NE(status.message().find("--http-hosts"), std::string::npos) << status.message();
    }
    for (const char* host : {"machine", "Machine:8000", "10.1.2.3:8000", "localhost", "[::1]"})
      EXPECT_TRUE(CheckHost(host, /*browser=*/true, hosts).ok()) << host;
  }
  // A machine without a name.
  EXPECT_FALSE(CheckHost("", true, AllowedHostsOf("", "0.0.0.0:8000", "")).ok());
}

TEST(AllowedHosts, TheFlagIsForEveryRequest) {
  for (const char* address : {"127.0.0.1:8000", "0.0.0.0:8000"}) {
    const AllowedHosts hosts = AllowedHostsOf("models.example", address, "machine");
    for (const bool browser : {false, true}) {
      EXPECT_TRUE(CheckHost("models.example", browser, hosts).ok());
      EXPECT_FALSE(CheckHost("machine", browser, hosts).ok());
      EXPECT_TRUE(CheckHost("evil.example", browser, AllowedHostsOf("*", address, "m")).ok());
    }
  }
}

TEST(AllowedHosts, TheMachineHasItsName) {
  std::ifstream file("/proc/sys/kernel/hostname");
  std::string name;
  ASSERT_TRUE(std::getline(file, name));
  EXPECT_EQ(MachineName(), name);
}

}  // namespace
}  // namespace polysketch
