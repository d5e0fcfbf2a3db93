// Entries as files: PATH/t.OWNER/KEY. A file's modification time is when it expires, so that Touch
// changes nothing else. Safe among processes on one file system, also NFS: a file appears by
// rename, whole.
#pragma once

#include <filesystem>

#include "engine/store/state_store.h"

namespace polysketch {

class DirectoryStore : public StateStore {
 public:
  static Result<std::unique_ptr<StateStore>> Open(const std::filesystem::path& root);

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

 private:
  explicit DirectoryStore(std::filesystem::path root) : root_(std::move(root)) {}
  std::filesystem::path Folder(const std::string& owner) const { return root_ / ("t." + owner); }
  std::filesystem::path File(const std::string& owner, const std::string& key) const {
    return Folder(owner) / key;
  }

  const std::filesystem::path root_;
};

}  // namespace polysketch
