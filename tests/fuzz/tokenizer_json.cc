// tokenizer.json: an error that names the file, or a tokenizer that keeps its promises for any
// text (fuzz::FileAndText).
#include "engine/tokenizer/bpe_tokenizer.h"
#include "tests/fuzz/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  const fuzz::FileAndText input({reinterpret_cast<const char*>(data), size});
  const auto tokenizer = NewBpeTokenizer(input.file, "", "", std::nullopt, "tokenizer.json");
  if (!tokenizer.ok()) {
    fuzz::CheckError(tokenizer.status());
    return 0;
  }
  fuzz::CheckTokenizer(**tokenizer, input.text, input.chunk);
  return 0;
}
