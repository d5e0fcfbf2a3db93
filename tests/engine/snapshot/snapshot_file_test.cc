// Snapshots as bytes: what is written comes back, and nothing that was damaged does.
#include "engine/snapshot/snapshot_file.h"

#include <malloc.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/snapshot/generation_bytes.h"
#include "engine/snapshot/state_saver.h"
#include "gtest/gtest.h"
#include "kernels/new_backend.h"
#include "kernels/saved_state.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;

constexpr int kVocab = 100;
constexpr DecodeLimits kLimits{{kVocab, 1000, true}, 1 << 20};
constexpr StateEncoding kEncodings[] = {StateEncoding::kF32, StateEncoding::kBf16,
                                        StateEncoding::kF32Zstd, StateEncoding::kBf16Zstd};

SnapshotBinding Binding() {
  return {HashContent("weights"), HashContent("tokenizer"), "cpu/test weights=bf16 state=f32",
          /*decay_gate=*/false};
}

Snapshot Example(int floats, bool stopped) {
  Random random(1);
  Snapshot snapshot;
  auto state = std::make_shared<SavedState>();
  state->position = 1234;
  const std::vector<float> values = random.Normals(static_cast<size_t>(floats));
  state->bytes.resize(values.size() * sizeof(float));
  if (floats > 0) std::memcpy(state->bytes.data(), values.data(), state->bytes.size());
  snapshot.state = state;
  snapshot.pending = {7};
  snapshot.history.tail = {5, 6, 7};
  snapshot.history.seen = TokenSet(kVocab);
  for (const int32_t token : {0, 5, 6, 7, 63, 64, 99}) snapshot.history.seen.Insert(token);
  if (!stopped) return snapshot;
  Generation generation;
  generation.params.sampling.frequency_penalty = 0.5f;
  generation.params.sampling.logit_bias = {{3, 1.5f}, {4, -2.0f}};
  generation.params.max_tokens = 50;
  generation.params.stop = {"stop", "halt\n"};
  generation.params.stop_token_ids = {9};
  generation.params.logprobs = 2;
  generation.params.echo = true;
  generation.max_tokens = 50;
  generation.seed = 0xFEDCBA9876543210;
  generation.prompt_tokens = 1230;
  generation.generated = 5;
  generation.echoed = 1;
  generation.counts = {{5, 2}, {6, 1}, {7, 2}};
  generation.params.draft_tokens = 3;
  generation.logprob_sum = -1.25;
  generation.session = "0123";
  generation.session_tokens = 1200;
  generation.held = "ha";
  generation.decoder = {true, "\xE2\x82"};
  snapshot.generation = generation;
  return snapshot;
}

// What a migrated completion has besides: each alone, and together.
TEST(SnapshotFile, PartsThatAreNotAlwaysThereComeBack) {
  for (int parts = 0; parts < 64; ++parts) {
    Snapshot snapshot = Example(1000, /*stopped=*/true);
    Generation& generation = *snapshot.generation;
    if ((parts & 1) != 0) generation.client_start = true;
    if ((parts & 2) != 0) generation.scored_from = 1;
    if ((parts & 4) != 0) {
      generation.params.grammar = {GrammarSource::Kind::kEbnf, "root ::= \"a\"", false};
      generation.output = {5, 5, 6, 7, 7};
    }
    if ((parts & 16) != 0) generation.params.skip_special_tokens = false;
    if ((parts & 32) != 0) {
      generation.params.min_tokens = 4;
      generation.params.sampling.allowed_token_ids = {5, 6, 7, 8};
      generation.params.sampling.bad_words = {{8}, {5, 6, 5}};
      if ((parts & 4) == 0) generation.output = {7, 7};
    }
    if ((parts & 8) != 0) {
      generation.params.n = generation.params.best_of = 2;
      generation.generated = 0;
      generation.counts = {};
      generation.output = {};
    }
    const std::string bytes = GenerationBytes(generation);
    const auto back = ReadGeneration(bytes);
    ASSERT_TRUE(back.ok()) << parts << ": " << back.status().ToString();
    EXPECT_EQ(*back, generation) << parts;
    EXPECT_EQ(GenerationBytes(*back), bytes) << parts;
    if (!generation.client_start || (parts & 32) != 0) continue;
    // The flag is the last byte.
    for (const char other : {'\0', '\4', '\10'}) {
      std::string changed = bytes;
      changed.back() = other;
      EXPECT_EQ(ReadGeneration(changed).status().code(), Code::kDataLoss) << parts;
    }
    EXPECT_EQ(ReadGeneration(std::string_view(bytes).substr(0, bytes.size() - 1)).ok(),
              generation.params.grammar.has_value())
        << parts;
  }
}

