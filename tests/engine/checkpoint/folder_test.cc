// A model folder's tensors: one file or shards, handed out by name and shape; damaged folders are
// refused by name.
#include <functional>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/safetensors_bytes.h"
#include "tests/testing/environment.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using ::polysketch::testing::DataBytes;
using ::polysketch::testing::SafetensorsBytes;
using ::polysketch::testing::SourceDir;
using ::polysketch::testing::TemporaryFolder;
using ::polysketch::testing::WriteBytes;

// An index of First() and Second() with that metadata.
std::string Index(const std::string& metadata) {
  return R"({"metadata":)" + metadata +
         R"(,"weight_map":{"a":"s1.safetensors","b":"s1.safetensors","c":"s2.safetensors"}})";
}

// a [2, 3] F32 and b [4] BF16.
std::string First() {
  return SafetensorsBytes(
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})",
      DataBytes(32));
}
// c [12] F16.
std::string Second(const std::string& name = "c") {
  return SafetensorsBytes("{\"" + name + R"(":{"dtype":"F16","shape":[12],"data_offsets":[0,24]}})",
                          DataBytes(24));
}

class FolderTest : public ::testing::Test {
 protected:
  void WriteSingle() { Write("model.safetensors", First()); }
  void WriteShards() {
    Write("s1.safetensors", First());
    Write("s2.safetensors", Second());
    Write("model.safetensors.index.json", Index(R"({"total_size":56})"));
  }
  void Write(const std::string& name, const std::string& bytes) {
    WriteBytes(folder_.path() / name, bytes);
  }
  void Remove(const std::string& name) { std::filesystem::remove_all(folder_.path() / name); }
  std::string dir() const { return folder_.path().string(); }

 private:
  TemporaryFolder folder_;
};

TEST_F(FolderTest, OneFile) {
  WriteSingle();
  auto checkpoint = Checkpoint::Open(dir());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  EXPECT_EQ(checkpoint->num_tensors(), 2u);
  EXPECT_EQ(checkpoint->total_bytes(), 32u);
  EXPECT_EQ(checkpoint->UnusedTensors(), (std::vector<std::string>{"a", "b"}));
  const auto a = checkpoint->Get("a", {2, 3});
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  EXPECT_EQ(a->size(), 6);
  EXPECT_EQ(checkpoint->UnusedTensors(), (std::vector<std::string>{"b"}));
}

TEST_F(FolderTest, ShardsAreOneCheckpoint) {
  WriteShards();
  std::vector<std::pair<uint64_t, uint64_t>> progress;
  auto checkpoint = Checkpoint::Open(
      dir(), [&](uint64_t done, uint64_t total) { progress.emplace_back(done, total); });
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const auto c = checkpoint->Get("c", {12});
  ASSERT_TRUE(c.ok());
  std::vector<float> before(12), after(12);
  c->ReadFloats(0, before);
  checkpoint->Release(*c);
  c->ReadFloats(0, after);  // still there, only no longer resident
  EXPECT_EQ(before, after);
  const auto a = checkpoint->Get("a", {2, 3});
  ASSERT_TRUE(a.ok());
  checkpoint->Release(*a);
  EXPECT_EQ(progress, (std::vector<std::pair<uint64_t, uint64_t>>{{24, 56}, {48, 56}}));
  EXPECT_EQ(checkpoint->UnusedTensors(), (std::vector<std::string>{"b"}));
}

TEST_F(FolderTest, GetNamesExpectedAndFound) {
  Write(
      "model.safetensors",
      SafetensorsBytes(
          R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"i":{"dtype":"I32","shape":[1],"data_offsets":[24,28]},"d":{"dtype":"F64","shape":[1],"data_offsets":[28,36]}})",
          DataBytes(36)));
  auto checkpoint = Checkpoint::Open(dir());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const auto expect = [&](const char* name, std::initializer_list<int64_t> shape,
                          const std::string& message) {
    const auto view = checkpoint->Get(name, shape);
    ASSERT_FALSE(view.ok());
    EXPECT_EQ(view.status().code(), Code::kInvalidArgument);
    EXPECT_NE(view.status().message().find(message), std::string::npos) << view.status().message();
  };
  const std::string file = dir() + "/model.safetensors: ";
  expect("a", {3, 2}, file + "tensor a: expected shape [3, 2], found [2, 3]");
  expect("a", {6}, "expected shape [6], found [2, 3]");
  expect("a", {2, 3, 1}, "expected shape [2, 3, 1], found [2, 3]");
  expect("a", {}, "expected shape [], found [2, 3]");
  expect("z", {2, 3}, dir() + ": tensor z is missing: expected shape [2, 3]");
  expect("i", {1}, file + "tensor i: expected dtype F32, F16 or BF16, found I32");
  expect("d", {1}, file + "tensor d: expected dtype F32, F16 or BF16, found F64");
  EXPECT_EQ(checkpoint->UnusedTensors().size(), 3u) << "a refused tensor is not a used one";
}

