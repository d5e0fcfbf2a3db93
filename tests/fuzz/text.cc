// Text and the tokenizer of the model in models/demo: text that is UTF-8 survives encoding and
// decoding, whatever the chunks; other bytes are an error. SentencePiece's marker, U+2581, is a
// space.
//
// The last two bytes: size of the chunks, and how often the text is repeated, up to lengths that
// are encoded in parts. A long text takes a hundred times as long as a short one and reaches hardly
// more: an input with a byte that repeats it does so only if its hash says so, which one of 16
// does, whatever input it was made from.
#include "tests/fuzz/text.h"

namespace {

constexpr int kNotRepeated = 248;
constexpr size_t kMaxChunks = 256;  // more of them are calls and nothing else

// FNV-1a.
uint32_t Hash(const uint8_t* data, size_t size) {
  uint32_t hash = 2166136261U;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 16777619U;
  return hash ^ hash >> 16;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  static const auto tokenizer = Tokenizer::Load(POLYSKETCH_DEMO_TOKENIZER);
  PS_CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  FuzzedDataProvider input(data, size);
  const size_t least = size_t{1} + input.ConsumeIntegral<uint8_t>();
  const int more = std::max(0, int{input.ConsumeIntegral<uint8_t>()} - kNotRepeated);
  const int repeats = Hash(data, size) % 16 == 0 ? 1 << more : 1;
  const std::string piece = input.ConsumeRemainingBytesAsString();
  std::string text;
  for (int i = 0; i < repeats && text.size() < Tokenizer::kPartBytes + 256; ++i) text += piece;
  const size_t chunk = std::max(least, text.size() / kMaxChunks);
  const std::vector<int32_t> ids = fuzz::CheckEncoding(**tokenizer, text, chunk);
  const bool valid = ValidUtf8Prefix(text) == text.size();
  PS_CHECK(valid || ids.empty());
  if (!valid) return 0;
  std::string expected = text;
  constexpr std::string_view kMarker = "\xE2\x96\x81";
  for (size_t at = 0; (at = expected.find(kMarker, at)) != std::string::npos; ++at)
    expected.replace(at, kMarker.size(), " ");
  const auto decoded = (*tokenizer)->Decode(ids);
  PS_CHECK(decoded.ok() && *decoded == expected) << *decoded;
  PS_CHECK(fuzz::DecodeStream(**tokenizer, ids) == expected);
  return 0;
}
