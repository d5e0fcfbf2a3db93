#include "server/app/command_line.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <vector>

#include "server/app/flags.h"

namespace polysketch {
namespace {

Status Prefixed(std::string_view prefix, const Status& status) {
  if (status.ok()) return status;
  return Status(status.code(), StrCat(prefix, ": ", status.message()));
}

// A flag by its name or its former name. `shown`: how the user wrote the name.
const Flag* FindGiven(std::string_view name, std::string_view shown,
                      std::vector<std::string>* warnings) {
  for (const RenamedFlag& renamed : RenamedFlags()) {
    if (renamed.old_name != name) continue;
    warnings->push_back(StrCat(shown, " is deprecated; use --", renamed.name));
    return FindFlag(renamed.name);
  }
  return FindFlag(name);
}

// --name VALUE, --name=VALUE.
struct Given {
  std::string_view name;
  std::string_view value;
  const Flag* flag = nullptr;  // null for --config
};

struct ParsedArguments {
  CommandAction action = CommandAction::kServe;
  std::optional<std::string> file;
  std::vector<Given> flags;
  std::vector<std::string> warnings;
};

Result<ParsedArguments> ParseArguments(std::span<const char* const> args) {
  ParsedArguments parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    std::string_view arg = args[i];
    if (!arg.starts_with("--"))
      return InvalidArgument("expected a flag (see --help), found \"", arg, "\"");
    arg.remove_prefix(2);
    const size_t equals = arg.find('=');
    Given given{arg.substr(0, equals), {}, nullptr};
    const bool inline_value = equals != std::string_view::npos;
    if (given.name == "help" || given.name == "version") {
      if (inline_value) return InvalidArgument("--", given.name, ": expected no value");
      parsed.action = given.name == "help" ? CommandAction::kHelp : CommandAction::kVersion;
      return parsed;
    }
    given.flag = FindGiven(given.name, StrCat("--", given.name), &parsed.warnings);
    if (given.name != "config" && given.flag == nullptr) {
      return InvalidArgument("--", given.name, ": unknown flag (see --help)");
    }
    if (inline_value) {
      given.value = arg.substr(equals + 1);
    } else {
      if (i + 1 == args.size()) return InvalidArgument("--", given.name, ": expected a value");
      given.value = args[++i];
    }
    if (given.name == "config") {
      parsed.file = given.value;
    } else {
      parsed.flags.push_back(given);
    }
  }
  return parsed;
}

// The text that SetFlag reads: numbers may stand in the file as numbers.
Result<std::string> JsonValueText(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  return InvalidArgument("expected a string or an integer, found ", value.dump());
}

Status ApplyFile(const std::string& path, CommandLine* command) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("--config: cannot read ", path);
  std::ostringstream text;
  text << file.rdbuf();
  const nlohmann::json json =
      nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("--config: expected a JSON object in ", path);
  for (const auto& [key, value] : json.items()) {
    const std::string where = StrCat(path, ": ", key);
    const Flag* flag = FindGiven(key, where, &command->warnings);
    if (flag == nullptr) return InvalidArgument(where, ": unknown flag (see --help)");
    const Result<std::string> value_text = JsonValueText(value);
    if (!value_text.ok()) return Prefixed(where, value_text.status());
    PS_RETURN_IF_ERROR(Prefixed(where, SetFlag(*flag, *value_text, &command->config)));
  }
  return Status();
}

}  // namespace

Result<CommandLine> LoadConfig(std::span<const char* const> args,
                               const EnvironmentLookup& environment) {
  PS_ASSIGN_OR_RETURN(ParsedArguments parsed, ParseArguments(args));
  CommandLine command;
  command.action = parsed.action;
  if (command.action != CommandAction::kServe) return command;

  if (!parsed.file.has_value()) {
    if (const char* path = environment(EnvironmentName("config").c_str());
        path != nullptr && *path != '\0') {
      parsed.file = path;
    }
  }
  if (parsed.file.has_value()) PS_RETURN_IF_ERROR(ApplyFile(*parsed.file, &command));
  const auto apply_variable = [&](std::string_view flag_name, const Flag& flag) {
    const std::string name = EnvironmentName(flag_name);
    const char* text = environment(name.c_str());
    if (text == nullptr) return Status();
    if (flag_name != flag.name) {
      command.warnings.push_back(StrCat(name, " is deprecated; use ", EnvironmentName(flag.name)));
    }
    return Prefixed(name, SetFlag(flag, text, &command.config));
  };
  for (const RenamedFlag& renamed : RenamedFlags()) {
    PS_RETURN_IF_ERROR(apply_variable(renamed.old_name, *FindFlag(renamed.name)));
  }
  for (const Flag& flag : Flags()) PS_RETURN_IF_ERROR(apply_variable(flag.name, flag));
  for (const Given& given : parsed.flags) {
    PS_RETURN_IF_ERROR(
        Prefixed(StrCat("--", given.name), SetFlag(*given.flag, given.value, &command.config)));
  }
  command.warnings.insert(command.warnings.end(), parsed.warnings.begin(), parsed.warnings.end());
  if (command.config.model.empty()) return InvalidArgument("--model: expected a model folder");
  return command;
}

}  // namespace polysketch
