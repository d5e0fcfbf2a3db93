// The backend beside a library of dense products: a library whose bits depend on the number of rows
// computes nothing, one with another order computes all rows, and one with our order computes many
// rows. The library here has one algorithm a shape, with the order that the test says; it stands in
// for cublas.cu, and takes its check of an algorithm from dense_check.cu as that does.
// Of the emulation alone, whose backends have no library of their own.
#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/cuda/backend.h"
#include "kernels/cuda/dense_check.h"
#include "kernels/cuda/ptx.cuh"
#include "tests/kernels/weights.h"
#include "tests/simt/simt.h"
#include "tests/testing/random.h"

namespace polysketch::cuda {
namespace {

// The first step of 16 k of a chain, from which it goes on round: 0 is our order.
using FirstStep = std::function<int(int64_t rows)>;

struct Wish {
  FirstStep first_step;
  int64_t products = 0;  // without those of checks
  int64_t fewest_rows = 0;
};
Wish* wish = nullptr;  // null: backends have no library

// One warp computes 16 rows of 8 columns.
__global__ void RoundChain(const uint16_t* x, int64_t rows, int64_t padded_in, const uint16_t* w,
                           int64_t columns, int64_t padded_out, int first_step, bool accumulate,
                           float* out) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  const int64_t row0 = int64_t{blockIdx.y} * 16, column0 = int64_t{blockIdx.x} * 8;
  const auto left = [&](int64_t row, int64_t k) -> uint32_t {
    if (row0 + row >= rows) return 0;
    const uint16_t* pair = x + (row0 + row) * padded_in + k;
    return pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  };
  const auto right = [&](int64_t k) -> uint32_t {
    const uint16_t* column = w + k * padded_out + column0 + g;
    return column[0] | static_cast<uint32_t>(column[padded_out]) << 16;
  };
  float sums[4] = {};
  const auto steps = static_cast<int>(padded_in / 16);
  for (int i = 0; i < steps; ++i) {
    const int64_t k = (first_step + i) % steps * 16 + 2 * t;
    const uint32_t a[4] = {left(g, k), left(g + 8, k), left(g, k + 8), left(g + 8, k + 8)};
    MmaBf16(sums, a, right(k), right(k + 8));
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t row = row0 + g + i / 2 * 8, column = column0 + 2 * t + i % 2;
    if (row >= rows || column >= columns) continue;
    float* to = out + row * columns + column;
    *to = accumulate ? sums[i] + *to : sums[i];
  }
}

class FakeLibrary final : public DenseLibrary {
 public:
  explicit FakeLibrary(Device* device) : device_(device) {}

  bool Product(const uint16_t* x, int64_t rows, const CudaMatrix& w, const float* bias,
               bool accumulate, float* out) override {
    if (bias != nullptr || !Takes(w)) return false;
    if (device_->rehearsing()) return true;
    ++wish->products;
    wish->fewest_rows = std::min(wish->fewest_rows, rows);
    Multiply(x, rows, w, accumulate, out);
    return true;
  }

 private:
  bool Takes(const CudaMatrix& w) {
    const auto [entry, added] = takes_.try_emplace({w.in(), w.out()}, false);
    if (added) {
      entry->second = SameBitsForAnyRows(
          device_, w, 0,
          [&](const uint16_t* x, int64_t rows, float* out) { Multiply(x, rows, w, false, out); });
    }
    return entry->second;
  }
  void Multiply(const uint16_t* x, int64_t rows, const CudaMatrix& w, bool accumulate, float* out) {
    const dim3 grid(CeilDiv(w.out(), 8), CeilDiv(rows, 16));
    device_->Check(
        LaunchOn(device_->stream(), RoundChain, grid, kWarpSize, 0, x, rows, w.padded_in(),
                 w.halves(), w.out(), w.padded_out(), wish->first_step(rows), accumulate, out),
        "a product of the test's library");
  }

  Device* const device_;
  std::map<std::pair<int64_t, int64_t>, bool> takes_;
};

}  // namespace

// In place of no_library.cc.
std::unique_ptr<DenseLibrary> NewDenseLibrary(Device* device) {
  return wish == nullptr ? nullptr : std::make_unique<FakeLibrary>(device);
}

namespace {

using testing::HostWeights;
using testing::Random;

constexpr int kIn = 70, kOut = 24;
constexpr int64_t kMany = 130;

class DenseLibraryTest : public ::testing::Test {
 protected:
  void TearDown() override { wish = nullptr; }

  // Opens a backend beside a library with this order; none: null.
  std::unique_ptr<CudaBackend> Open(const FirstStep& first_step) {
    wish_.first_step = first_step;
    wish = first_step ? &wish_ : nullptr;
    return std::move(CudaBackend::Open()).value();
  }

