// AttentionSpec: what the kernels depend on of a model's attention. docs/attention.md has the
// equations, docs/model-format.md the names and ranges of config.json.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/attention_kinds.h"

namespace polysketch {

// How states are stored and read. Sums are float32 in all formats. kBf16 halves the bytes that a
// decode step reads: S is summed in float32 and read as its upper 16 bits (rounded to nearest), and
// values and near keys of mixed kinds are rounded to bf16 when they are appended to the block
// buffer. kQ8 quarters those of S: it is read as a copy of 8-bit integers, which every fold makes
// anew from the float32 sums (kernels/state_bytes.h); the block buffer is that of kBf16. Sketches
// are not rounded, since the sums consist of them.
//
// KV kinds have caches of float32 under kF32 and kBf16. kF16 halves them: keys and values are
// float16. kQ8 quarters them: they are 8-bit integers (kernels/kv_rounding.h). Recurrent kinds have
// no kF16: a model's layers of these kinds have kBf16 then.
//
// The cuda backend has no kF16. Under the narrow formats sketches and the KV caches of kBf16 are bf16 there,
// and the 8-bit numbers of kQ8 are those of kernels/cuda/mx_int8.h.
enum class StateFormat { kF32, kBf16, kQ8, kF16 };

// "f32", "bf16", "q8", "f16": the names of --state-format.
std::string_view StateFormatName(StateFormat format);
std::optional<StateFormat> StateFormatOf(std::string_view name);

// Heads of a row of joint queries, keys and values [heads + 2 kv_heads, head_dim].
struct HeadShape {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;

  // Floats of such a row, of its queries and of its keys.
  int64_t row() const { return q_row() + 2 * k_row(); }
  int64_t q_row() const { return int64_t{heads} * head_dim; }
  int64_t k_row() const { return int64_t{kv_heads} * head_dim; }
};

// Which of the last tokens a window holds.
enum class WindowKind {
  kSliding,  // the last w tokens, the token itself included
  kBlocks,   // the token's own block of w tokens, up to it, and the block before
};

// The attention of one layer.
struct AttentionSpec {
  AttentionKind kind = AttentionKind::kSoftmax;
  int heads = 0;         // of queries
  int kv_heads = 0;      // of keys, values and gates, a divisor of `heads`; 0: as many (key_heads)
  int head_dim = 0;      // d
  int sketch_size = 0;   // r; sketched kinds, d in symmetric_power, d + 1 in affine_square
  int num_features = 0;  // m; linear (= head_dim) and performer
  int block = 0;         // b, grain size; > 0 for all kinds: KV kinds allocate in blocks
  int power = 4;         // polynomial; polynomial_square: degree of P, at least 1
  int near_power = 4;    // mixed kinds
  // KV kinds: a token attends to the tokens of its window and to the first `sinks` ones.
  int window = 0;  // w; 0: all earlier tokens
  WindowKind window_kind = WindowKind::kSliding;
  int sinks = 0;  // of a spec with a window
  // Of softmax with a window of blocks, whole blocks of `block` tokens: the far part, which has the
  // tokens that have left the window. Weights are those of far_kind, (f(q).f(k))^2 of
  // symmetric_power and learned_sketch or f(q).f(k) of linear, times min(1, far_length / t), t the
  // query's position; f(q) and f(k), the far rows, have far_size elements.
  AttentionKind far_kind = AttentionKind::kSymmetricPower;
  int far_size = 0;  // r, a multiple of 16; 0: no far part
  int far_length = 0;
  float stabilizer = 1;  // c of the denominator; 0 for softmax
  float alpha = 0;       // polynomial_square, whose P is of (q'.k' + alpha) / beta
  float beta = 1;
  // Whether weights are multiplied by e^(G_t - G_s) (AttentionInput::log_decay): recurrent kinds.
  // With a far part far weights by e^(G_l - G_s), l the last token that has left the window.
  bool decay_gate = false;
  StateFormat state_format = StateFormat::kF32;

