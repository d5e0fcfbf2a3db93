// Valid files give their tensors bit for bit; every damaged one is refused with a message that
// names the damage.
#include "engine/checkpoint/safetensors.h"

#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/half.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/safetensors_bytes.h"
#include "tests/testing/environment.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using ::polysketch::testing::Count;
using ::polysketch::testing::DataBytes;
using ::polysketch::testing::SafetensorsBytes;
using ::polysketch::testing::TemporaryFolder;
using ::polysketch::testing::WriteBytes;

// 2 x 3 floats and 4 halves: 32 bytes.
constexpr char kHeader[] =
    R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

class SafetensorsTest : public ::testing::Test {
 protected:
  Result<SafetensorsFile> Open(const std::string& bytes) {
    WriteBytes(path(), bytes);
    return SafetensorsFile::Open(path());
  }
  std::string path() const { return (folder_.path() / "x.safetensors").string(); }

 private:
  TemporaryFolder folder_;
};

TEST_F(SafetensorsTest, ReadsWhatWasWritten) {
  const std::vector<float> floats = {1.5f, -2.25f, 0x1p-140f, -0.0f, 3e38f, 65504.0f};
  std::string data(32, '\0');
  std::memcpy(data.data(), floats.data(), 24);
  const std::vector<uint16_t> halves = {0x3f80, 0xc000, 0x0001, 0x7f80};
  std::memcpy(data.data() + 24, halves.data(), 8);
  const auto file = Open(SafetensorsBytes(kHeader, data));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->data_bytes(), 32u);
  ASSERT_EQ(file->tensors().size(), 2u);

  const TensorView& a = file->tensors().find("a")->second;
  EXPECT_EQ(a.shape, (std::vector<int64_t>{2, 3}));
  std::vector<float> read(6);
  a.ReadFloats(0, read);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(floats[i])) << i;
  }
  float one = 0;
  a.ReadFloats(4, {&one, 1});
  EXPECT_EQ(one, 3e38f);

  const TensorView& b = file->tensors().find("b")->second;
  EXPECT_EQ(b.type, TensorType::kBF16);
  std::vector<float> expanded(4);
  b.ReadFloats(0, expanded);
  EXPECT_EQ(expanded, (std::vector<float>{1, -2, 0x1p-133f, INFINITY}));
}

// The header need not keep the data aligned, and all types are read there.
TEST_F(SafetensorsTest, ReadsEveryTypeAtOddAddresses) {
  std::string header = R"({"f64":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                       R"("i32":{"dtype":"I32","shape":[1],"data_offsets":[8,12]},)"
                       R"("f16":{"dtype":"F16","shape":[1],"data_offsets":[12,14]},)"
                       R"("f32":{"dtype":"F32","shape":[],"data_offsets":[14,18]},)"
                       R"("none":{"dtype":"F32","shape":[7,0],"data_offsets":[18,18]},)"
                       R"("__metadata__":{"made by":"hand"}})";
  while (header.size() % 2 == 0) header += ' ';
  std::string data(18, '\0');
  const double f64 = 1.0 / 3;
  const int32_t i32 = -123456789;
  const uint16_t f16 = 0x3555;
  const float f32 = 1.0f / 3;
  std::memcpy(data.data(), &f64, 8);
  std::memcpy(data.data() + 8, &i32, 4);
  std::memcpy(data.data() + 12, &f16, 2);
  std::memcpy(data.data() + 14, &f32, 4);
  const auto file = Open(SafetensorsBytes(header, data));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto& tensors = file->tensors();
  EXPECT_EQ(tensors.size(), 5u);
  double d = 0;
  tensors.find("f64")->second.ReadDoubles(0, {&d, 1});
  EXPECT_EQ(d, f64);
  int32_t i = 0;
  tensors.find("i32")->second.ReadInts(0, {&i, 1});
  EXPECT_EQ(i, i32);
  float x = 0;
  tensors.find("f16")->second.ReadFloats(0, {&x, 1});
  EXPECT_EQ(x, F16ToFloat(f16));
  tensors.find("f32")->second.ReadFloats(0, {&x, 1});
  EXPECT_EQ(x, f32);
  EXPECT_EQ(tensors.find("none")->second.size(), 0);
  EXPECT_EQ(tensors.find("f32")->second.size(), 1);
}