TEST_F(FolderTest, GetRefusesValuesThatAreNotFinite) {
  constexpr int64_t kSize = 9000;
  const struct {
    const char* dtype;
    size_t bytes;
    std::vector<uint32_t> bad;
    std::vector<uint32_t> good;
  } cases[] = {
      {"F32",
       4,
       {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001},
       {0x7f7fffff, 0xff7fffff, 0x00000001}},
      {"F16", 2, {0x7c00, 0xfc00, 0x7e00, 0x7c01}, {0x7bff, 0xfbff, 0x0001}},
      {"BF16", 2, {0x7f80, 0xff80, 0x7fc0, 0x7f81}, {0x7f7f, 0xff7f, 0x0001}},
  };
  for (const auto& c : cases) {
    const std::string header = StrCat(R"({"t":{"dtype":")", c.dtype, R"(","shape":[)", kSize,
                                      R"(],"data_offsets":[0,)", kSize * c.bytes, "]}}");
    const auto get = [&](uint32_t bits, int64_t index) {
      std::string data(kSize * c.bytes, '\0');
      std::memcpy(data.data() + static_cast<size_t>(index) * c.bytes, &bits, c.bytes);
      Write("model.safetensors", SafetensorsBytes(header, data));
      auto checkpoint = Checkpoint::Open(dir());
      PS_CHECK(checkpoint.ok()) << checkpoint.status().ToString();
      return checkpoint->Get("t", {kSize}).status();
    };
    for (const int64_t index : {int64_t{0}, int64_t{4095}, int64_t{4096}, kSize - 1}) {
      for (const uint32_t bits : c.bad) {
        const Status status = get(bits, index);
        ASSERT_FALSE(status.ok()) << c.dtype << " " << bits;
        EXPECT_NE(status.message().find("tensor t: expected finite values, found "),
                  std::string::npos);
        EXPECT_TRUE(status.message().ends_with(StrCat(" at element ", index))) << status.message();
      }
      for (const uint32_t bits : c.good)
        EXPECT_TRUE(get(bits, index).ok()) << c.dtype << " " << bits;
    }
  }
}

TEST_F(FolderTest, DamagedIndexIsNamed) {
  const auto map = [](const std::string& entries) { return R"({"weight_map":{)" + entries + "}}"; };
  const auto shard = [&](const std::string& name) { return map(R"("a":")" + name + "\""); };
  const std::string plain = "tensor a: expected the plain name of a .safetensors file";
  const struct {
    const char* name;
    std::string index;
    std::string message;
  } cases[] = {
      {"empty", "", "expected JSON"},
      {"array", "[]", "expected an object, found an array"},
      {"cut", Index("{}").substr(0, 30), "expected JSON"},
      {"garbage_behind", Index("{}") + "}", "expected JSON"},
      {"nul", Index("{}") + std::string(1, '\0'), "expected the end of the text"},
      {"deep", StrCat("{\"weight_map\":", std::string(100000, '[')),
       "levels of arrays and objects, found more"},
      {"no_map", "{}", "\"weight_map\" is missing"},
      {"map_array", R"({"weight_map":[]})", "expected an object of tensor names, found an array"},
      {"map_empty", map(""), "found an empty one"},
      {"map_twice", R"({"weight_map":{},"weight_map":{}})", "key \"weight_map\" appears twice"},
      {"tensor_twice", map(R"("a":"s1.safetensors","a":"s2.safetensors")"),
       "key \"a\" appears twice"},
      {"shard_number", map(R"("a":1)"), plain + ", found the number 1"},
      {"shard_null", map(R"("a":null)"), plain + ", found null"},
      {"shard_object", map(R"("a":{})"), plain + ", found an object"},
      {"shard_empty", shard(""), plain},
      {"shard_parent", shard("../s1.safetensors"),
       plain + ", found the string \"../s1.safetensors\""},
      {"shard_absolute", shard("/etc/s1.safetensors"), plain},
      {"shard_below", shard("x/s1.safetensors"), plain},
      {"shard_backslash", shard(R"(x\\s1.safetensors)"), plain},
      {"shard_hidden", shard(".safetensors"), plain},
      {"shard_dots", shard("..safetensors"), plain},
      {"shard_nul", shard(R"(s1\u0000.safetensors)"), plain},
      {"shard_suffix", shard("s1.bin"), plain},
      {"shard_long", shard(std::string(300, 's') + ".safetensors"), plain},
      {"shard_missing", map(R"("a":"s3.safetensors")"), "shard s3.safetensors is missing"},
      {"tensor_elsewhere", map(R"("a":"s2.safetensors","b":"s1.safetensors","c":"s2.safetensors")"),
       "tensor a is not in its shard s2.safetensors"},
      {"tensor_unknown", map(R"("z":"s1.safetensors")"),
       "tensor z is not in its shard s1.safetensors"},
      {"tensor_unlisted", map(R"("a":"s1.safetensors","c":"s2.safetensors")"),
       "s1.safetensors: tensor b is not in the index"},
      {"metadata_number", Index(R"(5)"), "\"metadata\": expected an object, found the number 5"},
      {"total_wrong", Index(R"({"total_size":57})"),
       "total_size: expected 56 (the bytes of all shards' tensors), found the number 57"},
      {"total_negative", Index(R"({"total_size":-56})"), "total_size: expected 56"},
      {"total_string", Index(R"({"total_size":"56"})"), "total_size: expected 56"},
  };
  WriteShards();
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    Write("model.safetensors.index.json", c.index);
    const auto checkpoint = Checkpoint::Open(dir());
    ASSERT_FALSE(checkpoint.ok());
    const std::string& message = checkpoint.status().message();
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
    EXPECT_EQ(message.find(dir()), 0u) << message;
    EXPECT_LT(message.size(), dir().size() + 500);
  }
}

