// Drives a loaded model in tests: logits of every token of a sequence, in any parts.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/model/folder_model.h"

namespace polysketch::testing {

inline std::unique_ptr<FolderModel> LoadModel(const std::filesystem::path& folder, Backend* backend,
                                              const LoadOptions& options = {}) {
  auto model = FolderModel::Load(folder.string(), backend, options);
  PS_CHECK(model.ok()) << model.status().ToString();
  return std::move(model).value();
}

// A sequence on its way through a model.
struct Request {
  Request(LanguageModel& model, std::vector<int32_t> prompt)
      : tokens(std::move(prompt)), state(model.NewState()) {}

  int left() const { return static_cast<int>(tokens.size()) - static_cast<int>(state->position()); }

  std::vector<int32_t> tokens;
  std::unique_ptr<SequenceState> state;
  std::vector<float> logits;  // [rows asked for, vocab]
};

struct RequestPart {
  Request* request;
  int tokens;
  bool all_rows = true;
};

// One step; appends the logits asked for to each request.
inline void StepRequests(LanguageModel& model, const std::vector<RequestPart>& parts) {
  Batch batch;
  for (const RequestPart& part : parts) {
    const std::span<const int32_t> all = part.request->tokens;
    batch.Add(part.request->state.get(), all.subspan(part.request->state->position(), part.tokens),
              part.all_rows ? OutputRows::kAll : OutputRows::kLast);
  }
  const int64_t rows = std::ssize(batch.output_rows());
  std::vector<float> hidden(rows * model.hidden_size());
  model.Step(batch, hidden.data());
  std::vector<float> logits(rows * model.vocab_size());
  model.Logits(hidden.data(), rows, logits.data());
  auto next = logits.begin();
  for (const RequestPart& part : parts) {
    const auto end = next + int64_t{part.all_rows ? part.tokens : 1} * model.vocab_size();
    part.request->logits.insert(part.request->logits.end(), next, end);
    next = end;
  }
}

// Logits [tokens, vocab] of a sequence alone, in the given parts.
inline std::vector<float> LogitsOf(LanguageModel& model, const std::vector<int32_t>& tokens,
                                   const std::vector<int>& parts) {
  Request request(model, tokens);
  for (const int part : parts) StepRequests(model, {{&request, part}});
  return request.logits;
}

// log p of token i + 1 given tokens 0..i, for logits [tokens, vocab].
inline std::vector<double> NextLogprobs(LanguageModel& model, const std::vector<int32_t>& tokens,
                                        const std::vector<float>& logits) {
  std::vector<float> log_sums(tokens.size());
  model.LogSumExp(logits.data(), static_cast<int64_t>(tokens.size()), log_sums.data());
  std::vector<double> logprobs;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    logprobs.push_back(static_cast<double>(logits[i * model.vocab_size() + tokens[i + 1]]) -
                       log_sums[i]);
  }
  return logprobs;
}

// The largest value of a row, and its distance to the second largest.
struct Best {
  int token = 0;
  double margin = 0;
};

inline Best BestOf(std::span<const float> row) {
  Best best{0, 0};
  float second = -INFINITY;
  for (int i = 1; i < static_cast<int>(row.size()); ++i) {
    if (row[i] > row[best.token]) {
      second = row[best.token];
      best.token = i;
    } else if (row[i] > second) {
      second = row[i];
    }
  }
  best.margin = static_cast<double>(row[best.token]) - second;
  return best;
}

}  // namespace polysketch::testing
