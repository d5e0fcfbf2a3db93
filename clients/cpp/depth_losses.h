// Loss by depth: means of the losses of a text's tokens by the number of tokens before them, with
// standard errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace polysketch {

// Losses are in nats. Neighbouring tokens are correlated, so a standard error counts the means of
// blocks of this many tokens as independent values, not the tokens.
constexpr int64_t kErrorBlock = 512;

struct MeanLoss {
  double mean = 0;
  double standard_error = 0;  // NaN of fewer than two blocks
};

// The tokens of depth `begin` to `end` - 1. The depth of a token is the number of tokens before it.
struct DepthBucket {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t tokens = 0;
  MeanLoss deep;        // given all tokens before
  MeanLoss fresh;       // the same tokens from fresh starts
  MeanLoss difference;  // deep minus fresh of each token: its error is that of pairs
};

// 1, 512 and its doubles: bounds of buckets for a text of any length.
std::vector<int64_t> DefaultDepthEdges();

// Memory is constant: sums for each bucket.
class DepthLosses {
 public:
  // Buckets lie between neighbours of `edges`, which increase; at least two.
  explicit DepthLosses(const std::vector<int64_t>& edges);

  // The losses of the token at `depth`, which is above that of the call before. Depths outside the
  // edges do not count.
  void Add(int64_t depth, double deep, double fresh);

  // The buckets that have tokens. The last one ends after the last token.
  std::vector<DepthBucket> Buckets() const;
  // All of them as one bucket; without tokens: of zeros.
  DepthBucket Total() const;

 private:
  // Sums of one column over blocks: c tokens and a loss s each.
  struct ColumnSums {
    double block = 0;  // s of the current block
    double s = 0;
    double ss = 0;
    double cs = 0;
  };
  struct Sums {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t block_tokens = 0;  // of the current block
    int64_t tokens = 0;
    int64_t blocks = 0;
    double cc = 0;
    ColumnSums deep, fresh, difference;

    void Add(double deep_loss, double fresh_loss);
    void EndBlock();
    DepthBucket Bucket() const;
  };

  static MeanLoss Mean(const Sums& sums, const ColumnSums& column);

  std::vector<Sums> buckets_;
  Sums total_;
  size_t current_ = 0;  // bucket of the last token
  int64_t end_ = 0;     // depth after the last token that counts
};

}  // namespace polysketch
