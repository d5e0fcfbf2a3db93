#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/descriptor.h"
#include "base/logging.h"
#include "engine/store/open_state_store.h"
#include "engine/store/state_key.h"
#include "engine/store/stored_header.h"

namespace polysketch {
namespace {

namespace fs = std::filesystem;
using std::chrono::system_clock;

constexpr std::string_view kTemporary = ".new-";
// Writing takes seconds: a temporary file older than this was left by a process that died.
constexpr std::chrono::hours kStaleTemporary{1};
// Minimum time between two counts of the files of a full store.
constexpr std::chrono::seconds kCountInterval{1};

// The status of errno. Clients read it, so it names no folder of the server.
Status Failed(const char* what, const fs::path& path) {
  const int error = errno;
  if (error == ENOENT) return NotFound("state store: there is no ", path.filename().string());
  const std::string message = StrCat("state store: cannot ", what, " ", path.filename().string(),
                                     ": ", std::strerror(error));
  if (error != ENOSPC && error != EDQUOT) return Unavailable(message);
  return ResourceExhausted(message).WithReason(Reason::kStateStoreFull);
}

Status WriteAll(int fd, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return Status();
}

Status SyncFolder(const fs::path& folder) {
  const Descriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.ok() || fsync(fd.get()) != 0) return Failed("sync", folder);
  return Status();
}

timespec ToTimespec(system_clock::time_point time) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch());
  return {static_cast<time_t>(since.count() / 1000000000),
          static_cast<int64_t>(since.count() % 1000000000)};
}

// 0 for a file that does not exist.
int64_t FileBytes(const fs::path& path) {
  struct stat stat {};
  return ::stat(path.c_str(), &stat) == 0 ? stat.st_size : 0;
}

bool IsPast(const timespec& time, std::chrono::nanoseconds grace = {}) {
  const timespec now = ToTimespec(system_clock::now() - grace);
  return time.tv_sec < now.tv_sec || (time.tv_sec == now.tv_sec && time.tv_nsec <= now.tv_nsec);
}

Status SetExpiry(int fd, std::chrono::milliseconds ttl, const fs::path& path) {
  const timespec expiry = ToTimespec(system_clock::now() + ttl);
  const timespec times[2] = {{0, UTIME_OMIT}, expiry};
  if (futimens(fd, times) != 0) return Failed("set the time of", path);
  return Status();
}

// An entry that exists and has not expired.
struct OpenEntry {
  std::unique_ptr<Descriptor> fd;
  StoredInfo info;
};

Result<OpenEntry> OpenFile(const fs::path& path) {
  const std::string name = path.filename().string();
  const auto not_a_file = [&name] {
    return DataLoss("state store: ", name, ": expected a regular file");
  };
  // O_NONBLOCK: a FIFO on a shared volume must not block the store.
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  OpenEntry entry{std::make_unique<Descriptor>(open(path.c_str(), flags)), {}};
  if (!entry.fd->ok() && errno == ELOOP) return not_a_file();
  if (!entry.fd->ok()) return Failed("open", path);
  struct stat stat {};
  if (fstat(entry.fd->get(), &stat) != 0) return Failed("stat", path);
  if (!S_ISREG(stat.st_mode)) return not_a_file();
  if (IsPast(stat.st_mtim)) {
    errno = ENOENT;
    return Failed("open", path);
  }
  char beginning[kStoredBeginningBytes];
  const ssize_t read = pread(entry.fd->get(), beginning, sizeof(beginning), 0);
  if (read < 0) return Failed("read", path);
  PS_ASSIGN_OR_RETURN(
      entry.info,
      ReadStoredHeader(name, std::string_view(beginning, static_cast<size_t>(read)), stat.st_size));
  return entry;
}

// Calls visit(fd of the folder, name) for each entry of a folder, not through a symbolic link to
// it. An error of the file system while the folder is read is returned.
template <typename Visit>
Status ForEachName(const fs::path& folder, Visit visit) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return Failed("open", folder);
  const std::unique_ptr<DIR, int (*)(DIR*)> names(fdopendir(fd), closedir);
  if (names == nullptr) {
    const Status failed = Failed("list", folder);
    close(fd);
    return failed;
  }
  while (true) {
    errno = 0;
    const dirent* const one = readdir(names.get());
    if (one == nullptr) return errno == 0 ? Status() : Failed("list", folder);
    visit(fd, std::string(one->d_name));
  }
}

