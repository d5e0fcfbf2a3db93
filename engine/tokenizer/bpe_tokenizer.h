// The tokenizer of a tokenizer.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

// `text`: the file's. `bos` and `eos`: the texts of these tokens; empty: what the post-processor
// puts before a text, and none. `add_bos`: whether BOS begins a text; unset: the post-processor
// says so. `source` begins the messages. INVALID_ARGUMENT as ParseTokenizerJson, and for a token
// that the vocabulary lacks.
Result<std::unique_ptr<Tokenizer>> NewBpeTokenizer(std::string_view text, std::string_view bos,
                                                   std::string_view eos,
                                                   std::optional<bool> add_bos,
                                                   const std::string& source);

}  // namespace polysketch
