// Sessions whose states have KV caches: full blocks are entries of their own, written once.
#include "engine/session/stored_blocks.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "engine/session/session_keys.h"
#include "engine/session/session_table.h"
#include "engine/snapshot/state_saver.h"
#include "gtest/gtest.h"
#include "kernels/new_backend.h"
#include "kernels/saved_state.h"
#include "tests/engine/session/small_snapshot.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

using testing::kVocab;
using testing::Random;

// A store in memory, with a clock of its own, that fails when it is told to.
class TimedStore : public StateStore {
 public:
  struct Value {
    uint64_t revision = 0;
    std::string bytes;
    milliseconds expires{0};
  };

  std::string_view kind() const override { return "timed"; }
  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                       milliseconds ttl) override {
    return Change<Result<uint64_t>>([&]() -> Result<uint64_t> {
      written += std::ssize(bytes);
      values[{owner, key}] = {++revisions_, std::move(bytes), now + ttl};
      return revisions_;
    });
  }
  Result<Entry> Get(const std::string& owner, const std::string& key) override {
    if (Fails()) return NoAnswer();
    PS_ASSIGN_OR_RETURN(const Value* value, Find(owner, key));
    return Entry{Info(key, *value), CopyOf(value->bytes)};
  }
  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override {
    if (Fails()) return NoAnswer();
    PS_ASSIGN_OR_RETURN(const Value* value, Find(owner, key));
    return Info(key, *value);
  }
  Status Delete(const std::string& owner, const std::string& key) override {
    return Change<Status>([&] {
      const bool found = Find(owner, key).ok();
      values.erase({owner, key});
      return found ? Status() : NotFound(key);
    });
  }
  Status Touch(const std::string& owner, const std::string& key, milliseconds ttl) override {
    if (Fails()) return NoAnswer();
    PS_RETURN_IF_ERROR(Find(owner, key).status());
    values[{owner, key}].expires = now + ttl;
    return Status();
  }
  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override {
    if (Fails()) return NoAnswer();
    std::vector<StoredInfo> infos;
    for (const auto& [name, value] : values) {
      if (name.first != owner || !name.second.starts_with(prefix) || value.expires <= now) continue;
      infos.push_back(Info(name.second, value));
    }
    return infos;
  }

  // Keys of the entries of the tenant "t" that begin with `prefix` and have not expired.
  std::vector<std::string> Keys(const std::string& prefix) const {
    std::vector<std::string> keys;
    for (const auto& [name, value] : values) {
      if (name.second.starts_with(prefix) && value.expires > now) keys.push_back(name.second);
    }
    return keys;
  }

  std::map<std::pair<std::string, std::string>, Value> values;
  milliseconds now{0};
  int64_t written = 0;
  // The operation after which none has an effect any more, as after the end of a process, counted
  // from 1; 0: none.
  int fails_from = 0;
  bool once_made = false;  // that operation is made, and its answer is lost
  int operations = 0;

 private:
  static Status NoAnswer() { return Unavailable("the store does not answer"); }
  bool Fails() { return ++operations >= fails_from && fails_from > 0; }
  template <typename R, typename Make>
  R Change(const Make& make) {
    if (!Fails()) return make();
    if (operations > fails_from || !once_made) return NoAnswer();
    (void)make();
    return OutcomeUnknown(NoAnswer());
  }
  Result<const Value*> Find(const std::string& owner, const std::string& key) const {
    const auto found = values.find({owner, key});
    if (found == values.end() || found->second.expires <= now) return NotFound(key);
    return &found->second;
  }
  static StoredInfo Info(const std::string& key, const Value& value) {
    return {
        key, value.revision, std::ssize(value.bytes), {}, value.bytes.substr(0, kStoredHeadBytes)};
  }

  uint64_t revisions_ = 0;
};

using Layers = std::vector<AttentionSpec>;

AttentionSpec Spec(AttentionKind kind, int heads, int block) {
  AttentionSpec spec;
  spec.kind = kind;
  spec.heads = heads;
  spec.head_dim = 10;
  spec.block = block;
  return spec;
}