bool IsTemporary(std::string_view name) {
  return name.starts_with(kTemporary) && IsStateKey(name.substr(kTemporary.size()));
}

// Whether a file has the header of an entry.
bool HasHeader(int folder, const std::string& name) {
  const Descriptor fd(openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  char magic[kStoredMagic.size()];
  return fd.ok() && pread(fd.get(), magic, sizeof(magic), 0) == ssize_t{sizeof(magic)} &&
         std::string_view(magic, sizeof(magic)) == kStoredMagic;
}

// Removes a file of a store that has expired. Returns the bytes that stay: 0 for what is not a file
// of a store, which is never removed.
int64_t ExpireFile(int folder, const std::string& name) {
  struct stat stat {};
  if (fstatat(folder, name.c_str(), &stat, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  if (!S_ISREG(stat.st_mode)) return 0;
  // The modification time of a temporary file is not its expiry yet.
  const bool temporary = IsTemporary(name);
  const bool expired = temporary ? IsPast(stat.st_ctim, kStaleTemporary) : IsPast(stat.st_mtim);
  if (!expired) return stat.st_size;
  if (temporary || HasHeader(folder, name)) unlinkat(folder, name.c_str(), 0);
  return 0;
}

class DirectoryStore : public StateStore {
 public:
  DirectoryStore(fs::path root, int64_t limit) : root_(std::move(root)), limit_(limit) {}

  std::string_view kind() const override { return "dir"; }

  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string_view bytes,
                       std::chrono::milliseconds ttl) override {
    const fs::path folder = Folder(owner);
    std::error_code error;
    if (fs::create_directory(folder, error)) PS_RETURN_IF_ERROR(SyncFolder(root_));
    const int64_t more =
        static_cast<int64_t>(kStoredHeaderBytes + bytes.size()) - FileBytes(File(owner, key));
    PS_RETURN_IF_ERROR(TakeRoom(more));
    const fs::path temporary = folder / (std::string(kTemporary) + NewStateKey());
    const uint64_t revision = RandomWord();
    const auto write = [&]() -> Status {
      const Descriptor fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      if (!fd.ok()) return Failed("make", temporary);
      PS_RETURN_IF_ERROR(WriteAll(fd.get(), StoredHeader(revision), temporary));
      PS_RETURN_IF_ERROR(WriteAll(fd.get(), bytes, temporary));
      PS_RETURN_IF_ERROR(SetExpiry(fd.get(), ttl, temporary));
      if (fsync(fd.get()) != 0) return Failed("sync", temporary);
      if (rename(temporary.c_str(), File(owner, key).c_str()) != 0)
        return Failed("name", temporary);
      return SyncFolder(folder);
    };
    if (Status status = write(); !status.ok()) {
      unlink(temporary.c_str());
      bytes_ -= more;
      return status;
    }
    return revision;
  }

  Result<Entry> Get(const std::string& owner, const std::string& key) override {
    const fs::path path = File(owner, key);
    PS_ASSIGN_OR_RETURN(OpenEntry opened, OpenFile(path));
    Entry entry{std::move(opened.info), {}};
    entry.bytes.resize(static_cast<size_t>(entry.info.bytes));
    size_t done = 0;
    while (done < entry.bytes.size()) {
      const ssize_t read =
          pread(opened.fd->get(), entry.bytes.data() + done, entry.bytes.size() - done,
                static_cast<off_t>(kStoredHeaderBytes + done));
      if (read < 0 && errno == EINTR) continue;
      if (read < 0) return Failed("read", path);
      if (read == 0) return DataLoss("state store: ", key, " ends early");
      done += static_cast<size_t>(read);
    }
    return entry;
  }

  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override {
    PS_ASSIGN_OR_RETURN(OpenEntry opened, OpenFile(File(owner, key)));
    return std::move(opened.info);
  }

  Status Delete(const std::string& owner, const std::string& key) override {
    const fs::path path = File(owner, key);
    const Result<OpenEntry> opened = OpenFile(path);
    // A damaged entry can be deleted too.
    if (!opened.ok() && opened.status().code() != Code::kDataLoss) return opened.status();
    const int64_t bytes = FileBytes(path);
    if (unlink(path.c_str()) != 0) return Failed("delete", path);
    bytes_ -= bytes;
    return SyncFolder(Folder(owner));
  }

  Status Touch(const std::string& owner, const std::string& key,
               std::chrono::milliseconds ttl) override {
    const fs::path path = File(owner, key);
    PS_ASSIGN_OR_RETURN(const OpenEntry opened, OpenFile(path));
    return SetExpiry(opened.fd->get(), ttl, path);
  }

  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override {
    const fs::path folder = Folder(owner);
    std::vector<std::string> names;
    const Status listed = ForEachName(folder, [&](int, const std::string& name) {
      if (name.starts_with(prefix) && !name.starts_with(".")) names.push_back(name);
    });
    if (!listed.ok() && listed.code() != Code::kNotFound) return listed;
    std::sort(names.begin(), names.end());
    std::vector<StoredInfo> infos;
    for (const std::string& name : names) {
      Result<OpenEntry> opened = OpenFile(folder / name);
      if (opened.ok()) {
        infos.push_back(std::move(opened->info));
      } else if (!IsGoneOrDamaged(opened.status())) {
        return opened.status();
      }
    }
    return infos;
  }

  Result<int64_t> CountAtMost(const std::string& owner, const std::string& prefix) override {
    int64_t count = 0;
    const Status listed = ForEachName(Folder(owner), [&](int, const std::string& name) {
      if (name.starts_with(prefix) && !name.starts_with(".")) ++count;
    });
    if (!listed.ok() && listed.code() != Code::kNotFound) return listed;
    return count;
  }

  void Expire() override {
    std::lock_guard lock(count_mutex_);
    last_count_ = std::chrono::steady_clock::now();
    int64_t bytes = 0;
    Status failed;
    const Status listed = ForEachName(root_, [&](int, const std::string& tenant) {
      if (!tenant.starts_with("t.")) return;
      const Status status = ForEachName(root_ / tenant, [&](int folder, const std::string& name) {
        bytes += ExpireFile(folder, name);
      });
      if (!status.ok() && status.code() != Code::kNotFound) failed = status;
    });
    if (!listed.ok()) failed = listed;
    // A part of the files would count as all of them.
    if (failed.ok()) {
      bytes_ = bytes;
    } else {
      LogWarning("state_store_failed", {{"operation", "expire"}, {"why", failed.message()}});
    }
  }

  StoreUsage usage() const override { return {bytes_.load(), limit_}; }

 private:
  // Adds `more` to the bytes. RESOURCE_EXHAUSTED if they exceed the limit then. Counts the files
  // first, at most once in kCountInterval.
  Status TakeRoom(int64_t more) {
    const auto take = [&] {
      const bool fits = (bytes_ += more) <= limit_ || limit_ == 0 || more <= 0;
      if (!fits) bytes_ -= more;
      return fits;
    };
    if (take()) return Status();
    bool due = false;
    {
      std::lock_guard lock(count_mutex_);
      due = std::chrono::steady_clock::now() - last_count_ >= kCountInterval;
    }
    if (due) Expire();
    if (take()) return Status();
    return ResourceExhausted("state store: entries take ", bytes_.load(), " bytes, ", more,
                             " more do not fit, ", limit_,
                             " are allowed (--state-store-limit); delete some, or wait until they "
                             "expire")
        .WithReason(Reason::kStateStoreFull);
  }

  fs::path Folder(const std::string& owner) const { return root_ / ("t." + owner); }
  fs::path File(const std::string& owner, const std::string& key) const {
    return Folder(owner) / key;
  }

  const fs::path root_;
  const int64_t limit_;
  std::atomic<int64_t> bytes_{0};  // of the files of all processes, as last counted
  std::mutex count_mutex_;
  std::chrono::steady_clock::time_point last_count_;  // guarded by count_mutex_
};

}  // namespace

Result<std::unique_ptr<StateStore>> OpenDirectoryStore(const fs::path& root, int64_t limit) {
  std::error_code error;
  fs::create_directories(root, error);
  if (error || !fs::is_directory(root, error) || access(root.c_str(), W_OK | X_OK) != 0) {
    return Unavailable("state store: expected a folder that can be written, found ", root.string());
  }
  auto store = std::make_unique<DirectoryStore>(root, limit);
  store->Expire();
  return std::unique_ptr<StateStore>(std::move(store));
}

}  // namespace polysketch