  bool operator==(const AttentionSpec&) const = default;
  // Heads of keys and values. Query head h reads head h / query_group().
  int key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int query_group() const { return heads / key_heads(); }
  HeadShape shape() const { return {heads, key_heads(), head_dim}; }
  const AttentionTraits& traits() const { return TraitsOf(kind); }
  bool sketched() const {
    return learned_sketch() || random_sketch() || traits().far == FarRows::kHead ||
           traits().far == FarRows::kHeadAndOne;
  }
  bool mixed() const { return traits().mixed; }
  bool learned_sketch() const { return traits().far == FarRows::kLearned; }
  bool random_sketch() const { return traits().far == FarRows::kRandom; }
  // Whether weights are squares of a polynomial with stored coefficients.
  bool has_coefficients() const { return traits().coefficients; }
  // In a PolySketchFormer: one norm over d for queries and keys, after their rotation and before
  // the power or the random sketch.
  bool qk_norm() const { return traits().qk_norm; }
  // The degree of a near dot product in its weight; 0: it is an exponent. polynomial_square: of P.
  int near_degree() const {
    if (mixed()) return near_power;
    const bool own = kind == AttentionKind::kPolynomial || kind == AttentionKind::kPolynomialSquare;
    return own ? power : traits().near_degree;
  }
  // Whether this is a KV kind.
  bool kv_cache() const { return traits().far == FarRows::kNone; }
  // Whether a window has a far part. Its sums are those of a recurrent layer of this spec, which
  // folds blocks of the window's cache.
  bool far_part() const { return far_size > 0; }
  AttentionSpec FarPart() const {
    AttentionSpec far;
    far.kind = far_kind;
    far.heads = heads;
    far.kv_heads = kv_heads;
    far.head_dim = head_dim;
    (far.sketched() ? far.sketch_size : far.num_features) = far_size;
    far.block = block;
    far.stabilizer = 0;
    far.decay_gate = decay_gate;
    far.state_format = state_format == StateFormat::kF16 ? StateFormat::kBf16 : state_format;
    return far;
  }
  // The factor of the far weights of a query at position `t`.
  double FarFactor(int64_t t) const {
    return t > far_length && far_part() ? static_cast<double>(far_length) / static_cast<double>(t)
                                        : 1;
  }
  // Whether there is a far part, in a window or a recurrent kind.
  bool has_far_part() const { return far_part() || !kv_cache(); }
  // Whether the far rows of a token's key are kept beside the near ones.
  bool keeps_far_keys() const { return mixed() || far_part(); }
  // Whether values, and near keys of mixed kinds, are bf16 in the block buffer.
  bool narrow_block() const { return state_format != StateFormat::kF32 && !kv_cache(); }
  // Bytes of a key's or value's element in a KV cache.
  int cache_width() const {
    return state_format == StateFormat::kF16 ? 2 : state_format == StateFormat::kQ8 ? 1 : 4;
  }
  // Whether each key and value of a KV cache has a scale.
  bool cache_scales() const { return kv_cache() && state_format == StateFormat::kQ8; }
  // Whether S is read as a copy of 8-bit integers.
  bool byte_copy() const { return state_format == StateFormat::kQ8 && !kv_cache(); }
  // Bytes that a decode step of the cpu backend reads for one kv head of one layer: of S and z
  // (FarReadBytes), and of `tokens` near keys and values (NearReadBytes).
  int64_t FarReadBytes() const {
    if (far_part()) return FarPart().FarReadBytes();
    // The copy of kQ8 has a scale for each row and column.
    if (byte_copy()) return int64_t{features()} * (head_dim + 8) + int64_t{head_dim} * 4;
    return int64_t{features()} * (head_dim * (state_format == StateFormat::kF32 ? 4 : 2) + 4);
  }
  int64_t NearReadBytes(int64_t tokens) const {
    if (kv_cache()) return tokens * (2 * head_dim * cache_width() + (cache_scales() ? 8 : 0));
    const int64_t decay_width = decay_gate ? 4 : 0;
    // A key and a value of kQ8 have a scale each.
    if (byte_copy()) {
      const int64_t key = mixed() ? near_dim() + 4 : near_dim() * 4;
      return tokens * (key + head_dim + 4 + decay_width);
    }
    const int64_t key_width = narrow_block() && mixed() ? 2 : 4,
                  value_width = narrow_block() ? 2 : 4;
    return tokens * (near_dim() * key_width + head_dim * value_width + decay_width);
  }
  // Width of far_q and far_k rows: r rounded up to a multiple of 8 (with zero columns), or m. 0 for
  // KV kinds without a far part.
  int far_dim() const {
    if (kv_cache()) return far_size;
    return sketched() ? (sketch_size + 7) / 8 * 8 : num_features;
  }
  // Floats of a state for one token of the block buffer and one kv head, without padding.
  int64_t TokenFloats() const {
    return int64_t{near_dim()} + (keeps_far_keys() ? far_dim() : 0) + head_dim +
           (decay_gate ? 1 : 0);
  }
  // Width of near_q and near_k rows.
  int near_dim() const { return kv_cache() || mixed() ? head_dim : far_dim(); }
  // Rows of S: packed symmetric features in sketched kinds (8x8 tiles I <= J; 640 for r = 32), else
  // m.
  int features() const {
    if (far_part()) return FarPart().features();
    if (!sketched()) return far_dim();
    const int tiles = far_dim() / 8;
    return tiles * (tiles + 1) / 2 * 64;
  }

  // --- windows ---

