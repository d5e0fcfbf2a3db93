#include <sentencepiece_processor.h>

#include <fstream>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "engine/tokenizer/sentencepiece_model.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {
namespace {

using PieceType = SentencePieceModel::PieceType;
constexpr std::string_view kSpaceMarker = "\xE2\x96\x81";  // U+2581 stands for a space in pieces
constexpr char32_t kSpaceMarkerCodePoint = 0x2581;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "<0x0A>" -> 10; -1 when it is not of that form.
int ByteOfPiece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  const int high = HexDigit(piece[3]);
  const int low = HexDigit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string ReplaceMarkers(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    if (piece.starts_with(kSpaceMarker)) {
      out.push_back(' ');
      piece.remove_prefix(kSpaceMarker.size());
    } else {
      out.push_back(piece.front());
      piece.remove_prefix(1);
    }
  }
  return out;
}

// Where a text may be cut. Both algorithms put a token's bounds where no piece of the vocabulary
// lies across: BPE merges two neighbours only into a piece that exists, and a unigram path must
// pass between two characters that no piece holds together. So the place between characters a and b
// is safe when "ab" is inside no piece.
class CutFinder {
 public:
  // INVALID_ARGUMENT when a piece is not UTF-8.
  Status Build(const SentencePieceModel& model, std::string_view source) {
    // A normaliser other than the identity, removal of spaces and a suffix marker look beyond a
    // cut.
    enabled_ =
        !model.has_charsmap && !model.remove_extra_whitespaces && !model.whitespace_as_suffix;
    escape_ = model.escape_whitespaces;
    byte_fallback_ = model.byte_fallback;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      const auto& piece = model.pieces[id];
      if (ValidUtf8Prefix(piece.text) != piece.text.size()) {
        return InvalidArgument(source, ": piece ", id, " is not UTF-8");
      }
      if (piece.type != PieceType::kNormal && piece.type != PieceType::kUserDefined &&
          piece.type != PieceType::kUnused) {
        continue;
      }
      std::string_view rest = piece.text;
      char32_t previous = Take(&rest);
      if (rest.empty()) single_.insert(previous);
      while (!rest.empty()) {
        const char32_t next = Take(&rest);
        joined_.insert(Pair(previous, next));
        previous = next;
      }
    }
    return Status();
  }

  size_t Next(std::string_view text, size_t from) const {
    if (!enabled_) return std::string_view::npos;
    if (from == 0) from = 1;
    while (from < text.size() && IsContinuation(text[from])) ++from;
    if (from >= text.size()) return std::string_view::npos;
    size_t before = from - 1;
    while (IsContinuation(text[before])) --before;
    std::string_view rest = text.substr(before);
    char32_t a = Normalized(Take(&rest));
    while (!rest.empty()) {
      const size_t position = text.size() - rest.size();
      const char32_t b = Normalized(Take(&rest));
      // Without byte fallback neighbouring unknown characters become one unknown id: b must be
      // known.
      if (!joined_.contains(Pair(a, b)) && (byte_fallback_ || single_.contains(b))) return position;
      a = b;
    }
    return std::string_view::npos;
  }

 private:
  static bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
  static char32_t Take(std::string_view* text) {
    const Utf8Char c = DecodeUtf8(*text);
    text->remove_prefix(static_cast<size_t>(c.length));
    return c.code_point;
  }
  static uint64_t Pair(char32_t a, char32_t b) { return static_cast<uint64_t>(a) << 32 | b; }
  char32_t Normalized(char32_t c) const { return escape_ && c == U' ' ? kSpaceMarkerCodePoint : c; }

  bool enabled_ = false;
  bool escape_ = true;
  bool byte_fallback_ = false;
  std::unordered_set<uint64_t> joined_;  // neighbours inside some piece
  std::unordered_set<char32_t> single_;  // characters that are pieces
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  Status Init(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return NotFound(path, ": cannot be read");
    std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    PS_ASSIGN_OR_RETURN(model_, ParseSentencePieceModel(bytes, path));
    if (model_.type != SentencePieceModel::Type::kUnigram &&
        model_.type != SentencePieceModel::Type::kBpe) {
      // The word and char models would turn a control piece spelled in a text into its id.
      return InvalidArgument(path, ": expected a BPE or unigram model, found model_type ",
                             static_cast<int>(model_.type));
    }
    PS_RETURN_IF_ERROR(Load(path, bytes, &first_));
    if (model_.add_dummy_prefix) {
      bytes.append(kNoDummyPrefix);
      later_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
      PS_RETURN_IF_ERROR(Load(path, bytes, later_.get()));
    }
    PS_RETURN_IF_ERROR(cuts_.Build(model_, path));
    // SentencePiece takes a control piece that is also a normal one for the control piece, wherever
    // a text holds it.
    std::unordered_set<std::string_view> texts;
    for (const auto& piece : model_.pieces) {
      if (!texts.insert(piece.text).second) {
        return InvalidArgument(path, ": expected each piece once, found ", piece.text, " again");
      }
    }
    bytes_.reserve(model_.pieces.size());
    for (size_t id = 0; id < model_.pieces.size(); ++id) {
      const auto& piece = model_.pieces[id];
      switch (piece.type) {
        case PieceType::kControl:
          // BPE gives the id of a single character without asking for its type.
          if (DecodeUtf8(piece.text).length == static_cast<int>(piece.text.size())) {
            return InvalidArgument(path, ": piece ", id,
                                   ": expected a control piece of several characters, found ",
                                   piece.text, ", which a text may hold");
          }
          bytes_.emplace_back();
          break;
        case PieceType::kUnknown:
          bytes_.push_back(model_.unknown_surface);
          break;
        case PieceType::kByte: {
          const int byte = ByteOfPiece(piece.text);
          if (byte < 0)
            return InvalidArgument(path, ": piece ", id, ": expected <0xNN>, found ", piece.text);
          bytes_.emplace_back(1, static_cast<char>(byte));
          break;
        }
        default:
          bytes_.push_back(ReplaceMarkers(piece.text));
      }
    }
    return Status();
  }

  int vocab_size() const override { return static_cast<int>(model_.pieces.size()); }
  int bos_id() const override { return first_.bos_id(); }
  int eos_id() const override { return first_.eos_id(); }

  Result<std::vector<int32_t>> Encode(std::string_view text) const override {
    IncrementalEncoder encoder(this);
    PS_ASSIGN_OR_RETURN(std::vector<int32_t> ids, encoder.Append(text));
    PS_ASSIGN_OR_RETURN(const std::vector<int32_t> rest, encoder.Finish());
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }

  size_t NextCut(std::string_view text, size_t from) const override {
    return cuts_.Next(text, from);
  }

  Result<std::vector<int32_t>> EncodePart(std::string_view part, bool first) const override {
    const auto& processor = first || later_ == nullptr ? first_ : *later_;
    std::vector<int> ids;
    const auto status = processor.Encode(part, &ids);
    if (!status.ok()) return Internal("SentencePiece: ", status.ToString());
    for (const int id : ids) PS_CHECK(!IsControl(id)) << "text gave control id " << id;
    return std::vector<int32_t>(ids.begin(), ids.end());
  }

  Result<std::string> Decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool at_start = StripsLeadingSpace();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size()) {
        return InvalidArgument("tokens[", i, "]: expected an id in [0, ", vocab_size(), "), found ",
                               ids[i]);
      }
      std::string_view bytes = PieceBytes(ids[i]);
      if (bytes.empty()) continue;
      if (at_start && Piece(ids[i]).starts_with(kSpaceMarker)) bytes.remove_prefix(1);
      at_start = false;
      text.append(bytes);
    }
    return text;
  }

  std::string_view PieceBytes(int32_t id) const override { return bytes_[Index(id)]; }
  std::string_view Piece(int32_t id) const override { return model_.pieces[Index(id)].text; }
  bool IsControl(int32_t id) const override {
    return model_.pieces[Index(id)].type == PieceType::kControl;
  }
  bool StripsLeadingSpace() const override {
    return model_.add_dummy_prefix || model_.remove_extra_whitespaces;
  }

 private:
  static Status Load(const std::string& path, const std::string& bytes,
                     sentencepiece::SentencePieceProcessor* processor) {
    const auto status = processor->LoadFromSerializedProto(bytes);
    if (status.ok()) return Status();
    return InvalidArgument(path, ": SentencePiece refuses it: ", status.ToString());
  }
  size_t Index(int32_t id) const {
    PS_CHECK(id >= 0 && static_cast<size_t>(id) < model_.pieces.size()) << "id=" << id;
    return static_cast<size_t>(id);
  }

  SentencePieceModel model_;
  sentencepiece::SentencePieceProcessor first_;  // for the start of a text
  std::unique_ptr<sentencepiece::SentencePieceProcessor>
      later_;  // without the dummy prefix; null when there is none
  CutFinder cuts_;
  std::vector<std::string> bytes_;  // of each id
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  auto tokenizer = std::make_unique<SentencePieceTokenizer>();
  PS_RETURN_IF_ERROR(tokenizer->Init(path));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace polysketch
