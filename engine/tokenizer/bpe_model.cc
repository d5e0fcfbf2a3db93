#include "engine/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>

#include "base/utf8.h"

namespace polysketch {
namespace {

// Up to this number of symbols, looking at all pairs is faster than a heap of them.
constexpr size_t kFewSymbols = 32;

char32_t PopFront(std::string_view* text) {
  const Utf8Char c = DecodeUtf8(*text);
  text->remove_prefix(static_cast<size_t>(c.length));
  return c.code_point;
}

uint64_t PairOf(char32_t left, char32_t right) { return static_cast<uint64_t>(left) << 32 | right; }

uint64_t KeyOf(int32_t left, int32_t right) {
  // Not 0, since ids are below 2^31.
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right)) +
         1;
}

}  // namespace

// A pair that may be merged: the lowest rank first, then the leftmost.
struct BpeModel::Candidate {
  uint32_t rank = 0;
  int32_t at = 0;
  int32_t left = 0;
  int32_t right = 0;

  bool operator<(const Candidate& other) const {  // std::priority_queue has the largest on top
    return std::tie(rank, at) > std::tie(other.rank, other.at);
  }
};

void BpeModel::MergeTable::Reserve(size_t merges) {
  entries_.assign(std::bit_ceil(2 * merges + 2), Entry{});
}

size_t BpeModel::MergeTable::Slot(uint64_t key) const {
  const size_t mask = entries_.size() - 1;
  size_t slot = (key * 0x9E3779B97F4A7C15U >> 20) & mask;
  while (entries_[slot].key != 0 && entries_[slot].key != key) slot = (slot + 1) & mask;
  return slot;
}

void BpeModel::MergeTable::Add(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = KeyOf(left, right);
  entries_[Slot(key)] = {key, merge};
}

const BpeModel::Merge* BpeModel::MergeTable::Find(int32_t left, int32_t right) const {
  const uint64_t key = KeyOf(left, right);
  const Entry& entry = entries_[Slot(key)];
  return entry.key == key ? &entry.merge : nullptr;
}

Result<BpeModel> BpeModel::Make(Spec spec) {
  BpeModel model;
  model.byte_level_ = spec.byte_level;
  model.ignore_merges_ = spec.ignore_merges;
  model.fuse_unk_ = spec.fuse_unk;
  model.unk_id_ = spec.unk_id;
  model.byte_ids_ = std::move(spec.byte_ids);
  model.single_bytes_.fill(-1);
  const bool all_bytes =
      !model.byte_ids_.empty() && std::none_of(model.byte_ids_.begin(), model.byte_ids_.end(),
                                               [](int32_t id) { return id < 0; });
  model.unknown_joins_ =
      spec.unk_id >= 0 && !all_bytes && (spec.fuse_unk || !model.byte_ids_.empty());
  for (const auto& [text, id] : spec.tokens) {
    if (spec.byte_level) {
      if (text.size() == 1) model.single_bytes_[static_cast<unsigned char>(text.front())] = id;
      continue;
    }
    std::string_view rest = text;
    char32_t left = PopFront(&rest);
    if (rest.empty()) model.single_.emplace(left, id);
    while (!rest.empty()) {
      const char32_t right = PopFront(&rest);
      model.joined_.insert(PairOf(left, right));
      left = right;
    }
  }
  model.ids_.reserve(spec.tokens.size());
  for (auto& [text, id] : spec.tokens) model.ids_.emplace(std::move(text), id);
  model.merges_.Reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const auto a = model.ids_.find(left), b = model.ids_.find(right),
               joined = model.ids_.find(left + right);
    if (a == model.ids_.end() || b == model.ids_.end() || joined == model.ids_.end()) {
      return InvalidArgument("model.merges[", rank,
                             "]: expected two tokens whose join is a token, found another pair");
    }
    model.merges_.Add(a->second, b->second, {static_cast<uint32_t>(rank), joined->second});
  }
  return model;
}

