// The text of a completion: decoder and stop strings equal a naive implementation, whatever the
// tokens and wherever the completion migrates.
#include "engine/scheduler/output_text.h"

#include <algorithm>

#include "engine/snapshot/check.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/rpc/fake_tokenizer.h"

namespace polysketch {
namespace {

using testing::FakeTokenizer;

// Bytes as characters; each maximal ill-formed subpart becomes U+FFFD. A table of the well-formed
// byte sequences of the Unicode standard (table 3-7), read anew for each byte.
std::string Replaced(const std::string& bytes) {
  struct Row {
    uint8_t first, last;  // of the first byte
    uint8_t second_first, second_last;
    size_t length;
  };
  constexpr Row kRows[] = {
      {0x00, 0x7F, 0, 0, 1},       {0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
      {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
      {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
  std::string text;
  for (size_t i = 0; i < bytes.size();) {
    const auto at = [&](size_t offset) { return static_cast<uint8_t>(bytes[i + offset]); };
    const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& one) {
      return at(0) >= one.first && at(0) <= one.last;
    });
    size_t good = row == std::end(kRows) ? 0 : 1;
    while (good > 0 && good < row->length && i + good < bytes.size()) {
      const bool second = good == 1;
      if (at(good) < (second ? row->second_first : 0x80)) break;
      if (at(good) > (second ? row->second_last : 0xBF)) break;
      ++good;
    }
    const bool whole = good > 0 && good == row->length;
    text += whole ? bytes.substr(i, good) : std::string(kReplacementCharacter);
    i += std::max<size_t>(good, 1);
  }
  return text;
}

struct Expected {
  std::string text;
  std::string matched;
};

// The stop string that ends first, of several the longest.
Expected Naive(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string matched;
    for (const std::string& stop : stops) {
      const bool ends =
          end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (ends && stop.size() > matched.size()) matched = stop;
    }
    if (!matched.empty()) return {text.substr(0, end - (include ? 0 : matched.size())), matched};
  }
  return {text, ""};
}

struct Case {
  GenerateParams params;
  std::vector<int32_t> tokens;
  std::vector<bool> migrates;  // before each token
};

Case ReadCase(FuzzedDataProvider* input) {
  Case one;
  one.params.include_stop_in_output = input->ConsumeBool();
  const int stops = input->ConsumeIntegralInRange(0, 4);
  for (int i = 0; i < stops; ++i) {
    std::string stop = input->ConsumeRandomLengthString(12);
    if (!stop.empty()) one.params.stop.push_back(Replaced(stop));
  }
  const int migrations = input->ConsumeIntegral<uint8_t>();  // one bit for each of 8 tokens
  const int controls = input->ConsumeIntegral<uint8_t>();
  const std::string bytes = input->ConsumeRemainingBytesAsString();
  for (size_t i = 0; i < bytes.size(); ++i) {
    if ((controls >> (i % 8) & 1) != 0 && i % 3 == 0) {
      one.tokens.push_back(FakeTokenizer::kBos);
      one.migrates.push_back(false);
    }
    one.tokens.push_back(static_cast<uint8_t>(bytes[i]));
    one.migrates.push_back((migrations >> (i % 8) & 1) != 0);
  }
  return one;
}

// A completion in one process, and then in another one, which knows what a snapshot holds.
OutputText Migrated(const OutputText& from, const FakeTokenizer& tokenizer,
                    const GenerateParams& params) {
  Snapshot snapshot;
  snapshot.pending = {1};
  snapshot.history.seen = TokenSet(FakeTokenizer::kVocabulary);
  Generation& generation = snapshot.generation.emplace();
  generation.params = params;
  generation.max_tokens = 1;
  from.Save(&generation);
  const Status status = CheckSnapshot(snapshot, {FakeTokenizer::kVocabulary, 1, true});
  PS_CHECK(status.ok()) << status.ToString();
  OutputText to(&tokenizer, params);
  to.Restore(generation);
  return to;
}

void Check(const Case& one) {
  static const FakeTokenizer tokenizer;
  std::string bytes;
  for (const int32_t token : one.tokens) bytes += tokenizer.PieceBytes(token);
  const Expected expected =
      Naive(Replaced(bytes), one.params.stop, one.params.include_stop_in_output);

  std::optional<OutputText> output(std::in_place, &tokenizer, one.params);
  TokenHistory history;
  history.seen = TokenSet(FakeTokenizer::kVocabulary);
  output->Start(history);
  std::string text;
  for (size_t i = 0; i < one.tokens.size() && !output->stopped(); ++i) {
    if (one.migrates[i]) {
      OutputText next = Migrated(*output, tokenizer, one.params);
      output.emplace(std::move(next));
    }
    const std::string piece = output->Append(one.tokens[i]);
    PS_CHECK(ValidUtf8Prefix(piece) == piece.size()) << piece;
    text += piece;
    // Nothing is released that a stop string takes back.
    PS_CHECK(expected.text.starts_with(text)) << text << " of " << expected.text;
  }
  text += output->Finish();
  PS_CHECK(text == expected.text) << text << " instead of " << expected.text;
  PS_CHECK(output->matched() == expected.matched) << output->matched();
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  polysketch::Check(polysketch::ReadCase(&input));
  return 0;
}
