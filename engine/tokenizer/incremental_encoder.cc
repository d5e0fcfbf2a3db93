#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "engine/tokenizer/encode_pace.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

EncodePace*& EncodePace::OfThread() {
  static thread_local EncodePace* pace = nullptr;
  return pace;
}

Status IncrementalEncoder::Encode(std::string_view text, std::vector<int32_t>* ids) {
  EncodePace* const pace = EncodePace::OfThread();
  while (!text.empty()) {
    const std::string_view slice =
        text.substr(0, ValidUtf8Prefix(text.substr(0, EncodePace::kBytes)));
    PS_RETURN_IF_ERROR(encoder_->Append(slice, ids));
    encoded_ += slice.size();
    text.remove_prefix(slice.size());
    unpaced_ += slice.size();
    if (pace == nullptr || unpaced_ < EncodePace::kBytes) continue;
    if (!pace->Continue(std::exchange(unpaced_, 0)))
      return Status(Code::kCancelled, "the text is not needed any more");
  }
  return Status();
}

Result<std::vector<int32_t>> IncrementalEncoder::Append(std::string_view text) {
  std::vector<int32_t> ids;
  if (!error_.ok()) return error_;
  std::string joined;
  if (!tail_.empty()) {
    joined = std::exchange(tail_, {}).append(text);
    text = joined;
  }
  const size_t valid = ValidUtf8Prefix(text);
  const std::string_view rest = text.substr(valid);
  error_ = Encode(text.substr(0, valid), &ids);
  if (error_.ok() && !rest.empty() && DecodeUtf8(rest).kind == Utf8Char::Kind::kInvalid)
    error_ = InvalidArgument("expected UTF-8, found an invalid byte at offset ", encoded_);
  if (!error_.ok()) return error_;
  tail_ = rest;
  return ids;
}

Result<std::vector<int32_t>> IncrementalEncoder::Finish() {
  std::vector<int32_t> ids;
  if (error_.ok() && !tail_.empty()) {
    error_ = InvalidArgument("expected UTF-8, found an incomplete character at offset ", encoded_);
  }
  if (error_.ok()) error_ = encoder_->Finish(&ids);
  if (!error_.ok()) return error_;
  return ids;
}

Status EncodeText(const Tokenizer& tokenizer, std::string_view text, TextPlace place,
                  std::vector<int32_t>* ids) {
  if (text.empty()) return Status();
  // In slices: the encoder holds one of them, and its ids, beside `text` and `ids`.
  IncrementalEncoder encoder(&tokenizer, place);
  while (true) {
    const std::string_view slice = text.substr(0, EncodePace::kBytes);
    text.remove_prefix(slice.size());
    PS_ASSIGN_OR_RETURN(const std::vector<int32_t> more,
                        slice.empty() ? encoder.Finish() : encoder.Append(slice));
    ids->insert(ids->end(), more.begin(), more.end());
    if (slice.empty()) return Status();
  }
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  PS_RETURN_IF_ERROR(EncodeText(*this, text, TextPlace::kStart, &ids));
  return ids;
}

}  // namespace polysketch
