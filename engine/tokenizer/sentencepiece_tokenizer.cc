#include <google/protobuf/unknown_field_set.h>
#include <sentencepiece_model.pb.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "engine/tokenizer/charsmap.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#include "engine/tokenizer/space_marker.h"

namespace polysketch {
namespace {

using sentencepiece::ModelProto;
using sentencepiece::SentencePieceProcessor;
using sentencepiece::TrainerSpec;
using PieceProto = ModelProto::SentencePiece;

constexpr char32_t kSpaceMarkerCodePoint = 0x2581;

// Whether the bytes of `message` hold a value of enum field `number` that the enum does not define:
// protobuf keeps such a value as an unknown field and reports the field's default.
template <typename Message>
bool HasUndefinedValue(const Message& message, int number) {
  google::protobuf::UnknownFieldSet unknown;
  if (!unknown.ParseFromString(message.unknown_fields())) return true;
  for (int i = 0; i < unknown.field_count(); ++i) {
    if (unknown.field(i).number() == number) return true;
  }
  return false;
}

// INVALID_ARGUMENT for bytes that are not a SentencePiece model; `source` begins the message.
Result<std::unique_ptr<ModelProto>> ParseModel(const std::string& bytes,
                                               const std::string& source) {
  auto model = std::make_unique<ModelProto>();
  bool whole = model->ParseFromString(bytes) &&
               !HasUndefinedValue(model->trainer_spec(), TrainerSpec::kModelTypeFieldNumber);
  for (const PieceProto& piece : model->pieces()) {
    whole = whole && !HasUndefinedValue(piece, PieceProto::kTypeFieldNumber);
  }
  if (!whole) {
    return InvalidArgument(source, ": expected a SentencePiece model, found ", bytes.size(),
                           " bytes that are not one (truncated or damaged)");
  }
  if (model->pieces().empty()) {
    return InvalidArgument(source, ": expected a SentencePiece model with pieces, found none");
  }
  if (const Status rules = CheckCharsmap(model->normalizer_spec().precompiled_charsmap());
      !rules.ok()) {
    return InvalidArgument(source, ": precompiled_charsmap: ", rules.message());
  }
  return model;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0x0A>" -> 10; -1 for a piece of another form.
int ByteOfPiece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  const int high = HexDigit(piece[3]);
  const int low = HexDigit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string ReplaceMarkers(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    const bool marker = piece.starts_with(kSpaceMarker);
    out.push_back(marker ? ' ' : piece.front());
    piece.remove_prefix(marker ? kSpaceMarker.size() : 1);
  }
  return out;
}

// The bytes that piece `id` of `model` adds to a text. INVALID_ARGUMENT for a piece that a
// tokenizer must not have; `source` begins the message.
Result<std::string> BytesOf(const ModelProto& model, int id, const std::string& source) {
  const PieceProto& piece = model.pieces(id);
  const std::string& text = piece.piece();
  switch (piece.type()) {
    case PieceProto::CONTROL:
      // BPE maps a single character to its id whatever the type of the piece.
      if (DecodeUtf8(text).length == static_cast<int>(text.size())) {
        return InvalidArgument(source, ": piece ", id,
                               ": expected a control piece of several characters, found ", text,
                               ", which a text may hold");
      }
      return std::string();
    case PieceProto::UNKNOWN:
      return model.trainer_spec().unk_surface();
    case PieceProto::BYTE: {
      const int byte = ByteOfPiece(text);
      if (byte < 0) {
        return InvalidArgument(source, ": piece ", id, ": expected <0xNN>, found ", text);
      }
      return std::string(1, static_cast<char>(byte));
    }
    default:
      return ReplaceMarkers(text);
  }
}

// Finds the positions where a text may be cut. Both algorithms put a token boundary wherever no
// piece of the vocabulary can span the position: BPE merges two neighbours only into a piece that
// exists, and a unigram path must pass between two characters that no piece holds together. So the
// position between characters a and b is safe when no piece contains "ab".
class CutFinder {
 public:
  // A normaliser other than the identity, removal of spaces and a suffix marker depend on
  // characters beyond a cut: with any of them no position is safe.
  explicit CutFinder(const ModelProto& model)
      : enabled_(model.normalizer_spec().precompiled_charsmap().empty() &&
                 !model.normalizer_spec().remove_extra_whitespaces() &&
                 !model.trainer_spec().treat_whitespace_as_suffix()),
        escape_(model.normalizer_spec().escape_whitespaces()),
        byte_fallback_(model.trainer_spec().byte_fallback()) {
    for (const PieceProto& piece : model.pieces()) {
      if (piece.type() == PieceProto::NORMAL || piece.type() == PieceProto::USER_DEFINED ||
          piece.type() == PieceProto::UNUSED) {
        AddPiece(piece.piece());
      }
    }
  }

