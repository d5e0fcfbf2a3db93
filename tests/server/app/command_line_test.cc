#include "server/app/command_line.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "server/app/cpus.h"
#include "server/app/flags.h"

namespace polysketch {
namespace {

using Environment = std::map<std::string, std::string>;

Result<CommandLine> Load(const std::vector<const char*>& args,
                         const Environment& environment = {}) {
  return LoadConfig(args, [&environment](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text)
      : path_(std::filesystem::path(testing::TempDir()) /
              (std::string("config_") +
               testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::filesystem::remove(path_); }
  const char* path() const { return path_.c_str(); }

 private:
  std::filesystem::path path_;
};

void ExpectError(const Result<CommandLine>& result, const std::string& part) {
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().ToString();
}

TEST(Config, ValuesAreUtf8) {
  ExpectError(Load({"--model", "m\xFFx"}),
              "--model: expected UTF-8, found another byte at position 1");
  ExpectError(Load({"--model", "m", "--served-model-name", "\xC3"}),
              "--served-model-name: expected UTF-8");
  ExpectError(Load({"--model", "m"}, {{"POLYSKETCH_STATE_STORE", "dir:\xC3\x28"}}),
              "POLYSKETCH_STATE_STORE: expected UTF-8");
  EXPECT_TRUE(Load({"--model", "m\xC3\xA9"}).ok());
}

TEST(Config, FlagsWinOverEnvironmentOverFileOverDefault) {
  const ConfigFile file(
      R"({"model": "from-file", "max-queue": 11, "threads": "3", "max-sequences": 5})");
  const Environment environment = {{"POLYSKETCH_MAX_QUEUE", "12"}, {"POLYSKETCH_THREADS", "4"}};
  const auto loaded = Load({"--config", file.path(), "--max-queue=13"}, environment);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  const ServerConfig& config = loaded->config;
  EXPECT_EQ(config.max_queue, 13);     // flag
  EXPECT_EQ(config.threads, 4);        // environment
  EXPECT_EQ(config.max_sequences, 5);  // file
  EXPECT_EQ(config.model, "from-file");
  EXPECT_EQ(config.max_step_tokens, ServerConfig().max_step_tokens);
}

TEST(Config, StepTokensAreThoseOfTheDeviceUnlessSet) {
  const auto loaded = Load({"--model", "m"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(StepTokens(loaded->config, /*on_device=*/false, /*threads=*/2), 256);
  EXPECT_EQ(StepTokens(loaded->config, /*on_device=*/false, /*threads=*/64), 512);
  EXPECT_EQ(StepTokens(loaded->config, /*on_device=*/true, /*threads=*/1), 8192);
  const auto many = Load({"--model", "m", "--max-sequences", "400"});
  ASSERT_TRUE(many.ok()) << many.status().ToString();
  EXPECT_EQ(StepTokens(many->config, /*on_device=*/false, /*threads=*/2), 800);
  const auto set = Load({"--model", "m", "--max-step-tokens", "64"});
  ASSERT_TRUE(set.ok()) << set.status().ToString();
  EXPECT_EQ(StepTokens(set->config, /*on_device=*/false, /*threads=*/2), 64);
  EXPECT_EQ(StepTokens(set->config, /*on_device=*/true, /*threads=*/2), 64);
}

TEST(Config, FileFromTheEnvironment) {
  const ConfigFile file(R"({"model": "m"})");
  const auto loaded = Load({}, {{"POLYSKETCH_CONFIG", file.path()}});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->config.model, "m");
}

TEST(Config, LaterFlagWins) {
  const auto loaded = Load({"--model", "a", "--model", "b"});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->config.model, "b");
}

TEST(Config, ErrorsNameTheSource) {
  ExpectError(Load({}), "--model: expected a model folder");
  ExpectError(Load({"--model", "m", "--max-queue", "many"}),
              "--max-queue: expected an integer, found \"many\"");
  ExpectError(Load({"--model", "m"}, {{"POLYSKETCH_DRAIN_TIMEOUT", "30"}}),
              "POLYSKETCH_DRAIN_TIMEOUT: expected a time");
  ExpectError(Load({"--model"}), "--model: expected a value");
  ExpectError(Load({"--modle", "m"}), "--modle: unknown flag; did you mean model?");
  ExpectError(Load({"--frobnicate", "m"}), "--frobnicate: unknown flag (see --help)");
  ExpectError(Load({"--model", "m", "--threads", "1025"}),
              "--threads: expected 0 to 1024, found 1025");
  ExpectError(Load({"--model", "m", "--listen", "65536"}),
              "--listen: expected HOST:PORT, or a port from 0 to 65535, found 65536");
  ExpectError(Load({"m"}), "expected a flag");
  ExpectError(Load({"--help=1"}), "--help: expected no value");
  ExpectError(Load({"--config", "/nonexistent/file"}), "/nonexistent/file");
  {
    const ConfigFile file(R"({"model": "m", "max_queue": 1})");
    ExpectError(Load({"--config", file.path()}), "max_queue: unknown flag");
  }
  {
    const ConfigFile file(R"({"model": "m", "threads": 1.5})");
    ExpectError(Load({"--config", file.path()}),
                "threads: expected a string, an integer or a boolean, found 1.5");
  }
  {
    const ConfigFile file("[1, 2]");
    ExpectError(Load({"--config", file.path()}), "expected a JSON object");
  }
  {
    const ConfigFile file("{\"model\": ");
    ExpectError(Load({"--config", file.path()}), "expected JSON, found an error at byte 11");
  }
  {
    const ConfigFile file(std::string(131'000, '['));
    ExpectError(Load({"--config", file.path()}), "levels of arrays and objects, found more");
  }
}

TEST(Config, KeysOfTheFileStandOnce) {
  const ConfigFile file(R"({"model": "m", "threads": 1, "threads": 2})");
  ExpectError(Load({"--config", file.path()}), "key \"threads\" appears twice");
}

TEST(Config, TextHasNoControlCharacters) {
  for (const Flag& flag : Flags()) {
    if (!std::holds_alternative<std::string ServerConfig::*>(flag.field)) continue;
    ServerConfig config;
    for (const std::string text : {"a\nb", "a\x7f", "\t"})
      EXPECT_FALSE(SetFlag(flag, text, &config).ok()) << flag.name;
  }
  const ConfigFile file("{\"model\": \"m\", \"served-model-name\": \"a\\u0000b\"}");
  ExpectError(Load({"--config", file.path()}),
              "served-model-name: expected text without control characters, found the byte 0 at "
              "position 1");
}

TEST(Config, ListsAreTrimmedAndChecked) {
  const auto loaded =
      Load({"--model", "m", "--http-origins", "https://a.example, https://b.example:8443",
            "--http-hosts", " a.example ,b"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->config.http_origins, "https://a.example,https://b.example:8443");
  EXPECT_EQ(loaded->config.http_hosts, "a.example,b");
  ExpectError(Load({"--model", "m", "--http-origins", "evil, https://ok.example"}),
              "--http-origins: expected origins as browsers send them");
  ExpectError(Load({"--model", "m"}, {{"POLYSKETCH_HTTP_HOSTS", "a b,,c"}}),
              "POLYSKETCH_HTTP_HOSTS: expected names of hosts without ports, or *, separated by "
              "commas, found \"a b\"");
}

TEST(Config, TheLengthThatIsSetIsWithinItsLimit) {
  ExpectError(Load({"--model", "m", "--default-max-tokens", "33", "--max-new-tokens", "22"}),
              "--default-max-tokens: expected at most --max-new-tokens (22), found 33");
  EXPECT_TRUE(Load({"--model", "m", "--max-new-tokens", "22"}).ok());
}

TEST(Config, SwitchesTakeNoValueOnTheCommandLine) {
  EXPECT_FALSE(Load({"--model", "m"})->config.insecure);
  EXPECT_TRUE(Load({"--insecure", "--model", "m"})->config.insecure);
  EXPECT_FALSE(Load({"--insecure", "--insecure=false", "--model", "m"})->config.insecure);
  EXPECT_TRUE(Load({"--model", "m"}, {{"POLYSKETCH_INSECURE", "true"}})->config.insecure);
  ExpectError(Load({"--model", "m", "--insecure=1"}),
              "--insecure: expected true or false, found \"1\"");
  const ConfigFile file(R"({"model": "m", "insecure": true})");
  EXPECT_TRUE(Load({"--config", file.path()})->config.insecure);
}

TEST(Config, CredentialFlagsBelongTogether) {
  ExpectError(Load({"--model", "m", "--tls-cert", "c"}),
              "--tls-cert, --tls-key: expected both or none, found only --tls-cert");
  ExpectError(Load({"--model", "m", "--tls-key", "c"}), "found only --tls-key");
  ExpectError(Load({"--model", "m", "--tls-client-ca", "c"}),
              "--tls-client-ca: expected with --tls-cert and --tls-key");
}

TEST(Config, AnAddressThatStrangersReachNeedsCredentials) {
  for (const char* address :
       {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host.example:1", "127.host.example:1",
        "[::ffff:127.0.0.1]:1", "localhost.example:1"}) {
    const std::string found =
        StrCat("expected a loopback address without --api-keys and ", "--tls-client-ca, found ",
               address, ": anyone could use the server (--insecure allows it)");
    ExpectError(Load({"--model", "m", "--listen", address}), "--listen: " + found);
    ExpectError(Load({"--model", "m", "--http-listen", address}), "--http-listen: " + found);
    EXPECT_TRUE(Load({"--model", "m", "--metrics-listen", address}).ok()) << address;
    EXPECT_TRUE(Load({"--model", "m", "--listen", address, "--insecure"}).ok()) << address;
    EXPECT_TRUE(Load({"--model", "m", "--listen", address, "--api-keys", "k"}).ok()) << address;
    // TLS alone asks for no credentials.
    const std::vector<const char*> tls = {"--model",    "m", "--listen",  address,
                                          "--tls-cert", "c", "--tls-key", "k"};
    EXPECT_FALSE(Load(tls).ok()) << address;
    std::vector<const char*> mutual = tls;
    mutual.insert(mutual.end(), {"--tls-client-ca", "a"});
    EXPECT_TRUE(Load(mutual).ok()) << address;
  }
  for (const char* address : {"127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1"})
    EXPECT_TRUE(Load({"--model", "m", "--listen", address, "--http-listen="}).ok()) << address;
}

TEST(Config, APortAloneIsOneOfTheLoopback) {
  const auto loaded =
      Load({"--model", "m", "--listen", "7000", "--http-listen=08", "--metrics-listen", "0"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(loaded->config.listen, "127.0.0.1:7000");
  EXPECT_EQ(loaded->config.http_listen, "127.0.0.1:8");
  EXPECT_EQ(loaded->config.metrics_listen, "127.0.0.1:0");
  EXPECT_EQ(Load({"--model", "m", "--http-listen", ""})->config.http_listen, "");
}

TEST(Config, HelpAndVersionNeedNoModel) {
  EXPECT_EQ(Load({"-h"})->action, CommandAction::kHelp);
  EXPECT_EQ(Load({"--help"})->action, CommandAction::kHelp);
  EXPECT_EQ(Load({"--version"})->action, CommandAction::kVersion);
}

TEST(Config, UnknownVariablesAreWarnedOf) {
  const char* const environment[] = {"POLYSKETCH_MAX_QEUE=1",
                                     "POLYSKETCH_MAX_QUEUE=1",
                                     "POLYSKETCH_CONFIG=x",
                                     "POLYSKETCH_API_KEY=x",
                                     "POLYSKETCH_PORT=tcp://x",
                                     "POLYSKETCH_HELP_FORMAT=x",
                                     nullptr};
  EXPECT_EQ(EnvironmentWarnings(environment),
            (std::vector<std::string>{
                "the environment variable POLYSKETCH_HELP_FORMAT is not known and has no effect",
                "the environment variable POLYSKETCH_MAX_QEUE is not known and has no effect"}));
}

TEST(Config, HelpHasFormats) {
  const auto loaded = Load({"--help-format", "man"});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->action, CommandAction::kFormattedHelp);
  EXPECT_EQ(loaded->help_format, "man");
  const Result<std::string> man = FormattedHelp("man", "1");
  ASSERT_TRUE(man.ok());
  EXPECT_NE(man->find(".B \"\\-\\-max\\-queue N\"\n"), std::string::npos) << *man;
  EXPECT_EQ(FormattedHelp("html", "1").status().message(),
            "--help-format: expected man|bash, found \"html\"");
}

TEST(Flags, EveryDefaultIsLegalAndReadsBack) {
  const ServerConfig defaults;
  for (const Flag& flag : Flags()) {
    ServerConfig config;
    const Status status = SetFlag(flag, FlagText(flag, defaults), &config);
    EXPECT_TRUE(status.ok()) << flag.name << ": " << status.ToString();
    EXPECT_EQ(FlagText(flag, config), FlagText(flag, defaults)) << flag.name;
  }
}

TEST(Flags, HelpAndEnvironmentNameThemAllOnce) {
  const std::string help = HelpText();
  std::set<std::string> names;
  for (const Flag& flag : Flags()) {
    const char end = flag.kind == FlagKind::kSwitch ? '\n' : ' ';
    EXPECT_NE(help.find(StrCat("  --", flag.name, end)), std::string::npos) << flag.name;
    EXPECT_TRUE(names.insert(EnvironmentName(flag.name)).second) << flag.name;
  }
  EXPECT_EQ(EnvironmentName("max-queue"), "POLYSKETCH_MAX_QUEUE");
}

TEST(Flags, UnitsAndRanges) {
  ServerConfig config;
  const auto set = [&config](std::string_view name, std::string_view text) {
    return SetFlag(*FindFlag(name), text, &config);
  };
  EXPECT_TRUE(set("drain-timeout", "1500ms").ok());
  EXPECT_EQ(config.drain_timeout.count(), 1500);
  EXPECT_TRUE(set("drain-timeout", "2m").ok());
  EXPECT_EQ(config.drain_timeout.count(), 120000);
  EXPECT_TRUE(set("drain-timeout", "0").ok());
  EXPECT_FALSE(set("drain-timeout", "-1s").ok());
  EXPECT_FALSE(set("drain-timeout", "1d").ok());
  EXPECT_FALSE(set("drain-timeout", "99999h").ok());
  EXPECT_TRUE(set("max-message-bytes", "1MiB").ok());
  EXPECT_EQ(config.max_message_bytes, 1 << 20);
  EXPECT_TRUE(set("max-message-bytes", "65536").ok());
  EXPECT_FALSE(set("max-message-bytes", "1MB").ok());
  EXPECT_FALSE(set("slot-memory", "9223372036854775807TiB").ok());  // overflows
  EXPECT_FALSE(set("max-sequences", "0").ok());
  EXPECT_FALSE(set("max-sequences", "").ok());
  EXPECT_FALSE(set("max-sequences", " 1").ok());
  EXPECT_FALSE(set("max-sequences", "0x10").ok());
  EXPECT_EQ(set("device", "gpu").message(), "expected auto|cpu|cuda|reference, found \"gpu\"");
  EXPECT_FALSE(set("device", "auto|cpu").ok());
  EXPECT_TRUE(set("device", "reference").ok());
}

TEST(Cpus, Quota) {
  EXPECT_EQ(CpusOfQuota("max 100000"), std::nullopt);
  EXPECT_EQ(CpusOfQuota("200000 100000"), 2);
  EXPECT_EQ(CpusOfQuota("150000 100000"), 1);
  EXPECT_EQ(CpusOfQuota("1000 100000"), 1);
  EXPECT_EQ(CpusOfQuota(""), std::nullopt);
  EXPECT_EQ(CpusOfQuota("1 0"), std::nullopt);
  EXPECT_GE(AvailableCpus(), 1);
}

}  // namespace
}  // namespace polysketch