TEST_F(SafetensorsTest, EmptyHeaderWithoutDataIsValid) {
  const auto file = Open(SafetensorsBytes("{}", ""));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(file->tensors().empty());
}

struct Damage {
  const char* name;
  std::string header;
  size_t data_bytes;
  const char* message;  // a part of the message
};

// An entry of 8 floats in 32 bytes with one field replaced.
std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}
std::string Dtype(const std::string& dtype) { return Entry(dtype, "[8]", "[0,32]"); }
std::string Shape(const std::string& shape) { return Entry(R"("F32")", shape, "[0,32]"); }
std::string Offsets(const std::string& offsets) { return Entry(R"("F32")", "[8]", offsets); }
std::string Two(const std::string& first, const std::string& second) {
  return R"({"t":{"dtype":"F32","shape":[4],"data_offsets":)" + first +
         R"(},"u":{"dtype":"F32","shape":[4],"data_offsets":)" + second + "}}";
}
std::string Repeat(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}
// A message that cuts it after 100 bytes would cut a character.
std::string LongName() { return std::string(99, 'n') + "\u00e4" + std::string(1 << 20, 'n'); }
std::string Nested(size_t depth) {
  return StrCat(R"({"t":)", std::string(depth, '['), std::string(depth, ']'), "}");
}

