#include "server/app/command_line.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bounded_json.h"
#include "base/environment.h"
#include "base/nearest_word.h"
#include "base/utf8.h"
#include "server/app/flags.h"
#include "server/convert/status_map.h"
#include "server/http/allowed_hosts.h"

namespace polysketch {
namespace {

// A value from the command line, the environment or the configuration file.
struct Setting {
  std::string where;  // as the source writes it: "--max-queue", "POLYSKETCH_MAX_QUEUE"
  std::string name;   // name of a flag
  std::string text;
};

struct ParsedArguments {
  CommandAction action = CommandAction::kServe;
  std::string help_format;
  std::string file;  // of --config
  std::vector<Setting> settings;
};

Result<ParsedArguments> ParseArguments(std::span<const char* const> args) {
  ParsedArguments parsed;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string arg = args[i] == std::string_view("-h") ? "--help" : args[i];
    if (!arg.starts_with("--"))
      return InvalidArgument("expected a flag (see --help), found \"", arg, "\"");
    const size_t equals = arg.find('=');
    const std::string where = arg.substr(0, equals);
    const std::string name = where.substr(2);
    const bool inline_value = equals != std::string::npos;
    if (name == "help" || name == "version") {
      if (inline_value) return InvalidArgument(where, ": expected no value");
      parsed.action = name == "help" ? CommandAction::kHelp : CommandAction::kVersion;
      return parsed;
    }
    if (const Flag* flag = FindFlag(name);
        flag != nullptr && flag->kind == FlagKind::kSwitch && !inline_value) {
      parsed.settings.push_back({where, name, "true"});
      continue;
    }
    if (!inline_value && i + 1 == args.size()) return InvalidArgument(where, ": expected a value");
    const std::string text = inline_value ? arg.substr(equals + 1) : args[++i];
    if (name == "help-format") {
      parsed.action = CommandAction::kFormattedHelp;
      parsed.help_format = text;
      return parsed;
    }
    if (name == "config") {
      parsed.file = text;
    } else {
      parsed.settings.push_back({where, name, text});
    }
  }
  return parsed;
}

Status ReadFile(const std::string& path, std::vector<Setting>* settings) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("--config: cannot read ", path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto json = ParseJson(text, {.unique_keys = true});
  if (!json.ok()) return InvalidArgument("--config: ", path, ": ", json.status().message());
  if (!json->is_object()) return InvalidArgument("--config: expected a JSON object in ", path);
  for (const auto& [key, value] : json->items()) {
    const std::string where = StrCat(path, ": ", key);
    if (!value.is_string() && !value.is_number_integer() && !value.is_boolean()) {
      return InvalidArgument(where, ": expected a string, an integer or a boolean, found ",
                             value.dump());
    }
    settings->push_back({where, key, value.is_string() ? value.get<std::string>() : value.dump()});
  }
  return Status();
}

void ReadEnvironment(const EnvironmentLookup& environment, std::vector<Setting>* settings) {
  for (const Flag& flag : Flags()) {
    const std::string variable = EnvironmentName(flag.name);
    if (const char* text = environment(variable.c_str())) {
      settings->push_back({variable, std::string(flag.name), text});
    }
  }
}

Status UnknownFlag(const Setting& setting) {
  std::vector<std::string_view> names;
  for (const Flag& flag : Flags()) names.push_back(flag.name);
  const std::string near = NearestWord(setting.name, names);
  return InvalidArgument(setting.where, ": unknown flag",
                         near.empty() ? " (see --help)" : StrCat("; did you mean ", near, "?"));
}

Status Apply(const Setting& setting, CommandLine* command) {
  const Flag* flag = FindFlag(setting.name);
  if (flag == nullptr) return UnknownFlag(setting);
  if (const size_t valid = ValidUtf8Prefix(setting.text); valid < setting.text.size()) {
    return InvalidArgument(setting.where, ": expected UTF-8, found another byte at position ",
                           valid, " of \"", setting.text, "\"");
  }
  return Prefixed(setting.where + ": ", SetFlag(*flag, setting.text, &command->config));
}

// Checks flags that need each other, and addresses that other machines reach.
Status CheckCredentialFlags(const ServerConfig& config) {
  if (config.tls_cert.empty() != config.tls_key.empty()) {
    return InvalidArgument("--tls-cert, --tls-key: expected both or none, found only ",
                           config.tls_cert.empty() ? "--tls-key" : "--tls-cert");
  }
  if (config.tls_cert.empty() && !config.tls_client_ca.empty())
    return InvalidArgument("--tls-client-ca: expected with --tls-cert and --tls-key");
  if (config.insecure || !config.api_keys.empty() || !config.tls_client_ca.empty()) return Status();
  for (const auto& [flag, address] :
       {std::pair("--listen", config.listen), std::pair("--http-listen", config.http_listen)}) {
    if (address.empty() || IsLoopback(address)) continue;
    return InvalidArgument(flag, ": expected a loopback address without --api-keys and ",
                           "--tls-client-ca, found ", address,
                           ": anyone could use the server (--insecure allows it)");
  }
  return Status();
}

// Its own default may be above the limit, which then takes its place.
Status CheckDefaultMaxTokens(const std::vector<Setting>& settings, const ServerConfig& config) {
  const auto set = std::ranges::find(settings, "default-max-tokens", &Setting::name);
  if (set == settings.end() || config.default_max_tokens <= config.max_new_tokens) return Status();
  return InvalidArgument("--default-max-tokens: expected at most --max-new-tokens (",
                         config.max_new_tokens, "), found ", config.default_max_tokens);
}

}  // namespace

Result<CommandLine> LoadConfig(std::span<const char* const> args,
                               const EnvironmentLookup& environment) {
  PS_ASSIGN_OR_RETURN(ParsedArguments parsed, ParseArguments(args));
  CommandLine command;
  command.action = parsed.action;
  command.help_format = parsed.help_format;
  if (command.action != CommandAction::kServe) return command;

  const char* default_file = environment(EnvironmentName("config").c_str());
  if (parsed.file.empty() && default_file != nullptr) parsed.file = default_file;
  // A later setting replaces an earlier one.
  std::vector<Setting> settings;
  if (!parsed.file.empty()) PS_RETURN_IF_ERROR(ReadFile(parsed.file, &settings));
  ReadEnvironment(environment, &settings);
  settings.insert(settings.end(), parsed.settings.begin(), parsed.settings.end());
  for (const Setting& setting : settings) PS_RETURN_IF_ERROR(Apply(setting, &command));
  if (command.config.model.empty()) return InvalidArgument("--model: expected a model folder");
  PS_RETURN_IF_ERROR(CheckCredentialFlags(command.config));
  PS_RETURN_IF_ERROR(CheckDefaultMaxTokens(settings, command.config));
  return command;
}

std::vector<std::string> EnvironmentWarnings(const char* const* environment) {
  const auto is_flag = [](std::string_view variable) {
    const auto names = [variable](std::string_view flag) {
      return EnvironmentName(flag) == variable;
    };
    return names("config") || std::ranges::any_of(Flags(), names, &Flag::name);
  };
  std::vector<std::string> warnings = UnknownVariables(environment, is_flag);
  for (std::string& warning : warnings) warning = UnknownVariableText(warning);
  return warnings;
}

}  // namespace polysketch
