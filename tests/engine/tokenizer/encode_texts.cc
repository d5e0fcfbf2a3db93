// encode_texts TOKENIZER [MODE]: for each text of standard input, its ids and the text that they
// stream. tokenizer_json_test.py compares them with those of Hugging Face's tokenizers. Modes:
// message, a text that is encoded whole and in chunks, of which other ids end the program;
// template, which spells control pieces; control, the same, whose control pieces are in the text.
//
// Frames of both directions: a little-endian count of 32 bits, then bytes (a text), or ids of 32
// bits.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "engine/tokenizer/marked_text.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {
namespace {

bool ReadFrame(std::string* text) {
  uint32_t size = 0;
  if (!std::cin.read(reinterpret_cast<char*>(&size), sizeof size)) return false;
  text->resize(size);
  return static_cast<bool>(std::cin.read(text->data(), size));
}

void WriteFrame(uint32_t count, const void* data, size_t bytes) {
  std::cout.write(reinterpret_cast<const char*>(&count), sizeof count);
  std::cout.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

std::vector<int32_t> EncodeInChunks(const Tokenizer& tokenizer, const std::string& text,
                                    size_t chunk) {
  IncrementalEncoder encoder(&tokenizer);
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size(); at += chunk) {
    const auto more = encoder.Append(std::string_view(text).substr(at, chunk));
    if (!more.ok()) return {};
    ids.insert(ids.end(), more->begin(), more->end());
  }
  const auto rest = encoder.Finish();
  if (!rest.ok()) return {};
  ids.insert(ids.end(), rest->begin(), rest->end());
  return ids;
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                     bool skip_control) {
  IncrementalDecoder decoder(&tokenizer, /*continued=*/false, skip_control);
  std::string text;
  for (const int32_t id : ids) text += decoder.Append(id);
  return text + decoder.Finish();
}

int Run(const char* path, bool as_template, bool skip_control) {
  const auto tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().ToString() << '\n';
    return 1;
  }
  size_t chunk = 1;
  for (std::string text; ReadFrame(&text); chunk = chunk % 23 + 1) {
    const auto ids =
        as_template ? EncodeMarkedText(**tokenizer, MarkedText(text, TextOrigin::kTemplate), false)
                    : (*tokenizer)->Encode(text);
    if (!ids.ok()) {
      std::cerr << ids.status().ToString() << '\n';
      return 1;
    }
    if (!as_template && EncodeInChunks(**tokenizer, text, chunk) != *ids) {
      std::cerr << "other ids in chunks of " << chunk << " bytes: " << text << '\n';
      return 1;
    }
    WriteFrame(static_cast<uint32_t>(ids->size()), ids->data(), ids->size() * sizeof(int32_t));
    const std::string streamed = Streamed(**tokenizer, *ids, skip_control);
    WriteFrame(static_cast<uint32_t>(streamed.size()), streamed.data(), streamed.size());
  }
  return 0;
}

}  // namespace
}  // namespace polysketch

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  std::ios::sync_with_stdio(false);
  const std::string mode = argc > 2 ? argv[2] : "message";
  return polysketch::Run(argv[1], mode != "message", mode != "control");
}
