// The tokenizer of a model folder, as gateways load it.
#pragma once

#include <string>

#include "base/status.h"
#include "server/net/request_memory.h"

namespace polysketch {

// Returns a zip archive of the folder's tokenizer files in Hugging Face's form: tokenizer.json and,
// where they exist, tokenizer_config.json, special_tokens_map.json, added_tokens.json and
// chat_template.jinja. `memory` holds the files and the archive. FAILED_PRECONDITION without a
// tokenizer.json; RESOURCE_EXHAUSTED for files of more than 256 MiB.
Result<std::string> TokenizerArchive(const std::string& folder, HeldMemory* memory);

// The SHA-256 of bytes, in hexadecimal digits.
std::string Sha256Hex(const std::string& bytes);

}  // namespace polysketch
