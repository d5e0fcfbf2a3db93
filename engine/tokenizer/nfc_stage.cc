// Unicode's normalization form C of a text that arrives in parts.
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string>

#include "base/check.h"
#include "engine/tokenizer/stage_parts.h"

namespace polysketch {
namespace {

// Marks and compositions of Unicode 10 to 14. The tables of Hugging Face's tokenizers are older: it
// leaves these characters where they are, and normalizes what is before and after each by itself.
struct CodePoints {
  char32_t first;
  char32_t last;
};
constexpr CodePoints kUnknownToNormalization[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
};

bool UnknownToNormalization(char32_t c) {
  const auto* const after =
      std::upper_bound(std::begin(kUnknownToNormalization), std::end(kUnknownToNormalization), c,
                       [](char32_t value, const CodePoints& range) { return value < range.first; });
  return after != std::begin(kUnknownToNormalization) && c <= std::prev(after)->last;
}

// Whether normalization form C never changes what is on both sides of a place before `c`. Starters
// that compose with what precedes them are marks, or vowels and consonants of Hangul.
bool BeginsNormalized(char32_t c) {
  if (c < 0x300 || UnknownToNormalization(c)) return true;
  if ((c >= 0x1160 && c <= 0x11FF) || (c >= 0xD7B0 && c <= 0xD7FF)) return false;
  const utf8proc_property_t* const property =
      utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  return property->combining_class == 0 && property->category != UTF8PROC_CATEGORY_MN &&
         property->category != UTF8PROC_CATEGORY_MC && property->category != UTF8PROC_CATEGORY_ME &&
         property->category != UTF8PROC_CATEGORY_CN;
}

class NfcStage final : public TextStage {
 public:
  explicit NfcStage(TextStage* next) : next_(next) {}

  Status Push(std::string_view text, bool ends) override {
    held_ += text;
    size_t ready = held_.size();
    // Up to the last character that normalization cannot join with what precedes it.
    while (!ends && ready > 0) {
      ready -= LastCharacter(std::string_view(held_).substr(0, ready));
      if (BeginsNormalized(FirstCodePoint(std::string_view(held_).substr(ready)))) break;
    }
    const std::string whole = Normalized(std::string_view(held_).substr(0, ready));
    held_.erase(0, ready);
    if (held_.size() > kMaxHeldBytes) return TooLong();
    return whole.empty() && !ends ? Status() : next_->Push(whole, ends);
  }

 private:
  static std::string Normalized(std::string_view text) {
    if (std::all_of(text.begin(), text.end(),
                    [](char c) { return static_cast<signed char>(c) >= 0; }))
      return std::string(text);
    std::string made;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Char next = DecodeUtf8(text.substr(at));
      if (UnknownToNormalization(next.code_point)) {
        made += Composed(text.substr(begin, at - begin));
        made += text.substr(at, static_cast<size_t>(next.length));
        begin = at + static_cast<size_t>(next.length);
      }
      at += static_cast<size_t>(next.length);
    }
    return made + Composed(text.substr(begin));
  }

  static std::string Composed(std::string_view text) {
    utf8proc_uint8_t* made = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(text.size()), &made,
                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    PS_CHECK(size >= 0) << utf8proc_errmsg(size);
    const std::unique_ptr<utf8proc_uint8_t, decltype(&free)> owner(made, &free);
    return std::string(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
  }

  TextStage* const next_;
  std::string held_;
};

}  // namespace

std::unique_ptr<TextStage> NewNfcStage(TextStage* next) { return std::make_unique<NfcStage>(next); }

}  // namespace polysketch
