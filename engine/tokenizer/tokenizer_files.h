// The files of a model folder that a tokenizer consists of.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "engine/checkpoint/model_folder.h"

namespace polysketch {

inline constexpr char kSentencePieceFile[] = "tokenizer.model";
inline constexpr char kTokenizerJsonFile[] = "tokenizer.json";
inline constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";
inline constexpr char kChatTemplateFile[] = "chat_template.jinja";
// Those that save_pretrained of transformers writes. Only the first is in every such folder.
inline constexpr std::array<std::string_view, 5> kHuggingFaceFiles = {
    kTokenizerJsonFile, kTokenizerConfigFile, "special_tokens_map.json", "added_tokens.json",
    kChatTemplateFile};

// The name of the file that Tokenizer::Load takes. Empty: the folder has none.
inline std::string TokenizerFile(const ModelFolder& folder) {
  if (folder.Has(kSentencePieceFile)) return kSentencePieceFile;
  return folder.Has(kTokenizerJsonFile) ? kTokenizerJsonFile : "";
}

}  // namespace polysketch
