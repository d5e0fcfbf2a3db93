#include "clients/loadgen/stream.h"

#include <utility>

namespace polysketch::loadgen {

Stream::Stream(StreamParts parts) : parts_(std::move(parts)) {
  result_.start = Seconds(parts_.due - parts_.run_start);
  result_.gaps.reserve(static_cast<size_t>(parts_.request.output_tokens));
}

void Stream::AddMessage(int64_t count, const int32_t* ids) {
  const double now = Seconds(Clock::now() - parts_.due);
  if (result_.output_tokens == 0) {
    result_.first_token = now;
  } else {
    result_.gaps.push_back(static_cast<float>(now - result_.last_token));
  }
  result_.last_token = now;
  ++result_.output_tokens;
  parts_.on_tokens(1);
  AddTokens(count - 1);
  if (ids != nullptr) output_.insert(output_.end(), ids, ids + count);
}

void Stream::AddTokens(int64_t count) {
  if (count <= 0) return;
  result_.gaps.insert(result_.gaps.end(), static_cast<size_t>(count), 0.0f);
  result_.output_tokens += count;
  parts_.on_tokens(count);
}

void Stream::End(std::string status) {
  result_.end = Seconds(Clock::now() - parts_.run_start);
  result_.status = std::move(status);
  const auto on_end = parts_.on_end;  // outlives the stream
  on_end(this, std::move(result_), std::move(output_));
}

}  // namespace polysketch::loadgen
