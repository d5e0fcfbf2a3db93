// What a SentencePiece model file says about itself, read from the file's own bytes (a protobuf
// message; the installed SentencePiece headers do not show it). Only the fields that decide where a
// text may be cut and how ids become bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace polysketch {

struct SentencePieceModel {
  enum class Type { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  enum class PieceType {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    PieceType type = PieceType::kNormal;
  };

  Type type = Type::kUnigram;
  std::vector<Piece> pieces;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  std::string unknown_surface = " \xE2\x81\x87 ";  // what an unknown id decodes to
  bool has_charsmap = false;                       // a normalisation other than identity
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

// INVALID_ARGUMENT for bytes that are not such a message; `source` begins the message.
Result<SentencePieceModel> ParseSentencePieceModel(std::string_view bytes, std::string_view source);

// Appended to a model's bytes, switches its dummy prefix off: of a field that appears twice,
// protobuf takes the last value.
inline constexpr std::string_view kNoDummyPrefix("\x1A\x02\x18\x00", 4);

}  // namespace polysketch
