// The tokenizer of a tokenizer.model.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

// Reads the bytes of the file. `source` begins the messages. INVALID_ARGUMENT as Tokenizer::Load.
Result<std::unique_ptr<Tokenizer>> NewSentencePieceTokenizer(const std::string& bytes,
                                                             const std::string& source);

}  // namespace polysketch