void BpeModel::AddUnknown(std::string_view character, bool* pending,
                          std::vector<Symbol>* symbols) const {
  const auto byte_id = [this](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (!byte_ids_.empty() && std::all_of(character.begin(), character.end(),
                                        [&](char byte) { return byte_id(byte) >= 0; })) {
    for (const char byte : character) symbols->push_back({.id = byte_id(byte)});
  } else if (unk_id_ >= 0) {
    if (*pending && !fuse_unk_) symbols->push_back({.id = unk_id_});
    *pending = true;
  }
}

void BpeModel::FirstSymbols(std::string_view word, std::vector<Symbol>* symbols) const {
  symbols->reserve(word.size());
  // An unk_id that waits for the next token: as in Hugging Face's tokenizers, bytes go before it.
  bool pending = false;
  while (!word.empty()) {
    size_t length = 1;
    int32_t id = -1;
    if (byte_level_) {
      id = single_bytes_[static_cast<unsigned char>(word.front())];
    } else {
      const Utf8Char c = DecodeUtf8(word);
      length = static_cast<size_t>(c.length);
      if (const auto found = single_.find(c.code_point); found != single_.end()) id = found->second;
    }
    if (id >= 0) {
      if (std::exchange(pending, false)) symbols->push_back({.id = unk_id_});
      symbols->push_back({.id = id});
    } else {
      AddUnknown(word.substr(0, length), &pending, symbols);
    }
    word.remove_prefix(length);
  }
  if (pending) symbols->push_back({.id = unk_id_});
  for (size_t i = 0; i < symbols->size(); ++i) {
    (*symbols)[i].previous = static_cast<int32_t>(i) - 1;
    (*symbols)[i].next = i + 1 < symbols->size() ? static_cast<int32_t>(i) + 1 : -1;
  }
}

void BpeModel::Join(std::vector<Symbol>* symbols, int32_t at, int32_t id) {
  Symbol& left = (*symbols)[static_cast<size_t>(at)];
  Symbol& right = (*symbols)[static_cast<size_t>(left.next)];
  left.id = id;
  left.next = std::exchange(right.next, -1);
  right.id = -1;
  if (left.next >= 0) (*symbols)[static_cast<size_t>(left.next)].previous = at;
}

void BpeModel::MergeFew(std::vector<Symbol>* symbols) const {
  while (true) {
    const Merge* best = nullptr;
    int32_t best_at = -1;
    for (int32_t at = 0;;) {
      const Symbol& left = (*symbols)[static_cast<size_t>(at)];
      if (left.next < 0) break;
      const Merge* merge = merges_.Find(left.id, (*symbols)[static_cast<size_t>(left.next)].id);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        best_at = at;
      }
      at = left.next;
    }
    if (best == nullptr) return;
    Join(symbols, best_at, best->id);
  }
}

void BpeModel::MergeMany(std::vector<Symbol>* symbols) const {
  std::priority_queue<Candidate> queue;
  const auto add = [&](int32_t at) {
    if (at < 0) return;
    const Symbol& left = (*symbols)[static_cast<size_t>(at)];
    if (left.next < 0) return;
    const int32_t right = (*symbols)[static_cast<size_t>(left.next)].id;
    if (const Merge* merge = merges_.Find(left.id, right); merge != nullptr)
      queue.push({merge->rank, at, left.id, right});
  };
  for (size_t i = 0; i < symbols->size(); ++i) add(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const Symbol& left = (*symbols)[static_cast<size_t>(best.at)];
    // Other merges may have taken one of the two.
    if (left.id != best.left || left.next < 0 ||
        (*symbols)[static_cast<size_t>(left.next)].id != best.right) {
      continue;
    }
    Join(symbols, best.at, merges_.Find(best.left, best.right)->id);
    add(left.previous);
    add(best.at);
  }
}

void BpeModel::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    if (const auto whole = ids_.find(word); whole != ids_.end()) {
      ids->push_back(whole->second);
      return;
    }
  }
  std::vector<Symbol> symbols;
  FirstSymbols(word, &symbols);
  if (symbols.empty()) return;
  if (symbols.size() <= kFewSymbols)
    MergeFew(&symbols);
  else
    MergeMany(&symbols);
  for (int32_t at = 0; at >= 0; at = symbols[static_cast<size_t>(at)].next)
    ids->push_back(symbols[static_cast<size_t>(at)].id);
}

bool BpeModel::Joins(char32_t left, char32_t right) const {
  // A byte that is no token may be one unk_id with its neighbour, and a token may end inside of a
  // character.
  if (byte_level_) return true;
  if (joined_.contains(PairOf(left, right))) return true;
  return unknown_joins_ && !single_.contains(left) && !single_.contains(right);
}

}  // namespace polysketch
