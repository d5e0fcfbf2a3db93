// A tokenizer of one id a byte, so that tests know every id: 'a' is 97. 256 is BOS, 257 EOS.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch::testing {

class FakeTokenizer : public Tokenizer {
 public:
  static constexpr int kVocabulary = 258;
  static constexpr int kBos = 256;

  FakeTokenizer() {
    for (int i = 0; i < 256; ++i) bytes_.push_back(std::string(1, static_cast<char>(i)));
    SetControlPieces({{.text = "</s>", .id = 257}, {.text = "<s>", .id = kBos}});
  }
  std::string_view class_name() const override { return "SentencePiece"; }
  int vocab_size() const override { return kVocabulary; }
  int bos_id() const override { return kBos; }
  int eos_id() const override { return 257; }
  Result<std::vector<int32_t>> Encode(std::string_view text) const override {
    if (ValidUtf8Prefix(text) != text.size()) return InvalidArgument("expected UTF-8");
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  Result<std::string> Decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += PieceBytes(id);
    return text;
  }
  std::string_view PieceBytes(int32_t id) const override {
    return id < 256 ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
  }
  std::string_view Piece(int32_t id) const override {
    return id < 128 ? PieceBytes(id) : "<control or byte>";
  }
  bool IsControl(int32_t id) const override { return id >= 256; }
  bool StripsLeadingSpace() const override { return false; }

 private:
  std::vector<std::string> bytes_;
};

}  // namespace polysketch::testing
