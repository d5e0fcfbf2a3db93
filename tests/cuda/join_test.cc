// The results of many parts are joined in order: JoinResults beside the same sums by one thread, for more parts
// than a test can compute. Under the emulation alone, whose functions are those of the host.
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/cuda/attention_few.cuh"
#include "kernels/cuda/device.h"
#include "tests/testing/random.h"

namespace polysketch::cuda {
namespace {

constexpr int kHeads = 3;

class JoinTest : public ::testing::Test {
 protected:
  // Of three heads and `parts` parts.
  template <int D>
  void ExpectOrderedSums(int parts, bool softmax);

  const std::unique_ptr<Device> device_ = std::move(Device::Open()).value();
  testing::Random random_{1};
};

// The row that one thread joins, as Merge (attention_parts.cuh) does for prompts.
std::vector<float> Joined(const float* results, int parts, int d, bool softmax, float stabilizer) {
  std::vector<float> sums(static_cast<size_t>(d + 1));
  float top = -INFINITY;
  for (int part = 0; part < parts; ++part) {
    const float* row = results + part * RowResult(d);
    const float part_top = row[d + 1], larger = std::fmax(top, part_top);
    float of_total = 1, of_part = 1;
    if (softmax && larger > -INFINITY) {
      of_total = top == -INFINITY && part_top > top ? 0 : std::exp(top - larger);
      of_part = part_top == -INFINITY ? 0 : std::exp(part_top - larger);
    } else if (softmax) {
      of_part = 0;
    }
    for (int i = 0; i <= d; ++i) sums[i] = std::fma(sums[i], of_total, row[i] * of_part);
    top = larger;
  }
  std::vector<float> out;
  const float inverse = 1.0f / (stabilizer + sums.back());
  for (int i = 0; i < d; ++i) out.push_back(sums[i] * inverse);
  return out;
}

template <int D>
void JoinTest::ExpectOrderedSums(int parts, bool softmax) {
  AttentionShape shape;
  shape.heads = shape.kv_heads = kHeads;
  shape.group = Divisor(1);
  shape.block = 64;
  shape.block_parts = Divisor(1);
  shape.d = D;
  shape.near_power = softmax ? 0 : 4;
  shape.stabilizer = softmax ? 0 : 1;
  AttendJob job;
  job.count = 1;
  job.block = parts - 1;
  DeviceArray<AttendJob> jobs(device_.get(), 1);
  device_->CopyIn(jobs.data(), &job, sizeof(job));
  DeviceArray<float> results(device_.get(), kHeads * parts * RowResult(D)),
      out(device_.get(), kHeads * D);
  for (int row = 0; row < kHeads * parts; ++row) {
    float* of_row = results.data() + row * RowResult(D);
    for (int i = 0; i < RowResult(D); ++i) of_row[i] = static_cast<float>(random_.Normal());
    of_row[D] = std::fabs(of_row[D]);
    of_row[D + 1] *= 3;
    if (row % 7 == 3) of_row[D + 1] = -INFINITY;  // a part that the row does not attend to
  }
  const std::vector<float> before(results.data(), results.data() + results.size());
  shape.out = out.data();
  device_->Launch(JoinResults<D, false, false>, dim3(1, kHeads, 1), kWarpSize, JoinShared<D>(),
                  shape, jobs.data(), results.data());
  device_->Synchronize();
  ASSERT_TRUE(device_->status().ok()) << device_->status().ToString();
  for (int head = 0; head < kHeads; ++head) {
    const std::vector<float> want =
        Joined(before.data() + head * parts * RowResult(D), parts, D, softmax, shape.stabilizer);
    for (int i = 0; i < D; ++i) {
      ASSERT_EQ(out.data()[head * D + i], want[i])
          << parts << " parts of " << D << ", head " << head << " element " << i;
    }
  }
}

TEST_F(JoinTest, ManyPartsAreJoinedInOrder) {
  for (const int parts : {1, 2, 31, 32, 33, 64, 65, 300}) {
    for (const bool softmax : {true, false}) {
      ExpectOrderedSums<32>(parts, softmax);
      ExpectOrderedSums<64>(parts, softmax);
      ExpectOrderedSums<128>(parts, softmax);
    }
  }
}

}  // namespace
}  // namespace polysketch::cuda
