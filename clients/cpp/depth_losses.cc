#include "clients/cpp/depth_losses.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace polysketch {

std::vector<int64_t> DefaultDepthEdges() {
  std::vector<int64_t> edges = {1};
  for (int64_t edge = 512; edge <= int64_t{1} << 50; edge *= 2) edges.push_back(edge);
  return edges;
}

DepthLosses::DepthLosses(const std::vector<int64_t>& edges) {
  PS_CHECK(edges.size() >= 2 && std::is_sorted(edges.begin(), edges.end())) << edges.size();
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    buckets_.emplace_back();
    buckets_.back().begin = edges[i];
    buckets_.back().end = edges[i + 1];
  }
  total_.begin = edges.front();
  total_.end = edges.back();
}

void DepthLosses::Add(int64_t depth, double deep, double fresh) {
  if (depth < total_.begin || depth >= total_.end) return;
  // Blocks lie at multiples of their size, whatever the edges. A block that an edge cuts is two
  // smaller ones.
  const bool new_block = depth / kErrorBlock != (end_ - 1) / kErrorBlock;
  if (new_block) total_.EndBlock();
  if (new_block || depth >= buckets_[current_].end) buckets_[current_].EndBlock();
  while (depth >= buckets_[current_].end) ++current_;
  buckets_[current_].Add(deep, fresh);
  total_.Add(deep, fresh);
  end_ = depth + 1;
}

std::vector<DepthBucket> DepthLosses::Buckets() const {
  std::vector<DepthBucket> result;
  for (const Sums& sums : buckets_) {
    DepthBucket bucket = sums.Bucket();
    bucket.end = std::min(bucket.end, end_);
    if (bucket.tokens > 0) result.push_back(bucket);
  }
  return result;
}

DepthBucket DepthLosses::Total() const {
  DepthBucket total = total_.Bucket();
  total.end = std::max(total.begin, end_);
  return total;
}

void DepthLosses::Sums::Add(double deep_loss, double fresh_loss) {
  ++block_tokens;
  deep.block += deep_loss;
  fresh.block += fresh_loss;
  difference.block += deep_loss - fresh_loss;
}

void DepthLosses::Sums::EndBlock() {
  if (block_tokens == 0) return;
  const double c = static_cast<double>(block_tokens);
  for (ColumnSums* column : {&deep, &fresh, &difference}) {
    column->s += column->block;
    column->ss += column->block * column->block;
    column->cs += c * column->block;
    column->block = 0;
  }
  cc += c * c;
  tokens += block_tokens;
  block_tokens = 0;
  ++blocks;
}

DepthBucket DepthLosses::Sums::Bucket() const {
  Sums sums = *this;
  sums.EndBlock();
  return {.begin = begin,
          .end = end,
          .tokens = sums.tokens,
          .deep = Mean(sums, sums.deep),
          .fresh = Mean(sums, sums.fresh),
          .difference = Mean(sums, sums.difference)};
}

MeanLoss DepthLosses::Mean(const Sums& sums, const ColumnSums& column) {
  MeanLoss result = {.mean = 0, .standard_error = std::numeric_limits<double>::quiet_NaN()};
  if (sums.tokens == 0) return result;
  const double tokens = static_cast<double>(sums.tokens);
  result.mean = column.s / tokens;
  if (sums.blocks < 2) return result;
  // The error of a ratio of sums, since blocks at the ends are smaller: with blocks of one size it
  // is the standard deviation of their means over the root of their number.
  const double m = result.mean;
  const double squares = column.ss - 2 * m * column.cs + m * m * sums.cc;
  const double n = static_cast<double>(sums.blocks);
  result.standard_error = std::sqrt(std::max(0.0, squares) * n / (n - 1)) / tokens;
  return result;
}

}  // namespace polysketch
