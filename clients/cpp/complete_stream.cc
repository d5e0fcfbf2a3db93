#include "clients/cpp/complete_stream.h"

#include <algorithm>
#include <string>

namespace polysketch {
namespace {

// Bytes of a message, about. Ids have at most three bytes in vocabularies of up to 2^21.
constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kChunkIds = kChunkBytes / 4;

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

bool WriteText(const std::string& text, CompleteStream* stream) {
  v1::CompleteStreamRequest part;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(begin + kChunkBytes, text.size());
    while (end < text.size() && IsContinuation(text[end])) --end;  // whole characters
    part.set_text(text.substr(begin, end - begin));
    if (!stream->Write(part)) return false;
    begin = end;
  }
  return true;
}

bool WriteTokens(const google::protobuf::RepeatedField<int32_t>& ids, CompleteStream* stream) {
  v1::CompleteStreamRequest part;
  const size_t size = static_cast<size_t>(ids.size());
  for (size_t begin = 0; begin < size; begin += kChunkIds) {
    const int32_t* const first = ids.data() + begin;
    part.mutable_tokens()->mutable_ids()->Assign(first, first + std::min(kChunkIds, size - begin));
    if (!stream->Write(part)) return false;
  }
  return true;
}

}  // namespace

bool NeedsStream(const v1::CompleteRequest& request) {
  return request.prompt().ByteSizeLong() > kChunkBytes;
}

void WriteRequest(const v1::CompleteRequest& request, CompleteStream* stream) {
  v1::CompleteStreamRequest first;
  v1::CompleteRequest& rest = *first.mutable_request();
  rest = request;
  const bool chunks = NeedsStream(request);
  if (chunks) rest.clear_prompt();
  if (!stream->Write(first)) return;
  const v1::Prompt& prompt = request.prompt();
  if (chunks && !(prompt.has_text() ? WriteText(prompt.text(), stream)
                                    : WriteTokens(prompt.tokens().ids(), stream)))
    return;
  stream->WritesDone();
}

}  // namespace polysketch
