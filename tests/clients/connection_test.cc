#include "clients/cpp/connection.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

using Environment = std::map<std::string, std::string>;

Status Resolve(const Environment& environment, ConnectionOptions* options) {
  return ResolveConnection(
      [&environment](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      options);
}

TEST(ServerAddress, AddsTheDefaultPort) {
  const std::pair<const char*, const char*> cases[] = {
      {"localhost", "localhost:50051"},
      {"7000", "127.0.0.1:7000"},
      {"example.com", "example.com:50051"},
      {"10.0.0.1", "10.0.0.1:50051"},
      {"10.0.0.1:7", "10.0.0.1:7"},
      {"localhost:65535", "localhost:65535"},
      {"::1", "[::1]:50051"},
      {"[::1]", "[::1]:50051"},
      {"[::1]:7", "[::1]:7"},
      {"unix:/run/polysketch.sock", "unix:/run/polysketch.sock"},
      {"dns:///polysketch.default:50051", "dns:///polysketch.default:50051"},
  };
  for (const auto& [text, address] : cases) {
    const Result<std::string> got = ServerAddress(text);
    ASSERT_TRUE(got.ok()) << text << ": " << got.status().ToString();
    EXPECT_EQ(*got, address);
  }
}

TEST(ServerAddress, SaysWhatIsNoAddress) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"0", ""},
      {"65536", ""},
      {":50051", ""},
      {"localhost:", ""},
      {"localhost:0", ""},
      {"localhost:65536", ""},
      {"localhost:grpc", ""},
      {"localhost:50051/", ""},
      {"[::1", ""},
      {"[::1]7", ""},
      {"http://localhost:8000/v1",
       "; write it without http:// (the HTTP port of a server is another one)"},
      {"https://example.com", "; write it without https:// and add --tls-ca"},
  };
  for (const auto& [text, advice] : cases) {
    EXPECT_EQ(ServerAddress(text).status().message(),
              StrCat("expected HOST:PORT of the gRPC port, found '", text, "'", advice));
  }
}

TEST(HttpServerAddress, AddsTheDefaultPort) {
  const auto address = [](const char* text) { return HttpServerAddress(text).value(); };
  EXPECT_EQ(address("host"), "host:8000");
  EXPECT_EQ(address("host:81"), "host:81");
  EXPECT_EQ(address("http://host:81/"), "host:81");
  EXPECT_EQ(address("[::1]"), "[::1]:8000");
  EXPECT_EQ(address("::1"), "[::1]:8000");
  EXPECT_EQ(address("81"), "127.0.0.1:81");
  for (const char* text :
       {"", "65536", "host:", "host:x", "unix:/run/p.sock", "http://", "a b", "host/v1"})
    EXPECT_FALSE(HttpServerAddress(text).ok()) << text;
  EXPECT_NE(HttpServerAddress("https://host").status().message().find("add --tls-ca"),
            std::string::npos);
  EXPECT_EQ(HttpServerBeside("host:50051"), "host:8000");
  EXPECT_EQ(HttpServerBeside("[::1]:50051"), "[::1]:8000");
  EXPECT_EQ(HttpServerBeside("unix:/run/p.sock"), "");
}

TEST(Connection, OptionsWinOverTheEnvironmentOverTheDefault) {
  ConnectionOptions options;
  ASSERT_TRUE(Resolve({{"POLYSKETCH_SERVER", ""}}, &options).ok());
  EXPECT_EQ(options.server, "127.0.0.1:50051");
  EXPECT_FALSE(options.tls());

  options = {};
  ASSERT_TRUE(Resolve({{"POLYSKETCH_SERVER", "a"}, {"POLYSKETCH_API_KEY", "k"}}, &options).ok());
  EXPECT_EQ(options.server, "a:50051");
  EXPECT_EQ(options.api_key, "k");

  options = {};
  options.server = "b:1";
  options.api_key = "l";
  ASSERT_TRUE(Resolve({{"POLYSKETCH_SERVER", "a"}, {"POLYSKETCH_API_KEY", "k"}}, &options).ok());
  EXPECT_EQ(options.server, "b:1");
  EXPECT_EQ(options.api_key, "l");
}

TEST(Connection, ReadsPemFiles) {
  const std::string path = std::filesystem::path(testing::TempDir()) / "connection_test.pem";
  std::ofstream(path) << "text\n-----BEGIN CERTIFICATE-----\n";
  const Environment environment = {
      {"POLYSKETCH_TLS_CA", path}, {"POLYSKETCH_CERT", path}, {"POLYSKETCH_KEY", path}};
  ConnectionOptions options;
  const Status status = Resolve(environment, &options);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(options.tls());
  for (const std::string& pem : {options.tls_ca_pem, options.cert_pem, options.key_pem}) {
    EXPECT_EQ(pem, "text\n-----BEGIN CERTIFICATE-----\n");
  }
  std::ofstream(path) << "DER";
  EXPECT_EQ(Resolve({{"POLYSKETCH_TLS_CA", path}}, &(options = {})).message(),
            "--tls-ca: expected PEM, found no line -----BEGIN in " + path);
  std::filesystem::remove(path);
}

TEST(Connection, SaysWhatIsWrong) {
  const std::pair<Environment, const char*> cases[] = {
      {{{"POLYSKETCH_SERVER", "http://a"}}, "POLYSKETCH_SERVER: expected HOST:PORT"},
      {{{"POLYSKETCH_API_KEY", "k\n"}},
       "POLYSKETCH_API_KEY: expected printable ASCII characters, found another one at byte 1"},
      {{{"POLYSKETCH_CERT", "c.pem"}}, "--cert and --key: expected both or neither, found one"},
      {{{"POLYSKETCH_KEY", "k.pem"}}, "--cert and --key: expected both or neither, found one"},
      {{{"POLYSKETCH_TLS_CA", "/nonexistent.pem"}}, "--tls-ca: cannot read /nonexistent.pem"},
      {{{"POLYSKETCH_TLS_CA", "/"}}, "--tls-ca: expected PEM, found no line -----BEGIN in /"},
  };
  for (const auto& [environment, message] : cases) {
    ConnectionOptions options;
    EXPECT_TRUE(Resolve(environment, &options).message().starts_with(message))
        << Resolve(environment, &options).ToString();
  }
}

TEST(Connection, WarnsOfUnknownVariables) {
  setenv("POLYSKETCH_SEVER", "x", 1);
  setenv("POLYSKETCH_MAX_QUEUE", "3", 1);  // a flag of the server
  setenv("POLYSKETCH_CONFIG", "file", 1);
  std::ostringstream text;
  std::streambuf* const saved = std::cerr.rdbuf(text.rdbuf());
  WarnOfUnknownVariables("program");
  std::cerr.rdbuf(saved);
  EXPECT_EQ(text.str(),
            "program: warning: the environment variable POLYSKETCH_SEVER is not known and has no "
            "effect\n");
  for (const char* name : {"POLYSKETCH_SEVER", "POLYSKETCH_MAX_QUEUE", "POLYSKETCH_CONFIG"}) {
    unsetenv(name);
  }
}

}  // namespace
}  // namespace polysketch