  // The first token after the sinks that token `t` attends to.
  int64_t FirstVisible(int64_t t) const {
    if (window == 0) return 0;
    const int64_t first =
        window_kind == WindowKind::kSliding ? t - window + 1 : (t / window - 1) * window;
    return first > 0 ? first : 0;
  }
  bool Visible(int64_t s, int64_t t) const { return s <= t && (s < sinks || s >= FirstVisible(t)); }
  // The tokens whose near keys a query at position `t` reads.
  int64_t Attended(int64_t t) const {
    if (!kv_cache()) return t % block + 1;
    const int64_t first = FirstVisible(t);
    return t - first + 1 + std::min<int64_t>(sinks, first);
  }
  // Tokens of whole blocks that hold the sinks. A window keeps them.
  int64_t SinkTokens() const { return (int64_t{sinks} + block - 1) / block * block; }
  // A window drops blocks that no token reads again, even after a truncation. These are the tokens
  // [SinkTokens(), SinkTokens() + DroppedTokens(position)), whole blocks.
  int64_t DroppedTokens(int64_t position) const {
    if (window == 0 || position == 0) return 0;
    const int64_t first = (LastBlock(position) - Span() + 2) / block * block - SinkTokens();
    return first > 0 ? first : 0;
  }

  // --- blocks ---

  // A block is folded when the first token after it arrives, so the block buffer is never empty
  // after the first token.

  // Number of tokens that a state of `position` tokens keeps one by one. Recurrent kinds: those in
  // the block buffer, 1 to b, 0 if `position` is 0. KV kinds: all but the dropped ones.
  int64_t BufferedTokens(int64_t position) const {
    if (kv_cache()) return position - DroppedTokens(position);
    return position == 0 ? 0 : (position - 1) % block + 1;
  }
  // Blocks of a KV cache of `position` tokens.
  int64_t CacheBlocks(int64_t position) const {
    return (position + block - 1) / block - DroppedTokens(position) / block;
  }
  // Whether a block has been folded, so that S and z are not zero, after `position` tokens. A far
  // part folds the blocks that leave the window.
  bool HasFarState(int64_t position) const {
    if (kv_cache()) return far_part() && position > 2 * int64_t{window};
    return position > block;
  }
  // The tokens after which blocks are folded: multiples of it; 0: none are.
  int64_t FoldPeriod() const { return kv_cache() ? (far_part() ? window : 0) : block; }
  // Whether states grow with every token.
  bool grows() const { return kv_cache() && window == 0; }
  // The earliest position that a state of `position` tokens can be truncated to: one token of the
  // current block must remain, since neither folded nor dropped tokens can be removed. A function
  // of the position alone, and the same for every position between the two.
  int64_t EarliestTruncation(int64_t position) const {
    const bool lost = HasFarState(position) || (kv_cache() && DroppedTokens(position) > 0);
    return lost ? LastBlock(position) + 1 : 0;
  }
  // The largest n for which a state of `position + n` tokens can be truncated to `position`.
  int64_t Removable(int64_t position) const {
    if (grows()) return INT64_MAX / 2;
    const int64_t in_block = (block - position % block) % block;
    if (!kv_cache()) return in_block;
    const int64_t whole = far_part() ? 2 * int64_t{window} : UndroppedTokens();
    return whole - position > in_block ? whole - position : in_block;
  }
  // The longest state of a window that has dropped nothing.
  int64_t UndroppedTokens() const {
    return ((SinkTokens() + block + Span() - 3) / block + 1) * block;
  }

 private:
  // The start of the block of the last of `position` tokens.
  int64_t LastBlock(int64_t position) const { return (position - 1) / block * block; }
  // The most tokens of a window, the token itself included. At least two, so that the last token is
  // kept. With a far part one more: the block that the next token folds.
  int64_t Span() const {
    if (window_kind == WindowKind::kBlocks) return 2 * int64_t{window} + (far_part() ? 1 : 0);
    return window > 1 ? window : 2;
  }
};

// The format of a layer of that kind in a model of `format`.
StateFormat FormatOfLayer(StateFormat format, const AttentionSpec& layer);
// The format of a model with these layers.
StateFormat FormatOfModel(std::span<const AttentionSpec> layers);

// The same of all layers of a model: what holds for each of them.
int64_t EarliestTruncation(std::span<const AttentionSpec> layers, int64_t position);
int64_t Removable(std::span<const AttentionSpec> layers, int64_t position);
// Whether the token after `position` tokens folds a block first, in some layer.
bool FoldsNext(std::span<const AttentionSpec> layers, int64_t position);
// Tokens after `position` tokens up to the first end of a block that will be folded; 0: no layer
// folds.
int64_t TokensToFold(std::span<const AttentionSpec> layers, int64_t position);

}  // namespace polysketch
