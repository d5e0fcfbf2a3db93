// GenerationConfig: generation_config.json of a model folder, which says how its author samples and
// which tokens end an output.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"
#include "engine/request/params.h"

namespace polysketch {

struct GenerationConfig {
  // Tokens that end an output, each once, in the order of the file. Empty: the file names none.
  std::vector<int32_t> eos_ids = {};
  // temperature, top_k, top_p, min_p and repetition_penalty of requests that set none. What the
  // file does not set has the default of SamplingParams.
  SamplingParams sampling = {};

  // Reads the file; without it, no token and the defaults. Fields that are not named above have no
  // effect: do_sample too, as in vLLM. INVALID_ARGUMENT names the file and the field, what was
  // expected and what was found.
  static Result<GenerationConfig> Load(const ModelFolder& folder, int vocab_size);
  // Parses the text of such a file. Every error message begins with `source`.
  static Result<GenerationConfig> Parse(std::string_view json_text, std::string_view source,
                                        int vocab_size);
};

}  // namespace polysketch
