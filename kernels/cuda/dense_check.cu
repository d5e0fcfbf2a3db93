#include "kernels/cuda/dense_check.h"

#include <algorithm>
#include <iterator>

#include "kernels/cuda/ptx.cuh"

namespace polysketch::cuda {
namespace {

// Rows of the product that the others are compared with. Their rows repeat with this period.
constexpr int64_t kPeriod = 64;
constexpr int64_t kMaxCompared = int64_t{32} << 20;  // outputs of a compared product
constexpr int kThreads = 256;

// Stores rows that repeat with kPeriod, of numbers in [-1, 1).
__global__ void FillRows(uint16_t* x, int64_t size, int64_t in, int64_t padded_in, bool bf16) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= size) return;
  const int64_t row = i / padded_in % kPeriod, column = i % padded_in;
  auto bits = static_cast<uint32_t>(row * in + column) * 2654435761u;  // Knuth's hash
  bits = (bits ^ bits >> 15) * 2246822519u;
  const float value = column < in ? static_cast<float>(bits >> 8) * 0x1p-23f - 1 : 0.0f;
  x[i] = bf16 ? RoundBf16(value) : RoundF16(value);
}

__global__ void CompareRows(const float* want, const float* got, int64_t size, int64_t period,
                            int* different) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < size && FloatBits(want[i % period]) != FloatBits(got[i])) *different = 1;
}

}  // namespace

bool SameBitsForAnyRows(Device* device, const CudaMatrix& w, int64_t at_least,
                        const RowsProduct& multiply) {
  const int64_t row_bytes = w.out() * 4 + w.padded_in() * 2;
  const int64_t fitting = std::min<int64_t>(
      kMaxCompared / w.out(), static_cast<int64_t>(device->FreeMemory()) / 4 / row_bytes);
  const int64_t most = std::max(kPeriod, std::min(fitting, std::end(kCheckedRows)[-1]));
  if (most < at_least) return false;
  const DeviceArray<uint16_t> x(device, most * w.padded_in());
  const DeviceArray<float> want(device, kPeriod * w.out()), got(device, most * w.out());
  const DeviceArray<int> different(device, 1);
  if (!device->status().ok()) return false;
  // Device::Launch runs nothing in a rehearsal.
  const auto launch = [&](auto kernel, int64_t size, auto... arguments) {
    device->Check(LaunchOn(device->stream(), kernel, dim3(CeilDiv(size, kThreads)), kThreads, 0,
                           arguments...),
                  "a comparison of products");
  };
  device->Zero(different.data(), sizeof(int));
  launch(FillRows, most * w.padded_in(), x.data(), most * w.padded_in(), w.in(), w.padded_in(),
         w.type() == DataType::kBf16);
  multiply(x.data(), kPeriod, want.data());
  for (const int64_t rows : kCheckedRows) {
    if (rows > most) break;
    multiply(x.data(), rows, got.data());
    launch(CompareRows, rows * w.out(), want.data(), got.data(), rows * w.out(), kPeriod * w.out(),
           different.data());
  }
  int result = 0;
  device->Check(cudaMemcpyAsync(&result, different.data(), sizeof(int), cudaMemcpyDeviceToHost,
                                device->stream()),
                "a comparison of products");
  device->Synchronize();
  return device->status().ok() && result == 0;
}

}  // namespace polysketch::cuda
