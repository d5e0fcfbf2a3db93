// /tokenize, /detokenize, /tokenizer_info and /v1/models: the forms of vLLM and OpenAI.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/rpc/served_model.h"

namespace polysketch {

// Returns the ids of a text in which a spelled control piece ("</s>") is that piece. INVALID_ARGUMENT
// for text that is not UTF-8.
Result<std::vector<int32_t>> EncodeWithControlPieces(const Tokenizer& tokenizer,
                                                     const std::string& text);

// Each returns the body of the response to the body of the request, which a GET does not have.
// Errors name the field.
Result<std::string> TokenizeJson(const std::string& body, const ServedModel& model);
Result<std::string> DetokenizeJson(const std::string& body, const ServedModel& model);
Result<std::string> TokenizerInfoJson(const std::string&, const ServedModel& model);
// An entry of /v1/models. `created`: when the server started, in seconds since 1970.
nlohmann::ordered_json ModelJson(const std::string& name, int64_t created,
                                 const ServedModel& model);

}  // namespace polysketch
