#include "engine/grammar_host/compile_source.h"

#include <optional>
#include <stdexcept>
#include <string>

namespace polysketch::grammar_host {
namespace {

// The first warning of the compilation.
std::string& Warning() {
  static std::string warning;
  return warning;
}

xgrammar::CompiledGrammar Compile(const GrammarSource& source,
                                  xgrammar::GrammarCompiler* compiler) {
  switch (source.kind) {
    case GrammarSource::Kind::kJson:
      return compiler->CompileJSONSchema(R"({"type": "object"})",
                                         /*any_whitespace=*/!source.compact, std::nullopt,
                                         std::nullopt, /*strict_mode=*/false);
    case GrammarSource::Kind::kJsonSchema:
      return compiler->CompileJSONSchema(source.text, /*any_whitespace=*/!source.compact);
    case GrammarSource::Kind::kRegex:
      return compiler->CompileRegex(source.text);
    case GrammarSource::Kind::kEbnf:
      return compiler->CompileGrammar(source.text);
  }
  throw std::runtime_error("expected a kind of grammar");
}

}  // namespace

xgrammar::CompiledGrammar CompileSource(const GrammarSource& source,
                                        const xgrammar::TokenizerInfo& vocabulary) {
  Warning().clear();
  xgrammar::GrammarCompiler compiler(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false);
  xgrammar::CompiledGrammar compiled = Compile(source, &compiler);
  if (!Warning().empty()) throw std::runtime_error(Warning());
  return compiled;
}

}  // namespace polysketch::grammar_host

// xgrammar's log (XGRAMMAR_LOG_CUSTOMIZE of third_party/xgrammar/build).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level,
                    const std::string& message) {
  constexpr int kWarning = 2;
  std::string& warning = polysketch::grammar_host::Warning();
  if (level >= kWarning && warning.empty()) warning = message;
}

}  // namespace xgrammar