  // As Tokenizer::NextCut.
  size_t Next(std::string_view text, size_t from) const {
    if (!enabled_) return std::string_view::npos;
    if (from == 0) from = 1;
    while (from < text.size() && IsContinuation(text[from])) ++from;
    if (from >= text.size()) return std::string_view::npos;
    size_t before = from - 1;
    while (IsContinuation(text[before])) --before;
    std::string_view rest = text.substr(before);
    char32_t a = Normalized(PopFront(&rest));
    while (!rest.empty()) {
      const size_t position = text.size() - rest.size();
      const char32_t b = Normalized(PopFront(&rest));
      // Without byte fallback neighbouring unknown characters become one unknown id: b must be
      // known.
      if (!joined_.contains(Pair(a, b)) && (byte_fallback_ || single_.contains(b))) return position;
      a = b;
    }
    return std::string_view::npos;
  }

 private:
  static bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
  static char32_t PopFront(std::string_view* text) {
    const Utf8Char c = DecodeUtf8(*text);
    text->remove_prefix(static_cast<size_t>(c.length));
    return c.code_point;
  }
  static uint64_t Pair(char32_t a, char32_t b) { return static_cast<uint64_t>(a) << 32 | b; }
  char32_t Normalized(char32_t c) const { return escape_ && c == U' ' ? kSpaceMarkerCodePoint : c; }

  void AddPiece(std::string_view rest) {
    char32_t previous = PopFront(&rest);
    if (rest.empty()) single_.insert(previous);
    while (!rest.empty()) {
      const char32_t next = PopFront(&rest);
      joined_.insert(Pair(previous, next));
      previous = next;
    }
  }

  const bool enabled_;
  const bool escape_;
  const bool byte_fallback_;
  std::unordered_set<uint64_t> joined_;  // neighbours inside some piece
  std::unordered_set<char32_t> single_;  // characters that are pieces
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  Status Init(const std::string& bytes, const std::string& path) {
    PS_ASSIGN_OR_RETURN(std::unique_ptr<ModelProto> model, ParseModel(bytes, path));
    const TrainerSpec& trainer = model->trainer_spec();
    if (trainer.model_type() != TrainerSpec::UNIGRAM && trainer.model_type() != TrainerSpec::BPE) {
      // The word and char models would turn a control piece spelled in a text into its id.
      return InvalidArgument(path, ": expected a BPE or unigram model, found model_type ",
                             trainer.model_type());
    }
    PS_RETURN_IF_ERROR(InitPieces(*model, path));
    strips_leading_space_ = model->normalizer_spec().add_dummy_prefix() ||
                            model->normalizer_spec().remove_extra_whitespaces();
    cuts_.emplace(*model);
    if (model->normalizer_spec().add_dummy_prefix()) {
      auto without_prefix = std::make_unique<ModelProto>(*model);
      without_prefix->mutable_normalizer_spec()->set_add_dummy_prefix(false);
      later_ = std::make_unique<SentencePieceProcessor>();
      PS_RETURN_IF_ERROR(Load(std::move(without_prefix), path, later_.get()));
    }
    return Load(std::move(model), path, &first_);
  }

