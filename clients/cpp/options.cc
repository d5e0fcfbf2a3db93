#include "clients/cpp/options.h"

#include <iostream>
#include <memory>

namespace polysketch {
namespace {

// The usage line precedes the description.
class HelpFormatter : public CLI::Formatter {
  std::string make_description(const CLI::App*) const override { return ""; }
  std::string make_usage(const CLI::App* app, std::string name) const override {
    return Formatter::make_usage(app, std::move(name)) + Formatter::make_description(app);
  }
};

}  // namespace

CLI::Option* AddOption(CLI::App* app, const std::string& name, const std::string& value,
                       const std::string& help, const TextParser& parse) {
  const auto parse_all = [=](const CLI::results_t& texts) {
    for (const std::string& text : texts) {
      const Status status = parse(text);
      if (!status.ok()) throw CLI::ValidationError(name.substr(name.find("--")), status.message());
    }
    return true;
  };
  return app->add_option(name, parse_all, help)->type_name(value);
}

void Configure(CLI::App* app, const std::string& name, const std::string& version) {
  app->name(name);
  app->formatter(std::make_shared<HelpFormatter>());
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app->require_subcommand(0, 1);
  app->set_help_flag("-h,--help", "Prints this help.");
  app->set_version_flag("--version", name + " " + version, "Prints the version.");
}

std::optional<ExitCode> ParseCommandLine(int argc, const char* const* argv, CLI::App* app) {
  std::vector<std::string> arguments;  // last first, as CLI11 takes them
  for (int i = argc - 1; i > 0; --i) {
    const std::string_view argument = argv[i];
    // CLI11 would take the argument after "--name=" for the value, which is empty.
    const bool empty_value =
        argument.starts_with("--") && argument.find('=') == argument.size() - 1;
    if (empty_value) arguments.emplace_back();
    arguments.emplace_back(argument.substr(0, argument.size() - empty_value));
  }
  try {
    app->parse(std::move(arguments));
  } catch (const CLI::Success& request) {
    app->exit(request);
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return ReportUsageError(InvalidArgument(error.what()), app->get_name());
  }
  return std::nullopt;
}

ExitCode ReportUsageError(const Status& status, const std::string& program) {
  std::cerr << program << ": " << status.message() << "\n";
  return kExitUsage;
}

}  // namespace polysketch
