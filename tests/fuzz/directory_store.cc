// A folder of the state store that others write: an error, or results that belong to what was
// asked. Files of others stay.
//
// Parts between bytes 0x1E: names and contents of files, in turn. A content that begins with 0x1F
// is the target of a symbolic link.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/store/open_state_store.h"
#include "engine/store/stored_header.h"
#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFiles = 6;

const fs::path& Root() {
  static const fuzz::TemporaryFolder root;
  return root.path();
}

using Files = std::map<std::string, std::string>;

Files ReadFiles(std::string_view bytes) {
  const auto take = [&bytes] {
    const size_t end = std::min(bytes.find('\x1E'), bytes.size());
    std::string part(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    return part;
  };
  Files files;
  while (!bytes.empty() && files.size() < kMaxFiles) {
    std::string name = take();
    std::string content = take();
    const bool file_name = !name.empty() && name.size() < 200 && name != "." && name != ".." &&
                           name.find('/') == std::string::npos &&
                           name.find('\0') == std::string::npos;
    if (file_name) files[name] = content;
  }
  return files;
}

bool IsLink(const std::string& content) {
  return content.size() > 1 && content.front() == '\x1F' && content[1] != '\0';
}

void WriteFiles(const fs::path& folder, const Files& files) {
  static const bool made = fs::create_directory(folder);
  PS_CHECK(made);
  for (const auto& [name, content] : files) {
    if (IsLink(content)) {
      const std::string target = content.substr(1, content.find('\0') - 1);
      (void)symlink(target.c_str(), (folder / name).c_str());
      continue;
    }
    const int fd = open((folder / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    PS_CHECK(fd >= 0 && write(fd, content.data(), content.size()) == std::ssize(content)) << name;
    const timespec times[2] = {{0, UTIME_OMIT}, {time(nullptr) + 3600, 0}};
    PS_CHECK(futimens(fd, times) == 0);
    close(fd);
  }
}

// What the store may say of a file: what the file holds.
void CheckEntry(const Files& files, StateStore* store, const StoredInfo& info) {
  const auto file = files.find(info.key);
  PS_CHECK(file != files.end() && !IsLink(file->second)) << info.key;
  PS_CHECK(info.bytes == static_cast<int64_t>(file->second.size() - kStoredHeaderBytes));
  const auto entry = store->Get("tenant", info.key);
  PS_CHECK(entry.ok()) << entry.status().ToString();
  PS_CHECK(AsText(entry->bytes) == std::string_view(file->second).substr(kStoredHeaderBytes));
  PS_CHECK(entry->info.revision == info.revision && entry->info.created == info.created);
}

void Check(const Files& files) {
  static const fs::path folder = Root() / "t.tenant";
  WriteFiles(folder, files);
  const auto store = OpenDirectoryStore(Root(), 0);
  PS_CHECK(store.ok()) << store.status().ToString();
  PS_CHECK((*store)->usage().bytes >= 0);
  const auto infos = (*store)->List("tenant", "");
  if (infos.ok()) {
    for (const StoredInfo& info : *infos) CheckEntry(files, store->get(), info);
  } else {
    fuzz::CheckError(infos.status());
  }
  (*store)->Expire();
  for (const auto& [name, content] : files)
    PS_CHECK(fs::is_symlink(folder / name) || fs::exists(folder / name)) << name;
  for (const auto& [name, content] : files) {
    const bool is_key =
        name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == name.npos;
    if (!is_key) continue;
    const auto stat = (*store)->Stat("tenant", name);
    if (!stat.ok()) fuzz::CheckError(stat.status());
  }
  for (const auto& [name, content] : files) PS_CHECK(unlink((folder / name).c_str()) == 0) << name;
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  Check(ReadFiles({reinterpret_cast<const char*>(data), size}));
  return 0;
}