std::vector<Damage> Damages() {
  return {
      {"header_empty", "", 32, "begin with '{'"},
      {"header_array", "[]", 32, "begin with '{'"},
      {"header_space_first", " {}", 0, "begin with '{'"},
      {"header_open", "{", 32, "expected JSON"},
      {"header_cut", std::string(kHeader, 40), 32, "expected JSON"},
      {"header_garbage_behind", std::string(kHeader) + "x", 32, "expected JSON"},
      {"header_second_value", std::string(kHeader) + "{}", 32, "expected JSON"},
      {"header_nul_behind", std::string(kHeader) + std::string(1, '\0'), 32,
       "expected the end of the text"},
      {"header_nul_hides_garbage", kHeader + std::string("\0x", 2), 32,
       "expected the end of the text"},
      {"header_comment", "{/**/}", 0, "expected JSON"},
      {"header_bad_utf8", "{\"\xff\":{}}", 0, "expected JSON"},
      {"header_bad_escape", R"({"\u12":{}})", 0, "expected JSON"},
      {"header_single_quotes", "{'t':{}}", 0, "expected JSON"},
      {"header_trailing_comma", R"({"t":{},})", 0, "expected JSON"},
      {"string_without_end", StrCat("{\"", std::string(1 << 20, 's')), 32, "expected JSON"},
      {"tensor_twice",
       R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}})",
       32, "key \"t\" appears twice"},
      {"tensor_twice_escaped",
       R"({"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"\u0074":{}})", 0,
       "key \"t\" appears twice"},
      {"field_twice", R"({"t":{"dtype":"F32","dtype":"F32","shape":[8],"data_offsets":[0,32]}})",
       32, "key \"dtype\" appears twice"},
      {"nested_4", Nested(4), 0, "levels of arrays and objects, found more"},
      {"nested_million", Nested(1000000), 0, "levels of arrays and objects, found more"},
      {"tensor_null", R"({"t":null})", 0, "tensor t: expected an object, found null"},
      {"tensor_number", R"({"t":5})", 0, "tensor t: expected an object, found the number 5"},
      {"tensor_array", R"({"t":[]})", 0, "tensor t: expected an object, found an array"},
      {"tensor_empty", R"({"t":{}})", 0, "tensor t: field \"dtype\" is missing"},
      {"no_dtype", R"({"t":{"shape":[8],"data_offsets":[0,32]}})", 32, "\"dtype\" is missing"},
      {"no_shape", R"({"t":{"dtype":"F32","data_offsets":[0,32]}})", 32, "\"shape\" is missing"},
      {"no_offsets", R"({"t":{"dtype":"F32","shape":[8]}})", 32, "\"data_offsets\" is missing"},
      {"unknown_field", R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32],"strides":[1]}})",
       32, "unknown field \"strides\""},
      {"tensor_name_long", StrCat(R"({")", std::string(1000, 'n'), R"(":{}})"), 0,
       "expected a name of at most 256 bytes, found 1000"},
      {"tensor_name_long_twice", StrCat(R"({")", LongName(), R"(":5,")", LongName(), R"(":5})"), 0,
       "nnn...\" appears twice"},
      {"metadata_array", R"({"__metadata__":[]})", 0, "__metadata__: expected an object"},
      {"metadata_string", R"({"__metadata__":"x"})", 0, "__metadata__: expected an object"},
      {"metadata_number", R"({"__metadata__":{"a":1}})", 0,
       "\"a\": expected a string, found the number 1"},
      {"metadata_null", R"({"__metadata__":{"a":null}})", 0,
       "\"a\": expected a string, found null"},
      {"metadata_object", R"({"__metadata__":{"a":{}}})", 0,
       "\"a\": expected a string, found an object"},
      {"dtype_unknown", Dtype(R"("Q4")"), 32, "dtype: expected F64, F32, F16, BF16, I32, I8 or U8"},
      {"dtype_lower_case", Dtype(R"("f32")"), 32, "found the string \"f32\""},
      {"dtype_f8", Dtype(R"("F8_E4M3")"), 32, "found the string \"F8_E4M3\""},
      {"dtype_bool", Dtype(R"("BOOL")"), 32, "found the string \"BOOL\""},
      {"dtype_empty", Dtype(R"("")"), 32, "found the string \"\""},
      {"dtype_number", Dtype("32"), 32,
       "dtype: expected F64, F32, F16, BF16, I32, I8 or U8, found the number 32"},
      {"dtype_null", Dtype("null"), 32,
       "dtype: expected F64, F32, F16, BF16, I32, I8 or U8, found null"},
      {"dtype_long", Dtype(StrCat("\"", std::string(100000, 'F'), "\"")), 32, "FFF...\""},
      {"dtype_too_small", Dtype(R"("F16")"), 32,
       "expected 16 bytes, found data_offsets [0, 32], that is 32 bytes"},
      {"dtype_too_large", Dtype(R"("F64")"), 32,
       "expected 64 bytes, found data_offsets [0, 32], that is 32 bytes"},
      {"shape_number", Shape("8"), 32, "shape: expected an array, found the number 8"},
      {"shape_null", Shape("null"), 32, "shape: expected an array, found null"},
      {"shape_object", Shape("{}"), 32, "shape: expected an array, found an object"},
      {"shape_negative", Shape("[-8]"), 32, "shape: expected integers from 0"},
      {"shape_twice_negative", Shape("[-2,-4]"), 32, "found the number -2"},
      {"shape_float", Shape("[8.0]"), 32, "shape: expected integers from 0"},
      {"shape_string", Shape(R"(["8"])"), 32, "shape: expected integers from 0"},
      {"shape_nested", Shape("[[8]]"), 32, "levels of arrays and objects, found more"},
      {"shape_true", Shape("[true]"), 32, "shape: expected integers from 0"},
      {"shape_2_64", Shape("[18446744073709551616]"), 32, "shape: expected integers from 0"},
      {"shape_2_63", Shape("[9223372036854775808]"), 32, "shape: expected integers from 0"},
      {"shape_huge_float", Shape("[1e999]"), 32, "fit in 64 bits, found a larger one"},
      {"shape_bytes_overflow", Shape("[4611686018427387904]"), 32, "overflows 64 bits"},
      {"shape_wraps_to_32", Shape("[4611686018427387912]"), 32, "overflows 64 bits"},
      {"shape_product_wraps_to_0", Shape("[4294967296,4294967296]"), 32, "overflows 64 bits"},
      {"shape_product_wraps_to_32", Shape("[2305843009213693953,8]"), 32, "overflows 64 bits"},
      {"shape_rank_9", Shape("[8,1,1,1,1,1,1,1,1]"), 32, "expected at most 8 dimensions, found 9"},
      {"shape_rank_million", Shape(StrCat("[8", Repeat(",1", 1000000), "]")), 32,
       "expected at most 8 dimensions, found 1000001"},
      {"shape_smaller", Shape("[7]"), 32, "expected 28 bytes, found data_offsets [0, 32]"},
      {"shape_larger", Shape("[9]"), 32, "expected 36 bytes, found data_offsets [0, 32]"},
      {"shape_zero", Shape("[8,0]"), 32, "expected 0 bytes, found data_offsets [0, 32]"},
      {"shape_scalar", Shape("[]"), 32, "expected 4 bytes, found data_offsets [0, 32]"},
      {"offsets_number", Offsets("0"), 32, "data_offsets: expected two integers"},
      {"offsets_null", Offsets("null"), 32, "data_offsets: expected two integers"},
      {"offsets_empty", Offsets("[]"), 32, "data_offsets: expected two integers"},
      {"offsets_one", Offsets("[32]"), 32, "data_offsets: expected two integers"},
      {"offsets_three", Offsets("[0,16,32]"), 32, "data_offsets: expected two integers"},
      {"offsets_negative", Offsets("[-32,0]"), 32, "data_offsets: expected two integers"},
      {"offsets_float", Offsets("[0,32.0]"), 32, "data_offsets: expected two integers"},
      {"offsets_string", Offsets(R"(["0","32"])"), 32, "data_offsets: expected two integers"},
      {"offsets_object", Offsets(R"({"0":0,"1":32})"), 32, "data_offsets: expected two integers"},
      {"offsets_reversed", Offsets("[32,0]"), 32, "data_offsets end before they begin"},
      {"offsets_beyond", Offsets("[4,36]"), 32, "reach beyond the data: expected at most 32"},
      {"offsets_far_beyond", Offsets("[18446744073709551583,18446744073709551615]"), 32,
       "reach beyond the data"},
      {"offsets_2_64", Offsets("[0,18446744073709551616]"), 32,
       "data_offsets: expected two integers"},
      {"data_missing", Offsets("[0,32]"), 0, "reach beyond the data: expected at most 0"},
      {"data_short", Offsets("[0,32]"), 31, "reach beyond the data: expected at most 31"},
      {"data_long", Offsets("[0,32]"), 33, "1 bytes after the last tensor: expected 32"},
      {"data_without_tensors", "{}", 1, "1 bytes after the last tensor: expected 0"},
      {"hole_first", Two("[4,20]", "[20,36]"), 36, "tensor t: hole of 4 bytes before it"},
      {"hole_between", Two("[0,16]", "[20,36]"), 36, "tensor u: hole of 4 bytes before it"},
      {"hole_last", Two("[0,16]", "[16,32]"), 36, "4 bytes after the last tensor"},
      {"overlap_part", Two("[0,16]", "[12,28]"), 28, "tensor u: overlaps tensor t"},
      {"overlap_whole", Two("[0,16]", "[0,16]"), 16, "overlaps tensor"},
      {"overlap_reordered", Two("[12,28]", "[0,16]"), 28, "tensor t: overlaps tensor u"},
      {"empty_tensor_inside",
       R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"e":{"dtype":"F32","shape":[0],"data_offsets":[16,16]}})",
       32, "tensor e: overlaps tensor t"},
      {"empty_tensor_behind",
       R"({"t":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"e":{"dtype":"F32","shape":[0],"data_offsets":[36,36]}})",
       36, "tensor e: hole of 4 bytes"},
  };
}

