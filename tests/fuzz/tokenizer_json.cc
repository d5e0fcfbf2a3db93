// tokenizer.json: an error that names the file, or a tokenizer that keeps its promises for any
// text.
//
// The last byte is the size of the chunks of a text, and the 32 bytes before it are the text.
#include "engine/tokenizer/bpe_tokenizer.h"
#include "tests/fuzz/text.h"

namespace polysketch {
namespace {

void Check(const Tokenizer& tokenizer, const std::string& text, size_t chunk) {
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), 300); ++id)
    PS_CHECK(!tokenizer.IsControl(id) || tokenizer.PieceBytes(id).empty());
  for (const ControlPiece& piece : tokenizer.ControlPieces())
    PS_CHECK(tokenizer.IsControl(piece.id) && tokenizer.Piece(piece.id) == piece.text);
  for (const int id : {tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.unk_id()})
    PS_CHECK(id >= -1 && id < tokenizer.vocab_size()) << id;
  for (const std::string& one :
       {text, std::string("Hello <s>, a b  c. 12\n"), std::string("\0x", 2)}) {
    const std::vector<int32_t> ids = fuzz::CheckEncoding(tokenizer, one, chunk);
    PS_CHECK(tokenizer.Decode(ids).ok());
    fuzz::DecodeStream(tokenizer, ids);
  }
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t text = std::min<size_t>(size, 33);
  const auto tokenizer =
      NewBpeTokenizer(bytes.substr(0, size - text), "", "", std::nullopt, "tokenizer.json");
  if (!tokenizer.ok()) {
    fuzz::CheckError(tokenizer.status());
    return 0;
  }
  const size_t chunk = size == 0 ? 1 : size_t{1} + data[size - 1];
  Check(**tokenizer, text == 0 ? "" : std::string(bytes.substr(size - text, text - 1)), chunk);
  return 0;
}
