// A grammar's source to xgrammar's compiled form.
#pragma once

#include <xgrammar/xgrammar.h>

#include "engine/request/params.h"

namespace polysketch::grammar_host {

// Throws std::exception for a source that is no grammar, and for one with a part that xgrammar
// would ignore: the output would not be what the client asked for.
xgrammar::CompiledGrammar CompileSource(const GrammarSource& source,
                                        const xgrammar::TokenizerInfo& vocabulary);

}  // namespace polysketch::grammar_host
