#include <algorithm>

#include "base/utf8.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

struct IncrementalEncoder::Impl {
  Impl(const Tokenizer* t, bool continued) : tokenizer(t), first(!continued) {}

  const Tokenizer* tokenizer;
  std::string buffer;    // not yet encoded
  size_t valid = 0;      // bytes of buffer that are whole characters
  size_t searched = 0;   // this part has no cut before here
  uint64_t encoded = 0;  // bytes of the text before buffer
  bool first;            // buffer begins the text
  Status error;

  Status EncodePart(std::string_view part, std::vector<int32_t>* ids) {
    PS_ASSIGN_OR_RETURN(const std::vector<int32_t> more, tokenizer->EncodePart(part, first));
    ids->insert(ids->end(), more.begin(), more.end());
    first = false;
    return Status();
  }

  // Encodes every complete part. Drops the encoded bytes once, at the end, since buffer may hold
  // many parts.
  Status EncodeParts(std::vector<int32_t>* ids) {
    size_t begin = 0;
    Status status;
    while (status.ok()) {
      const std::string_view rest = std::string_view(buffer).substr(begin, valid - begin);
      const size_t cut = tokenizer->NextCut(rest, std::max(searched, Tokenizer::kPartBytes));
      if (cut == std::string_view::npos) {
        // The last character has no right neighbour yet: the position before it is decided, the one
        // after it is not.
        searched = rest.size();
        break;
      }
      status = EncodePart(rest.substr(0, cut), ids);
      if (!status.ok()) break;
      begin += cut;
      searched = 0;
    }
    buffer.erase(0, begin);
    valid -= begin;
    encoded += begin;
    PS_RETURN_IF_ERROR(status);
    if (buffer.size() > Tokenizer::kMaxPartBytes) {
      return InvalidArgument(
          "text: expected a place to cut (such as a space between words) within ",
          Tokenizer::kMaxPartBytes, " bytes, found none after byte ", encoded);
    }
    return Status();
  }

  Status Validate(std::string_view text) {
    buffer.append(text);
    valid += ValidUtf8Prefix(std::string_view(buffer).substr(valid));
    if (valid < buffer.size() &&
        DecodeUtf8(std::string_view(buffer).substr(valid)).kind == Utf8Char::Kind::kInvalid) {
      return InvalidArgument("text: expected UTF-8, found an invalid byte at offset ",
                             encoded + valid);
    }
    return Status();
  }
};

IncrementalEncoder::IncrementalEncoder(const Tokenizer* tokenizer, bool continued)
    : impl_(std::make_unique<Impl>(tokenizer, continued)) {}
IncrementalEncoder::~IncrementalEncoder() = default;

Result<std::vector<int32_t>> IncrementalEncoder::Append(std::string_view text) {
  std::vector<int32_t> ids;
  if (impl_->error.ok()) impl_->error = impl_->Validate(text);
  if (impl_->error.ok()) impl_->error = impl_->EncodeParts(&ids);
  if (!impl_->error.ok()) return impl_->error;
  return ids;
}

Result<std::vector<int32_t>> IncrementalEncoder::Finish() {
  std::vector<int32_t> ids;
  if (impl_->error.ok() && impl_->valid < impl_->buffer.size()) {
    impl_->error = InvalidArgument("text: expected UTF-8, found an incomplete character at offset ",
                                   impl_->encoded + impl_->valid);
  }
  if (impl_->error.ok() && !impl_->buffer.empty()) {
    impl_->error = impl_->EncodePart(impl_->buffer, &ids);
    impl_->buffer.clear();
    impl_->valid = 0;
  }
  if (!impl_->error.ok()) return impl_->error;
  return ids;
}

}  // namespace polysketch
