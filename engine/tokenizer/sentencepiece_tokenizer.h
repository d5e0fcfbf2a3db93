// The tokenizer of a tokenizer.model.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

// NOT_FOUND and INVALID_ARGUMENT as Tokenizer::Load.
Result<std::unique_ptr<Tokenizer>> NewSentencePieceTokenizer(const std::string& path);

}  // namespace polysketch
