#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/mapped_file.h"
#include "engine/checkpoint/strict_json.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr size_t kMaxConfigBytes = size_t{4} << 20;
constexpr int kMaxConfigDepth = 16;

// A token of tokenizer_config.json: its text, or an object with its content; empty: none.
Result<std::string> SpecialToken(const json& config, const char* name, const std::string& source) {
  const auto value = config.find(name);
  if (value == config.end() || value->is_null()) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (value->is_object()) {
    const auto content = value->find("content");
    if (content != value->end() && content->is_string()) return content->get<std::string>();
  }
  return InvalidArgument(source, ": ", name, ": expected a token, found ", DescribeJson(*value));
}

Result<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path) {
  PS_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.size() > kMaxTokenizerBytes) {
    return InvalidArgument(path, ": expected at most ", kMaxTokenizerBytes, " bytes, found ",
                           file.size());
  }
  json config = json::object();
  const std::string config_path = (fs::path(path).parent_path() / "tokenizer_config.json").string();
  std::error_code error;
  if (fs::exists(config_path, error)) {
    PS_ASSIGN_OR_RETURN(config, ReadStrictJson(config_path, kMaxConfigBytes, kMaxConfigDepth));
    if (!config.is_object())
      return InvalidArgument(config_path, ": expected an object, found ", DescribeJson(config));
  }
  PS_ASSIGN_OR_RETURN(const std::string bos, SpecialToken(config, "bos_token", config_path));
  PS_ASSIGN_OR_RETURN(const std::string eos, SpecialToken(config, "eos_token", config_path));
  return NewBpeTokenizer({reinterpret_cast<const char*>(file.data()), file.size()}, bos, eos, path);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  return path.ends_with(".json") ? LoadTokenizerJson(path) : NewSentencePieceTokenizer(path);
}

}  // namespace polysketch