// A sequence of a model on the cpu backend, as a session has it after each turn: caches that grow,
// and random values of all else.
class Conversation {
 public:
  Conversation(Backend* backend, const Layers& layers, uint64_t seed)
      : backend_(*backend), layers_(layers), random_(seed) {
    for (const AttentionSpec& layer : layers_) {
      const Layers alone = {layer};
      grown_.push_back(layer.grows() ? backend_.NewState(alone) : nullptr);
      if (!layer.grows()) continue;
      EXPECT_TRUE(grown_.back()->Load(kTokens, RandomValues(layer, kTokens)).ok());
    }
  }

  std::shared_ptr<const Snapshot> Turn(int64_t tokens) {
    position_ += tokens;
    ByteBuffer bytes;
    for (size_t i = 0; i < layers_.size(); ++i) {
      ByteBuffer values;
      if (grown_[i] == nullptr) {
        values = RandomValues(layers_[i], position_);
      } else {
        const auto state = grown_[i]->Clone();
        state->Truncate(position_);
        values.resize(state->SavedBytes());
        state->Save(values);
      }
      bytes.insert(bytes.end(), values.begin(), values.end());
    }
    const auto state = backend_.NewState(layers_);
    EXPECT_TRUE(state->Load(position_, bytes).ok());
    StateSaver saver(*state);
    while (!saver.done()) saver.Continue(*state, nullptr);
    auto snapshot = std::make_shared<Snapshot>(*testing::At(2));
    snapshot->state = saver.Take();
    EXPECT_NE(snapshot->state->copy, nullptr) << "what a turn saves";
    return snapshot;
  }

 private:
  static constexpr int64_t kTokens = 400;

  ByteBuffer RandomValues(const AttentionSpec& layer, int64_t position) {
    const size_t size = SavedLayerBytes(layer, layer.features(), position);
    const std::vector<float> values = random_.Normals(size / sizeof(float));
    ByteBuffer bytes(size);
    if (size > 0) std::memcpy(bytes.data(), values.data(), size);
    return bytes;
  }

  Backend& backend_;
  const Layers layers_;
  testing::Random random_;
  std::vector<std::unique_ptr<SequenceState>> grown_;  // after kTokens tokens
  int64_t position_ = 0;
};

// A state that counts how often its values are read.
class CountedState : public LayeredState {
 public:
  CountedState(const Layers& layers, std::shared_ptr<const SequenceState> state)
      : LayeredState(layers), state_(std::move(state)) {}

  size_t bytes() const override { return state_->bytes(); }
  std::unique_ptr<SequenceState> Clone() const override { return state_->Clone(); }
  void Reset() override {}
  void Truncate(int64_t /*position*/) override {}
  size_t SavedBytes() const override { return state_->SavedBytes(); }
  int parts() const override { return state_->parts(); }
  void SavePart(int part, std::span<uint8_t> out) const override { state_->SavePart(part, out); }
  void SaveInPieces(const std::function<void(std::span<const uint8_t>)>& write) const override {
    ++reads;
    state_->SaveInPieces(write);
  }
  Status CheckSavedSize(int64_t position, size_t size) const override {
    return state_->CheckSavedSize(position, size);
  }
  Status LoadPart(int /*part*/, int64_t /*position*/, std::span<const uint8_t> /*bytes*/) override {
    return Internal("not loaded");
  }
  void CopyPart(int /*part*/, const SequenceState& /*other*/) override {}

  mutable int reads = 0;

 private:
  const std::shared_ptr<const SequenceState> state_;
};

ByteBuffer Values(const Snapshot& snapshot) { return snapshot.state->AsBytes()->bytes; }

class StoredBlocksTest : public ::testing::Test {
 protected:
  StoredBlocksTest() : backend_(NewCpuBackend(1).value()), layers_(Mixed()) {}

  // Layers that grow, of several specs and two block sizes, one with a window, and a recurrent one.
  static Layers Mixed() {
    AttentionSpec full = Spec(AttentionKind::kSoftmax, 4, 8);
    full.kv_heads = 2;
    AttentionSpec window = full, half = full;
    window.window = 20;
    window.sinks = 3;
    half.state_format = StateFormat::kF16;
    AttentionSpec sketch = Spec(AttentionKind::kRandomSketch, 2, 8);
    sketch.sketch_size = 8;
    return {window, full,
            sketch, Spec(AttentionKind::kPolynomial, 2, 8),
            full,   Spec(AttentionKind::kSoftmax, 2, 16),
            half};
  }
  static constexpr int kBlock = 16;  // of the layout

