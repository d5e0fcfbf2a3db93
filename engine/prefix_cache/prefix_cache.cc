#include "engine/prefix_cache/prefix_cache.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace polysketch {

double PrefixCache::Cost(int64_t begin, int64_t end) const {
  const auto tokens = static_cast<double>(end - begin),
             middle = static_cast<double>(begin + end) / 2;
  return tokens * (1 + options_.attention_cost * middle);
}

PrefixTree::Node* PrefixCache::Provider(Node* node, int64_t common, int64_t tokens) const {
  // Its own state, or that of the same prompt again, whatever the length.
  const bool own = node->state != nullptr && node->end == common;
  if (own && (tokens == node->end || node->earliest_truncation <= tokens)) return node;
  return node->widest != nullptr && Truncates(*node->widest, tokens) ? node->widest : nullptr;
}

std::optional<PrefixCache::Hit> PrefixCache::Find(const std::string& salt,
                                                  std::span<const int32_t> prompt, int64_t max) {
  std::lock_guard lock(mutex_);
  stats_.queried_tokens += std::ssize(prompt);
  const PrefixTree::Match match = tree_.Find(salt, prompt);
  // What a text provides is cut where the prompt leaves it: at the match, or where a node ends.
  for (Node* node = match.node; node != nullptr && !node->root(); node = node->parent) {
    const int64_t common = std::min(node->end, match.tokens);
    const int64_t tokens = std::min(common, max);
    if (tokens <= 0) break;
    Node* const provider = Provider(node, common, tokens);
    if (provider == nullptr) continue;
    Use(provider);
    stats_.hit_tokens += tokens;
    return Hit{provider->state, tokens};
  }
  return std::nullopt;
}

int64_t PrefixCache::Learn(const std::string& salt, const Principal& principal,
                           std::span<const int32_t> prompt) {
  Freed freed;
  std::lock_guard lock(mutex_);
  PrefixTree::Match match = tree_.Find(salt, prompt);
  const int64_t known = match.tokens;
  for (Node* node = match.node; node != nullptr; node = node->parent) {
    if (node->counted_as_text) texts_.splice(texts_.end(), texts_, node->text);
  }
  // Making room may forget what matches.
  for (;; match = tree_.Find(salt, prompt)) {
    const size_t bytes = PrefixTree::BytesToExtend(match, std::ssize(prompt), salt);
    if (bytes == 0) return known;
    if (stats_.text_bytes + bytes > memory_ / kTextPart) {
      if (!ForgetText(/*shares=*/true) && !ForgetText(/*shares=*/false)) return known;
    } else if (stats_.bytes + bytes <= memory_) {
      break;
    } else if (!MakeRoom(bytes, principal, std::numeric_limits<double>::infinity(), &freed)) {
      return known;
    }
  }
  CountChanged(tree_.Extend(match, salt, prompt), principal);
  return known;
}

std::optional<PrefixCache::Room> PrefixCache::Reserve(const std::string& salt,
                                                      const Principal& principal,
                                                      std::span<const int32_t> tokens,
                                                      const StateMemory& memory) {
  Freed freed;
  std::lock_guard lock(mutex_);
  const int64_t size = std::ssize(tokens);
  PS_CHECK(size > 0);
  PrefixTree::Match match = tree_.Find(salt, tokens);
  if (match.tokens == size) {
    if (Node* const provider = Provider(match.node, size, size); provider != nullptr) {
      Use(provider);
      return std::nullopt;
    }
    if (match.node->end == size && match.node->saving) return std::nullopt;
  }
  int64_t provided = 0;
  for (Node* node = match.node; node != nullptr && provided == 0; node = node->parent) {
    const int64_t common = std::min(node->end, match.tokens);
    if (common > 0 && Provider(node, common, common) != nullptr) provided = common;
  }
  size_t bytes = memory.own + blocks_.BytesToAdd(memory.blocks);
  const double priority = inflation_ + Cost(provided, size) / static_cast<double>(bytes + 1);
  // What is evicted may have had blocks of the state.
  for (;;
       match = tree_.Find(salt, tokens), bytes = memory.own + blocks_.BytesToAdd(memory.blocks)) {
    const size_t needed = bytes + PrefixTree::BytesToExtend(match, size, salt);
    if (stats_.bytes + needed <= memory_) break;
    if (!MakeRoom(needed, principal, priority, &freed)) return std::nullopt;
  }
  const PrefixTree::Extended extended = tree_.Extend(match, salt, tokens);
  CountChanged(extended, principal);
  Node* const node = extended.end;
  Uncount(node);
  node->saving = true;
  node->reserved_bytes = bytes;
  reserved_ += bytes;
  node->principal = principal;
  Count(node);
  return Room(this, node);
}

