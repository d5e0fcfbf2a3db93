// A whole model folder, damaged in ways that only its config can tell: each tensor in turn missing,
// of another shape or type, doubled under another name, or without sense; and configs that ask for
// other tensors.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "engine/checkpoint/safetensors.h"
#include "engine/model/folder_model.h"
#include "gtest/gtest.h"
#include "kernels/new_backend.h"
#include "tests/engine/checkpoint/safetensors_bytes.h"
#include "tests/testing/environment.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using nlohmann::json;
using ::polysketch::testing::SafetensorsBytes;
using ::polysketch::testing::SourceDir;
using ::polysketch::testing::TemporaryFolder;
using ::polysketch::testing::WriteBytes;

std::string ReadBytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  PS_CHECK(file.good()) << path;
  return std::move(bytes).str();
}

// A golden case in memory, to be changed and written out.
class ModelFolderTest : public ::testing::TestWithParam<const char*> {
 protected:
  struct Tensor {
    std::string name, dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };

  void SetUp() override {
    const std::filesystem::path source = Source();
    config_ = json::parse(ReadBytes(source / "config.json"));
    const std::string file = ReadBytes(source / "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    const json header = json::parse(file.substr(8, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto begin = entry["data_offsets"][0].get<size_t>(),
                 end = entry["data_offsets"][1].get<size_t>();
      tensors_.push_back(
          {name, entry["dtype"], entry["shape"], file.substr(8 + length + begin, end - begin)});
    }
  }

  // A golden case, or a model with a decay gate: as the authors' code has none, a random one of the
  // same sizes.
  std::filesystem::path Source() const {
    const std::string name = GetParam();
    if (name != "gated") return SourceDir() / "tests/data/goldens" / name;
    ModelConfig config = ::polysketch::testing::TinyConfig("linear_gated");
    config.vocab_size = 96;
    config.emb_dim = 64;
    ::polysketch::testing::WriteRandomModel(gated_.path(), config, DataType::kF32, 1);
    return gated_.path();
  }

  Status Load(const std::vector<Tensor>& tensors, const json& config) {
    json header;
    std::string data;
    for (const Tensor& tensor : tensors) {
      header[tensor.name] = {{"dtype", tensor.dtype},
                             {"shape", tensor.shape},
                             {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
      data += tensor.bytes;
    }
    WriteBytes(folder_.path() / "model.safetensors", SafetensorsBytes(header.dump(), data));
    WriteBytes(folder_.path() / "config.json", config.dump());
    return FolderModel::Load(folder_.path().string(), backend_.get(), LoadOptions()).status();
  }

  static void ExpectNamed(const Status& status, const std::vector<std::string>& parts) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos)
          << part << " in: " << status.message();
    }
  }

  json config_;
  std::vector<Tensor> tensors_;

 private:
  TemporaryFolder folder_, gated_;
  std::unique_ptr<Backend> backend_ = NewReferenceBackend();
};

TEST_P(ModelFolderTest, Undamaged) {
  const Status status = Load(tensors_, config_);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_P(ModelFolderTest, EveryTensorInTurn) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const std::string name = tensors_[i].name;
    SCOPED_TRACE(name);
    const std::string shape = ShapeToString(tensors_[i].shape);
    auto damaged = tensors_;
    damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(i));
    ExpectNamed(Load(damaged, config_),
                {"tensor " + name + " is missing", "expected shape " + shape});

    damaged = tensors_;
    damaged[i].name += "_";
    ExpectNamed(Load(damaged, config_), {"tensor " + name + " is missing"});

    damaged = tensors_;
    damaged[i].shape.back() -= 1;
    damaged[i].bytes.resize(damaged[i].bytes.size() / tensors_[i].shape.back() *
                            damaged[i].shape.back());
    ExpectNamed(Load(damaged, config_), {StrCat("tensor ", name, ": expected shape ", shape,
                                                ", found ", ShapeToString(damaged[i].shape))});

    damaged = tensors_;
    damaged[i].shape.insert(damaged[i].shape.begin(), 1);
    ExpectNamed(Load(damaged, config_),
                {StrCat("tensor ", name, ": expected shape ", shape, ", found [1, ")});

    damaged = tensors_;
    damaged[i].dtype = "I32";
    ExpectNamed(Load(damaged, config_),
                {"tensor " + name + ": expected dtype F32, F16 or BF16, found I32"});

    damaged = tensors_;
    damaged[i].bytes.replace(damaged[i].bytes.size() - 4, 4, std::string("\0\0\xc0\x7f", 4));
    ExpectNamed(Load(damaged, config_), {"tensor " + name + ": expected finite values, found nan"});
  }
}

TEST_P(ModelFolderTest, LeftOverTensor) {
  auto damaged = tensors_;
  damaged.push_back(damaged.back());
  damaged.back().name = "layers.0.attn.extra.weight";
  ExpectNamed(Load(damaged, config_), {"layers.0.attn.extra.weight"});
}

TEST_P(ModelFolderTest, OtherConfig) {
  const struct {
    const char* field;
    json value;
    const char* message;
  } cases[] = {
      {"vocab_size", 97, "tensor embedding.weight: expected shape [97, 64], found [96, 64]"},
      {"emb_dim", 128, "tensor embedding.weight: expected shape [96, 128], found [96, 64]"},
      {"num_layers", 3, "tensor layers.2.attn_norm.scale is missing: expected shape [64]"},
      {"num_layers", 1, "layers.1."},
      {"num_layers", 1024, "tensor layers.2.attn_norm.scale is missing"},
  };
  for (const auto& c : cases) {
    json config = config_;
    config[c.field] = c.value;
    SCOPED_TRACE(StrCat(c.field, " = ", c.value.dump()));
    ExpectNamed(Load(tensors_, config), {c.message});
  }
}

class GatedFolderTest : public ModelFolderTest {};

TEST_P(GatedFolderTest, GatesWithoutTheField) {
  json config = config_;
  config.erase("decay_gate");
  ExpectNamed(Load(tensors_, config),
              {"expected only the tensors of a linear model with 2 layers, found 4 more",
               "layers.0.attn.gate."});
}

INSTANTIATE_TEST_SUITE_P(Gated, GatedFolderTest, ::testing::Values("gated"));
INSTANTIATE_TEST_SUITE_P(Kinds, ModelFolderTest,
                         ::testing::Values("softmax", "polynomial_p4", "random_sketch",
                                           "learned_sketch_mixed", "gated"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace polysketch
