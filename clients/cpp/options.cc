#include "clients/cpp/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/check.h"
#include "base/nearest_word.h"
#include "base/program_help.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

// The usage line precedes the description.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { label("SUBCOMMAND", "COMMAND"); }

 private:
  std::string make_description(const CLI::App*) const override { return ""; }
  // An argument that is an option too is among the options.
  std::string make_positionals(const CLI::App* app) const override {
    const auto options = app->get_options([](const CLI::Option* option) {
      return !option->get_group().empty() && option->get_positional() && !option->nonpositional();
    });
    return options.empty() ? "" : make_group(get_label("Positionals"), true, options);
  }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return Formatter::make_usage(app, std::move(name)) + Formatter::make_description(app);
  }
};

// Whether `app` has commands and the arguments name none.
bool LacksCommand(const CLI::App& app) {
  const auto commands = app.get_subcommands();  // those in the arguments
  if (!commands.empty()) return LacksCommand(*commands.front());
  return !app.get_subcommands([](const CLI::App*) { return true; }).empty();
}

// The arguments after the first, the last of them first, as CLI11 takes them.
std::vector<std::string> Arguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    const std::string_view argument = argv[i];
    // CLI11 would take the argument after "--name=" for the value, which is empty.
    const bool empty_value =
        argument.starts_with("--") && argument.find('=') == argument.size() - 1;
    if (empty_value) arguments.emplace_back();
    arguments.emplace_back(argument.substr(0, argument.size() - empty_value));
  }
  return arguments;
}

OptionHelp HelpOf(const CLI::Option& option) {
  OptionHelp help = {.names = {},
                     .value = option.get_positional() && !option.nonpositional()
                                  ? option.get_name(/*positional=*/true)
                                  : "",
                     .help = option.get_description(),
                     .initial = option.get_default_str()};
  for (const std::string& name : option.get_snames()) help.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) help.names.push_back("--" + name);
  // A flag takes no value.
  if (option.nonpositional() && option.get_items_expected_max() > 0) {
    help.value = option.get_type_name();
  }
  return help;
}

CommandHelp HelpOf(const CLI::App& app) {
  CommandHelp help = {.name = app.get_name(),
                      .description = app.get_description(),
                      .footer = app.get_footer(),
                      .options = {},
                      .commands = {}};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_group().empty()) help.options.push_back(HelpOf(*option));  // else hidden
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    help.commands.push_back(HelpOf(*command));
  }
  return help;
}

// What the options and commands that every program has were given.
struct CommonOptions {
  std::string help_format;              // "": not given
  CLI::App* help = nullptr;             // the command help; null: the program has no commands
  std::vector<std::string> help_names;  // its arguments
};

void AddCommonOptions(const Program& program, CLI::App* app, CommonOptions* common) {
  app->set_help_flag("-h,--help", "Prints this help.");
  app->set_version_flag("--version", program.name + " " + program.version, "Prints the version.");
  const auto parse = [common](const std::string& text) {
    common->help_format = text;
    if (text == "man" || text == "bash") return Status();
    return InvalidArgument("expected man or bash, found '", text, "'");
  };
  AddOption(app, "--help-format", "man|bash",
            "Prints this help as a man page or as a completion "
            "script\nof bash.",
            parse);
}

void AddHelpCommand(CLI::App* app, CommonOptions* common) {
  if (app->get_subcommands([](const CLI::App*) { return true; }).empty()) return;
  common->help = app->add_subcommand("help", "Prints the help of a command.");
  common->help->group("Commands");
  common->help->add_option("COMMAND", common->help_names, "The command: session create.");
}

std::string Suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = NearestWord(word, {known.begin(), known.end()});
  return near.empty() ? " (see --help)" : StrCat("; did you mean ", near, "?");
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

// What is wrong with the arguments that no option and no command takes, in their order.
std::string UnknownArguments(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string path;
  std::vector<std::string> options;
  while (true) {
    for (const CLI::Option* option : command->get_options()) {
      const OptionHelp help = HelpOf(*option);
      options.insert(options.end(), help.names.begin(), help.names.end());
    }
    const auto commands = command->get_subcommands();  // those in the arguments
    if (commands.empty()) break;
    command = commands.front();
    path += (path.empty() ? "" : " ") + command->get_name();
  }
  const std::vector<std::string> found = app.remaining(/*recurse=*/true);
  PS_CHECK(!found.empty());
  const std::string of = path.empty() ? "" : " of " + path;
  std::string text;
  for (const std::string& word : found) {
    if (!word.starts_with('-')) continue;
    const std::string name = word.substr(0, word.find('='));
    text +=
        StrCat(text.empty() ? "" : "\n", name, ": unknown option", of, Suggestion(name, options));
  }
  if (!text.empty()) return text;  // other words may be values of these options
  const std::vector<std::string> commands = CommandNames(*command);
  if (!commands.empty())
    return StrCat(found.front(), ": unknown command", of, Suggestion(found.front(), commands));
  return StrCat(found.front(), ": unexpected argument", of, " (see --help)");
}