void ExpectSame(const Snapshot& a, const Snapshot& b) {
  EXPECT_EQ(a.position(), b.position());
  EXPECT_EQ(a.pending, b.pending);
  EXPECT_EQ(a.history.tail, b.history.tail);
  EXPECT_EQ(a.history.seen, b.history.seen);
  EXPECT_EQ(a.generation, b.generation);
  ASSERT_EQ(a.state == nullptr, b.state == nullptr);
}

TEST(SnapshotFile, ComesBack) {
  for (const StateEncoding encoding : kEncodings) {
    for (const bool stopped : {false, true}) {
      const Snapshot snapshot = Example(1000, stopped);
      const std::string bytes = EncodeSnapshot(snapshot, Binding(), encoding);
      const auto back = DecodeSnapshot(bytes, Binding(), kLimits);
      ASSERT_TRUE(back.ok()) << StateEncodingName(encoding) << ": " << back.status().ToString();
      ExpectSame(*back, snapshot);
      if (encoding == StateEncoding::kF32 || encoding == StateEncoding::kF32Zstd) {
        EXPECT_EQ(back->state->bytes, snapshot.state->bytes);
        continue;
      }
      ASSERT_EQ(back->state->bytes.size(), snapshot.state->bytes.size());
      for (size_t i = 0; i < snapshot.state->bytes.size(); i += 4) {
        float exact = 0;
        float rounded = 0;
        std::memcpy(&exact, &snapshot.state->bytes[i], 4);
        std::memcpy(&rounded, &back->state->bytes[i], 4);
        EXPECT_LE(std::abs(rounded - exact), std::abs(exact) * 0x1p-8f);  // 8 bits of a mantissa
      }
    }
  }
}

// Only files of models with a decay gate have the version that earlier servers refuse.
TEST(SnapshotFile, VersionTellsOfADecayGate) {
  SnapshotBinding gated = Binding();
  gated.decay_gate = true;
  const Snapshot snapshot = Example(60, true);
  const std::string plain = EncodeSnapshot(snapshot, Binding(), StateEncoding::kF32);
  const std::string bytes = EncodeSnapshot(snapshot, gated, StateEncoding::kF32);
  EXPECT_EQ(plain[8], 1);
  EXPECT_EQ(bytes[8], 2);
  EXPECT_EQ(bytes.substr(32), plain.substr(32)) << "all but the header is the same";
  const auto back = DecodeSnapshot(bytes, gated, kLimits);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  ExpectSame(*back, snapshot);
  std::string unknown = plain;
  unknown[8] = 4;
  const Status status = DecodeSnapshot(unknown, Binding(), kLimits).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("expected version 1 to 3, found 4"), std::string::npos)
      << status.ToString();
}

TEST(SnapshotFile, TheEmptySequence) {
  Snapshot snapshot = Example(0, false);
  snapshot.state = nullptr;
  const auto back = DecodeSnapshot(EncodeSnapshot(snapshot, Binding(), StateEncoding::kBf16Zstd),
                                   Binding(), kLimits);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  ExpectSame(*back, snapshot);
}

