// Text to token ids and back. Tokenizer is an interface over SentencePiece's models, whose headers
// stay in the .cc (they and gRPC's cannot be included in one translation unit), and over
// tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"
#include "engine/tokenizer/token_trie.h"

namespace polysketch {

// A text that a chat template may spell, and that becomes one id.
struct ControlPiece {
  std::string text;  // not empty, as the vocabulary spells it ("</s>")
  int32_t id = -1;
  // White space before it, or after it, belongs to it.
  bool strip_left = false;
  bool strip_right = false;
};

// What precedes a text.
enum class TextPlace {
  kStart,         // nothing, or BOS alone
  kAfterControl,  // a control token of the same text
  kContinued,     // other tokens
};

// Encodes one text that arrives in parts. Used by one thread at a time.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  // Takes more text, whole characters of valid UTF-8, and appends the ids that became certain to
  // `ids`. INVALID_ARGUMENT for a text without a position to cut; the encoder is not used after it.
  virtual Status Append(std::string_view text, std::vector<int32_t>* ids) = 0;
  // Appends the remaining ids.
  virtual Status Finish(std::vector<int32_t>* ids) = 0;
};

class Tokenizer {
 public:
  // Loads a file of a model folder: tokenizer.model, a BPE or unigram model of SentencePiece, or
  // tokenizer.json (a name that ends in .json), a BPE model of Hugging Face's tokenizers, which
  // tokenizer_config.json of the folder belongs to. Errors are those of ModelFolder::Read, and
  // INVALID_ARGUMENT if the file is not one that this tokenizer supports.
  static Result<std::unique_ptr<Tokenizer>> Load(const ModelFolder& folder,
                                                 const std::string& name);
  // The same of the path of such a file.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  virtual ~Tokenizer() = default;

  // The class that reads such a file: "SentencePiece", or transformers' "PreTrainedTokenizerFast".
  virtual std::string_view class_name() const = 0;
  virtual int vocab_size() const = 0;
  virtual int bos_id() const = 0;  // -1: none
  virtual int eos_id() const = 0;  // -1: none
  // Whether the file itself says that bos_id begins a text, which config.json may say too.
  virtual bool begins_with_bos() const { return false; }
  // The piece of characters that the vocabulary lacks; -1: none.
  virtual int unk_id() const { return -1; }
  // Returns the ids of a text, without BOS or EOS. A control piece spelled in the text ("<s>") is
  // text and never becomes a control id. INVALID_ARGUMENT for text that is not UTF-8 (with the byte
  // offset).
  virtual Result<std::vector<int32_t>> Encode(std::string_view text) const;
  // Returns the text of ids. A control id adds nothing and a byte piece adds its byte, so the
  // result may not be UTF-8; IncrementalDecoder decodes streams. INVALID_ARGUMENT names an id
  // outside the vocabulary.
  virtual Result<std::string> Decode(std::span<const int32_t> ids) const;
  // The bytes that this id adds to a text after its beginning ("▁" as a space); empty for control
  // ids.
  virtual std::string_view PieceBytes(int32_t id) const = 0;
  // The piece as the vocabulary spells it ("▁the", "<0x0A>", "<s>").
  virtual std::string_view Piece(int32_t id) const = 0;
  virtual bool IsControl(int32_t id) const = 0;
  // All control pieces, the longest first.
  std::span<const ControlPiece> ControlPieces() const { return control_pieces_; }
  // The longest control piece that `text` begins with; null: none.
  const ControlPiece* ControlPieceAt(std::string_view text) const;
  // Whether a control piece begins with this byte.
  bool BeginsControlPiece(char byte) const { return control_trie_.Begins(byte); }

  // Returns an encoder of one text, which the tokenizer outlives. The ids do not depend on how the
  // text arrives.
  virtual std::unique_ptr<TextEncoder> NewEncoder(TextPlace place) const;

  // The encoder above cuts a text into parts that encode independently. The next cut is the first
  // position at least kPartBytes after the last cut that no piece of the vocabulary can span. The
  // rule depends on the text alone.
  static constexpr size_t kPartBytes = 4096;
  // A part longer than this is refused with INVALID_ARGUMENT, which bounds the memory of one part.
  static constexpr size_t kMaxPartBytes = size_t{4} << 20;
  // Returns the first position in (0, text.size()) at or after `from` where `text` may be cut; npos
  // without one. `text` is valid UTF-8. Whether a position is such a cut depends only on the two
  // characters beside it.
  virtual size_t NextCut(std::string_view /*text*/, size_t /*from*/) const {
    return std::string_view::npos;
  }
  // Returns the ids of one part. `first`: the part begins the text.
  virtual Result<std::vector<int32_t>> EncodePart(std::string_view part, bool /*first*/) const {
    return Encode(part);
  }

  // Whether decoding drops the one space that the encoder's dummy prefix puts before a text.
  virtual bool StripsLeadingSpace() const = 0;

 protected:
  // `pieces`: no two of one text.
  void SetControlPieces(std::vector<ControlPiece> pieces);

 private:
  std::vector<ControlPiece> control_pieces_;
  TokenTrie control_trie_;  // ids are indices of control_pieces_
};

// Encodes a text that arrives in chunks, with bounded memory and the same ids as Tokenizer::Encode
// of the whole text. A chunk may end inside a UTF-8 character. After an error every call returns
// that error.
class IncrementalEncoder {
 public:
  explicit IncrementalEncoder(const Tokenizer* tokenizer, TextPlace place = TextPlace::kStart)
      : encoder_(tokenizer->NewEncoder(place)) {}
  // Returns the ids that became certain. INVALID_ARGUMENT for bytes that are not UTF-8 (with the
  // offset in the whole text) and for a part without a position to cut.
  Result<std::vector<int32_t>> Append(std::string_view text);
  // Returns the remaining ids.
  Result<std::vector<int32_t>> Finish();

 private:
  Status Encode(std::string_view text, std::vector<int32_t>* ids);

  const std::unique_ptr<TextEncoder> encoder_;
  std::string tail_;      // the beginning of a character, at most 3 bytes
  uint64_t encoded_ = 0;  // bytes of the text before tail_
  size_t unpaced_ = 0;    // bytes that the thread's EncodePace does not know of
  Status error_;
};

// Appends the ids of a whole text.
Status EncodeText(const Tokenizer& tokenizer, std::string_view text, TextPlace place,
                  std::vector<int32_t>* ids);

// Decodes a token stream to text in whole UTF-8 characters. Bytes that cannot become UTF-8 any more
// are decoded as U+FFFD.
class IncrementalDecoder {
 public:
  // `continued`: other tokens precede the first one (a completion after a prompt), so that its
  // leading space is kept. `skip_control`: a control id adds nothing; otherwise its piece.
  IncrementalDecoder(const Tokenizer* tokenizer, bool continued, bool skip_control = true);
  // Returns the complete characters that became certain with this token.
  std::string Append(int32_t id);
  // Returns the end of the text: incomplete bytes as one U+FFFD.
  std::string Finish();

  // The state that a decoder carries from token to token.
  struct Saved {
    bool at_start = false;  // a leading space will be dropped
    std::string pending;    // incomplete UTF-8 character, at most 3 bytes

    bool operator==(const Saved&) const = default;
  };
  const Saved& Save() const { return carried_; }
  // `saved.pending` is the beginning of a character, or empty.
  void Restore(const Saved& saved) { carried_ = saved; }

 private:
  const Tokenizer* tokenizer_;
  bool skip_control_;
  Saved carried_;
};

}  // namespace polysketch
