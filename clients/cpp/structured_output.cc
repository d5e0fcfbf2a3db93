#include "clients/cpp/structured_output.h"

#include <string>

#include "clients/cpp/input.h"
#include "clients/cpp/options.h"

namespace polysketch {
namespace {

// Above the limit of the server, whose error says it.
constexpr size_t kMaxGrammarBytes = size_t{1} << 20;

Result<std::string> ReadGrammar(const std::string& path) {
  PS_ASSIGN_OR_RETURN(const std::unique_ptr<InputFile> file, InputFile::Open(path));
  std::string text;
  while (text.size() <= kMaxGrammarBytes) {
    PS_ASSIGN_OR_RETURN(const std::string part, file->Read(kMaxGrammarBytes));
    if (part.empty()) return text;
    text += part;
  }
  return InvalidArgument(path, ": expected at most ", kMaxGrammarBytes, " bytes, found more");
}

}  // namespace

void AddStructuredOutput(CLI::App* command, v1::CompleteRequest* request) {
  using Output = v1::StructuredOutput;
  const auto output = [request] { return request->mutable_structured_output(); };
  const auto file = [&](const char* name, const char* help,
                        void (*set)(Output * output, std::string text)) {
    AddOption(command, name, "FILE", help, [=](const std::string& path) {
      PS_ASSIGN_OR_RETURN(std::string text, ReadGrammar(path));
      set(output(), std::move(text));
      return Status();
    });
  };
  file("--json-schema",
       "The output is JSON that the JSON Schema in FILE describes. At most one of\n"
       "--json-schema, --json-object, --regex, --grammar and --choice.",
       [](Output* out, std::string text) { out->set_json_schema(std::move(text)); });
  AddFlag(command, "--json-object", "The output is a JSON object.",
          [=] { output()->set_json_object(true); });
  AddOption(command, "--regex", "RE", "The whole output matches this regular expression.",
            [=](const std::string& text) {
              output()->set_regex(text);
              return Status();
            });
  file("--grammar", "The output matches the grammar in FILE: EBNF whose first rule is `root`.",
       [](Output* out, std::string text) { out->set_ebnf(std::move(text)); });
  AddOption(command, "--choice", "TEXT", "The output is one of these texts. Repeatable.",
            [=](const std::string& text) {
              output()->mutable_choice()->add_texts(text);
              return Status();
            });
  AddFlag(command, "--compact-json",
          "JSON output has one space after each ',' and ':' and no other white space.",
          [=] { output()->set_compact_json(true); });
  const char* const grammars[] = {"--json-schema", "--json-object", "--regex", "--grammar",
                                  "--choice"};
  for (const char* name : grammars) {
    for (const char* other : grammars) {
      if (name != other) command->get_option(name)->excludes(other);
    }
  }
}

}  // namespace polysketch