TEST(SnapshotFile, TwoBytesNeverMakeInfinity) {
  Snapshot snapshot = Example(0, false);
  auto state = std::make_shared<SavedState>();
  state->position = 1;
  const float largest[] = {std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(),
                           1.0f, 0x1.01p0f, 0x1.03p0f};
  state->bytes.resize(sizeof(largest));
  std::memcpy(state->bytes.data(), largest, sizeof(largest));
  snapshot.state = state;
  const auto back =
      DecodeSnapshot(EncodeSnapshot(snapshot, Binding(), StateEncoding::kBf16), Binding(), kLimits);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  float found[5];
  std::memcpy(found, back->state->bytes.data(), sizeof(found));
  EXPECT_EQ(found[0], 0x1.FEp127f);
  EXPECT_EQ(found[1], -0x1.FEp127f);
  EXPECT_EQ(found[2], 1.0f);
  EXPECT_EQ(found[3], 1.0f) << "a tie goes to the even one";
  EXPECT_EQ(found[4], 0x1.04p0f) << "a tie goes to the even one";
}

TEST(SnapshotFile, EveryFlippedByteIsRefused) {
  for (const StateEncoding encoding : kEncodings) {
    const std::string good = EncodeSnapshot(Example(60, true), Binding(), encoding);
    ASSERT_TRUE(DecodeSnapshot(good, Binding(), kLimits).ok());
    for (size_t i = 0; i < good.size(); ++i) {
      for (const char flip : {'\x01', '\x80', '\xFF'}) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ flip);
        EXPECT_FALSE(DecodeSnapshot(bad, Binding(), kLimits).ok()) << "byte " << i;
      }
    }
  }
}

TEST(SnapshotFile, EveryOtherLengthIsRefused) {
  for (const StateEncoding encoding : kEncodings) {
    const std::string good = EncodeSnapshot(Example(60, true), Binding(), encoding);
    for (size_t size = 0; size < good.size(); ++size) {
      EXPECT_EQ(DecodeSnapshot(std::string_view(good).substr(0, size), Binding(), kLimits)
                    .status()
                    .code(),
                Code::kDataLoss)
          << size;
    }
    EXPECT_EQ(DecodeSnapshot(std::string(good).append(1, 0), Binding(), kLimits).status().code(),
              Code::kDataLoss);
    EXPECT_EQ(DecodeSnapshot(good + good, Binding(), kLimits).status().code(), Code::kDataLoss);
  }
}

TEST(SnapshotFile, BelongsToItsModel) {
  const std::string bytes = EncodeSnapshot(Example(60, true), Binding(), StateEncoding::kF32);
  for (int part = 0; part < 3; ++part) {
    SnapshotBinding other = Binding();
    if (part == 0) other.model = HashContent("other weights");
    if (part == 1) other.tokenizer = {};
    if (part == 2) other.numerics = "cpu/other";
    EXPECT_EQ(DecodeSnapshot(bytes, other, kLimits).status().code(), Code::kFailedPrecondition);
  }
}

TEST(SnapshotFile, ErrorsShowNamesThatCanBeShown) {
  const auto error = [](const std::string& numerics) {
    SnapshotBinding other = Binding();
    other.numerics = numerics;
    const std::string bytes = EncodeSnapshot(Example(60, true), other, StateEncoding::kF32);
    const std::string message = DecodeSnapshot(bytes, Binding(), kLimits).status().message();
    return message.substr(message.find(", found ") + 2);
  };
  EXPECT_EQ(error("cpu/other"), "found \"cpu/other\"");
  EXPECT_EQ(error("cpu/\xff"), "found a name of 5 bytes");
  EXPECT_EQ(error(std::string(1 << 20, 'x')), "found a name of 1048576 bytes");
}

