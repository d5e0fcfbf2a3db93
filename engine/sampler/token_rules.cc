#include "engine/sampler/token_rules.h"

#include <algorithm>
#include <utility>

namespace polysketch {
namespace {

constexpr size_t kWordBits = 32;

uint32_t BitOf(int32_t id) { return uint32_t{1} << (static_cast<size_t>(id) % kWordBits); }
uint32_t& WordOf(int32_t id, std::vector<uint32_t>* words) {
  return (*words)[static_cast<size_t>(id) / kWordBits];
}

bool AllowsAny(std::span<const uint32_t> words) {
  return std::ranges::any_of(words, [](uint32_t word) { return word != 0; });
}

}  // namespace

TokenRules::TokenRules(const SamplingParams& params, int vocab_size)
    : vocab_size_(static_cast<size_t>(vocab_size)), bad_words_(params.bad_words) {
  if (!params.allowed_token_ids.empty()) {
    allowed_.resize((vocab_size_ + kWordBits - 1) / kWordBits);
    for (const int32_t id : params.allowed_token_ids) WordOf(id, &allowed_) |= BitOf(id);
  }
  for (const std::vector<int32_t>& word : bad_words_) longest_ = std::max(longest_, word.size());
}

void TokenRules::SetMinimum(int64_t tokens, std::vector<int32_t> ids) {
  min_tokens_ = ids.empty() ? 0 : tokens;
  end_ids_ = std::move(ids);
}

std::span<const uint32_t> TokenRules::Mask(int64_t index, std::span<const uint32_t> grammar,
                                           std::vector<uint32_t>* words) const {
  words->assign((vocab_size_ + kWordBits - 1) / kWordBits, ~uint32_t{0});
  if (!grammar.empty()) std::copy_n(grammar.begin(), words->size(), words->begin());
  Trim(words);
  if (!allowed_.empty()) {
    const std::vector<uint32_t> before = *words;
    for (size_t i = 0; i < words->size(); ++i) (*words)[i] &= allowed_[i];
    if (!AllowsAny(*words)) *words = before;
  }
  std::vector<int32_t> forbidden;
  AddForbidden(&forbidden);
  Forbid(forbidden, words);
  if (index < min_tokens_) Forbid(end_ids_, words);
  return *words;
}

void TokenRules::Trim(std::vector<uint32_t>* words) const {
  const size_t last = vocab_size_ % kWordBits;
  if (last > 0) words->back() &= (uint32_t{1} << last) - 1;
}

void TokenRules::AddForbidden(std::vector<int32_t>* ids) const {
  for (const std::vector<int32_t>& word : bad_words_) {
    const size_t before = word.size() - 1;
    if (recent_.size() < before) continue;
    if (std::equal(word.begin(), word.end() - 1, recent_.end() - static_cast<ptrdiff_t>(before)))
      ids->push_back(word.back());
  }
}

void TokenRules::Forbid(std::span<const int32_t> ids, std::vector<uint32_t>* words) const {
  std::vector<int32_t> cleared;
  for (const int32_t id : ids) {
    uint32_t& word = WordOf(id, words);
    if ((word & BitOf(id)) == 0) continue;
    word &= ~BitOf(id);
    cleared.push_back(id);
  }
  if (AllowsAny(*words)) return;
  for (const int32_t id : cleared) WordOf(id, words) |= BitOf(id);
}

void TokenRules::Accept(int32_t token) {
  if (longest_ < 2) return;
  if (recent_.size() + 1 == longest_) recent_.erase(recent_.begin());
  recent_.push_back(token);
}

}  // namespace polysketch
