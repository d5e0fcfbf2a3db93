// The files of a model folder that a tokenizer consists of.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "engine/checkpoint/model_folder.h"

namespace polysketch {

inline constexpr std::string_view kSentencePieceFile = "tokenizer.model";
inline constexpr std::string_view kTokenizerJsonFile = "tokenizer.json";
// Those that save_pretrained of transformers writes. Only the first is in every such folder.
inline constexpr std::array<std::string_view, 5> kHuggingFaceFiles = {
    kTokenizerJsonFile, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja"};

// The name of the file that Tokenizer::Load takes. Empty: the folder has none.
inline std::string TokenizerFile(const ModelFolder& folder) {
  for (const std::string_view name : {kSentencePieceFile, kTokenizerJsonFile}) {
    if (folder.Has(std::string(name))) return std::string(name);
  }
  return "";
}

}  // namespace polysketch
