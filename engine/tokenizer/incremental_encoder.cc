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

Status IncrementalEncoder::Validate(std::string_view text) {
  buffer_.append(text);
  valid_ += ValidUtf8Prefix(std::string_view(buffer_).substr(valid_));
  const std::string_view rest = std::string_view(buffer_).substr(valid_);
  if (rest.empty() || DecodeUtf8(rest).kind != Utf8Char::Kind::kInvalid) return Status();
  return InvalidArgument("expected UTF-8, found an invalid byte at offset ", encoded_ + valid_);
}

Status IncrementalEncoder::EncodePart(std::string_view part, std::vector<int32_t>* ids) {
  PS_ASSIGN_OR_RETURN(const std::vector<int32_t> more, tokenizer_->EncodePart(part, first_));
  ids->insert(ids->end(), more.begin(), more.end());
  first_ = false;
  return Status();
}

Status IncrementalEncoder::EncodeParts(std::vector<int32_t>* ids) {
  size_t begin = 0;  // buffer_ may hold many parts: encoded parts are erased once, at the end
  size_t paced = 0;  // the pace knows of the bytes before here
  EncodePace* const pace = EncodePace::OfThread();
  Status status;
  while (status.ok()) {
    const std::string_view rest = std::string_view(buffer_).substr(begin, valid_ - begin);
    const size_t cut = tokenizer_->NextCut(rest, std::max(searched_, Tokenizer::kPartBytes));
    if (cut == std::string_view::npos) {
      // The last character has no right neighbour yet: the position before it is decided, the
      // position after it is not.
      searched_ = rest.size();
      break;
    }
    status = EncodePart(rest.substr(0, cut), ids);
    if (!status.ok()) break;
    begin += cut;
    searched_ = 0;
    if (pace == nullptr || begin - paced < EncodePace::kBytes) continue;
    if (!pace->Continue(begin - std::exchange(paced, begin)))
      status = Status(Code::kCancelled, "the text is not needed any more");
  }
  buffer_.erase(0, begin);
  valid_ -= begin;
  encoded_ += begin;
  PS_RETURN_IF_ERROR(status);
  if (buffer_.size() <= Tokenizer::kMaxPartBytes) return Status();
  return InvalidArgument("expected a place to cut (such as a space between words) within ",
                         Tokenizer::kMaxPartBytes, " bytes, found none after byte ", encoded_);
}

Result<std::vector<int32_t>> IncrementalEncoder::Append(std::string_view text) {
  std::vector<int32_t> ids;
  if (error_.ok()) error_ = Validate(text);
  if (error_.ok()) error_ = EncodeParts(&ids);
  if (!error_.ok()) return error_;
  return ids;
}

Result<std::vector<int32_t>> IncrementalEncoder::Finish() {
  std::vector<int32_t> ids;
  if (error_.ok() && valid_ < buffer_.size()) {
    error_ = InvalidArgument("expected UTF-8, found an incomplete character at offset ",
                             encoded_ + valid_);
  }
  if (error_.ok() && !buffer_.empty()) {
    error_ = EncodePart(buffer_, &ids);
    buffer_.clear();
    valid_ = 0;
  }
  if (!error_.ok()) return error_;
  return ids;
}

}  // namespace polysketch
