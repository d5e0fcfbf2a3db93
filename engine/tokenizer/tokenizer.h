// Text to token ids and back. Tokenizer is a small interface over SentencePiece, whose headers stay
// in the .cc: they and gRPC's cannot be included in one translation unit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace polysketch {

struct ControlPiece {
  std::string text;  // not empty, as the vocabulary spells it ("</s>")
  int32_t id = -1;
};

class Tokenizer {
 public:
  // Loads tokenizer.model of a model folder. NOT_FOUND if it cannot be read, INVALID_ARGUMENT if it
  // is not a BPE or unigram model of SentencePiece that this tokenizer supports.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  virtual ~Tokenizer() = default;

  virtual int vocab_size() const = 0;
  virtual int bos_id() const = 0;  // -1: none
  virtual int eos_id() const = 0;  // -1: none
  // The piece of characters that the vocabulary lacks; -1: none.
  virtual int unk_id() const { return -1; }
  // Returns the ids of a text, without BOS or EOS. A control piece spelled in the text ("<s>") is
  // text and never becomes a control id. INVALID_ARGUMENT for text that is not UTF-8 (with the byte
  // offset).
  virtual Result<std::vector<int32_t>> Encode(std::string_view text) const = 0;
  // Returns the text of ids. A control id adds nothing and a byte piece adds its byte, so the
  // result may not be UTF-8; IncrementalDecoder decodes streams. INVALID_ARGUMENT names an id
  // outside the vocabulary.
  virtual Result<std::string> Decode(std::span<const int32_t> ids) const = 0;
  // The bytes that this id adds to a text after its beginning ("▁" as a space); empty for control
  // ids.
  virtual std::string_view PieceBytes(int32_t id) const = 0;
  // The piece as the vocabulary spells it ("▁the", "<0x0A>", "<s>").
  virtual std::string_view Piece(int32_t id) const = 0;
  virtual bool IsControl(int32_t id) const = 0;
  // All control pieces, the longest first.
  virtual std::span<const ControlPiece> ControlPieces() const { return {}; }

  // IncrementalEncoder and Encode cut a text into parts that encode independently. The next cut is
  // the first position at least kPartBytes after the last cut that no piece of the vocabulary can
  // span. The rule depends on the text alone, so the ids do not depend on how the text arrives.
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
};

// Encodes a text that arrives in chunks, with bounded memory and the same ids as Tokenizer::Encode
// of the whole text. A chunk may end inside a UTF-8 character. After an error every call returns
// that error.
class IncrementalEncoder {
 public:
  // `continued`: other text precedes this one, so that it gets no dummy prefix.
  explicit IncrementalEncoder(const Tokenizer* tokenizer, bool continued = false)
      : tokenizer_(tokenizer), first_(!continued) {}
  // Returns the ids that became certain. INVALID_ARGUMENT for bytes that are not UTF-8 (with the
  // offset in the whole text) and for a part without a position to cut.
  Result<std::vector<int32_t>> Append(std::string_view text);
  // Returns the remaining ids.
  Result<std::vector<int32_t>> Finish();

 private:
  Status Validate(std::string_view text);
  Status EncodePart(std::string_view part, std::vector<int32_t>* ids);
  // Encodes every complete part of buffer_.
  Status EncodeParts(std::vector<int32_t>* ids);

  const Tokenizer* tokenizer_;
  std::string buffer_;    // not yet encoded
  size_t valid_ = 0;      // bytes of buffer_ that are whole characters
  size_t searched_ = 0;   // this part has no cut before here
  uint64_t encoded_ = 0;  // bytes of the text before buffer_
  bool first_;            // buffer_ begins the text
  Status error_;
};

// Decodes a token stream to text in whole UTF-8 characters. Bytes that cannot become UTF-8 any more
// are decoded as U+FFFD.
class IncrementalDecoder {
 public:
  // `continued`: other tokens precede the first one (a completion after a prompt), so that its
  // leading space is kept.
  IncrementalDecoder(const Tokenizer* tokenizer, bool continued);
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
  Saved carried_;
};

}  // namespace polysketch
