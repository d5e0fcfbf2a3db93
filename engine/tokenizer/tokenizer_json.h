// tokenizer.json of a model folder: the tokenizer as Hugging Face's tokenizers describes it, of the
// model type BPE. What it holds is read as that library reads it; what this server does not compute
// is refused by its name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/text_stages.h"

namespace polysketch {

struct TokenizerJson {
  std::vector<AddedToken> added_tokens;  // each text once
  std::vector<StageSpec> normalizer;
  std::vector<StageSpec> pre_tokenizer;
  // The bytes of the words that the last stage makes; `tokens` are as they stand in a word.
  BpeModel::Spec model;
  // By id: as the vocabulary spells a token, and the bytes that it adds to a text. An id without a
  // token has neither.
  std::vector<std::string> pieces;
  std::vector<std::string> bytes;
  // Decoding drops the first space of a text.
  bool strips_leading_space = false;
  // Ids that the post-processor puts before a text.
  std::vector<int32_t> before_text;
};

// `source` begins the messages. INVALID_ARGUMENT names what is wrong, or not supported.
Result<TokenizerJson> ParseTokenizerJson(std::string_view text, const std::string& source);

}  // namespace polysketch