  // The products of the first `rows` rows by a backend.
  std::vector<float> Products(CudaBackend* backend, const Matrix& w, int64_t rows) {
    BackendArray x(backend, x_.size()), out(backend, static_cast<size_t>(rows * kOut));
    x.CopyIn(x_.data());
    backend->MatMul(x.data(), rows, w, nullptr, false, out.data());
    std::vector<float> result(out.size());
    backend->CopyOut(out.data(), out.size(), result.data());
    EXPECT_TRUE(backend->status().ok()) << backend->status().ToString();
    return result;
  }
  std::unique_ptr<const Matrix> Pack(CudaBackend* backend) {
    const HostWeights w(weights_, kIn, kOut, DataType::kBf16);
    return backend->PackMatrix(w.matrix(), false, DataType::kBf16);
  }

  // Of 1 to kMany rows beside a library with this order. Every row has the bits that it has alone.
  std::vector<float> ProductsOfManyRows(const FirstStep& first_step) {
    const auto backend = Open(first_step);
    const auto w = Pack(backend.get());  // where the backend compares the library's bits with ours
    wish_.products = 0;
    wish_.fewest_rows = kMany;
    const std::vector<float> many = Products(backend.get(), *w, kMany);
    for (const int64_t rows : {1, 16, 17, 64, 65}) {
      const std::vector<float> few = Products(backend.get(), *w, rows);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin())) << rows << " rows";
    }
    return many;
  }

  Random random_{7};
  const std::vector<float> x_ = random_.Normals(kMany * kIn);
  const std::vector<float> weights_ = random_.Normals(kIn * kOut);
  Wish wish_;
};

int OurOrder(int64_t) { return 0; }
int AnotherOrder(int64_t) { return 2; }

TEST_F(DenseLibraryTest, ALibraryWhoseBitsDependOnTheRowsComputesNothing) {
  const std::vector<float> ours = ProductsOfManyRows(nullptr);
  for (const int64_t from : kCheckedRows) {
    if (from == kCheckedRows[0]) continue;  // every number of rows has the other order
    EXPECT_EQ(ProductsOfManyRows([=](int64_t rows) { return rows >= from ? 2 : 0; }), ours) << from;
    EXPECT_EQ(wish_.products, 0) << from;
    EXPECT_EQ(ProductsOfManyRows([=](int64_t rows) { return rows == from ? 0 : 2; }), ours) << from;
    EXPECT_EQ(wish_.products, 0) << from;
  }
}

TEST_F(DenseLibraryTest, ALibraryWithAnotherOrderComputesAllRows) {
  const std::vector<float> ours = ProductsOfManyRows(nullptr);
  EXPECT_NE(ProductsOfManyRows(AnotherOrder), ours);
  EXPECT_EQ(wish_.fewest_rows, 1);
}

TEST_F(DenseLibraryTest, ALibraryWithOurOrderComputesManyRows) {
  const std::vector<float> ours = ProductsOfManyRows(nullptr);
  EXPECT_EQ(ProductsOfManyRows(OurOrder), ours);
  EXPECT_EQ(wish_.fewest_rows, 65);
  EXPECT_GT(wish_.products, 0);
}

TEST_F(DenseLibraryTest, TheCheckIsMadeOnceAShape) {
  const auto backend = Open(OurOrder);
  const auto w = Pack(backend.get());
  const int64_t launches = simt::Launches();
  const auto same_shape = Pack(backend.get());
  EXPECT_EQ(simt::Launches(), launches);
}

TEST_F(DenseLibraryTest, AComparisonOfFewerRowsIsNoAgreement) {
  const auto backend = Open(OurOrder);
  const auto w = Pack(backend.get());
  Device* device = backend->device();
  const auto zeros = [&](const uint16_t*, int64_t rows, float* out) {
    device->Zero(out, rows * kOut * sizeof(float));
  };
  const int64_t most = std::end(kCheckedRows)[-1];
  EXPECT_TRUE(SameBitsForAnyRows(device, Cast(*w), most, zeros));
  EXPECT_FALSE(SameBitsForAnyRows(device, Cast(*w), most + 1, zeros));
}

TEST_F(DenseLibraryTest, AnErrorOfTheDeviceIsNoAgreement) {
  const auto backend = Open(OurOrder);
  const auto w = Pack(backend.get());
  Device* device = backend->device();
  const auto fails = [&](const uint16_t*, int64_t, float*) {
    device->Check(cudaErrorLaunchFailure, "a product");
  };
  EXPECT_FALSE(SameBitsForAnyRows(device, Cast(*w), 0, fails));
}

}  // namespace
}  // namespace polysketch::cuda