// Prints the help of the command that the arguments of the command help name.
ExitCode PrintHelp(const CLI::App& app, const CommonOptions& common) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  for (const std::string& name : common.help_names) {
    const auto named = command->get_subcommands(
        [&name](const CLI::App* candidate) { return candidate->get_name() == name; });
    if (named.empty()) {
      return ReportUsageError(InvalidArgument("help: expected a command of ", path, ", found '",
                                              name, "'", Suggestion(name, CommandNames(*command))),
                              app.get_name());
    }
    command = named.front();
    path += " " + name;
  }
  // CLI11's App::help would print that of the command help, which the arguments name.
  std::cout << app.get_formatter()->make_help(command, path, CLI::AppFormatMode::Normal);
  return kExitOk;
}

}  // namespace

Status ParseValue(const std::string& text, std::pair<int32_t, float>* value) {
  const size_t end = std::min(text.find('='), text.size() - 1);
  if (ParseValue(text.substr(0, end), &value->first).ok() &&
      ParseValue(text.substr(end + 1), &value->second).ok()) {
    return Status();
  }
  return InvalidArgument("expected ID=NUMBER, found '", text, "'");
}

void AddOption(CLI::App* app, const std::string& name, const std::string& value,
               const std::string& help, const TextParser& parse, const std::string& initial) {
  const size_t dashes = name.find("--");
  const std::string long_name = name.substr(dashes, name.find(',', dashes) - dashes);
  const auto parse_all = [=](const CLI::results_t& texts) {
    for (const std::string& text : texts) {
      const Status status = parse(text);
      if (!status.ok()) throw CLI::ValidationError(long_name, status.message());
    }
    return true;
  };
  app->add_option(name, parse_all, help)->type_name(value)->default_str(initial);
}

void AddFlag(CLI::App* app, const std::string& name, const std::string& help, bool* target) {
  app->add_flag(name, *target, help);
}

void AddFlag(CLI::App* app, const std::string& name, const std::string& help,
             const std::function<void()>& set) {
  app->add_flag_callback(name, set, help);
}

void AddArgument(CLI::App* app, const std::string& value, const std::string& help,
                 std::string* target) {
  app->add_option(value, *target, help)->required();
}

void SetOptionGroup(CLI::App* app, const std::string& heading) {
  app->option_defaults()->group(heading);
}

CLI::App* AddCommand(CLI::App* parent, const std::string& name, const std::string& description,
                     const std::function<void()>& select, const std::string& footer) {
  CLI::App* const command = parent->add_subcommand(name, description);
  command->group("Commands");
  command->footer(footer);
  if (select) {
    command->callback(select);
  } else {
    command->require_subcommand(0, 1);
  }
  return command;
}

std::optional<ExitCode> ParseCommandLine(int argc, const char* const* argv, const Program& program,
                                         const std::function<void(CLI::App*)>& add) {
  CLI::App app(program.description, program.name);
  app.footer(program.footer);
  app.formatter(std::make_shared<HelpFormatter>());
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.require_subcommand(0, 1);
  CommonOptions common;
  AddCommonOptions(program, &app, &common);
  add(&app);
  AddHelpCommand(&app, &common);
  try {
    app.parse(Arguments(argc, argv));
  } catch (const CLI::Success& request) {
    app.exit(request);
    return kExitOk;
  } catch (const CLI::ExtrasError&) {
    return ReportUsageError(InvalidArgument(UnknownArguments(app)), program.name);
  } catch (const CLI::ParseError& error) {
    return ReportUsageError(InvalidArgument(error.what()), program.name);
  }
  if (!common.help_format.empty()) {
    const CommandHelp help = HelpOf(app);
    std::cout << (common.help_format == "man" ? ManPage(help, program.version)
                                              : BashCompletion(help));
    return kExitOk;
  }
  if (common.help != nullptr && common.help->parsed()) return PrintHelp(app, common);
  if (!LacksCommand(app)) return std::nullopt;
  std::cerr << app.help();
  return kExitUsage;
}

ExitCode ReportUsageError(const Status& status, const std::string& program) {
  std::cerr << program << ": " << TerminalText(STDERR_FILENO, status.message()) << "\n";
  return kExitUsage;
}

}  // namespace polysketch
