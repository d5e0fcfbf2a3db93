// A model and a tokenizer whose outputs are functions of the token history, so that a test can say
// what must come out.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"
#include "engine/model/language_model.h"
#include "engine/sampler/random.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch::testing {

inline constexpr int kFakeVocab = 64;
inline constexpr int kFakeBos = 0;
inline constexpr int kFakeEos = 1;
inline constexpr int64_t kFakeBlock = 8;

// The state is a hash of all tokens; a hidden row is that hash, in exact floats. `whole`: it can be
// truncated to any token, as those of KV kinds; otherwise within a block, as those of recurrent
// kinds.
class FakeState : public SequenceState {
 public:
  explicit FakeState(std::atomic<int>* live, const std::function<void()>* on_copy = nullptr,
                     bool whole = false)
      : live_(live), on_copy_(on_copy), whole_(whole) {
    ++*live_;
  }
  ~FakeState() override { --*live_; }
  size_t bytes() const override { return 100; }
  std::unique_ptr<SequenceState> Clone() const override {
    auto copy = std::make_unique<FakeState>(live_, on_copy_, whole_);
    copy->CopyFrom(*this);
    return copy;
  }
  void Reset() override {
    hash = 0;
    past.clear();
    set_position(0);
  }
  void ClearPart(int part) override {
    if (uncleared_.erase(part) > 0 && on_copy_ != nullptr && *on_copy_) (*on_copy_)();
  }
  bool cleared() const override { return uncleared_.empty(); }
  // As a state of new memory is.
  void ForgetClearing() {
    for (int part = 0; part < parts(); ++part) uncleared_.insert(part);
  }
  void CopyPart(int part, const SequenceState& other) override {
    uncleared_.erase(part);
    if (on_copy_ != nullptr && *on_copy_) (*on_copy_)();
    const auto& from = static_cast<const FakeState&>(other);
    if (part == 0) {
      hash = from.hash;
      past = from.past;
    }
  }
  int64_t EarliestTruncation() const override {
    if (whole_) return 0;
    return position() > kFakeBlock ? (position() - 1) / kFakeBlock * kFakeBlock + 1 : 0;
  }
  int64_t Removable(int64_t position) const override {
    if (whole_) return std::numeric_limits<int64_t>::max() / 2;
    return (kFakeBlock - position % kFakeBlock) % kFakeBlock;
  }
  bool FoldsNext() const override {
    return !whole_ && position() > 0 && position() % kFakeBlock == 0;
  }
  int64_t TokensToFold() const override {
    return whole_ ? 0 : kFakeBlock - position() % kFakeBlock;
  }
  void Truncate(int64_t position) override {
    PS_CHECK(position >= EarliestTruncation() && position <= this->position());
    if (position == this->position()) return;
    hash = past[Place(position)];
    set_position(position);
  }
  // The hash and those of the block, or of all tokens.
  size_t SavedBytes() const override { return SavedBytes(position()); }
  int parts() const override { return kFakeBlock + 1; }
  void SavePart(int part, std::span<uint8_t> out) const override {
    PS_CHECK(out.size() == SavedBytes());
    if (on_copy_ != nullptr && *on_copy_) (*on_copy_)();
    if (part == 0) std::memcpy(out.data(), &hash, sizeof(hash));
    for (auto i = static_cast<size_t>(part); part > 0 && i < out.size() / 8; i += kFakeBlock) {
      const uint64_t before = i <= past.size() ? past[i - 1] : 0;
      std::memcpy(out.data() + i * sizeof(before), &before, sizeof(before));
    }
  }
  Status CheckSavedSize(int64_t position, size_t size) const override {
    if (position < 0) return InvalidArgument("position: below 0");
    if (size != SavedBytes(position)) return InvalidArgument("state: wrong size");
    return Status();
  }
  Status LoadPart(int part, int64_t position, std::span<const uint8_t> bytes) override {
    uncleared_.erase(part);
    if (on_copy_ != nullptr && *on_copy_) (*on_copy_)();
    if (part == 0) std::memcpy(&hash, bytes.data(), sizeof(hash));
    past.resize(SavedBytes(position) / sizeof(uint64_t) - 1);
    for (auto i = static_cast<size_t>(part); part > 0 && i <= past.size(); i += kFakeBlock) {
      std::memcpy(&past[i - 1], bytes.data() + i * sizeof(uint64_t), sizeof(uint64_t));
    }
    return Status();
  }

  // Processes a token.
  void Take(uint64_t next, int64_t position) {
    PS_CHECK(cleared());
    past.resize(std::max(past.size(), whole_ ? Place(position) + 1 : kFakeBlock));
    past[Place(position)] = hash;
    hash = next;
  }

  uint64_t hash = 0;
  std::vector<uint64_t> past;  // the hash before each position, of the block or of all

 private:
  size_t SavedBytes(int64_t position) const {
    return sizeof(uint64_t) * static_cast<size_t>(1 + (whole_ ? position : kFakeBlock));
  }
  size_t Place(int64_t position) const {
    return static_cast<size_t>(whole_ ? position : position % kFakeBlock);
  }

  std::atomic<int>* const live_;
  const std::function<void()>* const on_copy_;  // called for each part
  const bool whole_;
  std::set<int> uncleared_;  // parts
};

class FakeModel : public LanguageModel {
 public:
  // growing: states take 10 bytes a token, and keep all of them, as KV kinds do; otherwise 100.
  explicit FakeModel(int max_step_tokens = 32, bool growing = false)
      : max_step_tokens_(max_step_tokens), growing_(growing) {}
  ~FakeModel() override { PS_CHECK(live_states == 0) << live_states << " states leaked"; }

