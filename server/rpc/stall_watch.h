// Ends calls whose client does not move. With one write outstanding a client that never reads costs
// no memory, but neither does gRPC ever end its call; one thread looks at all streaming calls a few
// times in every stall deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace polysketch {

class Stallable {
 public:
  virtual ~Stallable() = default;
  // Ends the call if its client has not moved since `since`.
  virtual void EndIfStalled(std::chrono::steady_clock::time_point since) = 0;
};

class StallWatch {
 public:
  explicit StallWatch(std::chrono::milliseconds deadline);
  ~StallWatch();
  StallWatch(const StallWatch&) = delete;
  StallWatch& operator=(const StallWatch&) = delete;

  // Watched for as long as it lives.
  void Add(std::weak_ptr<Stallable> call);

 private:
  void Loop();

  const std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::weak_ptr<Stallable>> calls_;  // guarded by mutex_
  bool stop_ = false;                            // guarded by mutex_
  std::thread thread_;
};

}  // namespace polysketch
