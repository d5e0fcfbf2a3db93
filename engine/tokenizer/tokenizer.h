// SentencePiece behind a small interface (its headers must not meet gRPC's in one translation unit,
// so they stay in the .cc).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace polysketch {

class Tokenizer {
 public:
  // tokenizer.model of a model folder.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& path);
  virtual ~Tokenizer() = default;

  virtual int vocab_size() const = 0;
  virtual int bos_id() const = 0;  // -1: none
  virtual int eos_id() const = 0;  // -1: none
  // Ids of a text, without BOS or EOS. Control pieces spelled out in the text ("<s>") are text,
  // never control ids. INVALID_ARGUMENT for text that is not UTF-8 (with the byte offset).
  virtual Result<std::vector<int32_t>> Encode(std::string_view text) const = 0;
  // Text of ids: control ids give nothing, byte pieces give their bytes (the result may therefore
  // not be UTF-8; use IncrementalDecoder for streams). INVALID_ARGUMENT names an id outside the
  // vocabulary.
  virtual Result<std::string> Decode(std::span<const int32_t> ids) const = 0;
  // Bytes that this id adds behind others ("▁" as a space); empty for control ids.
  virtual std::string_view PieceBytes(int32_t id) const = 0;
  // The piece as it stands in the vocabulary ("▁the", "<0x0A>", "<s>").
  virtual std::string_view Piece(int32_t id) const = 0;
  virtual bool IsControl(int32_t id) const = 0;

  // How a text is cut into parts that encode on their own (IncrementalEncoder and Encode of long
  // texts): at the first place at least kPartBytes behind the last cut where no piece of the
  // vocabulary can span the cut. A rule of the text alone, so that the ids do not depend on how it
  // arrives.
  static constexpr size_t kPartBytes = 4096;
  // A part longer than this has no place to cut and is refused with INVALID_ARGUMENT: bounds the
  // memory of one part.
  static constexpr size_t kMaxPartBytes = size_t{4} << 20;
  // The first such place in (0, text.size()) that is not before `from`, npos when there is none.
  // `text` is valid UTF-8; a place does not depend on what follows the character behind it.
  virtual size_t NextCut(std::string_view /*text*/, size_t /*from*/) const {
    return std::string_view::npos;
  }
  // Ids of one part; `first`: the text begins with it.
  virtual Result<std::vector<int32_t>> EncodePart(std::string_view part, bool /*first*/) const {
    return Encode(part);
  }

  // Whether the decoder drops the one space that the encoder's dummy prefix put in front of a text.
  virtual bool StripsLeadingSpace() const = 0;
};

// Encodes a text that arrives in pieces, with the same ids as Tokenizer::Encode of the whole and
// bounded memory: it cuts only where no piece of the vocabulary can span the cut. Pieces may split
// UTF-8 characters. After an error it stays in error.
class IncrementalEncoder {
 public:
  // `continued`: other text goes before it, so that it gets no prefix of a beginning.
  explicit IncrementalEncoder(const Tokenizer* tokenizer, bool continued = false);
  ~IncrementalEncoder();
  // Ids that became certain. INVALID_ARGUMENT for bytes that are not UTF-8 (with the offset in the
  // whole text).
  Result<std::vector<int32_t>> Append(std::string_view text);
  // The rest.
  Result<std::vector<int32_t>> Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Text of a token stream; never emits half a UTF-8 character. Bytes that can no longer become UTF-8
// come out as U+FFFD.
class IncrementalDecoder {
 public:
  // `continued`: tokens go before the first one (a completion behind a prompt), so its leading
  // space is kept.
  IncrementalDecoder(const Tokenizer* tokenizer, bool continued);
  // Complete characters that became certain with this token.
  std::string Append(int32_t id);
  // What is left at the end (incomplete bytes as U+FFFD).
  std::string Finish();

  // What it takes to go on elsewhere.
  struct Saved {
    bool at_start = false;  // a leading space is dropped
    std::string pending;    // an incomplete character, at most 3 bytes

    bool operator==(const Saved&) const = default;
  };
  Saved Save() const { return {at_start_, pending_}; }
  // `saved.pending` is what a character may begin with.
  void Restore(const Saved& saved) {
    at_start_ = saved.at_start;
    pending_ = saved.pending;
  }

 private:
  const Tokenizer* tokenizer_;
  bool at_start_;
  std::string pending_;  // incomplete UTF-8 tail, at most 3 bytes
};

}  // namespace polysketch
