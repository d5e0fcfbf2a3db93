// Files that an earlier version wrote (tests/data/saved-by-COMMIT) are read by this one, and what
// they hold goes on as it would have gone on there, token for token. --device reference: its
// numbers are those of every machine.
#include <cctype>
#include <chrono>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class Compatibility : public ::testing::TestWithParam<const char*> {
 protected:
  Compatibility() : expected_(Json::parse(ReadFile(saved() / "expected.json"))) {}
  ~Compatibility() override { fs::remove_all(folder_); }

  static fs::path saved() { return testing::SourceDir() / "tests" / "data" / GetParam(); }
  // The server of a copy of the saved store: it expires by modification times, which git does not
  // keep.
  ServerOptions WithStore() const {
    const fs::path store = folder_ / "store";
    fs::copy(saved() / "store", store, fs::copy_options::recursive);
    const auto expiry = fs::file_time_type::clock::now() + std::chrono::hours(1);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(store)) {
      if (entry.is_regular_file()) fs::last_write_time(entry.path(), expiry);
    }
    const fs::path model =
        testing::SourceDir() / "tests/data/goldens" / expected_["model"].get<std::string>();
    return {.model = model.string(),
            .flags = {"--device", "reference", "--state-store", "dir:" + store.string()}};
  }
  // The JSON that a command of the client prints.
  static Json Run(const Server& server, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {Binary("polysketch"), "--server", server.address()});
    arguments.emplace_back("--json");
    const ProcessResult result = RunProcess({.arguments = std::move(arguments)});
    EXPECT_EQ(result.exit_status, 0) << result.standard_error;
    return result.exit_status == 0 ? Json::parse(result.standard_output) : Json();
  }
  static Json Continue(const Server& server, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "complete");
    arguments.insert(arguments.end(), {"--ids", "--max-tokens", "16", "--seed", "3"});
    return Run(server, std::move(arguments))["tokens"];
  }

  const fs::path folder_ = NewTemporaryFolder();
  const Json expected_;
};

TEST_P(Compatibility, SessionsSnapshotsAndStatesGoOn) {
  const Server server(WithStore());
  EXPECT_EQ(Continue(server, {"--session", expected_["session"]}), expected_["session_tokens"]);
  const Json restored = Run(server, {"session", "restore", expected_["snapshot"]});
  EXPECT_EQ(Continue(server, {"--session", restored["session"]}), expected_["snapshot_tokens"]);
  EXPECT_EQ(Continue(server, {"--state-in", (saved() / "state.bin").string()}),
            expected_["state_tokens"]);
}

TEST_P(Compatibility, MigratedCompletionsAreResumed) {
  const Server server(WithStore());
  const Json tokens =
      Run(server, {"complete", "--ids", "--resume", expected_["resume_token"]})["tokens"];
  ASSERT_EQ(tokens.size(), expected_["resumed_tokens"]);
  EXPECT_EQ(Json(tokens.begin(), tokens.begin() + 16), expected_["resumed_first"]);
  EXPECT_EQ(Json(tokens.end() - 16, tokens.end()), expected_["resumed_last"]);
}

TEST_P(Compatibility, QuantizedModelFoldersLoad) {
  if (!fs::exists(saved() / "model-q4")) GTEST_SKIP() << "saved no model folder";
  const Server server(
      {.model = (saved() / "model-q4").string(), .flags = {"--device", "reference"}});
  const fs::path prompt = folder_ / "prompt";
  std::string ids;
  for (const Json& id : expected_["prompt"]) ids += id.dump() + " ";
  WriteFile(prompt, ids);
  EXPECT_EQ(Continue(server, {"--prompt-tokens", prompt.string()}), expected_["q4_tokens"]);
}

INSTANTIATE_TEST_SUITE_P(Versions, Compatibility,
                         ::testing::Values("saved-by-d6e43fd", "saved-by-29d59a3",
                                           "saved-by-29d59a3-softmax"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
                           return name;
                         });

}  // namespace
}  // namespace polysketch::e2e