  SessionOptions Options() {
    SessionOptions options;
    options.codec.binding.numerics = "test";
    options.codec.limits = {{kVocab, 1000, true}, 1 << 24};
    options.codec.layout = StateLayout(layers_, /*block_order=*/false);
    options.store = &store_;
    options.memory = 1 << 24;
    options.default_ttl = 1h;
    options.now = [this] { return steady_clock::time_point(store_.now); };
    return options;
  }
  std::unique_ptr<SessionTable> NewTable() { return std::make_unique<SessionTable>(Options()); }
  static Status Commit(SessionTable* table, const std::string& id,
                       std::shared_ptr<const Snapshot> snapshot) {
    PS_ASSIGN_OR_RETURN(SessionLease lease, table->Acquire(kUser, id, std::nullopt));
    return table->Commit(std::move(lease), std::move(snapshot)).status();
  }
  // What a process that starts now finds.
  Result<std::shared_ptr<const Snapshot>> Stored(const std::string& id) {
    const auto table = NewTable();
    PS_ASSIGN_OR_RETURN(const SessionLease lease, table->Acquire(kUser, id, std::nullopt));
    return lease.snapshot();
  }
  void ExpectStored(const std::string& id, const Snapshot& expected) {
    const auto stored = Stored(id);
    ASSERT_TRUE(stored.ok()) << stored.status().ToString();
    ASSERT_NE(*stored, nullptr);
    EXPECT_EQ((*stored)->position(), expected.position());
    EXPECT_EQ(Values(**stored), Values(expected));
    const auto state = backend_->NewState(layers_);
    EXPECT_TRUE(state->Load((*stored)->position(), (*stored)->state->bytes).ok());
  }
  size_t BlockEntriesInStore() const { return store_.Keys("blocks-").size(); }

  inline static const SessionUser kUser = {"t", {"t"}};
  TimedStore store_;
  const std::unique_ptr<Backend> backend_;
  const Layers layers_;
};

TEST_F(StoredBlocksTest, ATurnWritesItsNewBlocks) {
  const StateLayout layout(layers_, false);
  for (const StateEncoding encoding : {StateEncoding::kF32, StateEncoding::kF32Zstd}) {
    SessionOptions options = Options();
    options.codec.encoding = encoding;
    SessionTable table(std::move(options));
    Conversation conversation(backend_.get(), layers_, 1);
    const std::string id = table.Create(kUser, /*durable=*/true, 0s)->id;
    int64_t position = 0;
    for (const int tokens : {3, 4, 1, 40, 1, 8, 16, 5, 60}) {
      const auto snapshot = conversation.Turn(tokens);
      store_.written = 0;
      const int64_t counted = table.stats().written_bytes;
      ASSERT_TRUE(Commit(&table, id, snapshot).ok());
      const int64_t blocks = (position + tokens) / kBlock - position / kBlock;
      position += tokens;
      const auto most = static_cast<int64_t>(layout.RestBytes(position)) +
                        blocks * static_cast<int64_t>(layout.block_bytes());
      EXPECT_LE(store_.written, most + 1000) << position;
      if (encoding == StateEncoding::kF32) {
        EXPECT_GE(store_.written, most) << position;
      }
      EXPECT_EQ(table.stats().written_bytes - counted, store_.written);
      ExpectStored(id, *snapshot);
    }
    ASSERT_TRUE(table.Delete("t", id).ok());
    EXPECT_EQ(store_.values.size(), 0u);
  }
}

