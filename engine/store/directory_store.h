// Entries as files: PATH/t.OWNER/KEY. A file's modification time is when it expires, so that Touch
// changes nothing else. Safe among processes on one file system, also NFS: a file appears by
// rename, whole. The limit is on what all of them have written: each counts the files now and then,
// so that they may pass it by what they write between two looks.
#pragma once

#include <atomic>
#include <filesystem>
#include <mutex>

#include "engine/store/state_store.h"

namespace polysketch {

class DirectoryStore : public StateStore {
 public:
  static Result<std::unique_ptr<StateStore>> Open(const std::filesystem::path& root, int64_t limit);

  std::string_view kind() const override { return "dir"; }
  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string_view bytes,
                       std::chrono::milliseconds ttl) override;
  Result<Entry> Get(const std::string& owner, const std::string& key) override;
  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override;
  Status Delete(const std::string& owner, const std::string& key) override;
  Status Touch(const std::string& owner, const std::string& key,
               std::chrono::milliseconds ttl) override;
  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override;
  void Expire() override;
  StoreUsage usage() const override { return {bytes_.load(), limit_}; }

 private:
  DirectoryStore(std::filesystem::path root, int64_t limit)
      : root_(std::move(root)), limit_(limit) {}
  // RESOURCE_EXHAUSTED when so many bytes more pass the limit, also behind another look.
  Status CheckRoom(int64_t more);
  std::filesystem::path Folder(const std::string& owner) const { return root_ / ("t." + owner); }
  std::filesystem::path File(const std::string& owner, const std::string& key) const {
    return Folder(owner) / key;
  }

  const std::filesystem::path root_;
  const int64_t limit_;            // 0: none
  std::atomic<int64_t> bytes_{0};  // of all files, whoever wrote them
  std::mutex look_mutex_;
  std::chrono::steady_clock::time_point last_look_;  // guarded by look_mutex_
};

}  // namespace polysketch
