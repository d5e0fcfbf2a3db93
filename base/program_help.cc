#include "base/program_help.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/status.h"

namespace polysketch {
namespace {

// Text of a man page: backslashes and hyphens as such, and no line that begins a request.
std::string Roff(std::string_view text) {
  std::string roff;
  bool line_begins = true;
  for (const char c : text) {
    if (line_begins && (c == '.' || c == '\'')) roff += "\\&";
    line_begins = c == '\n';
    if (c == '\\') {
      roff += "\\e";
    } else if (c == '-') {
      roff += "\\-";
    } else {
      roff += c;
    }
  }
  return roff;
}

// An argument of a request.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : Roff(text)) quoted += c == '"' ? std::string("\\(dq") : std::string(1, c);
  return quoted + "\"";
}

std::string Joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string joined;
  for (const std::string& word : words) joined += StrCat(joined.empty() ? "" : separator, word);
  return joined;
}

std::string OptionsRoff(const CommandHelp& command) {
  std::string roff;
  for (const OptionHelp& option : command.options) {
    std::string tag = Joined(option.names, ", ");
    if (!option.value.empty()) tag += StrCat(tag.empty() ? "" : " ", option.value);
    roff += StrCat(".TP\n.B ", Quoted(tag), "\n", Roff(option.help));
    if (!option.initial.empty()) roff += StrCat(" [", Roff(option.initial), "]");
    roff += "\n";
  }
  return roff;
}

// Sections of the commands below `command`, whose name with those above it is `path`.
std::string CommandsRoff(const CommandHelp& command, const std::string& path) {
  std::string roff;
  for (const CommandHelp& child : command.commands) {
    const std::string name = StrCat(path, path.empty() ? "" : " ", child.name);
    roff += StrCat(".SS ", Quoted(name), "\n", Roff(child.description), "\n");
    if (!child.footer.empty()) roff += StrCat(".PP\n", Roff(child.footer), "\n");
    roff += OptionsRoff(child) + CommandsRoff(child, name);
  }
  return roff;
}

bool TakesFile(const OptionHelp& option) {
  return option.value == "FILE" || option.value == "DIR" || option.value == "PATH";
}

// The words of a value that is a choice; empty: it is none.
std::string Choices(const OptionHelp& option) {
  if (option.value.find('|') == std::string::npos) return "";
  std::string words = option.value;
  std::ranges::replace(words, '|', ' ');
  return words;
}

// A pattern of `case`, and what is done for it.
std::string Case(const std::string& pattern, const std::string& commands) {
  return pattern.empty() ? "" : StrCat("    ", pattern, ") ", commands, " ;;\n");
}

struct Completion {
  std::string commands;  // patterns by which the function knows a command: "session create"
  std::string words;     // cases: the words that may follow a command
  std::vector<std::string> files;    // options whose value is the name of a file
  std::vector<std::string> values;   // options with another value
  std::vector<std::string> choices;  // cases: options whose value is one of some words
};

void Add(const std::string& name, std::vector<std::string>* names) {
  if (std::ranges::find(*names, name) == names->end()) names->push_back(name);
}

void Collect(const CommandHelp& command, const std::string& path, Completion* completion) {
  std::vector<std::string> words;
  for (const CommandHelp& child : command.commands) words.push_back(child.name);
  for (const OptionHelp& option : command.options) {
    words.insert(words.end(), option.names.begin(), option.names.end());
    if (option.value.empty()) continue;
    const std::string choices = Choices(option);
    for (const std::string& name : option.names) {
      if (choices.empty()) {
        Add(name, TakesFile(option) ? &completion->files : &completion->values);
      } else {
        Add(Case(name, StrCat("words='", choices, "'")), &completion->choices);
      }
    }
  }
  completion->words += Case(StrCat("'", path, "'"), StrCat("words='", Joined(words, " "), "'"));
  for (const CommandHelp& child : command.commands) {
    completion->commands +=
        StrCat(completion->commands.empty() ? "" : "|", "'", path, " ", child.name, "'");
    Collect(child, StrCat(path, " ", child.name), completion);
  }
}

}  // namespace

std::string ManPage(const CommandHelp& program, const std::string& version) {
  std::string title = program.name;
  for (char& c : title) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const bool has_commands = !program.commands.empty();
  std::string page =
      StrCat(".TH ", Quoted(title), " 1 \"\" ", Quoted(program.name + " " + version),
             " \"User Commands\"\n.SH NAME\n", Roff(program.name), " \\- ",
             Roff(program.description), "\n.SH SYNOPSIS\n.B ", Roff(program.name), "\n[OPTION]...",
             has_commands ? " [COMMAND [OPTION]...]" : "", "\n.SH OPTIONS\n", OptionsRoff(program));
  if (has_commands) page += StrCat(".SH COMMANDS\n", CommandsRoff(program, ""));
  if (!program.footer.empty()) page += StrCat(".SH NOTES\n", Roff(program.footer), "\n");
  return page;
}

std::string BashCompletion(const CommandHelp& program) {
  Completion completion;
  Collect(program, "", &completion);
  std::string function = "_" + program.name;
  std::ranges::replace(function, '-', '_');
  std::string script =
      StrCat("# Completion of ", program.name, ", for bash.\n", function, "() {\n");
  script +=
      R"(  local word=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]} command= words= i
  # bash makes '=' a word of its own.
  if [ "$word" = = ]; then word=; elif [ "$last" = = ]; then last=${COMP_WORDS[COMP_CWORD-2]}; fi
)";
  if (!completion.commands.empty()) {
    script += StrCat("  for ((i = 1; i < COMP_CWORD; i++)); do\n",
                     "    case \"$command ${COMP_WORDS[i]}\" in\n      ", completion.commands,
                     ") command=\"$command ${COMP_WORDS[i]}\" ;;\n    esac\n  done\n");
  }
  script += StrCat("  case \"$command\" in\n", completion.words, "  esac\n  case \"$last\" in\n",
                   Case(Joined(completion.files, "|"),
                        "mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return"),
                   Case(Joined(completion.values, "|"), "COMPREPLY=(); return"),
                   Joined(completion.choices, ""), "  esac\n");
  script += "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n";
  return script + StrCat("complete -o filenames -F ", function, " ", program.name, "\n");
}

}  // namespace polysketch
