#include "server/app/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/logging.h"

namespace polysketch {
namespace {

using ::testing::ExitedWithCode;

// A first request may run as soon as the model is set, before main comes to wait.
TEST(StopSignalsTest, ASignalWaitsForAServerThatServes) {
  const auto serve = [] {
    StopSignals signals;
    signals.BeginServing();
    kill(getpid(), SIGTERM);
    usleep(100000);
    _exit(signals.Wait() == SIGTERM ? 7 : 8);
  };
  EXPECT_EXIT(serve(), ExitedWithCode(7), "");
}

TEST(StopSignalsTest, ASignalBeforeThatEndsTheProcess) {
  const auto load = [] {
    SetLogLevel(LogLevel::kInfo);  // other tests of this program set another
    StopSignals signals;
    kill(getpid(), SIGTERM);
    while (true) pause();
  };
  EXPECT_EXIT(load(), ExitedWithCode(0), "not serving yet");
}

TEST(StopSignalsTest, ARepeatWithinASecondIsNoSecondSignal) {
  const auto drain = [] {
    StopSignals signals;
    signals.BeginServing();
    kill(getpid(), SIGTERM);
    signals.Wait();
    kill(getpid(), SIGTERM);
    usleep(100000);
    _exit(7);
  };
  EXPECT_EXIT(drain(), ExitedWithCode(7), "");
}

TEST(StopSignalsTest, ARepeatLaterIsASecondSignal) {
  const auto drain = [] {
    SetLogLevel(LogLevel::kInfo);  // other tests of this program set another
    StopSignals signals;
    signals.BeginServing();
    kill(getpid(), SIGTERM);
    signals.Wait();
    usleep(1100000);
    kill(getpid(), SIGTERM);
    while (true) pause();
  };
  EXPECT_EXIT(drain(), ExitedWithCode(128 + SIGTERM), "second signal");
}

TEST(StopSignalsTest, ASecondSignalEndsTheProcess) {
  const auto drain = [] {
    SetLogLevel(LogLevel::kInfo);  // other tests of this program set another
    StopSignals signals;
    signals.BeginServing();
    kill(getpid(), SIGTERM);
    signals.Wait();
    kill(getpid(), SIGINT);
    while (true) pause();
  };
  EXPECT_EXIT(drain(), ExitedWithCode(128 + SIGINT), "second signal");
}

}  // namespace
}  // namespace polysketch