// One read finds the blocks that are written already and takes the others; a second one is needed
// only where known blocks are not the state's.
TEST_F(StoredBlocksTest, ATurnReadsItsStateOnce) {
  const SessionOptions options = Options();
  BlockEntries entries(&store_, options.codec, "t");
  StoredBlocks known;
  const auto write = [&](const Snapshot& snapshot, int reads) {
    const auto counted = std::make_shared<CountedState>(layers_, snapshot.state->copy);
    SavedState state = *snapshot.state;
    state.copy = counted;
    auto written = entries.Write(state, known, 1h, steady_clock::time_point(store_.now));
    ASSERT_TRUE(written.ok()) << written.status().ToString();
    EXPECT_EQ(counted->reads, reads) << snapshot.position();
    EXPECT_EQ(CountBlocks(written->blocks.groups), snapshot.position() / kBlock);
    ByteBuffer joined(Values(snapshot).size());
    const auto pieces =
        options.codec.layout.Pieces(snapshot.position(), BlocksOfEach(written->blocks.groups));
    bool missing = false;
    for (size_t i = 0; i < written->blocks.groups.size(); ++i) {
      const auto values = entries.Read(written->blocks.groups[i], &missing);
      ASSERT_TRUE(values.ok());
      StateLayout::Join(pieces, i, *values, joined);
    }
    StateLayout::Join(pieces, written->blocks.groups.size(), written->rest, joined);
    EXPECT_EQ(joined, Values(snapshot));
    known = std::move(written->blocks);
  };
  Conversation conversation(backend_.get(), layers_, 14), other(backend_.get(), layers_, 15);
  for (const int tokens : {40, 1, 60, 16}) write(*conversation.Turn(tokens), 1);
  write(*other.Turn(90), 2);
}

// A process that has read a session, and one that has other memory of it, write what is new as
// well.
TEST_F(StoredBlocksTest, OtherProcessesGoOn) {
  Conversation conversation(backend_.get(), layers_, 2);
  const auto a = NewTable(), b = NewTable();
  const std::string id = a->Create(kUser, true, 0s)->id;
  std::shared_ptr<const Snapshot> last = conversation.Turn(80);
  ASSERT_TRUE(Commit(a.get(), id, last).ok());
  const int64_t whole = store_.written;
  for (int turn = 0; turn < 10; ++turn) {
    last = conversation.Turn(10);
    store_.written = 0;
    ASSERT_TRUE(Commit(turn % 2 == 0 ? b.get() : a.get(), id, last).ok());
    EXPECT_LT(store_.written, whole / 2);
    ExpectStored(id, *last);
  }
  EXPECT_EQ(BlockEntriesInStore(), 7u) << "one of each turn that filled a block";
}

TEST_F(StoredBlocksTest, ForksHaveBlocksOfTheirOwn) {
  Conversation conversation(backend_.get(), layers_, 3);
  const auto table = NewTable();
  const std::string id = table->Create(kUser, true, 0s)->id;
  const auto first = conversation.Turn(50), second = conversation.Turn(20);
  ASSERT_TRUE(Commit(table.get(), id, first).ok());
  const auto forks = table->Fork(kUser, id, 2, std::nullopt);
  ASSERT_TRUE(forks.ok());
  ASSERT_TRUE(Commit(table.get(), (*forks)[0].id, second).ok());
  ASSERT_TRUE(table->Delete("t", id).ok());
  ExpectStored((*forks)[0].id, *second);
  ExpectStored((*forks)[1].id, *first);
  // Also by a process that has never read it.
  for (const SessionInfo& fork : *forks) ASSERT_TRUE(NewTable()->Delete("t", fork.id).ok());
  EXPECT_EQ(store_.values.size(), 0u);
}

TEST_F(StoredBlocksTest, AListingTellsTheBytesOfBlocks) {
  Conversation conversation(backend_.get(), layers_, 4);
  const std::string id = NewTable()->Create(kUser, true, 0s)->id;
  const auto writer = NewTable();
  ASSERT_TRUE(Commit(writer.get(), id, conversation.Turn(50)).ok());
  int64_t bytes = 0;
  for (const auto& [name, value] : store_.values) bytes += std::ssize(value.bytes);
  const auto listing = NewTable()->List("t");
  ASSERT_TRUE(listing.ok());
  ASSERT_EQ(listing->sessions.size(), 1u);
  EXPECT_EQ(listing->sessions[0].bytes, bytes);
}

