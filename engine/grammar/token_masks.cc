#include "engine/grammar/token_masks.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/grammar/grammar_host.h"
#include "engine/grammar/host_protocol.h"

namespace polysketch {
namespace {

using grammar_host::MaskReply;
using grammar_host::WalkRequest;

Status StatusOf(MaskReply::Kind kind, const Grammar& grammar) {
  switch (kind) {
    case MaskReply::Kind::kOk:
      return Status();
    case MaskReply::Kind::kDeadEnd:
      return InvalidArgument(
          "structured_output: expected a grammar that the vocabulary can follow, found no token "
          "that continues the output");
    case MaskReply::Kind::kNoMatch:
      return DataLoss("structured_output: the output does not match the grammar");
    case MaskReply::Kind::kExceeded:
      return grammar.ExceededLimits();
    case MaskReply::Kind::kNoRoom:
      return grammar.NoRoom();
    case MaskReply::Kind::kFailed:
      break;
  }
  return Internal("structured_output: the grammar's masks could not be computed");
}

}  // namespace

void TokenMasks::Accept(int32_t token) {
  accepted_.push_back(token);
  empty_ = false;
}

int64_t TokenMasks::max_rows() const {
  const size_t answer = sizeof(MaskReply) + words() * sizeof(uint32_t);
  return std::clamp<int64_t>(static_cast<int64_t>(grammar_host::kMaxAnswerBytes / answer), 1,
                             grammar_host::kMaxAnswers);
}

void TokenMasks::Begin(std::span<const int32_t> drafts) {
  ++job_;
  rows_ = 0;
  masks_.clear();
  if (!error_.ok()) return;
  if (socket_.get() < 0) {
    Result<int> socket = grammar_->OpenWalk();
    error_ = socket.status();
    if (!socket.ok()) return;
    socket_ = Descriptor(*socket);
  }
  std::span<const int32_t> rest = accepted_;
  while (!rest.empty() && error_.ok()) {
    const size_t count = std::min(rest.size(), grammar_host::kMaxTokensOfMessage);
    const WalkRequest follow{
        .kind = WalkRequest::Kind::kFollow, .job = job_, .count = static_cast<uint32_t>(count)};
    Send(&follow, sizeof(follow), rest.first(count));
    rest = rest.subspan(count);
  }
  accepted_.clear();
  if (!error_.ok()) return;
  const WalkRequest rows{
      .kind = WalkRequest::Kind::kRows, .job = job_, .count = static_cast<uint32_t>(drafts.size())};
  Send(&rows, sizeof(rows), drafts);
}

void TokenMasks::Send(const void* header, size_t header_bytes, std::span<const int32_t> tokens) {
  std::vector<std::byte> message(header_bytes + tokens.size_bytes());
  std::memcpy(message.data(), header, header_bytes);
  if (!tokens.empty())
    std::memcpy(message.data() + header_bytes, tokens.data(), tokens.size_bytes());
  // The messages of the longest output fit into the socket's buffer, so a full one has no reader.
  if (grammar_host::SendMessage(socket_.get(), message, MSG_DONTWAIT) < 0)
    error_ = GrammarProcessEnded();
}

std::optional<Result<TokenMask>> TokenMasks::Await(int64_t row,
                                                   std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;
  while (rows_ <= row && error_.ok()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (!Receive(std::max(left, std::chrono::milliseconds(0)))) return std::nullopt;
  }
  if (rows_ <= row) return Result<TokenMask>(error_);
  return Result<TokenMask>(TokenMask(masks_).subspan(static_cast<size_t>(row) * words(), words()));
}

bool TokenMasks::Receive(std::chrono::milliseconds patience) {
  pollfd polled{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (poll(&polled, 1, static_cast<int>(patience.count())) <= 0) return false;
  std::vector<std::byte> message(sizeof(MaskReply) + words() * sizeof(uint32_t));
  const ssize_t size = grammar_host::ReceiveMessage(socket_.get(), message, MSG_DONTWAIT);
  if (size < static_cast<ssize_t>(sizeof(MaskReply))) {
    error_ = GrammarProcessEnded();
    return true;
  }
  MaskReply answer;
  std::memcpy(&answer, message.data(), sizeof(answer));
  if (answer.job != job_) return true;  // of a row that was not needed
  error_ = StatusOf(answer.kind, *grammar_);
  if (!error_.ok()) return true;
  const size_t first = masks_.size();
  masks_.resize(first + words());
  std::memcpy(masks_.data() + first, message.data() + sizeof(answer), words() * sizeof(uint32_t));
  if (begins_text_ && empty_ && rows_ == 0) {
    const std::vector<uint32_t>& dropped = grammar_->dropped_spaces();
    for (size_t i = 0; i < words(); ++i) masks_[first + i] &= ~dropped[i];
    const auto mask = std::span(masks_).subspan(first);
    if (std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; }))
      error_ = StatusOf(MaskReply::Kind::kDeadEnd, *grammar_);
  }
  ++rows_;
  return true;
}

}  // namespace polysketch
