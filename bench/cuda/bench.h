// polysketch-cuda-bench: measures kernels by replaying a graph with a cold L2, and prints medians.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/backend.h"

namespace polysketch::cuda {

class Bench {
 public:
  // Shares of the ceilings `gigabytes` (GB/s) and `teraflops` are printed if these are positive.
  Bench(CudaBackend* backend, double gigabytes, double teraflops)
      : backend_(backend),
        device_(backend->device()),
        gigabytes_(gigabytes),
        teraflops_(teraflops),
        flush_(device_, kFlushBytes) {
    device_->Check(cudaEventCreate(&begin_), "an event");
    device_->Check(cudaEventCreate(&end_), "an event");
  }

  static void PrintHeader() {
    std::printf("%-58s %10s %10s %6s %10s %6s\n", "kernel", "us", "GB/s", "share", "TFLOP/s",
                "share");
  }

  // Only lines whose names contain `text` are measured.
  static void SetOnly(std::string text) { only_ = std::move(text); }
  static bool Wanted(const std::string& name) { return name.find(only_) != std::string::npos; }

  // The median time of `work`. It may allocate in its first call; from the second call on it only
  // launches kernels. Ends the program after an error.
  double Seconds(const std::function<void()>& work) {
    work();
    device_->Synchronize();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    const cudaStream_t stream = device_->stream();
    device_->Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    work();
    device_->Check(cudaStreamEndCapture(stream, &graph), "capture");
    device_->Check(cudaGraphInstantiate(&replay, graph, 0), "a graph");
    std::vector<float> times;
    for (int i = 0; i < kRepeats && device_->status().ok(); ++i) {
      device_->Zero(flush_.data(), flush_.size());
      device_->Check(cudaEventRecord(begin_, stream), "an event");
      device_->Check(cudaGraphLaunch(replay, stream), "a graph");
      device_->Check(cudaEventRecord(end_, stream), "an event");
      device_->Synchronize();
      times.push_back(0);
      device_->Check(cudaEventElapsedTime(&times.back(), begin_, end_), "an event");
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    if (!device_->status().ok()) {
      std::printf("%s\n", device_->status().ToString().c_str());
      std::exit(1);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e-3;
  }

  // Measures `work` and prints its line. flop, bytes: useful work of a call.
  void Run(const std::string& name, double flop, double bytes, const std::function<void()>& work) {
    if (!Wanted(name)) return;
    std::printf("%-58s ", name.c_str());
    const double seconds = Seconds(work);
    const double gb = bytes / seconds * 1e-9, tf = flop / seconds * 1e-12;
    std::printf("%10.1f %10.0f %5.0f%% %10.1f %5.0f%%\n", seconds * 1e6, gb,
                gigabytes_ > 0 ? 100 * gb / gigabytes_ : 0, tf,
                teraflops_ > 0 ? 100 * tf / teraflops_ : 0);
    std::fflush(stdout);
  }

  DeviceArray<float> Random(size_t size, float scale) {
    std::mt19937 engine(1);
    std::vector<float> host(std::min<size_t>(size, 1 << 20));
    for (float& x : host) x = scale * (static_cast<float>(engine() >> 8) * 0x1p-23f - 1);
    DeviceArray<float> array(device_, size);
    for (size_t i = 0; i < size; i += host.size()) {
      device_->CopyIn(array.data() + i, host.data(),
                      std::min(host.size(), size - i) * sizeof(float));
    }
    device_->Synchronize();
    return array;
  }

  std::unique_ptr<CudaMatrix> Weights(int64_t in, int64_t out, DataType type) {
    std::vector<float> host(in * out);
    std::mt19937 engine(2);
    for (float& x : host) x = 0.05f * (static_cast<float>(engine() >> 8) * 0x1p-23f - 1);
    return std::make_unique<CudaMatrix>(device_, HostMatrix{host.data(), DataType::kF32, in, out},
                                        false, type);
  }

  CudaBackend* backend() { return backend_; }
  Device* device() { return device_; }

 private:
  static constexpr int kRepeats = 11;
  static constexpr size_t kFlushBytes = size_t{256} << 20;  // several times the L2 of any GPU

  static inline std::string only_;

  CudaBackend* const backend_;
  Device* const device_;
  const double gigabytes_, teraflops_;
  DeviceArray<uint8_t> flush_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

// Bandwidth and latencies of the device.
void BenchCeilings(Bench* bench);
// The ops that process rows independently, and the training kernels.
void BenchRows(Bench* bench);
void BenchTraining(Bench* bench);

}  // namespace polysketch::cuda