// The process ends in the middle of a turn, at any operation of the store, made or not: the session
// is the one before the turn or the one after it, whole.
TEST_F(StoredBlocksTest, ATurnIsStoredOrNot) {
  int before = 0, after = 0;
  for (const bool once_made : {false, true}) {
    for (int at = 1;; ++at) {
      store_ = TimedStore();
      Conversation conversation(backend_.get(), layers_, 5);
      auto table = NewTable();
      const std::string id = table->Create(kUser, true, 0s)->id;
      const auto old = conversation.Turn(45), now = conversation.Turn(30);
      ASSERT_TRUE(Commit(table.get(), id, old).ok());
      store_.operations = 0;
      store_.fails_from = at;
      store_.once_made = once_made;
      const Status status = Commit(table.get(), id, now);
      const bool all_made = store_.operations < at;
      store_.fails_from = 0;
      const auto stored = Stored(id);
      ASSERT_TRUE(stored.ok()) << at << stored.status().ToString();
      const bool is_new = (*stored)->position() == now->position();
      EXPECT_EQ(Values(**stored), Values(is_new ? *now : *old)) << at;
      if (!IsOutcomeUnknown(status)) {
        EXPECT_EQ(is_new, status.ok()) << at;
      }
      is_new ? ++after : ++before;
      // The same process goes on, if it has not ended, and another one: nothing is in the way.
      const auto next = conversation.Turn(20);
      ASSERT_TRUE(Commit(table.get(), id, next).ok()) << at;
      ExpectStored(id, *next);
      // What nothing names any more expires.
      ASSERT_TRUE(NewTable()->Delete("t", id).ok());
      store_.now += 2h;
      EXPECT_TRUE(store_.Keys("").empty());
      if (all_made) break;
    }
  }
  EXPECT_GT(before, 2);
  EXPECT_GT(after, 2);
}

// After a refused write the store has the entries that it had before.
TEST_F(StoredBlocksTest, ARefusedRecordTakesItsBlocksAlong) {
  class Full : public TimedStore {
   public:
    Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                         milliseconds ttl) override {
      if (key.starts_with(full)) return ResourceExhausted("the store is full");
      return TimedStore::Put(owner, key, std::move(bytes), ttl);
    }
    std::string full = "none";
  };
  Full full;
  SessionOptions options = Options();
  options.store = &full;
  SessionTable table(std::move(options));
  Conversation conversation(backend_.get(), layers_, 6);
  const std::string id = table.Create(kUser, true, 0s)->id;
  ASSERT_TRUE(Commit(&table, id, conversation.Turn(45)).ok());
  const auto before = full.Keys("");
  const auto next = conversation.Turn(30);
  for (const char* const what : {"session-", "blocks-"}) {
    full.full = what;
    EXPECT_EQ(Commit(&table, id, next).code(), Code::kResourceExhausted);
    EXPECT_EQ(full.Keys(""), before);
  }
  full.full = "none";
  EXPECT_TRUE(Commit(&table, id, next).ok());
}

// Blocks live as long as the session that is used, and not longer than twice its time to live.
TEST_F(StoredBlocksTest, BlocksLiveAsLongAsTheirSession) {
  Conversation conversation(backend_.get(), layers_, 7);
  const auto a = NewTable(), b = NewTable();
  const std::string id = a->Create(kUser, true, 0s)->id;
  auto last = conversation.Turn(60);
  ASSERT_TRUE(Commit(a.get(), id, last).ok());
  Random random(8);
  for (int step = 0; step < 60; ++step) {
    store_.now += std::chrono::minutes(random.Int(1, 59));
    SessionTable* const table = random.Uniform() < 0.5 ? a.get() : b.get();
    if (random.Uniform() < 0.3) {
      last = conversation.Turn(random.Int(1, 4));
      ASSERT_TRUE(Commit(table, id, last).ok()) << step;
    } else {  // read only
      ASSERT_TRUE(table->Acquire(kUser, id, last->tokens()).ok()) << step;
      // Without a change a process that has the session renews its record, and one that reads it
      // does not.
      ASSERT_TRUE(table->Acquire(kUser, id, last->tokens()).ok()) << step;
    }
    ExpectStored(id, *last);
  }
  store_.now += 2h;
  EXPECT_TRUE(store_.Keys("").empty());
}

