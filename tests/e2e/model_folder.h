// Model folders that tests make.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/status.h"
#include "tests/e2e/server.h"

namespace polysketch::e2e {

// The form of a chat whose turns may call tools.
inline constexpr char kToolTemplate[] =
    "{%- if tools %}{{ bos_token + (tools | tojson) + eos_token }}{% endif %}"
    "{%- for message in messages %}"
    "{{- bos_token + message.role + ': ' + (message.content or '') }}"
    "{%- for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% "
    "endfor %}"
    "{{- eos_token }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ bos_token + 'assistant:' }}{% endif %}";

// models/demo with a chat template.
class ModelFolder {
 public:
  explicit ModelFolder(const std::string& chat_template)
      : path_(std::filesystem::temp_directory_path() / StrCat("polysketch_chat.", getpid()) /
              "demo") {
    std::filesystem::create_directories(path_.parent_path());
    std::filesystem::copy(DemoModel(), path_);
    std::ofstream(path_ / "chat_template.jinja") << chat_template;
  }
  ~ModelFolder() { std::filesystem::remove_all(path_.parent_path()); }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

}  // namespace polysketch::e2e
