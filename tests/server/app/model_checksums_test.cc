// Checksums of model folders: what is checked when, and what an error says.
#include "server/app/model_checksums.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "base/logging.h"
#include "gtest/gtest.h"

namespace polysketch {
namespace {

namespace fs = std::filesystem;

// sha256sum of "abc" and of no bytes (FIPS 180-2, examples).
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kEmpty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

class ModelChecksums : public ::testing::Test {
 protected:
  ModelChecksums()
      : folder_(fs::temp_directory_path() / ("checksums-" + std::to_string(getpid()))) {
    SetLogLevel(LogLevel::kError);
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  ~ModelChecksums() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  void ExpectError(const std::string& part, bool verify = false) {
    const Status status = CheckModelFiles(folder_, verify).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  const fs::path folder_;
};

TEST_F(ModelChecksums, AreThoseOfSha256sum) {
  Write("config.json", "abc");
  Write("model.safetensors", "");
  EXPECT_TRUE(CheckModelFiles(folder_, false).ok()) << "a folder needs none";
  ExpectError("SHA256SUMS, found no such file", true);
  Write("SHA256SUMS", std::string(kAbc) + "  config.json\n" + kEmpty + " *model.safetensors\n");
  for (const bool verify : {false, true}) {
    const Status status = CheckModelFiles(folder_, verify).status();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST_F(ModelChecksums, AWrongOneNamesTheFileAndBoth) {
  Write("config.json", "abc");
  Write("SHA256SUMS", std::string(kEmpty) + "  config.json\n");
  ExpectError((folder_ / "config.json").string() + ": expected the SHA-256 " + kEmpty +
              " (SHA256SUMS), found " + kAbc);
  fs::remove(folder_ / "config.json");
  ExpectError("expected the file config.json");
}

TEST_F(ModelChecksums, LargeFilesOnlyIfAskedFor) {
  Write("config.json", "abc");
  Write("model.safetensors", "");
  fs::resize_file(folder_ / "model.safetensors", kAlwaysChecked + 1);  // a hole
  Write("SHA256SUMS", std::string(kAbc) + "  config.json\n" + kEmpty + "  model.safetensors\n");
  EXPECT_TRUE(CheckModelFiles(folder_, false).ok());
  ExpectError("model.safetensors: expected the SHA-256", true);
  Write("SHA256SUMS", std::string(kAbc) + "  config.json\n");
  EXPECT_TRUE(CheckModelFiles(folder_, false).ok());
  ExpectError("expected the checksum of model.safetensors, found none", true);
}

TEST_F(ModelChecksums, WithVerifyAFileThatIsNotListedIsMissing) {
  Write("config.json", "abc");
  Write("tokenizer.json", "abc");
  Write("chat_template.jinja", "abc");
  Write("SHA256SUMS", std::string(kAbc) + "  config.json\n" + kAbc + "  tokenizer.json\n");
  const Result<ModelFolder> all = CheckModelFiles(folder_, false);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_TRUE(all->Has("chat_template.jinja"));
  const Result<ModelFolder> verified = CheckModelFiles(folder_, true);
  ASSERT_TRUE(verified.ok()) << verified.status().ToString();
  EXPECT_TRUE(verified->Has("tokenizer.json"));
  EXPECT_FALSE(verified->Has("chat_template.jinja"));
  Write("model.safetensors.index.json", "{}");
  ExpectError("expected the checksum of model.safetensors.index.json", true);
}

TEST_F(ModelChecksums, EveryFileThatTheServerReadsCanBeOpened) {
  for (const char* name : {"SHA256SUMS", "chat_template.jinja", "tokenizer.json",
                           "added_tokens.json", "model-1.safetensors"}) {
    fs::create_symlink("/dev/zero", folder_ / name);
    ExpectError(std::string(name) +
                ": expected a file of the model folder, found a link to /dev/zero");
    fs::remove(folder_ / name);
  }
  Write("SHA256SUMS", "");
  fs::resize_file(folder_ / "SHA256SUMS", uintmax_t{40} << 30);  // a hole
  ExpectError("SHA256SUMS: expected at most 1048576 bytes, found 42949672960");
  fs::create_symlink("/dev/zero", folder_ / "notes.txt");  // which no one reads
  Write("SHA256SUMS", "");
  EXPECT_TRUE(CheckModelFiles(folder_, false).ok());
}

TEST_F(ModelChecksums, LinesOfAnotherForm) {
  const std::string sum = kAbc;
  for (const std::string& bad :
       {std::string("hello"), sum, sum + " config.json", sum + "  ../config.json",
        "g" + sum.substr(1) + "  config.json", sum + "  ..", "\\" + sum + "  config.json"}) {
    Write("config.json", "abc");
    Write("SHA256SUMS", sum + "  config.json\n" + bad + "\n");
    ExpectError("line 2: expected 64 hexadecimal digits");
  }
}

}  // namespace
}  // namespace polysketch