// Another replica deletes a session during a turn, with its blocks, or writes it: the turn does not
// rely on them.
TEST_F(StoredBlocksTest, ATurnBesideAnotherReplica) {
  for (const bool deletes : {true, false}) {
    Conversation conversation(backend_.get(), layers_, 9);
    const auto a = NewTable(), b = NewTable();
    const std::string id = a->Create(kUser, true, 0s)->id;
    ASSERT_TRUE(Commit(a.get(), id, conversation.Turn(60)).ok());
    auto lease = a->Acquire(kUser, id, std::nullopt);
    ASSERT_TRUE(lease.ok());
    if (deletes) {
      ASSERT_TRUE(b->Delete("t", id).ok());
      EXPECT_EQ(BlockEntriesInStore(), 0u);
    } else {
      Conversation other(backend_.get(), layers_, 10);
      ASSERT_TRUE(Commit(b.get(), id, other.Turn(70)).ok());
    }
    const auto next = conversation.Turn(20);
    ASSERT_TRUE(a->Commit(*std::move(lease), next).ok());
    ExpectStored(id, *next);
  }
}

TEST_F(StoredBlocksTest, RecordsOfEarlierVersionsGoOn) {
  SessionOptions options = Options();
  options.codec.layout = {};
  SessionTable earlier(std::move(options));
  Conversation conversation(backend_.get(), layers_, 11);
  const std::string id = earlier.Create(kUser, true, 0s)->id;
  auto last = conversation.Turn(60);
  ASSERT_TRUE(Commit(&earlier, id, last).ok());
  EXPECT_EQ(BlockEntriesInStore(), 0u);
  ExpectStored(id, *last);
  const auto table = NewTable();
  last = conversation.Turn(1);
  ASSERT_TRUE(Commit(table.get(), id, last).ok());
  EXPECT_EQ(BlockEntriesInStore(), 1u);
  ExpectStored(id, *last);
  EXPECT_EQ(earlier.Acquire(kUser, id, std::nullopt).status().code(), Code::kFailedPrecondition);
}

TEST_F(StoredBlocksTest, DamagedBlocksAreRefused) {
  Conversation conversation(backend_.get(), layers_, 12);
  const auto table = NewTable();
  const std::string id = table->Create(kUser, true, 0s)->id;
  const auto last = conversation.Turn(50);
  ASSERT_TRUE(Commit(table.get(), id, last).ok());
  const auto found = std::find_if(store_.values.begin(), store_.values.end(), [](const auto& one) {
    return one.first.second.starts_with("blocks-");
  });
  ASSERT_NE(found, store_.values.end());
  const TimedStore::Value good = found->second;
  std::vector<std::string> bad;
  for (size_t i = 0; i < good.bytes.size(); i += 97) {
    bad.push_back(good.bytes);
    bad.back()[i] = static_cast<char>(bad.back()[i] ^ 1);
  }
  bad.push_back(good.bytes.substr(1));
  bad.push_back(good.bytes + "1");
  bad.emplace_back();
  for (const std::string& bytes : bad) {
    found->second.bytes = bytes;
    EXPECT_EQ(Stored(id).status().code(), Code::kDataLoss);
  }
  found->second = good;
  ExpectStored(id, *last);
  store_.values.erase(found);
  EXPECT_EQ(Stored(id).status().code(), Code::kDataLoss) << "and not NOT_FOUND";
  EXPECT_TRUE(NewTable()->Delete("t", id).ok());
  EXPECT_TRUE(store_.values.empty());
}

