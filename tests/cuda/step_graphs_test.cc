// Steps as recordings: which shapes are recorded, replayed and dropped, and that a model gives the
// same bits with and without. Under the emulation only, whose runtime refuses what CUDA refuses in
// the middle of a recording; a GPU runs the model's part as CudaModelTest.DecodingInGraphs.
#include "kernels/cuda/step_graphs.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include "tests/simt/simt.h"

namespace polysketch::cuda {
namespace {

__global__ void AddOne(int* value) {
  if (threadIdx.x == 0) *value += 1;
}

class StepGraphsTest : public ::testing::Test {
 protected:
  // A step that adds one, of shape {number}.
  void Step(int64_t number) {
    graphs_->Run({number}, [&] { device_->Launch(AddOne, dim3(1), 32, 0, value_.data()); });
  }
  int Value() {
    int value = 0;
    device_->CopyOut(&value, value_.data(), sizeof(value));
    return value;
  }
  void Expect(int64_t direct, int64_t recorded, int64_t replayed, int64_t dropped) {
    const StepGraphs::Counts& counts = graphs_->counts();
    EXPECT_EQ(counts.direct, direct);
    EXPECT_EQ(counts.recorded, recorded);
    EXPECT_EQ(counts.replayed, replayed);
    EXPECT_EQ(counts.dropped, dropped);
    EXPECT_TRUE(device_->status().ok()) << device_->status().ToString();
  }
  void SetUp() override { device_->Zero(value_.data(), sizeof(int)); }

  std::unique_ptr<Device> device_ = std::move(Device::Open()).value();
  DeviceArray<int> value_{device_.get(), 1};
  std::unique_ptr<StepGraphs> graphs_ = std::make_unique<StepGraphs>(device_.get());
};

TEST_F(StepGraphsTest, TheSecondStepOfAShapeIsRecordedAndLaterOnesAreReplayed) {
  for (const int64_t shape : {7, 8, 7, 7, 8, 7}) Step(shape);
  EXPECT_EQ(Value(), 6);  // each ran once, whichever way
  Expect(2, 2, 2, 0);
}

TEST_F(StepGraphsTest, AnArrayThatMovesDropsAllRecordings) {
  for (const int64_t shape : {1, 1, 2, 2, 2}) Step(shape);
  Expect(2, 2, 1, 0);
  DeviceArray<int> workspace;
  workspace.Grow(device_.get(), 10);
  Step(1);
  Expect(3, 2, 1, 2);
  workspace.Grow(device_.get(), 10);  // it is large enough: it stays
  Step(1);
  Step(1);
  EXPECT_EQ(Value(), 8);
  Expect(3, 3, 2, 2);
}

TEST_F(StepGraphsTest, WhatCannotBeRecordedRunsAsItIs) {
  int runs = 0;
  DeviceArray<int> grown;
  for (int i = 0; i < 4; ++i) {
    graphs_->Run({1}, [&] {
      ++runs;
      const int one = 1;
      device_->CopyIn(value_.data(), &one, sizeof(one));
      device_->Launch(AddOne, dim3(1), 32, 0, value_.data());
      device_->Synchronize();
    });
    EXPECT_EQ(Value(), 2);
  }
  EXPECT_EQ(runs, 5);  // the second one was tried first
  Expect(4, 0, 0, 0);
}

TEST_F(StepGraphsTest, AnArrayThatWouldGrowSpoilsARecording) {
  DeviceArray<int> workspace;
  for (int i = 0; i < 3; ++i) {
    graphs_->Run({1}, [&] {
      workspace.Grow(device_.get(), static_cast<size_t>(10 + 100 * i));
      device_->Launch(AddOne, dim3(1), 32, 0, workspace.data());
    });
    ASSERT_GE(workspace.size(), static_cast<size_t>(10 + 100 * i));
  }
  Expect(3, 0, 0, 0);
}

TEST_F(StepGraphsTest, TheLeastRecentlyUsedShapeGoes) {
  const auto most = static_cast<int64_t>(StepGraphs::kMax);
  for (int64_t shape = 0; shape < most; ++shape) {
    Step(shape);
    Step(shape);
  }
  Step(0);
  Step(most);  // shape 1 is dropped: shape 0 was used after it
  Expect(most + 1, most, 1, 1);
  Step(0);
  Expect(most + 1, most, 2, 1);
  Step(1);
  Expect(most + 2, most, 2, 2);
}

TEST_F(StepGraphsTest, ARecordingTakesMemoryThatWasSetAside) {
  device_->ReserveRecordings(1 << 20);
  const size_t held = device_->held_memory();
  EXPECT_EQ(device_->recordings_memory(), 0u);
  const size_t rest = simt::FreeBytes();
  ASSERT_TRUE(simt::Take(rest));
  for (const int64_t shape : {1, 1, 1, 2, 2, 2}) Step(shape);
  Expect(2, 2, 2, 0);
  EXPECT_EQ(device_->recordings_memory(), 2 * simt::kGraphLaunchBytes);
  EXPECT_EQ(device_->held_memory(), held);
  EXPECT_EQ(simt::FreeBytes(), 0u);
  graphs_.reset();  // drops both
  EXPECT_EQ(device_->recordings_memory(), 0u);
  EXPECT_EQ(device_->held_memory(), held);
  simt::Give(rest);
}

TEST_F(StepGraphsTest, AStepThatFindsNoMemoryForARecordingRunsAsItIs) {
  const size_t rest = simt::FreeBytes();
  ASSERT_TRUE(simt::Take(rest));
  for (int i = 0; i < 4; ++i) Step(1);
  EXPECT_EQ(Value(), 4);
  Expect(4, 0, 0, 0);
  simt::Give(rest);
}

TEST_F(StepGraphsTest, AnInjectedErrorEndsThem) {
  ASSERT_EQ(setenv("POLYSKETCH_CUDA_FAIL_AFTER", "3", 1), 0);
  const std::unique_ptr<Device> device = std::move(Device::Open()).value();
  unsetenv("POLYSKETCH_CUDA_FAIL_AFTER");
  StepGraphs graphs(device.get());
  const DeviceArray<int> value(device.get(), 1);
  int runs = 0;
  for (int i = 0; i < 6; ++i) {
    graphs.Run({1}, [&] {
      ++runs;
      device->Launch(AddOne, dim3(1), 32, 0, value.data());
    });
  }
  // A launch, a recorded one and its replay: then the error.
  EXPECT_EQ(runs, 2);
  EXPECT_FALSE(device->status().ok());
  EXPECT_EQ(graphs.counts().replayed, 4);
}

TEST_F(StepGraphsTest, TheSwitchTurnsThemOff) {
  ASSERT_EQ(setenv("POLYSKETCH_CUDA_GRAPHS", "off", 1), 0);
  graphs_ = std::make_unique<StepGraphs>(device_.get());
  unsetenv("POLYSKETCH_CUDA_GRAPHS");
  for (int i = 0; i < 3; ++i) Step(1);
  EXPECT_EQ(Value(), 3);
  Expect(3, 0, 0, 0);
}

}  // namespace
}  // namespace polysketch::cuda
