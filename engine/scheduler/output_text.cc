#include "engine/scheduler/output_text.h"

#include "base/check.h"

namespace polysketch {

void OutputText::Start(const TokenHistory& history) {
  if (tokenizer_ == nullptr) return;
  // The text continues another one unless only control ids such as BOS precede it.
  bool continued = false;
  history.seen.ForEach([&](int32_t token) { continued |= !tokenizer_->IsControl(token); });
  decoder_.emplace(tokenizer_, continued, skip_control_);
  // Byte pieces may have left a character of at most 3 bytes incomplete: the text begins with the
  // whole character.
  for (const int32_t token : history.tail) decoder_->Append(token);
}

std::string OutputText::AppendEcho(int32_t token) {
  return decoder_ ? decoder_->Append(token) : std::string();
}

std::string OutputText::Append(int32_t token, bool may_end) {
  return decoder_ ? Match(decoder_->Append(token), may_end) : std::string();
}

std::string OutputText::Finish() {
  if (!decoder_) return std::string();
  // Incomplete bytes become U+FFFD, which a stop string may hold.
  std::string text = Match(decoder_->Finish(), /*may_end=*/true);
  return text + matcher_.Finish();
}

std::string OutputText::Match(const std::string& text, bool may_end) {
  std::string out;
  if (!stopped()) matcher_.Append(text, &out, may_end);
  return out;
}

void OutputText::Save(Generation* generation) const {
  generation->held = matcher_.held();
  if (decoder_) generation->decoder = decoder_->Save();
}

void OutputText::Restore(const Generation& generation) {
  // The state of the matcher is a function of the text that it holds.
  std::string out;
  matcher_.Append(generation.held, &out, /*may_end=*/false);
  PS_CHECK(out.empty()) << "unchecked snapshot";
  if (tokenizer_ == nullptr) return;
  decoder_.emplace(tokenizer_, /*continued=*/true, skip_control_);
  decoder_->Restore(generation.decoder);
}

}  // namespace polysketch
