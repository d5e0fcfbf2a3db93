// A folder of the state store that others write: an error, or results that belong to what was
// asked. Files of others stay.
//
// Parts between bytes 0x1E: names and contents of files, in turn. A content that begins with 0x1F
// is the target of a symbolic link.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
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
  fs::create_directory(folder);
  for (const auto& [name, content] : files) {
    if (IsLink(content)) {
      const std::string target = content.substr(1, content.find('\0') - 1);
      (void)symlink(target.c_str(), (folder / name).c_str());
      continue;
    }
    std::ofstream(folder / name, std::ios::binary) << content;
    fs::last_write_time(folder / name, fs::file_time_type::clock::now() + std::chrono::hours(1));
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
  const fs::path folder = Root() / "t.tenant";
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
  fs::remove_all(folder);
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  Check(ReadFiles({reinterpret_cast<const char*>(data), size}));
  return 0;
}
