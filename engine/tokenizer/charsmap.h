// The normalisation rules of a tokenizer.model (precompiled_charsmap of its NormalizerSpec).
#pragma once

#include <string_view>

#include "base/status.h"

namespace polysketch {

// SentencePiece 0.1.97 looks a text up in the rules without a check of their bytes. Returns an
// error unless every look-up stays within them, for any text.
//
// The bytes: the size of the trie (uint32, little-endian); the trie, a double array of darts-clone
// (32 bits a unit); the replacements, each with a zero at its end, which the leaves of the trie
// point to. Empty: no rules.
Status CheckCharsmap(std::string_view bytes);

}  // namespace polysketch
