// tokenizer.model: an error that names the file, or a tokenizer that keeps its promises for any
// text (fuzz::FileAndText).
#include "tests/fuzz/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  static fuzz::MemoryFile file;
  const fuzz::FileAndText input({reinterpret_cast<const char*>(data), size});
  file.Write(input.file);
  const auto tokenizer = Tokenizer::Load(file.path());
  if (!tokenizer.ok()) {
    fuzz::CheckError(tokenizer.status());
    return 0;
  }
  PS_CHECK((*tokenizer)->vocab_size() > 0);
  for (int32_t id = 0; id < std::min((*tokenizer)->vocab_size(), 300); ++id)
    PS_CHECK(!(*tokenizer)->Piece(id).empty());
  fuzz::CheckTokenizer(**tokenizer, input.text, input.chunk);
  return 0;
}
