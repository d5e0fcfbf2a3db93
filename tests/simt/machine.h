// What the machine (machine.cc) and its bulk copies (bulk_copy.cc) need of each other.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace simt {

// A copy of a thread (cp.async).
struct ThreadCopy {
  void* to;
  const void* from;
  int bytes, valid;
  int group;
};
void Perform(const ThreadCopy& copy);
// Takes the copies of the running thread that are not made yet.
std::vector<ThreadCopy> TakeCopies();

// A coin of the schedule.
bool Toss();
// By a coin, lets other warps run before the running thread goes on.
void Pause();
// Lets other threads run until `ready`.
void WaitUntil(const std::function<bool()>& ready);

// Forgets the barriers and copies of the block before.
void BeginBulkCopies();
// Makes one of the copies that an mbarrier waits for. Returns false if there are none.
bool MakeBulkCopy(uint64_t random);

}  // namespace simt