// Undamaged, and still impossible: nothing is believed because its checksum is right.
TEST(SnapshotFile, ImpossibleContents) {
  const auto refused = [](const char* what, const auto& change) {
    Snapshot snapshot = Example(60, true);
    change(&snapshot);
    const auto back = DecodeSnapshot(EncodeSnapshot(snapshot, Binding(), StateEncoding::kF32),
                                     Binding(), kLimits);
    EXPECT_EQ(back.status().code(), Code::kInvalidArgument) << what << back.status().ToString();
  };
  const auto position = [](int64_t value) {
    return [value](Snapshot* s) {
      auto state = std::make_shared<SavedState>(*s->state);
      state->position = value;
      s->state = state;
    };
  };
  refused("position", position(-1));
  refused("position", position(INT64_MAX));
  refused("no state at a position", [](Snapshot* s) {
    auto state = std::make_shared<SavedState>();
    state->position = 0;
    state->bytes.resize(8);
    s->state = state;
  });
  refused("state size", [](Snapshot* s) {
    auto state = std::make_shared<SavedState>(*s->state);
    state->bytes.resize((1 << 20) + 4);
    s->state = state;
  });
  refused("pending", [](Snapshot* s) { s->pending.clear(); });
  refused("pending", [](Snapshot* s) { s->pending = {kVocab}; });
  refused("pending", [](Snapshot* s) { s->pending = {1, 2}; });
  refused("tail", [](Snapshot* s) { s->history.tail = {-1}; });
  refused("tail", [](Snapshot* s) { s->history.tail = {1, 2, 3, 4}; });
  refused("seen", [](Snapshot* s) { s->history.seen = TokenSet(kVocab + 64); });
  refused("seen", [](Snapshot* s) { s->history.seen.Insert(kVocab); });
  const auto generation = [&](const char* what, const auto& change) {
    refused(what, [&](Snapshot* s) { change(&*s->generation); });
  };
  generation("temperature", [](Generation* g) { g->params.sampling.temperature = NAN; });
  generation("bias", [](Generation* g) { g->params.sampling.logit_bias = {{kVocab, 1.0f}}; });
  generation("stop", [](Generation* g) { g->params.stop = {""}; });
  generation("max_tokens", [](Generation* g) { g->max_tokens = 1001; });
  generation("max_tokens", [](Generation* g) { g->max_tokens = -1; });
  generation("generated", [](Generation* g) { g->generated = 50; });
  generation("generated", [](Generation* g) { g->generated = -1; });
  generation("echoed", [](Generation* g) { g->echoed = 2; });
  generation("scored_from", [](Generation* g) { g->scored_from = 2; });
  generation("counts", [](Generation* g) { g->counts = {{5, 2}, {6, 1}}; });
  generation("counts", [](Generation* g) { g->counts = {{6, 3}, {5, 2}}; });
  generation("counts", [](Generation* g) { g->counts = {{5, 6}, {6, -1}}; });
  generation("counts", [](Generation* g) { g->counts = {{kVocab, 5}}; });
  generation("logprob_sum", [](Generation* g) { g->logprob_sum = NAN; });
  generation("logprob_sum", [](Generation* g) { g->logprob_sum = INFINITY; });
  generation("min_tokens", [](Generation* g) { g->params.min_tokens = 51; });
  generation("allowed", [](Generation* g) { g->params.sampling.allowed_token_ids = {kVocab}; });
  generation("bad word", [](Generation* g) { g->params.sampling.bad_words = {{}}; });
  generation("output", [](Generation* g) { g->params.sampling.bad_words = {{1, 2}}; });
  generation("output", [](Generation* g) {
    g->params.sampling.bad_words = {{1, 2}};
    g->output = {1, 2};
  });
  generation("held", [](Generation* g) { g->held = std::string("stop"); });
  generation("held", [](Generation* g) { g->held = std::string("x"); });
  generation("held", [](Generation* g) { g->held = std::string("xst"); });
  generation("partial character", [](Generation* g) { g->decoder.pending = std::string("a"); });
  generation("partial character",
             [](Generation* g) { g->decoder.pending = std::string("\xE2\x82\xE2"); });
}

// Resident memory, in bytes: now, or at most since ResetPeak.
int64_t Resident(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) << 10;
  }
  return 0;
}