TEST_F(SafetensorsTest, EveryDamageIsNamed) {
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    const auto file = Open(SafetensorsBytes(damage.header, DataBytes(damage.data_bytes)));
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), Code::kInvalidArgument);
    const std::string& message = file.status().message();
    EXPECT_NE(message.find(damage.message), std::string::npos) << message;
    EXPECT_EQ(message.find(path()), 0u) << message;
    EXPECT_LT(message.size(), path().size() + 400) << "a message must not carry the file";
  }
}

TEST_F(SafetensorsTest, HeaderLengthIsChecked) {
  const std::string header = kHeader, data = DataBytes(32);
  const struct {
    uint64_t length;
    const char* message;
  } cases[] = {
      {0, "begin with '{'"},
      {1, "expected JSON"},
      {header.size() - 1, "expected JSON"},
      {header.size() + 1, "expected JSON"},
      {header.size() + 32, "expected JSON"},
      {header.size() + 33, "reaches beyond the file"},
      {100'000'000, "reaches beyond the file: expected at most"},
      {100'000'001, "header length: expected at most 100000000, found 100000001"},
      {uint64_t{1} << 32 | header.size(), "header length: expected at most 100000000"},
      {uint64_t{1} << 63, "header length: expected at most 100000000"},
      {std::numeric_limits<uint64_t>::max(), "header length: expected at most 100000000"},
      {std::numeric_limits<uint64_t>::max() - 7, "header length: expected at most 100000000"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.length);
    const auto file = Open(SafetensorsBytes(header, data, c.length));
    ASSERT_FALSE(file.ok());
    EXPECT_NE(file.status().message().find(c.message), std::string::npos)
        << file.status().message();
  }
}

