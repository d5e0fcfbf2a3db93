#include "bench/drift.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>

#include "base/aligned_buffer.h"
#include "engine/model/folder_model.h"
#include "kernels/new_backend.h"

namespace polysketch::bench {
namespace {

constexpr int64_t kLogitRows = 64;  // rows whose logits are computed at once

Result<std::vector<int32_t>> ReadTokens(const std::string& file, int64_t count) {
  std::ifstream in(file, std::ios::binary);
  std::vector<uint16_t> ids(static_cast<size_t>(count));
  in.read(reinterpret_cast<char*>(ids.data()), count * static_cast<int64_t>(sizeof(uint16_t)));
  if (!in) {
    return InvalidArgument(file, ": expected ", count, " tokens of two bytes, found ",
                           in.gcount() / 2);
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

// log p of token i + 1 given tokens 0 .. i.
std::vector<double> Score(LanguageModel* model, const std::vector<int32_t>& tokens) {
  const int vocab = model->vocab_size();
  AlignedBuffer<float> hidden(static_cast<size_t>(model->max_step_tokens()) * model->hidden_size());
  AlignedBuffer<float> logits(static_cast<size_t>(kLogitRows) * vocab);
  std::vector<float> sums(kLogitRows);
  const std::unique_ptr<SequenceState> state = model->NewState();
  std::vector<double> scores;
  const int64_t size = std::ssize(tokens) - 1;
  for (int64_t first = 0; first < size; first += model->max_step_tokens()) {
    const int64_t count = std::min<int64_t>(model->max_step_tokens(), size - first);
    const std::span chunk(tokens.data() + first, static_cast<size_t>(count));
    model->Step(OneSegment(state.get(), chunk, OutputRows::kAll), hidden.data());
    for (int64_t row = 0; row < count; row += kLogitRows) {
      const int64_t rows = std::min(kLogitRows, count - row);
      model->Logits(hidden.data() + row * model->hidden_size(), rows, logits.data());
      model->LogSumExp(logits.data(), rows, sums.data());
      for (int64_t m = 0; m < rows; ++m) {
        scores.push_back(logits[m * vocab + tokens[first + row + m + 1]] - sums[m]);
      }
    }
  }
  return scores;
}

double Perplexity(const std::vector<double>& scores) {
  double sum = 0;
  for (const double score : scores) sum += score;
  return std::exp(-sum / static_cast<double>(scores.size()));
}

// The scores of the tokens that have at least min_depth tokens before them.
Result<std::vector<double>> ScoreWith(const BenchOptions& options, const std::string& folder,
                                      DataType weights, StateFormat state,
                                      const std::vector<int32_t>& tokens, int64_t min_depth) {
  PS_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, NewCpuBackend(options.threads));
  LoadOptions load;
  load.weights = weights;
  load.state_format = state;
  load.max_step_tokens = options.max_step_tokens;
  PS_ASSIGN_OR_RETURN(const std::unique_ptr<FolderModel> model,
                      FolderModel::Load(folder, backend.get(), load));
  for (const int32_t token : tokens) {
    if (token >= model->vocab_size()) {
      return InvalidArgument("--drift: expected tokens below ", model->vocab_size(), ", found ",
                             token);
    }
  }
  std::vector<double> scores = Score(model.get(), tokens);
  scores.erase(scores.begin(), scores.begin() + (min_depth - 1));
  return scores;
}

}  // namespace

Status RunDrift(const BenchOptions& options, const DriftText& text,
                const std::function<void(const DriftRow&)>& on_row) {
  if (text.min_depth >= text.tokens) {
    return InvalidArgument("--drift-from: expected less than the ", text.tokens,
                           " tokens of the text, found ", text.min_depth);
  }
  PS_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTokens(text.file, text.tokens));
  PS_ASSIGN_OR_RETURN(
      const std::vector<double> exact,
      ScoreWith(options, options.baseline.empty() ? options.model : options.baseline,
                DataType::kF32, StateFormat::kF32, ids, text.min_depth));
  const double expected = Perplexity(exact);
  PS_ASSIGN_OR_RETURN(const ModelDefinition model, ReadModelDefinition(options.model));
  const std::vector<AttentionSpec> layers = model.spec.Attention();
  std::vector<StateFormat> states = {StateFormat::kF32, StateFormat::kQ8};
  if (!std::ranges::all_of(layers, &AttentionSpec::kv_cache)) states.push_back(StateFormat::kBf16);
  if (std::ranges::any_of(layers, &AttentionSpec::kv_cache)) states.push_back(StateFormat::kF16);
  for (const DataType format : options.formats) {
    for (const StateFormat state : states) {
      PS_ASSIGN_OR_RETURN(const std::vector<double> scores,
                          ScoreWith(options, options.model, format, state, ids, text.min_depth));
      DriftRow row;
      row.weights = DataTypeName(format);
      row.state = StateFormatName(state);
      row.tokens = std::ssize(scores);
      row.perplexity = Perplexity(scores);
      row.change = row.perplexity / expected - 1;
      for (size_t i = 0; i < scores.size(); ++i) {
        const double off = std::abs(scores[i] - exact[i]);
        row.max_token = std::max(row.max_token, off);
        row.mean_token += off / static_cast<double>(scores.size());
      }
      on_row(row);
    }
  }
  return Status();
}

}  // namespace polysketch::bench