  static uint64_t Next(uint64_t hash, int32_t token) {
    return MixBits(hash * 31 + static_cast<uint64_t>(token) + 1);
  }
  // In [-4, 4).
  static float Logit(uint64_t hash, int32_t token) {
    return static_cast<float>(MixBits(hash + static_cast<uint64_t>(token)) >> 40) * 0x1p-21f - 4;
  }

  int vocab_size() const override { return kFakeVocab; }
  int hidden_size() const override { return 4; }
  int max_step_tokens() const override { return max_step_tokens_; }
  std::unique_ptr<SequenceState> NewState() override {
    auto state = std::make_unique<FakeState>(&live_states, &on_copy, growing_);
    if (touches_late) state->ForgetClearing();
    return state;
  }
  bool growing() const { return growing_; }
  size_t StateBytes(int64_t tokens) const override {
    return growing_ ? static_cast<size_t>(tokens) * 10 : 100;
  }

  Status status() const override {
    return steps > fail_after ? Internal("the device is gone") : Status();
  }

  double KeysRead(int64_t position) const override {
    return growing_ ? static_cast<double>(position + 1) : 0;
  }

  std::vector<int> FarHeads() const override { return far_heads; }

  void Step(const Batch& batch, float* hidden) override {
    if (on_step) on_step(batch);
    std::set<SequenceState*> distinct;
    std::span<const int64_t> outputs = batch.output_rows();
    for (const Segment& segment : batch.segments()) {
      PS_CHECK(distinct.insert(segment.state).second);
      auto* state = static_cast<FakeState*>(segment.state);
      for (int row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
        const int32_t token = batch.tokens()[row];
        PS_CHECK(token >= 0 && token < kFakeVocab);
        PS_CHECK(batch.positions()[row] < max_positions);
        state->Take(Next(state->hash, token), batch.positions()[row]);
        if (outputs.empty() || outputs.front() != row) continue;
        outputs = outputs.subspan(1);
        for (int j = 0; j < 4; ++j)
          *hidden++ = static_cast<float>(state->hash >> (16 * j) & 0xFFFF);
      }
      state->Advance(segment.rows);
    }
    const auto tokens = std::ssize(batch.tokens());
    PS_CHECK(tokens <= max_step_tokens_);
    ++steps;
    largest_step = std::max<int64_t>(largest_step, tokens);
    if (step_time.count() > 0) std::this_thread::sleep_for(step_time);
  }

  void Logits(const float* hidden, int64_t rows, float* logits) override {
    PS_CHECK(rows >= 1 && rows <= 64);
    for (int64_t row = 0; row < rows; ++row) {
      uint64_t hash = 0;
      for (int j = 0; j < 4; ++j) hash |= static_cast<uint64_t>(hidden[row * 4 + j]) << (16 * j);
      for (int t = 0; t < kFakeVocab; ++t) logits[row * kFakeVocab + t] = Logit(hash, t);
      if (poisoned_hash != 0 && hash == poisoned_hash) {
        logits[row * kFakeVocab + 7] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  void LogSumExp(const float* logits, int64_t rows, float* out) override {
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int t = 0; t < kFakeVocab; ++t)
        sum += std::exp(static_cast<double>(logits[row * kFakeVocab + t]));
      out[row] = static_cast<float>(std::log(sum));
    }
  }

  // Called for each part of a state that is saved, loaded, copied or cleared.
  std::function<void()> on_copy;
  std::function<void(const Batch&)> on_step;
  std::vector<int> far_heads;  // on_step writes far masses
  bool touches_late = false;   // new states are not cleared
  std::atomic<int> live_states{0};
  std::atomic<int64_t> steps{0};
  int64_t largest_step = 0;
  int64_t max_positions = std::numeric_limits<int64_t>::max();  // no token is at a later one
  std::atomic<int64_t> fail_after =
      std::numeric_limits<int64_t>::max();  // steps that the device survives
  uint64_t poisoned_hash = 0;               // the row of this history gets a NaN
  std::chrono::microseconds step_time{0};

 private:
  const int max_step_tokens_;
  const bool growing_;
};

// Ids 0 and 1 are control, 2..59 give one letter each (a space among them), 60..63 the bytes of
// U+20AC and a stray one, so that random outputs hold whole, split and broken characters.
class FakeTokenizer : public Tokenizer {
 public:
  FakeTokenizer() {
    for (int id = 0; id < kFakeVocab; ++id) {
      if (id < 2)
        pieces_.emplace_back();
      else if (id == 2)
        pieces_.emplace_back(" ");
      else if (id < 60)
        pieces_.emplace_back(1, static_cast<char>('A' + (id - 3)));
      else
        pieces_.emplace_back(1, "\xE2\x82\xAC\xFF"[id - 60]);
    }
  }
  std::string_view class_name() const override { return "SentencePiece"; }
  int vocab_size() const override { return kFakeVocab; }
  int bos_id() const override { return kFakeBos; }
  int eos_id() const override { return kFakeEos; }
  Result<std::vector<int32_t>> Encode(std::string_view) const override {
    return Status(Code::kUnimplemented, "the fake tokenizer only decodes");
  }
  Result<std::string> Decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += pieces_[static_cast<size_t>(id)];
    return text;
  }
  std::string_view PieceBytes(int32_t id) const override {
    return pieces_[static_cast<size_t>(id)];
  }
  std::string_view Piece(int32_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  bool IsControl(int32_t id) const override { return id < 2; }
  bool StripsLeadingSpace() const override { return false; }

 private:
  std::vector<std::string> pieces_;
};

}  // namespace polysketch::testing