TEST_F(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string whole = SafetensorsBytes(kHeader, DataBytes(32));
  ASSERT_TRUE(Open(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto file = Open(whole.substr(0, size));
    ASSERT_FALSE(file.ok()) << size << " of " << whole.size() << " bytes";
    const char* expected = size < 8                   ? "expected at least 8 bytes"
                           : size < whole.size() - 32 ? "reaches beyond the file"
                                                      : "truncated file?";
    EXPECT_NE(file.status().message().find(expected), std::string::npos) << file.status().message();
  }
}

// A flipped bit in the header damages it, or renames a tensor, which a reader that looks tensors up
// by name and shape detects. The data carries no redundancy.
TEST_F(SafetensorsTest, EveryFlippedBitOfTheHeaderShows) {
  const std::string whole = SafetensorsBytes(kHeader, DataBytes(32));
  const auto intact = [](const SafetensorsFile& file) {
    const auto a = file.tensors().find("a"), b = file.tensors().find("b");
    return file.tensors().size() == 2 && a != file.tensors().end() && b != file.tensors().end() &&
           a->second.type == TensorType::kF32 && a->second.shape == std::vector<int64_t>{2, 3} &&
           b->second.type == TensorType::kBF16 && b->second.shape == std::vector<int64_t>{4};
  };
  for (size_t byte = 0; byte < whole.size() - 32; ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      const auto file = Open(flipped);
      EXPECT_FALSE(file.ok() && intact(*file)) << "byte " << byte << " bit " << bit;
    }
  }
}

// Random damage, several places at once: refused, or every tensor can be read.
TEST_F(SafetensorsTest, RandomDamageNeverCrashes) {
  std::mt19937_64 random(1);
  const std::string whole = SafetensorsBytes(kHeader, DataBytes(32));
  std::string alphabet =
      "{}[]\",:0123456789.-eE \\u\n\x80\xff"
      "datshpeoffsBF16nulrw";
  alphabet += '\0';
  int accepted = 0;
  for (int i = 0; i < Count(1000, 20000); ++i) {
    std::string bytes = whole;
    for (uint64_t edits = random() % 4 + 1; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes.erase(at, random() % 8 + 1);
          break;
        case 1:
          bytes.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 2:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 32));
          break;
        default:
          bytes[at] = alphabet[random() % alphabet.size()];
      }
      if (bytes.empty()) break;
    }
    // Half of the files say how long their header really is, or nothing would get beyond the
    // length.
    if (bytes.size() >= 40 && random() % 2 == 0) {
      const uint64_t length = bytes.size() - 40;
      std::memcpy(bytes.data(), &length, 8);
    }
    const auto file = Open(bytes);
    if (!file.ok()) continue;
    ++accepted;
    for (const auto& [name, view] : file->tensors()) {
      if (view.type == TensorType::kI32) continue;
      std::vector<float> values(static_cast<size_t>(view.size()));
      view.ReadFloats(0, values);
    }
  }
  EXPECT_GT(accepted, 0) << "nothing got through: the damage is too coarse to test anything";
}

TEST_F(SafetensorsTest, OnlyRegularFiles) {
  const auto missing = SafetensorsFile::Open(path());
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  const auto fifo = SafetensorsFile::Open(path());
  ASSERT_FALSE(fifo.ok());
  EXPECT_NE(fifo.status().message().find("expected a regular file"), std::string::npos);
  const auto folder = SafetensorsFile::Open("/");
  ASSERT_FALSE(folder.ok());
  EXPECT_NE(folder.status().message().find("expected a regular file"), std::string::npos);
}

}  // namespace
}  // namespace polysketch
