#include "engine/checkpoint/model_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace polysketch {
namespace {

namespace fs = std::filesystem;

Status SystemError(const std::string& path, const std::error_code& error) {
  const bool missing = error == std::errc::no_such_file_or_directory;
  return Status(missing ? Code::kNotFound : Code::kFailedPrecondition,
                StrCat(path, ": ", error.message()));
}

std::error_code LastError() { return {errno, std::generic_category()}; }

// Whether `path` is below `folder`. Both are canonical.
bool IsBelow(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() && rest != path.end();
}

// Opens the file `path`, which is below `folder`, without following a link below it: one that has
// taken a folder's place since the path was made canonical is an error.
Descriptor OpenBelow(const fs::path& folder, const fs::path& path) {
  Descriptor at(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const fs::path below = path.lexically_relative(folder);
  for (auto name = below.begin(); at.ok() && name != below.end(); ++name) {
    // O_NONBLOCK: opening a FIFO must not wait.
    const bool last = std::next(name) == below.end();
    const int how = last ? O_RDONLY | O_NONBLOCK | O_NOCTTY : O_PATH | O_DIRECTORY;
    at = Descriptor(openat(at.get(), name->c_str(), how | O_NOFOLLOW | O_CLOEXEC));
  }
  return at;
}

}  // namespace

Result<std::string> ModelFile::Read() const {
  std::string bytes(size(), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count =
        pread(descriptor.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError(path, LastError());
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

std::vector<fs::path> ModelFolder::Roots(const fs::path& folder) const {
  std::vector<fs::path> roots = {folder};
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    if (at.parent_path().filename() == "snapshots")
      roots.push_back(at.parent_path().parent_path() / "blobs");
  }
  std::error_code error;
  if (!root_.empty()) {
    if (fs::path root = fs::canonical(root_, error); !error) roots.push_back(std::move(root));
  }
  return roots;
}

Result<ModelFile> ModelFolder::Open(const std::string& name) const {
  const std::string path = PathOf(name);
  PS_CHECK(name.find('/') == std::string::npos && name != "." && name != "..") << path;
  if (keeps_ && !kept_.contains(name))
    return NotFound(path, ": expected its checksum in SHA256SUMS, found none");
  std::error_code error;
  const fs::path folder = fs::canonical(path_, error);
  if (error) return SystemError(path, error);
  const fs::path target = fs::canonical(folder / name, error);
  if (error) {
    std::error_code none;
    const fs::path link = fs::read_symlink(folder / name, none);
    if (none) return SystemError(path, error);
    return InvalidArgument(path, ": expected a regular file, found a link to ", link.string(), ": ",
                           error.message());
  }
  const std::vector<fs::path> roots = Roots(folder);
  const auto root = std::find_if(roots.begin(), roots.end(),
                                 [&](const fs::path& one) { return IsBelow(target, one); });
  if (root == roots.end())
    return InvalidArgument(path, ": expected a file of the model folder, found a link to ",
                           target.string(), " (--model-root allows links into a folder)");
  ModelFile file{.path = path, .descriptor = OpenBelow(*root, target), .identity = {}};
  if (!file.descriptor.ok()) return SystemError(path, LastError());
  struct stat info {};
  if (fstat(file.descriptor.get(), &info) != 0) return SystemError(path, LastError());
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path, ": expected a regular file");
  file.identity = {
      .device = info.st_dev, .inode = info.st_ino, .size = info.st_size, .changed = info.st_ctim};
  if (keeps_ && !(kept_.at(name) == file.identity))
    return FailedPrecondition(path, ": the file has changed since its checksum was checked");
  return file;
}

Result<std::string> ModelFolder::Read(const std::string& name, size_t max_bytes) const {
  PS_ASSIGN_OR_RETURN(const ModelFile file, Open(name));
  if (file.size() > max_bytes) {
    return InvalidArgument(file.path, ": expected at most ", max_bytes, " bytes, found ",
                           file.size());
  }
  return file.Read();
}

bool ModelFolder::Has(const std::string& name) const {
  if (keeps_ && !kept_.contains(name)) return false;
  std::error_code error;
  return fs::symlink_status(path_ / name, error).type() > fs::file_type::not_found;
}

Result<std::vector<std::string>> ModelFolder::Names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(path_, error), end; !error && at != end; at.increment(error)) {
    std::string name = at->path().filename().string();
    if (!keeps_ || kept_.contains(name)) names.push_back(std::move(name));
  }
  if (error) return SystemError(path_.string(), error);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace polysketch
