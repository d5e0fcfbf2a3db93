// The files of a model folder, which a stranger may have made. All readers of such a folder open
// its files here.
#pragma once

#include <sys/stat.h>

#include <concepts>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/status.h"
#include "engine/checkpoint/mapped_file.h"

namespace polysketch {

// Tells a file from another one that takes its place, and from itself after a change.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec changed{};

  bool operator==(const FileIdentity& other) const {
    return device == other.device && inode == other.inode && size == other.size &&
           changed.tv_sec == other.changed.tv_sec && changed.tv_nsec == other.changed.tv_nsec;
  }
};

// A regular file, open for reading.
struct ModelFile {
  std::string path;  // for messages: as the folder names the file
  Descriptor descriptor;
  FileIdentity identity;

  size_t size() const { return static_cast<size_t>(identity.size); }
  Result<MappedFile> Map() const { return MappedFile::Map(descriptor, size(), path); }
  // The bytes; fewer than size() if the file has become shorter. FAILED_PRECONDITION for an error.
  Result<std::string> Read() const;
};

// A file of the folder is regular. A link may lead to a file of the folder itself; of `blobs` of
// the Hugging Face cache, where the folder is a snapshot or a folder of one
// (CACHE/snapshots/REVISION); and of `root`, which the operator names. The folder itself may be
// reached through links. Thread-safe but for Keep.
class ModelFolder {
 public:
  // Any type of a path: what opens a folder takes its path as well. Empty `root`: none.
  template <std::convertible_to<std::filesystem::path> Path>
  ModelFolder(const Path& path, std::filesystem::path root = {})  // NOLINT: implicit, see above
      : path_(path), root_(std::move(root)) {}

  // As it was named.
  const std::filesystem::path& path() const { return path_; }
  // The path of a file, for messages.
  std::string PathOf(const std::string& name) const { return (path_ / name).string(); }

  // Opens a file by its name. NOT_FOUND if the folder has none; INVALID_ARGUMENT, with the target,
  // for a link that leads elsewhere, and for what is no regular file; FAILED_PRECONDITION if it
  // cannot be opened.
  Result<ModelFile> Open(const std::string& name) const;
  // The bytes of a file. Errors are those of Open, and INVALID_ARGUMENT for more than `max_bytes`.
  Result<std::string> Read(const std::string& name, size_t max_bytes) const;

  // Whether there is anything of this name, which Open may refuse.
  bool Has(const std::string& name) const;
  // The names of all that the folder holds, sorted. Errors are those of Open.
  Result<std::vector<std::string>> Names() const;

  // From now on the folder has these files only, by name. One that has changed cannot be opened.
  void Keep(std::map<std::string, FileIdentity> files) {
    kept_ = std::move(files);
    keeps_ = true;
  }

 private:
  // The folders into which files and links may lead, as canonical paths.
  std::vector<std::filesystem::path> Roots(const std::filesystem::path& folder) const;

  std::filesystem::path path_;
  std::filesystem::path root_;
  bool keeps_ = false;
  std::map<std::string, FileIdentity> kept_;
};

}  // namespace polysketch
