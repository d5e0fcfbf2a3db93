// grammar-probe: tells which texts a grammar accepts, and samples texts from it.
// differential_test.py drives it, a JSON object a line:
//
//   {"kind": "regex", "text": "a+", "compact": false, "texts": ["aa", "b"], "samples": 2, "seed":
//   1} {"accepts": [true, false], "samples": ["aaa", "a"]}
//
// `kind`: json, json_schema, regex, ebnf, structural_tag. A source that is refused gets {"error":
// MESSAGE}. The grammars are those of polysketch-grammar-host, over a vocabulary of single bytes.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "engine/grammar_host/compile_source.h"

namespace polysketch {
namespace {

using nlohmann::json;

constexpr int kEos = 256;
constexpr size_t kMaxSampleBytes = 600;

xgrammar::TokenizerInfo Bytes() {
  std::vector<std::string> tokens;
  tokens.reserve(kEos + 1);
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back();
  return xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, kEos + 1,
                                 std::vector<int32_t>{kEos});
}

class Prober {
 public:
  Prober() : vocabulary_(Bytes()) {}

  json Answer(const json& request) {
    constexpr const char* kKinds[] = {"json", "json_schema", "regex", "ebnf", "structural_tag"};
    const auto kind = std::find(std::begin(kKinds), std::end(kKinds), request.at("kind"));
    const GrammarSource source{.kind = static_cast<GrammarSource::Kind>(kind - kKinds),
                               .text = request.at("text"),
                               .compact = request.value("compact", false)};
    std::optional<xgrammar::CompiledGrammar> grammar;
    try {
      grammar = grammar_host::CompileSource(source, vocabulary_);
    } catch (const std::exception& error) {
      return {{"error", error.what()}};
    }
    json accepts = json::array(), samples = json::array();
    for (const std::string text : request.value("texts", json::array()))
      accepts.push_back(Accepts(*grammar, text));
    std::mt19937 random(request.value("seed", 1u));
    for (int i = 0; i < request.value("samples", 0); ++i) {
      if (const auto text = Sample(*grammar, &random)) samples.push_back(*text);
    }
    return {{"accepts", accepts}, {"samples", samples}};
  }

 private:
  static bool Accepts(const xgrammar::CompiledGrammar& grammar, const std::string& text) {
    xgrammar::GrammarMatcher matcher(grammar);
    const bool all = std::all_of(text.begin(), text.end(), [&](char byte) {
      return matcher.AcceptToken(static_cast<unsigned char>(byte));
    });
    return all && matcher.AcceptToken(kEos);
  }

  // Bytes that the masks allow, until EOS; unset if it does not come. A character of another than
  // ASCII is rare, as otherwise strings hold little else.
  static std::optional<std::string> Sample(const xgrammar::CompiledGrammar& grammar,
                                           std::mt19937* random) {
    xgrammar::GrammarMatcher matcher(grammar);
    std::vector<int32_t> words((kEos + 32) / 32);
    int64_t shape = static_cast<int64_t>(words.size());
    DLTensor mask{.data = words.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &shape,
                  .strides = nullptr,
                  .byte_offset = 0};
    std::string text;
    while (text.size() < kMaxSampleBytes) {
      std::fill(words.begin(), words.end(), -1);
      matcher.FillNextTokenBitmask(&mask);
      std::vector<int> common, rare;
      for (int id = 0; id <= kEos; ++id) {
        if ((words[static_cast<size_t>(id / 32)] >> (id % 32) & 1) == 0) continue;
        const bool is_common = id == kEos || (id >= 0x20 && id < 0x7f);
        (is_common ? common : rare).push_back(id);
      }
      if (common.empty() && rare.empty()) throw std::runtime_error("a dead end after: " + text);
      const auto chance = [&](int percent) {
        return static_cast<int>((*random)() % 100) < percent;
      };
      const bool ends = !common.empty() && common.back() == kEos;
      const auto& choice = rare.empty() || (!common.empty() && !chance(10)) ? common : rare;
      int id = choice[(*random)() % choice.size()];
      if (ends && chance(20)) id = kEos;
      // A quote or a bracket closes a string, an array or an object now and then.
      for (const int closing : {0x22, 0x5d, 0x7d}) {
        const bool may = std::find(common.begin(), common.end(), closing) != common.end();
        if (may && chance(15)) id = closing;
      }
      if (id == kEos) return text;
      matcher.AcceptToken(id);
      text += static_cast<char>(id);
    }
    return std::nullopt;
  }

  const xgrammar::TokenizerInfo vocabulary_;
};

int Run() {
  Prober prober;
  std::string line;
  while (std::getline(std::cin, line)) {
    json answer;
    try {
      answer = prober.Answer(json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"failure", error.what()}};
    }
    // A text that is not UTF-8 is shown by its bytes that are not.
    std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace polysketch

int main() { return polysketch::Run(); }
