// The kernels that store keys and values in the buffers, and that scan states. All paths of
// attention use them.
#pragma once

#include "kernels/cuda/attention_shape.cuh"

namespace polysketch::cuda {

template <typename T>
__device__ void RoundRow(const float* from, int width, T* to) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) Round(from[i], to + i);
}

// blockIdx: job, head, first row; a thread block stores every gridDim.z-th row.
template <typename T>
__global__ void StoreTokens(AttentionShape shape, const StoreJob* jobs) {
  const StoreJob& job = jobs[blockIdx.x];
  const int head = blockIdx.y, layer = shape.layer;
  T* near_keys = Array<T>(job.to.near_keys, job.table, job.block, layer, head);
  T* values = Array<T>(job.to.values, job.table, job.block, layer, head);
  for (int row = blockIdx.z; row < job.count; row += gridDim.z) {
    const int64_t m = job.row + row;
    const int64_t token = job.first + row;
    const float* near = shape.near_k + (m * shape.heads + head) * shape.near_dim;
    RoundRow(near, shape.near_dim, near_keys + token * shape.near_dim);
    RoundRow(shape.v + m * shape.v_stride + static_cast<int64_t>(head) * shape.d, shape.d,
             values + token * shape.d);
    // In unmixed kinds the far keys equal the near keys; the workspace has both.
    if (shape.far_dim > 0) {
      const float* far = shape.far_k + (m * shape.heads + head) * shape.far_dim;
      RoundRow(far, shape.far_dim, At<T>(job.to.far_keys, layer, head) + token * shape.far_dim);
    }
  }
}

template <typename T>
__device__ void CopyArray(const HeadArray& from, const HeadArray& to, int layer, int head,
                          int64_t size) {
  const T* source = At<T>(from, layer, head);
  T* target = At<T>(to, layer, head);
  for (int64_t i = static_cast<int64_t>(blockIdx.z) * blockDim.x + threadIdx.x; i < size;
       i += static_cast<int64_t>(gridDim.z) * blockDim.x) {
    target[i] = source[i];
  }
}

// blockIdx: job, head, slice.
template <typename T>
__global__ void CopyTokens(AttentionShape shape, const CopyJob* jobs) {
  const CopyJob& job = jobs[blockIdx.x];
  const int head = blockIdx.y, layer = shape.layer;
  CopyArray<T>(job.from.far_keys, job.to.far_keys, layer, head, job.count * shape.far_dim);
  CopyArray<T>(job.from.near_keys, job.to.near_keys, layer, head, job.count * shape.near_dim);
  CopyArray<T>(job.from.values, job.to.values, layer, head, job.count * shape.d);
}

// S as float32, which queries read as float32.
struct PlainState {
  using Read = float;
  static __device__ float Load(const uint8_t* base, int64_t, int64_t e) {
    return reinterpret_cast<const float*>(base)[e];
  }
  static __device__ void Store(float value, uint8_t* base, int64_t, int64_t e) {
    reinterpret_cast<float*>(base)[e] = value;
  }
  static __device__ void StoreRead(float value, float* out) { *out = value; }
};

// S as two planes, of which queries read the upper one.
struct PlaneState {
  using Read = Bf16;
  static __device__ float Load(const uint8_t* base, int64_t size, int64_t e) {
    const auto* planes = reinterpret_cast<const uint16_t*>(base);
    return BitsFloat(JoinPlanes(planes[e], planes[size + e]));
  }
  static __device__ void Store(float value, uint8_t* base, int64_t size, int64_t e) {
    auto* planes = reinterpret_cast<uint16_t*>(base);
    const uint32_t bits = FloatBits(value);
    planes[e] = UpperPlane(bits);
    planes[size + e] = LowerPlane(bits);
  }
  static __device__ void StoreRead(float value, Bf16* out) { *out = UpperPlane(FloatBits(value)); }
};

// blockIdx: job, head, slice of the elements. A thread adds all partial sums to its elements.
template <typename Format>
__global__ void ScanStates(AttentionShape shape, const ScanJob* jobs, const float* partials,
                           uint8_t* snapshots, int64_t snapshot_bytes, int64_t snapshot_z) {
  const ScanJob& job = jobs[blockIdx.x];
  const int head = blockIdx.y;
  const int64_t sums = static_cast<int64_t>(shape.features) * shape.d;
  const int64_t elements = sums + shape.features;
  uint8_t* S = At<uint8_t>(job.sums, shape.layer, head);
  float* z = At<float>(job.weights, shape.layer, head);
  for (int64_t e = static_cast<int64_t>(blockIdx.z) * blockDim.x + threadIdx.x; e < elements;
       e += static_cast<int64_t>(gridDim.z) * blockDim.x) {
    const bool is_sum = e < sums;
    float value = is_sum ? Format::Load(S, sums, e) : z[e - sums];
    for (int i = 0; i < job.count; ++i) {
      if (job.snapshots >= 0) {
        uint8_t* snapshot = snapshots + ((job.snapshots + i) * shape.heads + head) * snapshot_bytes;
        if (is_sum) {
          Format::StoreRead(value, reinterpret_cast<typename Format::Read*>(snapshot) + e);
        } else {
          reinterpret_cast<float*>(snapshot + snapshot_z)[e - sums] = value;
        }
      }
      value += partials[((job.partial + i) * shape.heads + head) * elements + e];
    }
    if (is_sum) {
      Format::Store(value, S, sums, e);
    } else {
      z[e - sums] = value;
    }
  }
}

}  // namespace polysketch::cuda
