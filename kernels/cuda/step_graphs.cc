#include "kernels/cuda/step_graphs.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace polysketch::cuda {
namespace {

bool GraphsEnabled() {
  const char* wish = std::getenv("POLYSKETCH_CUDA_GRAPHS");
  return wish == nullptr || std::strcmp(wish, "off") != 0;
}

}  // namespace

StepGraphs::StepGraphs(Device* device, size_t max)
    : device_(device), max_(max), enabled_(GraphsEnabled()) {}

StepGraphs::~StepGraphs() { DropAll(); }

void StepGraphs::Run(Shape shape, const std::function<void()>& ops) {
  if (moves_ != device_->moves()) {
    moves_ = device_->moves();
    DropAll();
  }
  bool found = false;
  Entry* entry = enabled_ ? Find(std::move(shape), &found) : nullptr;
  if (entry != nullptr && entry->recording.graph != nullptr) {
    ++counts_.replayed;
    device_->Replay(entry->recording);
    return;
  }
  if (found && entry->recordable) return Record(entry, ops);
  ++counts_.direct;
  ops();
}

StepGraphs::Entry* StepGraphs::Find(Shape shape, bool* found) {
  const auto same = [&](const Entry& entry) { return entry.shape == shape; };
  const auto entry = std::find_if(entries_.begin(), entries_.end(), same);
  *found = entry != entries_.end();
  if (*found) {
    entries_.splice(entries_.begin(), entries_, entry);
    return &entries_.front();
  }
  if (entries_.size() == max_) {
    Drop(&entries_.back());
    entries_.pop_back();
  }
  entries_.push_front({std::move(shape), {}, true});
  return &entries_.front();
}

void StepGraphs::Record(Entry* entry, const std::function<void()>& ops) {
  device_->BeginRecording();
  ops();
  entry->recording = device_->EndRecording();
  if (entry->recording.graph == nullptr) {
    // The step cannot be recorded, and nothing has run. This step and later ones of its shape run
    // without a recording.
    entry->recordable = false;
    ++counts_.direct;
    ops();
    return;
  }
  ++counts_.recorded;
  device_->Replay(entry->recording);
}

void StepGraphs::Drop(Entry* entry) {
  if (entry->recording.graph == nullptr) return;
  ++counts_.dropped;
  device_->DeleteRecording(entry->recording);
}

void StepGraphs::DropAll() {
  for (Entry& entry : entries_) Drop(&entry);
  entries_.clear();
}

}  // namespace polysketch::cuda
