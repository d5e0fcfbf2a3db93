// What the files of the stages share (text_stages.h).
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "base/utf8.h"
#include "engine/tokenizer/text_stages.h"

namespace polysketch {

// The error of a stage that would hold more than kMaxHeldBytes.
inline Status TooLong() {
  return InvalidArgument("expected a place to cut (such as a space between words) within ",
                         kMaxHeldBytes, " bytes, found none");
}

// Bytes of the text's last character.
inline size_t LastCharacter(std::string_view text) {
  size_t length = 1;
  while (length < text.size() &&
         (static_cast<unsigned char>(text[text.size() - length]) & 0xC0) == 0x80) {
    ++length;
  }
  return length;
}

inline char32_t FirstCodePoint(std::string_view text) { return DecodeUtf8(text).code_point; }

inline char32_t LastCodePoint(std::string_view text) {
  return FirstCodePoint(text.substr(text.size() - LastCharacter(text)));
}

// The stages of kNfc, and of kReplace and kSplit. Arguments outlive them.
std::unique_ptr<TextStage> NewNfcStage(TextStage* next);
std::unique_ptr<TextStage> NewReplaceStage(const StageSpec& spec, TextStage* next);
std::unique_ptr<TextStage> NewSplitStage(const StageSpec& spec, TextStage* next);

}  // namespace polysketch