// The state is written and read by spans. Before, there were three copies of it beside the file.
TEST(SnapshotFile, OnlyTheFileAndTheStateTakeMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer takes memory of its own for each byte";
#endif
  constexpr int64_t kState = int64_t{64} << 20, kSpare = int64_t{12} << 20;
  constexpr DecodeLimits kLarge{{kVocab, 1000, true}, size_t{kState}};
  const Snapshot snapshot = Example(static_cast<int>(kState / 4), false);
  const auto grown = [](const auto& work) {
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << "5";
    const int64_t before = Resident("VmRSS");
    work();
    return Resident("VmHWM") - before;
  };
  for (const StateEncoding encoding : kEncodings) {
    std::string bytes;
    const int64_t written = grown([&] { bytes = EncodeSnapshot(snapshot, Binding(), encoding); });
    const auto size = static_cast<int64_t>(bytes.size());
    // A file that is compressed doubles its memory as it grows.
    const bool compressed =
        encoding == StateEncoding::kF32Zstd || encoding == StateEncoding::kBf16Zstd;
    EXPECT_LE(written, (compressed ? 2 : 1) * size + kSpare) << StateEncodingName(encoding);
    EXPECT_EQ(DecodedStateBytes(bytes), kState);
    const int64_t read = grown([&] {
      const auto back = DecodeSnapshot(bytes, Binding(), kLarge);
      ASSERT_TRUE(back.ok()) << back.status().ToString();
    });
    EXPECT_LE(read, kState + kSpare) << StateEncodingName(encoding);
  }
}

TEST(SnapshotFile, TheSizeOfAStateIsThatOfAGoodHeader) {
  const std::string good = EncodeSnapshot(Example(60, true), Binding(), StateEncoding::kF32Zstd);
  EXPECT_EQ(DecodedStateBytes(good), 240);
  for (const size_t size : {size_t{0}, size_t{31}, size_t{100}, good.size() - 1})
    EXPECT_EQ(DecodedStateBytes(std::string_view(good).substr(0, size)), 0);
}

// A state that is saved as a copy, whose blocks others hold too, has the file of the same state as
// bytes.
TEST(SnapshotFile, CopiesHaveTheBytesOfTheirValues) {
  const auto backend = NewCpuBackend(1).value();
  Random random(4);
  AttentionSpec full;
  full.kind = AttentionKind::kSoftmax;
  full.heads = 4;
  full.kv_heads = 2;
  full.head_dim = 10;
  full.block = 8;
  AttentionSpec window = full, half = full, sketched = full;
  window.window = 11;
  half.state_format = StateFormat::kF16;
  sketched.kind = AttentionKind::kRandomSketch;
  sketched.kv_heads = 0;
  sketched.sketch_size = 5;
  for (const std::vector<AttentionSpec>& layers :
       {std::vector{full, window}, {half, sketched, half}, {window, sketched}}) {
    const auto loaded = backend->NewState(layers);
    const std::vector<float> values = random.Normals(SavedStateBytes(layers, 37) / sizeof(float));
    const auto* begin = reinterpret_cast<const uint8_t*>(values.data());
    ASSERT_TRUE(loaded->Load(37, {begin, values.size() * sizeof(float)}).ok());
    const SequenceState& state = *loaded;
    StateSaver saver(state);
    while (!saver.done()) saver.Continue(state, nullptr);
    Snapshot copy = Example(0, false), whole = copy;
    copy.state = saver.Take();
    ASSERT_NE(copy.state->copy, nullptr);
    EXPECT_EQ(copy.state->memory_bytes(), StateSaver::MemoryFor(state).bytes());
    whole.state = copy.state->AsBytes();
    ASSERT_EQ(whole.state->bytes.size(), state.SavedBytes());
    for (const StateEncoding encoding : kEncodings) {
      const std::string bytes = EncodeSnapshot(copy, Binding(), encoding);
      const Result<Snapshot> back = DecodeSnapshot(bytes, Binding(), kLimits);
      ASSERT_TRUE(back.ok()) << back.status().ToString();
      const Result<Snapshot> expected =
          DecodeSnapshot(EncodeSnapshot(whole, Binding(), encoding), Binding(), kLimits);
      EXPECT_EQ(back->state->bytes, expected->state->bytes);
      EXPECT_EQ(back->position(), 37);
    }
  }
}

}  // namespace
}  // namespace polysketch