  std::string_view class_name() const override { return "SentencePiece"; }
  int vocab_size() const override { return static_cast<int>(pieces_.size()); }
  int bos_id() const override { return first_.bos_id(); }
  int eos_id() const override { return first_.eos_id(); }
  int unk_id() const override { return first_.unk_id(); }

  size_t NextCut(std::string_view text, size_t from) const override {
    return cuts_->Next(text, from);
  }

  Result<std::vector<int32_t>> EncodePart(std::string_view part, bool first) const override {
    const auto& processor = first || later_ == nullptr ? first_ : *later_;
    std::vector<int> ids;
    const auto status = processor.Encode(part, &ids);
    if (!status.ok()) return Internal("SentencePiece: ", status.ToString());
    for (const int id : ids) PS_CHECK(!IsControl(id)) << "text gave control id " << id;
    return std::vector<int32_t>(ids.begin(), ids.end());
  }

  std::string_view PieceBytes(int32_t id) const override { return At(id).bytes; }
  std::string_view Piece(int32_t id) const override { return At(id).text; }
  bool IsControl(int32_t id) const override { return At(id).control; }
  bool StripsLeadingSpace() const override { return strips_leading_space_; }

 private:
  struct PieceInfo {
    std::string text;   // as the vocabulary spells it
    std::string bytes;  // the bytes that it adds to a text
    bool control = false;
  };

  Status InitPieces(const ModelProto& model, const std::string& path) {
    std::unordered_set<std::string_view> texts;
    std::vector<ControlPiece> control_pieces;
    for (int id = 0; id < model.pieces_size(); ++id) {
      const std::string& text = model.pieces(id).piece();
      if (text.empty() || ValidUtf8Prefix(text) != text.size()) {
        return InvalidArgument(path, ": piece ", id, ": expected UTF-8 text, found ",
                               text.empty() ? "none" : "other bytes");
      }
      // SentencePiece's trie reads a piece up to its first NUL, and throws if nothing is left.
      if (text.find('\0') != std::string::npos) {
        return InvalidArgument(path, ": piece ", id, ": expected no NUL byte, found one in ",
                               text.size(), " bytes");
      }
      // SentencePiece prefers the control piece of two equal ones wherever a text holds it.
      if (!texts.insert(text).second) {
        return InvalidArgument(path, ": expected each piece once, found ", text, " again");
      }
      PS_ASSIGN_OR_RETURN(std::string bytes, BytesOf(model, id, path));
      const bool control = model.pieces(id).type() == PieceProto::CONTROL;
      pieces_.push_back({text, std::move(bytes), control});
      if (control) control_pieces.push_back({.text = text, .id = id});
    }
    SetControlPieces(std::move(control_pieces));
    return Status();
  }

  static Status Load(std::unique_ptr<ModelProto> model, const std::string& path,
                     SentencePieceProcessor* processor) {
    const auto status = processor->Load(std::move(model));
    if (status.ok()) return Status();
    return InvalidArgument(path, ": SentencePiece refuses it: ", status.ToString());
  }

  const PieceInfo& At(int32_t id) const {
    PS_CHECK(id >= 0 && id < vocab_size()) << "id=" << id;
    return pieces_[static_cast<size_t>(id)];
  }

  std::vector<PieceInfo> pieces_;  // by id
  bool strips_leading_space_ = false;
  std::optional<CutFinder> cuts_;                  // set by Init
  SentencePieceProcessor first_;                   // for the start of a text
  std::unique_ptr<SentencePieceProcessor> later_;  // without the dummy prefix; null: no prefix
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> NewSentencePieceTokenizer(const std::string& bytes,
                                                             const std::string& source) {
  auto tokenizer = std::make_unique<SentencePieceTokenizer>();
  PS_RETURN_IF_ERROR(tokenizer->Init(bytes, source));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace polysketch
