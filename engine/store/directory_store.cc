#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

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

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  const int fd_;
};

Status Failed(const char* what, const fs::path& path) {
  const int error = errno;
  if (error == ENOENT) return NotFound("state store: there is no ", path.filename().string());
  const Code code =
      error == ENOSPC || error == EDQUOT ? Code::kResourceExhausted : Code::kUnavailable;
  return Status(
      code, StrCat("state store: cannot ", what, " ", path.string(), ": ", std::strerror(error)));
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
  OpenEntry entry{std::make_unique<Descriptor>(open(path.c_str(), O_RDONLY | O_CLOEXEC)), {}};
  if (!entry.fd->ok()) return Failed("open", path);
  struct stat stat {};
  if (fstat(entry.fd->get(), &stat) != 0) return Failed("stat", path);
  if (IsPast(stat.st_mtim)) {
    errno = ENOENT;
    return Failed("open", path);
  }
  char beginning[kStoredBeginningBytes];
  const ssize_t read = pread(entry.fd->get(), beginning, sizeof(beginning), 0);
  if (read < 0) return Failed("read", path);
  PS_ASSIGN_OR_RETURN(
      entry.info,
      ReadStoredHeader(path.filename().string(),
                       std::string_view(beginning, static_cast<size_t>(read)), stat.st_size));
  return entry;
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
    PS_RETURN_IF_ERROR(CheckRoom(more));
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
      return status;
    }
    bytes_ += more;
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
    std::vector<StoredInfo> infos;
    std::error_code error;
    for (const fs::directory_entry& file : fs::directory_iterator(Folder(owner), error)) {
      if (!file.path().filename().string().starts_with(prefix)) continue;
      Result<OpenEntry> opened = OpenFile(file.path());
      if (opened.ok()) infos.push_back(std::move(opened->info));
    }
    std::sort(infos.begin(), infos.end(),
              [](const StoredInfo& a, const StoredInfo& b) { return a.key < b.key; });
    return infos;
  }

  void Expire() override {
    std::lock_guard lock(count_mutex_);
    last_count_ = std::chrono::steady_clock::now();
    int64_t bytes = 0;
    std::error_code error;
    for (const fs::directory_entry& folder : fs::directory_iterator(root_, error)) {
      if (!folder.path().filename().string().starts_with("t.")) continue;
      for (const fs::directory_entry& file : fs::directory_iterator(folder.path(), error)) {
        struct stat stat {};
        if (::stat(file.path().c_str(), &stat) != 0) continue;
        const bool temporary = file.path().filename().string().starts_with(kTemporary);
        // The modification time of a temporary file is not its expiry yet.
        const timespec& since = temporary ? stat.st_ctim : stat.st_mtim;
        if (IsPast(since, temporary ? kStaleTemporary : std::chrono::nanoseconds(0))) {
          unlink(file.path().c_str());
        } else {
          bytes += stat.st_size;
        }
      }
    }
    bytes_ = bytes;
  }

  StoreUsage usage() const override { return {bytes_.load(), limit_}; }

 private:
  // RESOURCE_EXHAUSTED if `more` bytes exceed the limit. Counts the files first, at most once in
  // kCountInterval.
  Status CheckRoom(int64_t more) {
    const auto fits = [&] { return limit_ == 0 || more <= 0 || bytes_ + more <= limit_; };
    if (fits()) return Status();
    bool due = false;
    {
      std::lock_guard lock(count_mutex_);
      due = std::chrono::steady_clock::now() - last_count_ >= kCountInterval;
    }
    if (due) Expire();
    if (fits()) return Status();
    return ResourceExhausted("state store: entries take ", bytes_.load(), " bytes, ", more,
                             " more do not fit, ", limit_,
                             " are allowed (--state-store-limit); delete some, or wait until they "
                             "expire");
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
