// The exit statuses that --help and the documentation name.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/status.h"
#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {
namespace {

namespace fs = std::filesystem;

v1::CompleteRequest EndlessRequest() { return Greedy("It was late in the afternoon", 1 << 20); }

ProcessResult RunProgram(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), Binary(program));
  return RunProcess({.arguments = std::move(arguments)});
}

ProcessResult RunServer(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--http-listen", "", "--metrics-listen", ""});
  return RunProgram("polysketch-server", flags);
}

void ExpectExit(const ProcessResult& result, int status, const std::string& message) {
  EXPECT_EQ(result.exit_status, status) << result.standard_error;
  EXPECT_NE(result.standard_error.find(message), std::string::npos) << result.standard_error;
}

class ExitStatus : public ::testing::Test {
 protected:
  ExitStatus() : folder_(fs::temp_directory_path() / StrCat("exit-status-", getpid())) {
    fs::remove_all(folder_);
    fs::copy(DemoModel(), folder_);
  }
  ~ExitStatus() override { fs::remove_all(folder_); }

  // Changes a bit in the middle of a file.
  void Damage(const std::string& name) {
    std::fstream file(folder_ / name, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(folder_ / name) / 2);
    file.seekg(middle);
    const int byte = file.get();
    file.seekp(middle);
    file.put(static_cast<char>(byte ^ 1));
  }

  const fs::path folder_;
};

// A client of the default port would be answered by the other program.
TEST_F(ExitStatus, OfAServerWhoseDefaultPortIsTaken) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = htons(8000), .sin_addr = {}, .sin_zero = {}};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Unless this test has the port, a program of the machine has it.
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) listen(fd, 1);
  ExpectExit(RunProgram("polysketch-server", {"--model", DemoModel(), "--listen", "127.0.0.1:0",
                                              "--metrics-listen", "127.0.0.1:0"}),
             1, "--http-listen: cannot listen on 127.0.0.1:8000: Address already in use");
  close(fd);
}

TEST_F(ExitStatus, OfAServerWithABadCommandLine) {
  ExpectExit(RunServer({"--frob=x", "--model", DemoModel()}), 2, "--frob");
  ExpectExit(RunServer({"--model", DemoModel(), "--max-queue", "x"}), 2, "max-queue");
  ExpectExit(RunServer({}), 2, "--model");
  ExpectExit(RunServer({"--model", DemoModel(), "--state-store", "file:x"}), 2, "--state-store");
}

TEST_F(ExitStatus, OfAServerWithABadModel) {
  ExpectExit(RunServer({"--model", "/nonexistent"}), 1, "/nonexistent/config.json");
  ExpectExit(RunServer({"--model", DemoModel(), "--listen", "127.0.0.1:0", "--chat-template", "x"}),
             1, "--chat-template: expected a file or plain: x: No such file or directory");
  for (const std::string name : {"tokenizer.model", "model.safetensors", "config.json"}) {
    fs::copy(fs::path(DemoModel()) / name, folder_ / name, fs::copy_options::overwrite_existing);
  }
  Damage("tokenizer.model");
  ExpectExit(RunServer({"--model", folder_, "--listen", "127.0.0.1:0"}), 2,
             "tokenizer.model: expected the SHA-256 ");
  fs::copy(fs::path(DemoModel()) / "tokenizer.model", folder_ / "tokenizer.model",
           fs::copy_options::overwrite_existing);
  Damage("model.safetensors");
  ExpectExit(RunServer({"--model", folder_, "--listen", "127.0.0.1:0"}), 2,
             "model.safetensors: expected the SHA-256 ");
  fs::remove(folder_ / "SHA256SUMS");
  ExpectExit(RunServer({"--model", folder_, "--listen", "127.0.0.1:0", "--verify"}), 2,
             "SHA256SUMS, found no such file");
}

TEST_F(ExitStatus, OfAServerThatCannotRun) {
  const Server server({.flags = {"--verify"}});
  ExpectExit(RunServer({"--model", DemoModel(), "--listen", server.address()}), 1, "--listen: ");
  ExpectExit(RunServer({"--model", DemoModel(), "--listen", "127.0.0.1:0", "--state-store",
                        "redis://127.0.0.1:1"}),
             1, "--state-store: 127.0.0.1:1: redis: ");
}

TEST_F(ExitStatus, OfAServerThatIsStopped) {
  {
    Server server({.flags = {"--drain-timeout", "100ms"}});
    Client client(server.address());
    const auto cut = client.StartComplete(EndlessRequest());
    ASSERT_TRUE(server.ComesToRun(1));
    server.process().Signal(SIGTERM);
    EXPECT_EQ(server.process().Wait(), 0) << "requests that are cut do not fail the drain";
  }
  Server server({.flags = {"--drain-timeout", "60s"}});
  Client client(server.address());
  const auto endless = client.StartComplete(EndlessRequest());
  ASSERT_TRUE(server.ComesToRun(1));
  server.process().Signal(SIGTERM);
  ASSERT_TRUE(server.Logs("draining"));
  server.process().Signal(SIGINT);
  EXPECT_EQ(server.process().Wait(), 128 + SIGINT);
}

TEST_F(ExitStatus, OfTheClients) {
  const Server server;
  const std::string address = server.address();
  ExpectExit(RunProgram("polysketch", {"info", "--server", address}), 0, "");
  ExpectExit(RunProgram("polysketch", {"info", "--server", "127.0.0.1:1"}), 1, "polysketch: ");
  ExpectExit(RunProgram("polysketch", {"info", "--frob"}), 2, "--frob");
  ExpectExit(
      RunProgram("polysketch", {"complete", "--server", address, "--prompt-file", "/nonexistent"}),
      2, "/nonexistent");
  ExpectExit(RunProgram("polysketch", {"session", "delete", "0", "--server", address}), 1,
             "there is no session");
  ExpectExit(RunProgram("polysketch-loadgen", {"--frob"}), 2, "--frob");
  ExpectExit(RunProgram("polysketch-loadgen", {"--server", "127.0.0.1:1", "--requests", "1"}), 1,
             "");
}

}  // namespace
}  // namespace polysketch::e2e
