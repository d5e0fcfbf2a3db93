// A model folder that a stranger has made: links, FIFOs, devices and files of any size.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_config.h"
#include "engine/checkpoint/model_folder.h"
#include "gtest/gtest.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

namespace fs = std::filesystem;

void Write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

class StrangerFolder : public ::testing::Test {
 protected:
  StrangerFolder() {
    fs::create_directories(folder_);
    Write(outside_ / "key", "secret");
  }

  void Link(const fs::path& target, const std::string& name) {
    fs::remove(folder_ / name);
    fs::create_symlink(target, folder_ / name);
  }
  void ExpectText(const ModelFolder& folder, const std::string& name, const std::string& text) {
    const Result<std::string> found = folder.Read(name, 100);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_EQ(*found, text);
  }
  void ExpectRefused(const ModelFolder& folder, const std::string& name, const std::string& part,
                     Code code = Code::kInvalidArgument) {
    const Status status = folder.Open(name).status();
    EXPECT_EQ(status.code(), code) << name << ": " << status.ToString();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
    EXPECT_FALSE(folder.Read(name, 1 << 20).ok());
  }

  const testing::TemporaryFolder temporary_;
  const fs::path top_ = fs::canonical(temporary_.path());
  const fs::path folder_ = top_ / "cache" / "snapshots" / "1234";
  const fs::path outside_ = top_ / "outside";
};

TEST_F(StrangerFolder, LinksWithinTheFolderAreFollowed) {
  Write(folder_ / "deep" / "file", "inside");
  Link("deep/file", "a");
  Link(folder_ / "deep" / "file", "b");
  Link("./deep/../a", "c");
  // As a volume of a ConfigMap has it.
  Write(folder_ / "..2026_01_01" / "config.json", "map");
  Link("..2026_01_01", "..data");
  Link("..data/config.json", "config.json");
  for (const char* name : {"a", "b", "c"}) ExpectText(folder_, name, "inside");
  ExpectText(folder_, "config.json", "map");
  // The operator may name the folder by a link.
  fs::create_symlink(folder_, top_ / "name");
  ExpectText(top_ / "name", "b", "inside");
}

TEST_F(StrangerFolder, OtherLinksNeedARoot) {
  Link(outside_ / "key", "absolute");
  Link("../../../outside/key", "relative");
  Write(folder_ / "file", "inside");
  fs::create_symlink(outside_, folder_ / "deep");
  Link("deep/key", "through");
  Link("relative", "twice");
  for (const char* name : {"absolute", "relative", "through", "twice"}) {
    ExpectRefused(folder_, name, (outside_ / "key").string());
    ExpectText(ModelFolder(folder_, outside_), name, "secret");
    ExpectRefused(ModelFolder(folder_, outside_ / "key"), name, "outside");
    ExpectRefused(ModelFolder(folder_, top_ / "out"), name, "outside");
    ExpectText(ModelFolder(folder_, "/"), name, "secret");
  }
  Link("/proc/self/environ", "environ");
  ExpectRefused(folder_, "environ", "/environ");
  Link("/proc/self/root" + (outside_ / "key").string(), "root");
  ExpectRefused(folder_, "root", "found a link to");
  Link("nowhere", "dangling");
  ExpectRefused(folder_, "dangling", "a link to nowhere");
  Link("loop", "loop");
  ExpectRefused(folder_, "loop", "a link to loop");
  // The folder beside one whose name begins in the same way.
  Write(top_ / "cache" / "snapshots" / "12345" / "x", "other");
  Link("../12345/x", "sibling");
  ExpectRefused(folder_, "sibling", "12345/x");
}

TEST_F(StrangerFolder, LinksIntoTheBlobsOfACacheAreFollowed) {
  Write(top_ / "cache" / "blobs" / "abcd", "blob");
  Link("../../blobs/abcd", "a");
  ExpectText(folder_, "a", "blob");
  Write(folder_ / "draft" / "file", "");
  fs::create_symlink("../../../blobs/abcd", folder_ / "draft" / "a");
  ExpectText(folder_ / "draft", "a", "blob");
  // What blobs themselves link to is elsewhere.
  fs::create_symlink(outside_ / "key", top_ / "cache" / "blobs" / "key");
  Link("../../blobs/key", "key");
  ExpectRefused(folder_, "key", "outside/key");
  fs::remove_all(top_ / "cache" / "blobs");
  fs::create_symlink(outside_, top_ / "cache" / "blobs");
  ExpectRefused(folder_, "key", "outside/key");
  // A folder that is no snapshot has no blobs.
  Write(top_ / "plain" / "blobs" / "abcd", "blob");
  Write(top_ / "plain" / "a" / "b" / "file", "");
  fs::create_symlink("../../blobs/abcd", top_ / "plain" / "a" / "b" / "x");
  ExpectRefused(top_ / "plain" / "a" / "b", "x", "blobs/abcd");
}

TEST_F(StrangerFolder, OnlyRegularFilesAreOpened) {
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  fs::create_directory(folder_ / "folder");
  Link("fifo", "link");
  for (const char* name : {"fifo", "folder", "link"})
    ExpectRefused(folder_, name, "expected a regular file");
  Link("/dev/zero", "zero");
  ExpectRefused(folder_, "zero", "/dev/zero");
  ExpectRefused(ModelFolder(folder_, "/dev"), "zero", "expected a regular file");
  ExpectRefused(folder_, "missing", "missing", Code::kNotFound);
  ExpectRefused(top_ / "no folder", "x", "no folder", Code::kNotFound);
}

TEST_F(StrangerFolder, SizesAreBoundedBeforeAnyByteIsRead) {
  Write(folder_ / "config.json", "{}");
  fs::resize_file(folder_ / "config.json", uintmax_t{40} << 30);  // a hole
  Write(folder_ / "model.safetensors.index.json", "{}");
  fs::resize_file(folder_ / "model.safetensors.index.json", uintmax_t{40} << 30);
  for (const Status& status :
       {ModelFolder(folder_).Read("config.json", 100).status(), ModelConfig::Load(folder_).status(),
        Checkpoint::Open(folder_).status()}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
    EXPECT_NE(status.message().find("found 42949672960"), std::string::npos) << status.ToString();
  }
}

TEST_F(StrangerFolder, KeptFilesAreTheOnlyOnes) {
  Write(folder_ / "a", "a");
  Write(folder_ / "b", "b");
  ModelFolder folder(folder_);
  EXPECT_EQ(*folder.Names(), (std::vector<std::string>{"a", "b"}));
  folder.Keep({{"a", folder.Open("a")->identity}});
  EXPECT_EQ(*folder.Names(), (std::vector<std::string>{"a"}));
  EXPECT_TRUE(folder.Has("a"));
  EXPECT_FALSE(folder.Has("b"));
  ExpectText(folder, "a", "a");
  ExpectRefused(folder, "b", "found none", Code::kNotFound);
  fs::remove(folder_ / "a");
  Write(folder_ / "a", "c");
  ExpectRefused(folder, "a", "has changed", Code::kFailedPrecondition);
}

}  // namespace
}  // namespace polysketch
