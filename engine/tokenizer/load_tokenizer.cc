#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/checkpoint/strict_json.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_files.h"

namespace polysketch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr size_t kMaxTokenizerConfigBytes = size_t{4} << 20;
constexpr int kMaxTokenizerConfigDepth = 16;

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

// add_bos_token, for the classes of transformers that make their post-processor of it; unset: the
// post-processor of tokenizer.json counts.
std::optional<bool> AddBosToken(const json& config) {
  constexpr std::string_view kClasses[] = {"LlamaTokenizer",     "LlamaTokenizerFast",
                                           "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
                                           "GemmaTokenizer",     "GemmaTokenizerFast"};
  const auto name = config.find("tokenizer_class");
  const auto add = config.find("add_bos_token");
  if (name == config.end() || !name->is_string() || add == config.end() || !add->is_boolean())
    return std::nullopt;
  const auto& found = name->get_ref<const std::string&>();
  if (std::ranges::find(kClasses, found) == std::end(kClasses)) return std::nullopt;
  return add->get<bool>();
}

Result<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const ModelFolder& folder,
                                                     const std::string& text,
                                                     const std::string& source) {
  json config = json::object();
  const std::string config_path = folder.PathOf(kTokenizerConfigFile);
  if (folder.Has(kTokenizerConfigFile)) {
    PS_ASSIGN_OR_RETURN(config, ReadStrictJson(folder, kTokenizerConfigFile,
                                               kMaxTokenizerConfigBytes, kMaxTokenizerConfigDepth));
    if (!config.is_object())
      return InvalidArgument(config_path, ": expected an object, found ", DescribeJson(config));
  }
  PS_ASSIGN_OR_RETURN(const std::string bos, SpecialToken(config, "bos_token", config_path));
  PS_ASSIGN_OR_RETURN(const std::string eos, SpecialToken(config, "eos_token", config_path));
  return NewBpeTokenizer(text, bos, eos, AddBosToken(config), source);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const ModelFolder& folder,
                                                   const std::string& name) {
  PS_ASSIGN_OR_RETURN(const std::string bytes, folder.Read(name, kMaxTokenizerBytes));
  const std::string source = folder.PathOf(name);
  return name.ends_with(".json") ? LoadTokenizerJson(folder, bytes, source)
                                 : NewSentencePieceTokenizer(bytes, source);
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  const fs::path file = path;
  return Load(file.has_parent_path() ? file.parent_path() : ".", file.filename().string());
}

}  // namespace polysketch
