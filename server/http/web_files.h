// The files of server/http/web, embedded in the binary by cmake/EmbedWebFiles.cmake.
#pragma once

#include <span>
#include <string_view>

namespace polysketch {

struct WebFile {
  std::string_view path;  // "/status.js"; the page itself is "/"
  std::string_view content_type;
  std::string_view content;
};

std::span<const WebFile> WebFiles();

}  // namespace polysketch
