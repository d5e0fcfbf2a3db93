#include "engine/grammar_host/compile_source.h"

#include <stdexcept>
#include <string>

#include "engine/grammar_source/translate.h"

namespace polysketch::grammar_host {
namespace {

// The first warning of the compilation.
std::string& Warning() {
  static std::string warning;
  return warning;
}

}  // namespace

xgrammar::CompiledGrammar CompileSource(const GrammarSource& source,
                                        const xgrammar::TokenizerInfo& vocabulary) {
  const Result<std::string> ebnf = ToEbnf(source);
  if (!ebnf.ok()) throw std::runtime_error(ebnf.status().message());
  Warning().clear();
  xgrammar::GrammarCompiler compiler(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false);
  xgrammar::CompiledGrammar compiled = compiler.CompileGrammar(*ebnf);
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
