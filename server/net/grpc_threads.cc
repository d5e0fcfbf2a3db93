#include "server/net/grpc_threads.h"

#include <grpc/support/cpu.h>
#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/status.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kName = "default-executor";
constexpr size_t kMaxThreadName = 15;
// gRPC adds a thread when more callbacks than this wait for one.
constexpr int kDepth = 2;
constexpr milliseconds kRound{20};
constexpr milliseconds kPatience{5000};

int ExecutorThreads() {
  int count = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/task", error), end; !error && at != end;
       at.increment(error)) {
    std::string name;
    std::getline(std::ifstream(at->path() / "comm"), name);
    if (name == kName.substr(0, kMaxThreadName)) ++count;
  }
  return count;
}

// Makes callbacks wait on the executor until it is destroyed. One that no thread runs is left.
class BusyExecutor {
 public:
  ~BusyExecutor() {
    shared_->released.store(true);
    shared_->released.notify_all();
  }

  void Add(int count) {
    for (int i = 0; i < count; ++i) {
      alarms_.emplace_back().Set(std::chrono::system_clock::now(),
                                 [shared = shared_](bool) { shared->released.wait(false); });
    }
  }

 private:
  struct Shared {
    std::atomic<bool> released{false};
  };
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::list<grpc::Alarm> alarms_;
};

}  // namespace

void StartGrpcThreads() {
  const int wanted = 2 * static_cast<int>(gpr_cpu_num_cores());
  const auto end = std::chrono::steady_clock::now() + kPatience;
  BusyExecutor busy;
  for (int found; (found = ExecutorThreads()) < wanted;) {
    if (std::chrono::steady_clock::now() > end) {
      const std::string reason = StrCat("expected ", wanted, ", found ", found);
      EndProcess("cannot start gRPC's threads (limits: pids.max, RLIMIT_NPROC, memory)",
                 reason.c_str());
    }
    busy.Add(wanted - found + kDepth);
    std::this_thread::sleep_for(kRound);
  }
}

}  // namespace polysketch
