// Builds SentencePiece models byte by byte (protobuf's wire format): vocabularies that no trainer
// makes, and damaged ones.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace polysketch::testing {

class SentencePieceBytes {
 public:
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

  // `type` is a Type, or a value that the format does not define.
  void AddPiece(std::string_view text, float score, int type) {
    std::string piece = Bytes(1, text);
    piece += Tag(2, 5);
    char raw[4];
    std::memcpy(raw, &score, 4);
    piece.append(raw, 4);
    piece += Tag(3, 0) + Varint(static_cast<uint64_t>(type));
    pieces_ += Bytes(1, piece);
  }
  // model_type: 1 unigram, 2 BPE, 3 word, 4 char.
  std::string Model(int model_type, bool byte_fallback, bool dummy_prefix, bool remove_extra_spaces,
                    std::string_view charsmap = "") const {
    const std::string trainer =
        Tag(3, 0) + Varint(static_cast<uint64_t>(model_type)) + Tag(35, 0) + Varint(byte_fallback);
    const std::string normalizer = Bytes(1, "test") + Bytes(2, charsmap) + Tag(3, 0) +
                                   Varint(dummy_prefix) + Tag(4, 0) + Varint(remove_extra_spaces);
    return pieces_ + Bytes(2, trainer) + Bytes(3, normalizer);
  }

 private:
  static std::string Varint(uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
    return out;
  }
  static std::string Tag(int field, int wire) {
    return Varint(static_cast<uint64_t>(field << 3 | wire));
  }
  static std::string Bytes(int field, std::string_view bytes) {
    return Tag(field, 2) + Varint(bytes.size()) + std::string(bytes);
  }

  std::string pieces_;
};

}  // namespace polysketch::testing
