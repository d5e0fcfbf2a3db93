// The tokenizer of a tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

// `text`: the file's. `bos` and `eos`: the texts of these tokens; empty: what the post-processor puts before
// a text, and none. `source` begins the messages. INVALID_ARGUMENT as ParseTokenizerJson, and for a
// token that the vocabulary lacks.
Result<std::unique_ptr<Tokenizer>> NewBpeTokenizer(std::string_view text, std::string_view bos,
                                                   std::string_view eos, const std::string& source);

}  // namespace polysketch