void PrefixCache::EndSaving(Node* node) {
  node->saving = false;
  reserved_ -= std::exchange(node->reserved_bytes, 0);
}

void PrefixCache::Abandon(Node* node) {
  Freed freed;
  std::lock_guard lock(mutex_);
  EndSaving(node);
  Count(node);
  FitToMemory(&freed);
}

void PrefixCache::Store(Room room, std::shared_ptr<const SavedState> state,
                        int64_t earliest_truncation) {
  Freed freed;
  std::lock_guard lock(mutex_);
  PS_CHECK(room.cache_ == this);
  room.cache_ = nullptr;
  Node* const node = room.node_;
  PS_CHECK(state->position == node->end) << state->position << " is not " << node->end;
  EndSaving(node);
  tree_.Store(node, std::move(state), earliest_truncation);
  Count(node);
  ++stats_.stored;
  for (Node* above = node->parent; above != nullptr; above = above->parent) {
    if (above->state != nullptr && above->principal == node->principal &&
        Truncates(*node, above->end)) {
      states_.erase(above);
      freed.push_back(above->state);
      tree_.DropState(above);
      Count(above);
    }
  }
  Use(node);
  FitToMemory(&freed);
}

int64_t PrefixCache::ProvidedWithout(const Node& node) const {
  for (const Node* above = node.parent; above != nullptr; above = above->parent) {
    if (above->state != nullptr) return above->end;
    if (above->widest == &node) {
      // If the state can be truncated to any token, so can the others.
      if (above->states > 1 && Truncates(node, above->end) && node.earliest_truncation <= 1) {
        return above->end;
      }
    } else if (Truncates(*above->widest, above->end)) {
      return above->end;
    }
  }
  return 0;
}

void PrefixCache::Use(Node* node) {
  states_.erase(node);
  node->use.inflation = inflation_;
  node->use.number = ++uses_;
  Rank(node, Priority(*node));
}

void PrefixCache::Rank(Node* node, double priority) {
  node->use.priority = priority;
  states_.insert(node);
}

void PrefixCache::Uncount(Node* node) {
  if (node->counted_bytes == 0) return;
  size_t bytes = node->counted_bytes, held = bytes;
  if (node->counted_state != nullptr) {
    const std::span<const StateBlock> blocks = node->counted_state->blocks();
    const auto of = blocks_of_.find(node->principal);
    bytes += blocks_.Remove(blocks);
    held += of->second.Remove(blocks);
    if (of->second.empty()) blocks_of_.erase(of);
    node->counted_state = nullptr;
  }
  held_.Remove(node->principal, static_cast<int64_t>(held));
  stats_.bytes -= bytes;
  if (node->counted_as_text) {
    texts_held_.Remove(node->principal, static_cast<int64_t>(held));
    stats_.text_bytes -= bytes;
    texts_.erase(node->text);
  }
  node->counted_bytes = 0;
  node->counted_as_text = false;
}

void PrefixCache::Count(Node* node) {
  Uncount(node);
  const size_t state = node->state == nullptr ? node->reserved_bytes : node->state->own_bytes();
  node->counted_bytes = PrefixTree::BytesOf(*node) + state;
  size_t bytes = node->counted_bytes, held = bytes;
  if (node->state != nullptr && !node->state->blocks().empty()) {
    node->counted_state = node->state;
    bytes += blocks_.Add(node->state->blocks());
    held += blocks_of_[node->principal].Add(node->state->blocks());
  }
  held_.Add(node->principal, static_cast<int64_t>(held));
  stats_.bytes += bytes;
  node->counted_as_text = node->state == nullptr && !node->saving;
  if (!node->counted_as_text) return;
  texts_held_.Add(node->principal, static_cast<int64_t>(held));
  stats_.text_bytes += bytes;
  node->text = texts_.insert(texts_.end(), node);
}

