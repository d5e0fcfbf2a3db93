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
#include "base/running_work.h"
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
// A read or write moves this much at most, so that a large entry is seen to move.
constexpr size_t kPartBytes = size_t{4} << 20;
constexpr char kTenantFolder[] = "the folder of the tenant";

// A file or folder of the store: its path for the log, and the name that clients read, which tells
// nothing of the server's folders.
struct Place {
  fs::path path;
  std::string name;
};

// The status of errno.
Status Failed(const char* what, const Place& place) {
  const int error = errno;
  if (error == ENOENT) return NotFound("state store: ", place.name, " does not exist");
  const char* const why = std::strerror(error);
  LogWarning("state_store_file_failed",
             {{"operation", what}, {"path", place.path.string()}, {"why", why}});
  const std::string message = StrCat("state store: cannot ", what, " ", place.name, ": ", why);
  if (error != ENOSPC && error != EDQUOT) return Unavailable(message);
  return ResourceExhausted(message).WithReason(Reason::kStateStoreFull);
}

Status WriteAll(int fd, std::string_view bytes, const Place& place) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), std::min(bytes.size(), kPartBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("write", place);
    bytes.remove_prefix(static_cast<size_t>(written));
    RunningWork::Moved();
  }
  return Status();
}

// Opens a folder of a tenant. Not through a symbolic link: what it leads to is no part of the
// store.
Result<Descriptor> OpenFolder(const Place& folder) {
  Descriptor fd(open(folder.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (fd.ok()) return fd;
  if (errno != ENOTDIR && errno != ELOOP) return Failed("open", folder);
  LogWarning("state_store_file_failed", {{"operation", "open"},
                                         {"path", folder.path.string()},
                                         {"why", "expected a folder, found another file"}});
  return DataLoss("state store: expected a folder of the tenant, found another file");
}

Status SyncFolder(const Descriptor& fd, const Place& folder) {
  return fsync(fd.get()) == 0 ? Status() : Failed("sync", folder);
}

// Of an operation whose caller has left, and whose entry others may have changed meanwhile.
Status TooLate() { return Unavailable("state store: the operation took too long"); }

timespec ToTimespec(system_clock::time_point time) {
  const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch());
  return {static_cast<time_t>(since.count() / 1000000000),
          static_cast<int64_t>(since.count() % 1000000000)};
}

// Whether a folder certainly has a file of this name.
bool Has(const Descriptor& folder, const std::string& name) {
  struct stat stat {};
  return fstatat(folder.get(), name.c_str(), &stat, AT_SYMLINK_NOFOLLOW) == 0;
}

// 0 for a file that does not exist.
int64_t FileBytes(const Descriptor& folder, const std::string& name) {
  struct stat stat {};
  const int failed = fstatat(folder.get(), name.c_str(), &stat, AT_SYMLINK_NOFOLLOW);
  return failed == 0 && S_ISREG(stat.st_mode) ? stat.st_size : 0;
}

bool IsPast(const timespec& time, std::chrono::nanoseconds grace = {}) {
  const timespec now = ToTimespec(system_clock::now() - grace);
  return time.tv_sec < now.tv_sec || (time.tv_sec == now.tv_sec && time.tv_nsec <= now.tv_nsec);
}

Status SetExpiry(int fd, std::chrono::milliseconds ttl, const Place& place) {
  const timespec expiry = ToTimespec(system_clock::now() + ttl);
  const timespec times[2] = {{0, UTIME_OMIT}, expiry};
  if (futimens(fd, times) != 0) return Failed("set the time of", place);
  return Status();
}

// An entry that exists and has not expired.
struct OpenEntry {
  Descriptor fd;
  StoredInfo info;
};

// Opens the entry `place.name` of a folder.
Result<OpenEntry> OpenFile(const Descriptor& folder, const Place& place) {
  const std::string& name = place.name;
  const auto not_a_file = [&name] {
    return DataLoss("state store: ", name, ": expected a regular file");
  };
  // O_NONBLOCK: a FIFO on a shared volume must not block the store.
  const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  OpenEntry entry{Descriptor(openat(folder.get(), name.c_str(), flags)), {}};
  if (!entry.fd.ok() && errno == ELOOP) return not_a_file();
  if (!entry.fd.ok()) return Failed("open", place);
  struct stat stat {};
  if (fstat(entry.fd.get(), &stat) != 0) return Failed("stat", place);
  if (!S_ISREG(stat.st_mode)) return not_a_file();
  if (IsPast(stat.st_mtim)) {
    errno = ENOENT;
    return Failed("open", place);
  }
  char beginning[kStoredBeginningBytes];
  const ssize_t read = pread(entry.fd.get(), beginning, sizeof(beginning), 0);
  if (read < 0) return Failed("read", place);
  PS_ASSIGN_OR_RETURN(
      entry.info,
      ReadStoredHeader(name, std::string_view(beginning, static_cast<size_t>(read)), stat.st_size));
  RunningWork::Moved();
  return entry;
}

// Calls visit(name) for each entry of a folder. An error of the file system while the folder is
// read is returned.
template <typename Visit>
Status ForEachName(const Descriptor& folder, const Place& place, Visit visit) {
  // Another description of the folder: reading it moves no position of `folder`.
  const int fd = openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("open", place);
  const std::unique_ptr<DIR, int (*)(DIR*)> names(fdopendir(fd), closedir);
  if (names == nullptr) {
    Status failed = Failed("list", place);
    close(fd);
    return failed;
  }
  while (true) {
    errno = 0;
    const dirent* const one = readdir(names.get());
    if (one == nullptr) return errno == 0 ? Status() : Failed("list", place);
    visit(std::string(one->d_name));
    RunningWork::Moved();
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

  Result<uint64_t> Put(const std::string& owner, const std::string& key, std::string bytes,
                       std::chrono::milliseconds ttl) override {
    PS_ASSIGN_OR_RETURN(const Descriptor folder, MakeFolder(owner));
    const Place place = EntryPlace(owner, key);
    const int64_t more =
        static_cast<int64_t>(kStoredHeaderBytes + bytes.size()) - FileBytes(folder, key);
    PS_RETURN_IF_ERROR(TakeRoom(more));
    const std::string temporary = std::string(kTemporary) + NewStateKey();
    const uint64_t revision = RandomWord();
    bool named = false;
    const auto write = [&]() -> Status {
      const Descriptor fd(
          openat(folder.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
      if (!fd.ok()) return Failed("make", place);
      PS_RETURN_IF_ERROR(WriteAll(fd.get(), StoredHeader(revision), place));
      PS_RETURN_IF_ERROR(WriteAll(fd.get(), bytes, place));
      PS_RETURN_IF_ERROR(SetExpiry(fd.get(), ttl, place));
      if (fsync(fd.get()) != 0) return Failed("sync", place);
      if (!RunningWork::BeginChange()) return TooLate();
      const bool renamed =
          renameat(folder.get(), temporary.c_str(), folder.get(), key.c_str()) == 0;
      Status failed = renamed ? Status() : Failed("name", place);
      // A file system of another machine may report an error of what it has done.
      named = renamed || !Has(folder, temporary);
      return renamed ? SyncFolder(folder, TenantPlace(owner)) : failed;
    };
    Status status = OfFolder(write());
    if (status.ok()) return revision;
    // A new name that the disk perhaps does not have yet: replicas see it, a crash may undo it.
    if (named) return OutcomeUnknown(status);
    unlinkat(folder.get(), temporary.c_str(), 0);
    bytes_ -= more;
    return status;
  }

  Result<Entry> Get(const std::string& owner, const std::string& key) override {
    const Place place = EntryPlace(owner, key);
    PS_ASSIGN_OR_RETURN(OpenEntry opened, Open(owner, key));
    Entry entry{std::move(opened.info), {}};
    entry.bytes.resize(static_cast<size_t>(entry.info.bytes));
    size_t done = 0;
    while (done < entry.bytes.size()) {
      const ssize_t read = pread(opened.fd.get(), entry.bytes.data() + done,
                                 std::min(entry.bytes.size() - done, kPartBytes),
                                 static_cast<off_t>(kStoredHeaderBytes + done));
      if (read < 0 && errno == EINTR) continue;
      if (read < 0) return Failed("read", place);
      if (read == 0) return DataLoss("state store: ", key, " ends early");
      done += static_cast<size_t>(read);
      RunningWork::Moved();
    }
    return entry;
  }

  Result<StoredInfo> Stat(const std::string& owner, const std::string& key) override {
    PS_ASSIGN_OR_RETURN(OpenEntry opened, Open(owner, key));
    return std::move(opened.info);
  }

  Status Delete(const std::string& owner, const std::string& key) override {
    const Place place = EntryPlace(owner, key);
    PS_ASSIGN_OR_RETURN(const Descriptor folder, FolderOf(owner, key));
    Status opened = OpenFile(folder, place).status();
    // A damaged entry can be deleted too.
    if (!opened.ok() && opened.code() != Code::kDataLoss) return opened;
    const int64_t bytes = FileBytes(folder, key);
    if (!RunningWork::BeginChange()) return TooLate();
    if (unlinkat(folder.get(), key.c_str(), 0) != 0) {
      const Status failed = Failed("delete", place);
      return Has(folder, key) || failed.code() == Code::kNotFound ? failed : OutcomeUnknown(failed);
    }
    bytes_ -= bytes;
    const Status synced = SyncFolder(folder, TenantPlace(owner));
    return synced.ok() ? synced : OutcomeUnknown(synced);
  }

  Status Touch(const std::string& owner, const std::string& key,
               std::chrono::milliseconds ttl) override {
    PS_ASSIGN_OR_RETURN(const OpenEntry opened, Open(owner, key));
    return SetExpiry(opened.fd.get(), ttl, EntryPlace(owner, key));
  }

  Result<std::vector<StoredInfo>> List(const std::string& owner,
                                       const std::string& prefix) override {
    Result<Descriptor> folder = FolderOf(TenantPlace(owner));
    if (folder.status().code() == Code::kNotFound) return std::vector<StoredInfo>();
    if (!folder.ok()) return folder.status();
    std::vector<std::string> names;
    PS_RETURN_IF_ERROR(ForEachName(*folder, TenantPlace(owner), [&](const std::string& name) {
      if (name.starts_with(prefix) && IsEntryKey(name)) names.push_back(name);
    }));
    std::sort(names.begin(), names.end());
    std::vector<StoredInfo> infos;
    for (const std::string& name : names) {
      Result<OpenEntry> opened = OpenFile(*folder, EntryPlace(owner, name));
      if (opened.ok()) {
        infos.push_back(std::move(opened->info));
      } else if (!IsGoneOrDamaged(opened.status())) {
        return opened.status();
      }
    }
    return infos;
  }

  Result<int64_t> CountAtMost(const std::string& owner, const std::string& prefix) override {
    const Result<Descriptor> folder = FolderOf(TenantPlace(owner));
    if (folder.status().code() == Code::kNotFound) return int64_t{0};
    if (!folder.ok()) return folder.status();
    int64_t count = 0;
    PS_RETURN_IF_ERROR(ForEachName(*folder, TenantPlace(owner), [&](const std::string& name) {
      if (name.starts_with(prefix) && IsEntryKey(name)) ++count;
    }));
    return count;
  }

  void Expire() override {
    std::lock_guard lock(count_mutex_);
    last_count_ = std::chrono::steady_clock::now();
    int64_t bytes = 0;
    const Status status = ExpireAll(&bytes);
    // A part of the files would count as all of them.
    if (status.ok()) {
      bytes_ = bytes;
    } else {
      LogWarning("state_store_failed", {{"operation", "expire"}, {"why", status.message()}});
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

  // Removes the expired files of all folders and adds the bytes of the others. Visits every folder
  // before it returns an error.
  Status ExpireAll(int64_t* bytes) {
    PS_ASSIGN_OR_RETURN(const Descriptor root, OpenRoot());
    Status failed;
    const auto expire = [&](const std::string& name) -> Status {
      const Place place{root_ / name, kTenantFolder};
      PS_ASSIGN_OR_RETURN(const Descriptor folder, OpenFolder(place));
      return ForEachName(folder, place, [&](const std::string& file) {
        *bytes += ExpireFile(folder.get(), file);
      });
    };
    const Status listed = ForEachName(root, Root(), [&](const std::string& name) {
      if (!name.starts_with("t.")) return;
      const Status status = expire(name);
      if (!status.ok() && !IsGoneOrDamaged(status)) failed = status;
    });
    return listed.ok() ? failed : listed;
  }

  // The folder of an owner, which is made if it does not exist.
  Result<Descriptor> MakeFolder(const std::string& owner) {
    const Place place = TenantPlace(owner);
    const bool made = mkdir(place.path.c_str(), 0777) == 0;
    if (!made && errno != EEXIST) return OfFolder(Failed("make", place));
    if (made) {
      const auto sync = [this]() -> Status {
        PS_ASSIGN_OR_RETURN(const Descriptor root, OpenRoot());
        return SyncFolder(root, Root());
      };
      if (Status status = sync(); !status.ok()) {
        // The next Put syncs the folder that it makes. One that stays is perhaps lost in a crash.
        rmdir(place.path.c_str());
        return OfFolder(std::move(status));
      }
    }
    Result<Descriptor> folder = OpenFolder(place);
    if (!folder.ok()) return OfFolder(folder.status());
    return folder;
  }

  // The folder of an owner; NOT_FOUND for the name of `place` if there is none, UNAVAILABLE if the store
  // has no folder itself.
  Result<Descriptor> FolderOf(const Place& place) const {
    Result<Descriptor> folder = OpenFolder(place);
    if (folder.status().code() != Code::kNotFound) return folder;
    const Result<Descriptor> root = OpenRoot();
    if (!root.ok()) return OfFolder(root.status());
    return folder;
  }
  Result<Descriptor> FolderOf(const std::string& owner, const std::string& key) const {
    return FolderOf({Folder(owner), key});
  }
  Result<OpenEntry> Open(const std::string& owner, const std::string& key) const {
    PS_ASSIGN_OR_RETURN(const Descriptor folder, FolderOf(owner, key));
    return OpenFile(folder, EntryPlace(owner, key));
  }
  Result<Descriptor> OpenRoot() const {
    Descriptor fd(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.ok()) return Failed("open", Root());
    return fd;
  }

  // Of an operation that needs a folder of the store: what it does not find is that folder.
  Status OfFolder(Status status) const {
    if (status.code() != Code::kNotFound) return status;
    LogWarning("state_store_file_failed",
               {{"operation", "open"}, {"path", root_.string()}, {"why", "a folder is missing"}});
    return Unavailable("state store: its folder is missing");
  }

  fs::path Folder(const std::string& owner) const { return root_ / ("t." + owner); }
  Place Root() const { return {root_, "its folder"}; }
  Place TenantPlace(const std::string& owner) const { return {Folder(owner), kTenantFolder}; }
  Place EntryPlace(const std::string& owner, const std::string& key) const {
    return {Folder(owner) / key, key};
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