// Records with right checksums that cannot be: other numbers of blocks, other sizes.
TEST_F(StoredBlocksTest, ImpossibleRecordsAreRefused) {
  Conversation conversation(backend_.get(), layers_, 13);
  const auto snapshot = conversation.Turn(50);
  SessionOptions options = Options();
  const SnapshotCodec& codec = options.codec;
  BlockEntries entries(&store_, codec, "t");
  const auto written = entries.Write(*snapshot->state, {}, 1h, steady_clock::time_point());
  ASSERT_TRUE(written.ok());
  bool missing = false;
  const BlockReader reader = {
      &codec.layout, [&](const BlockGroup& group) { return entries.Read(group, &missing); }};
  const auto decode = [&](const std::function<void(SessionRecord*, ByteBuffer*)>& change) {
    SessionRecord record = {{.tokens = snapshot->tokens()}, snapshot, written->blocks.groups};
    ByteBuffer rest = written->rest;
    change(&record, &rest);
    return DecodeSession(EncodeSession(record, codec, &rest), codec, &reader).status();
  };
  EXPECT_TRUE(decode([](SessionRecord*, ByteBuffer*) {}).ok());
  const auto group = [](auto change) {
    return [change](SessionRecord* record, ByteBuffer*) { change(&record->groups.front()); };
  };
  for (const int64_t blocks : {int64_t{0}, int64_t{-1}, int64_t{5}, int64_t{7}, INT64_MAX}) {
    EXPECT_EQ(decode(group([&](BlockGroup* one) { one->blocks = blocks; })).code(), Code::kDataLoss)
        << blocks;
  }
  for (const int64_t bytes : {int64_t{1}, INT64_MAX}) {
    EXPECT_EQ(decode(group([&](BlockGroup* one) { one->bytes = bytes; })).code(), Code::kDataLoss);
  }
  EXPECT_EQ(decode(group([](BlockGroup* one) { one->hash[0] ^= 1; })).code(), Code::kDataLoss);
  EXPECT_EQ(decode(group([](BlockGroup* one) { one->id[0] ^= 1; })).code(), Code::kDataLoss);
  EXPECT_TRUE(missing);
  EXPECT_EQ(decode([](SessionRecord*, ByteBuffer* rest) { rest->resize(rest->size() - 4); }).code(),
            Code::kDataLoss);
  const auto at = [&](int64_t position) {
    return decode([&](SessionRecord* record, ByteBuffer*) {
      auto moved = std::make_shared<Snapshot>(*record->snapshot);
      auto state = std::make_shared<SavedState>(*moved->state);
      state->position = position;
      moved->state = state;
      record->snapshot = moved;
      record->head.tokens = moved->tokens();
    });
  };
  for (const int64_t position :
       {int64_t{0}, int64_t{1}, int64_t{49}, int64_t{500}, INT64_MAX - 1}) {
    EXPECT_FALSE(at(position).ok()) << position;
  }
}

// Saved states of layers together, block by block, as a device saves them.
TEST(StateLayoutTest, SplitsAndJoins) {
  const Layers layers(3, Spec(AttentionKind::kSoftmax, 2, 4));
  Random random(1);
  for (const bool block_order : {false, true}) {
    const StateLayout layout(layers, block_order);
    for (int64_t position = 0; position < 30; ++position) {
      SavedState state;
      state.position = position;
      state.bytes.resize(SavedStateBytes(layers, position));
      for (uint8_t& byte : state.bytes) byte = static_cast<uint8_t>(random.Int(0, 255));
      ASSERT_TRUE(layout.Fits(state));
      std::vector<int64_t> groups;
      for (int64_t left = layout.FullBlocks(position); left > 0; left -= groups.back()) {
        groups.push_back(random.Int(1, left));
      }
      std::vector<ByteBuffer> parts(groups.size() + 1);
      layout.Split(state, groups, [&](size_t group, std::span<const uint8_t> bytes) {
        parts[group].insert(parts[group].end(), bytes.begin(), bytes.end());
      });
      EXPECT_EQ(parts.back().size(), layout.RestBytes(position));
      ByteBuffer joined(state.bytes.size());
      const auto pieces = layout.Pieces(position, groups);
      for (size_t i = 0; i < parts.size(); ++i) StateLayout::Join(pieces, i, parts[i], joined);
      EXPECT_EQ(joined, state.bytes) << position;
      if (!block_order) continue;
      size_t blocks = 0;
      for (size_t i = 0; i < groups.size(); ++i) blocks += parts[i].size();
      EXPECT_TRUE(std::equal(parts.back().begin(), parts.back().end(),
                             state.bytes.begin() + static_cast<ptrdiff_t>(blocks)))
          << "blocks come first";
    }
  }
}

}  // namespace
}  // namespace polysketch
