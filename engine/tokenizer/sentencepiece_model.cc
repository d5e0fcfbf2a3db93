#include "engine/tokenizer/sentencepiece_model.h"

#include <utility>

namespace polysketch {
namespace {

// Field numbers of sentencepiece_model.proto.
constexpr int kModelPieces = 1, kModelTrainer = 2, kModelNormalizer = 3;
constexpr int kPieceText = 1, kPieceType = 3;
constexpr int kTrainerModelType = 3, kTrainerWhitespaceAsSuffix = 24, kTrainerByteFallback = 35,
              kTrainerUnknownSurface = 44;
constexpr int kNormalizerCharsmap = 2, kNormalizerDummyPrefix = 3, kNormalizerExtraSpaces = 4,
              kNormalizerEscape = 5;

struct Field {
  int number = 0;
  uint64_t value = 0;      // of a varint
  std::string_view bytes;  // of a length-delimited field
};

// Walks the fields of one protobuf message.
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  // False at the end, and when the bytes are damaged (`damaged` tells).
  bool Next(Field* field) {
    if (rest_.empty() || damaged_) return false;
    uint64_t tag = 0;
    if (!Varint(&tag) || (tag >> 3) == 0 || (tag >> 3) > (1u << 29)) return Damaged();
    *field = Field{static_cast<int>(tag >> 3), 0, {}};
    switch (tag & 7) {
      case 0:
        return Varint(&field->value) || Damaged();
      case 1:
        return Take(8, &field->bytes);
      case 2: {
        uint64_t length = 0;
        return Varint(&length) ? Take(length, &field->bytes) : Damaged();
      }
      case 5:
        return Take(4, &field->bytes);
      default:
        return Damaged();
    }
  }
  bool damaged() const { return damaged_; }

 private:
  bool Damaged() {
    damaged_ = true;
    return false;
  }
  bool Varint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      *value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool Take(uint64_t length, std::string_view* bytes) {
    if (length > rest_.size()) return Damaged();
    *bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_;
  bool damaged_ = false;
};

bool ReadPiece(std::string_view bytes, SentencePieceModel::Piece* piece) {
  MessageReader reader(bytes);
  for (Field f; reader.Next(&f);) {
    if (f.number == kPieceText) piece->text = std::string(f.bytes);
    if (f.number == kPieceType) {
      if (f.value < 1 || f.value > 6) return false;
      piece->type = static_cast<SentencePieceModel::PieceType>(f.value);
    }
  }
  return !reader.damaged();
}

bool ReadTrainer(std::string_view bytes, SentencePieceModel* model) {
  MessageReader reader(bytes);
  for (Field f; reader.Next(&f);) {
    switch (f.number) {
      case kTrainerModelType:
        if (f.value < 1 || f.value > 4) return false;
        model->type = static_cast<SentencePieceModel::Type>(f.value);
        break;
      case kTrainerWhitespaceAsSuffix:
        model->whitespace_as_suffix = f.value != 0;
        break;
      case kTrainerByteFallback:
        model->byte_fallback = f.value != 0;
        break;
      case kTrainerUnknownSurface:
        model->unknown_surface = std::string(f.bytes);
        break;
      default:
        break;
    }
  }
  return !reader.damaged();
}

bool ReadNormalizer(std::string_view bytes, SentencePieceModel* model) {
  MessageReader reader(bytes);
  for (Field f; reader.Next(&f);) {
    switch (f.number) {
      case kNormalizerCharsmap:
        model->has_charsmap = !f.bytes.empty();
        break;
      case kNormalizerDummyPrefix:
        model->add_dummy_prefix = f.value != 0;
        break;
      case kNormalizerExtraSpaces:
        model->remove_extra_whitespaces = f.value != 0;
        break;
      case kNormalizerEscape:
        model->escape_whitespaces = f.value != 0;
        break;
      default:
        break;
    }
  }
  return !reader.damaged();
}

}  // namespace

Result<SentencePieceModel> ParseSentencePieceModel(std::string_view bytes,
                                                   std::string_view source) {
  SentencePieceModel model;
  MessageReader reader(bytes);
  bool good = true;
  for (Field f; good && reader.Next(&f);) {
    if (f.number == kModelPieces) {
      SentencePieceModel::Piece piece;
      good = ReadPiece(f.bytes, &piece);
      if (good && piece.text.empty()) {
        return InvalidArgument(source, ": piece ", model.pieces.size(), " is empty");
      }
      model.pieces.push_back(std::move(piece));
    } else if (f.number == kModelTrainer) {
      good = ReadTrainer(f.bytes, &model);
    } else if (f.number == kModelNormalizer) {
      good = ReadNormalizer(f.bytes, &model);
    }
  }
  if (!good || reader.damaged()) {
    return InvalidArgument(source, ": expected a SentencePiece model, found ", bytes.size(),
                           " bytes that are not one (truncated or damaged)");
  }
  if (model.pieces.empty())
    return InvalidArgument(source, ": a SentencePiece model without pieces");
  return model;
}

}  // namespace polysketch