void PrefixCache::CountChanged(const PrefixTree::Extended& extended, const Principal& principal) {
  for (Node* node : extended.changed) {
    if (node->counted_bytes == 0) node->principal = principal;
    Count(node);
  }
}

bool PrefixCache::MakeRoom(size_t bytes, const Principal& principal, double priority,
                           Freed* freed) {
  if (bytes + reserved_ > memory_) return false;
  // Whether the newcomer itself would be evicted first.
  held_.Add(principal, static_cast<int64_t>(bytes));
  const bool shares = held_.AboveEqual(principal, static_cast<int64_t>(memory_));
  Node* const victim = Lowest(/*shares=*/true);
  held_.Remove(principal, static_cast<int64_t>(bytes));
  if (victim == nullptr) {
    return !shares && (ForgetText(/*shares=*/true) || ForgetText(/*shares=*/false));
  }
  if (shares && victim->use.priority > priority) {
    inflation_ = std::max(inflation_, priority);
    return false;
  }
  Evict(victim, freed);
  ForgetTexts();
  return true;
}

PrefixTree::Node* PrefixCache::Lowest(bool shares) {
  for (auto next = states_.begin(); next != states_.end();) {
    Node* const node = *next;
    if (shares && !held_.AboveEqual(node->principal, static_cast<int64_t>(memory_))) {
      ++next;
      continue;
    }
    // The states before it on its path may have been evicted since its last use.
    const double priority = Priority(*node);
    if (priority <= node->use.priority) return node;
    states_.erase(next);
    Rank(node, priority);
    next = states_.begin();
  }
  return nullptr;
}

void PrefixCache::Evict(Node* node, Freed* freed) {
  inflation_ = std::max(inflation_, node->use.priority);
  states_.erase(node);
  freed->push_back(node->state);
  tree_.DropState(node);
  Count(node);
  ++stats_.evicted;
}

bool PrefixCache::ForgetText(bool shares) {
  const auto budget = static_cast<int64_t>(memory_ / kTextPart);
  auto next = texts_.begin();
  for (size_t left = texts_.size(); left > 0; --left) {
    Node* const node = *next++;
    if (!node->leaf()) {
      texts_.splice(texts_.end(), texts_, node->text);
      continue;
    }
    if (shares && !texts_held_.AboveEqual(node->principal, budget)) continue;
    Uncount(node);
    tree_.Remove(node);
    return true;
  }
  return false;
}

void PrefixCache::ForgetTexts() {
  while (stats_.text_bytes > memory_ / kTextPart &&
         (ForgetText(/*shares=*/true) || ForgetText(/*shares=*/false))) {
  }
}

void PrefixCache::FitToMemory(Freed* freed) {
  ForgetTexts();
  while (stats_.bytes > memory_) {
    Node* victim = Lowest(/*shares=*/true);
    if (victim == nullptr) victim = Lowest(/*shares=*/false);
    if (victim != nullptr) {
      Evict(victim, freed);
      ForgetTexts();
    } else if (!ForgetText(/*shares=*/false)) {
      return;  // states that are being saved
    }
  }
}

void PrefixCache::SetMemory(size_t bytes) {
  Freed freed;
  std::lock_guard lock(mutex_);
  memory_ = bytes;
  FitToMemory(&freed);
}

size_t PrefixCache::memory() const {
  std::lock_guard lock(mutex_);
  return memory_;
}

PrefixCacheStats PrefixCache::stats() const {
  std::lock_guard lock(mutex_);
  PrefixCacheStats stats = stats_;
  stats.entries = static_cast<int64_t>(states_.size());
  return stats;
}

}  // namespace polysketch
