// The tokenizer of a model folder, as gateways load it.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"
#include "server/net/request_memory.h"

namespace polysketch {

// Returns a zip archive of the folder's tokenizer files in Hugging Face's form: tokenizer.json and,
// where they exist, tokenizer_config.json, special_tokens_map.json, added_tokens.json and
// chat_template.jinja. `memory` holds the files and the archive. FAILED_PRECONDITION without a
// tokenizer.json, and, without a path of the machine, for a file that cannot be read;
// RESOURCE_EXHAUSTED for files of more than 256 MiB.
Result<std::string> TokenizerArchive(const ModelFolder& folder, HeldMemory* memory);

// The SHA-256 of bytes, in hexadecimal digits.
std::string Sha256Hex(const std::string& bytes);

}  // namespace polysketch