TEST_F(FolderTest, DamagedFoldersAreNamed) {
  const struct {
    const char* name;
    std::function<void()> damage;
    std::string message;
  } cases[] = {
      {"empty_folder",
       [&] {
         Remove("s1.safetensors");
         Remove("s2.safetensors");
         Remove("model.safetensors.index.json");
       },
       "expected model.safetensors or model.safetensors.index.json, found neither"},
      {"both", [&] { WriteSingle(); }, "found both"},
      {"first_shard_missing", [&] { Remove("s1.safetensors"); }, "shard s1.safetensors is missing"},
      {"second_shard_missing", [&] { Remove("s2.safetensors"); },
       "shard s2.safetensors is missing"},
      {"shard_empty", [&] { Write("s2.safetensors", ""); },
       "s2.safetensors: expected at least 8 bytes, found 0"},
      {"shard_cut", [&] { Write("s2.safetensors", Second().substr(0, Second().size() - 1)); },
       "s2.safetensors: tensor c: data_offsets [0, 24] reach beyond the data"},
      {"shard_is_other", [&] { Write("s2.safetensors", First()); },
       "tensor c is not in its shard s2.safetensors"},
      {"shard_renamed_tensor", [&] { Write("s2.safetensors", Second("d")); },
       "tensor c is not in its shard s2.safetensors"},
      {"tensor_in_two_shards",
       [&] {
         Write(
             "s2.safetensors",
             SafetensorsBytes(
                 R"({"c":{"dtype":"F16","shape":[4],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[8,16]}})",
                 DataBytes(16)));
       },
       "s2.safetensors: tensor b is also in"},
      {"shard_is_folder",
       [&] {
         Remove("s2.safetensors");
         std::filesystem::create_directory(dir() + "/s2.safetensors");
       },
       "s2.safetensors: expected a regular file"},
      {"index_is_folder",
       [&] {
         Remove("model.safetensors.index.json");
         std::filesystem::create_directory(dir() + "/model.safetensors.index.json");
       },
       "index.json: expected a regular file"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    Remove("model.safetensors");
    Remove("s2.safetensors");
    Remove("model.safetensors.index.json");
    WriteShards();
    c.damage();
    const auto checkpoint = Checkpoint::Open(dir());
    ASSERT_FALSE(checkpoint.ok());
    const std::string& message = checkpoint.status().message();
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
  const auto nowhere = Checkpoint::Open(dir() + "/no such folder");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_NE(nowhere.status().message().find("found neither"), std::string::npos);
}

TEST(BundledModelTest, OpensWhole) {
  auto checkpoint = Checkpoint::Open((SourceDir() / "models/demo").string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const auto embedding = checkpoint->Get("embedding.weight", {4096, 192});
  ASSERT_TRUE(embedding.ok()) << embedding.status().ToString();
  EXPECT_EQ(embedding->type, TensorType::kF32);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(embedding->data) % 64, 0u) << "our own files are aligned";
}

}  // namespace
}  // namespace polysketch
