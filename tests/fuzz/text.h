// Checks of any tokenizer with any text.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/marked_text.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace polysketch::fuzz {

// The ids of a text that arrives in chunks of `chunk` bytes.
inline Result<std::vector<int32_t>> EncodeChunks(const Tokenizer& tokenizer, std::string_view text,
                                                 size_t chunk) {
  IncrementalEncoder encoder(&tokenizer);
  std::vector<int32_t> ids;
  const auto add = [&](const Result<std::vector<int32_t>>& more) {
    if (more.ok()) ids.insert(ids.end(), more->begin(), more->end());
    return more.status();
  };
  for (; !text.empty(); text.remove_prefix(std::min(chunk, text.size())))
    PS_RETURN_IF_ERROR(add(encoder.Append(text.substr(0, chunk))));
  PS_RETURN_IF_ERROR(add(encoder.Finish()));
  return ids;
}

// What a client sees of ids that arrive one by one.
inline std::string DecodeStream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  IncrementalDecoder decoder(&tokenizer, /*continued=*/false);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Append(id);
    PS_CHECK(ValidUtf8Prefix(piece) == piece.size());
    text += piece;
  }
  return text + decoder.Finish();
}

// An error, or ids of the vocabulary without a control id, the same however the text is cut.
// Returns the ids; none after an error.
inline std::vector<int32_t> CheckEncoding(const Tokenizer& tokenizer, const std::string& text,
                                          size_t chunk) {
  const auto ids = tokenizer.Encode(text);
  const auto chunks = EncodeChunks(tokenizer, text, chunk);
  PS_CHECK(ids.ok() == chunks.ok()) << ids.status().ToString() << chunks.status().ToString();
  if (!ids.ok()) {
    CheckError(ids.status());
    PS_CHECK(ids.status().message() == chunks.status().message());
    return {};
  }
  PS_CHECK(*ids == *chunks) << "ids depend on the chunks";
  for (const int32_t id : *ids) {
    PS_CHECK(id >= 0 && id < tokenizer.vocab_size()) << id;
    PS_CHECK(id == tokenizer.unk_id() || !tokenizer.IsControl(id)) << id;
  }
  const auto marked = EncodeMarkedText(tokenizer, MarkedText(text, TextOrigin::kMessage), false);
  PS_CHECK(marked.ok() && *marked == *ids);
  return *ids;
}

// What every tokenizer keeps: of its pieces, and of a text that arrives in chunks.
inline void CheckTokenizer(const Tokenizer& tokenizer, const std::string& text, size_t chunk) {
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), 300); ++id)
    PS_CHECK(!tokenizer.IsControl(id) || tokenizer.PieceBytes(id).empty());
  for (const ControlPiece& piece : tokenizer.ControlPieces())
    PS_CHECK(tokenizer.IsControl(piece.id) && tokenizer.Piece(piece.id) == piece.text);
  for (const int id : {tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.unk_id()})
    PS_CHECK(id >= -1 && id < tokenizer.vocab_size()) << id;
  for (const std::string& one :
       {text, std::string("Hello <s>, a b  c. 12\n"), std::string("\0x", 2)}) {
    const std::vector<int32_t> ids = CheckEncoding(tokenizer, one, chunk);
    PS_CHECK(tokenizer.Decode(ids).ok());
    DecodeStream(tokenizer, ids);
  }
}

// A file, and behind it at most 32 bytes of a text and a byte for the size of its chunks.
struct FileAndText {
  explicit FileAndText(std::string_view bytes) {
    const size_t size = std::min<size_t>(bytes.size(), 33);
    file = bytes.substr(0, bytes.size() - size);
    if (size == 0) return;
    text = bytes.substr(file.size(), size - 1);
    chunk = size_t{1} + static_cast<uint8_t>(bytes.back());
  }
  std::string_view file;
  std::string text;
  size_t chunk = 1;
};

}  // namespace polysketch::fuzz
