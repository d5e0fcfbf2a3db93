#include "engine/grammar_host/worker.h"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <list>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/grammar/host_protocol.h"
#include "engine/grammar/sockets.h"
#include "engine/grammar_host/compile_source.h"
#include "engine/grammar_host/worker_limits.h"

namespace polysketch::grammar_host {
namespace {

// Of an error, which travels in a header.
constexpr size_t kMaxMessageBytes = 400;

std::span<const std::byte> BytesOf(const auto& value) {
  return std::as_bytes(std::span(&value, 1));
}

// One sequence.
class Walk {
 public:
  Walk(Descriptor socket, const xgrammar::CompiledGrammar& grammar, const HostHeader& limits)
      : socket_(std::move(socket)),
        limits_(limits),
        matcher_(grammar),
        answer_(sizeof(MaskReply) + static_cast<size_t>(xgrammar::GetBitmaskSize(
                                        grammar.GetTokenizerInfo().GetVocabSize())) *
                                        sizeof(int32_t)) {}

  int socket() const { return socket_.get(); }

  // Handles the message that waits. Returns false at the end of the walk.
  bool Handle() {
    std::vector<std::byte> message(sizeof(WalkRequest) + kMaxTokensOfMessage * sizeof(int32_t));
    const ssize_t size = ReceiveMessage(socket(), message, 0);
    if (size < static_cast<ssize_t>(sizeof(WalkRequest))) return false;
    WalkRequest request;
    std::memcpy(&request, message.data(), sizeof(request));
    if (static_cast<size_t>(size) != sizeof(request) + request.count * sizeof(int32_t))
      return false;
    std::vector<int32_t> tokens(request.count);
    std::memcpy(tokens.data(), message.data() + sizeof(request), tokens.size() * sizeof(int32_t));
    const MaskReply exceeded{.kind = MaskReply::Kind::kExceeded, .job = request.job};
    const MaskReply no_room{.kind = MaskReply::Kind::kNoRoom, .job = request.job};
    BeginLimit({.ms = limits_.mask_ms,
                .socket = socket(),
                .exceeded = BytesOf(exceeded),
                .no_room = BytesOf(no_room)});
    // xgrammar reports errors by exceptions.
    try {
      request.kind == WalkRequest::Kind::kFollow ? Follow(tokens) : AnswerRows(request.job, tokens);
    } catch (const std::bad_alloc&) {
      Exceed();
    } catch (const std::exception&) {
      Answer(MaskReply::Kind::kFailed, request.job, sizeof(MaskReply));
    }
    EndLimit();
    return true;
  }

 private:
  void ForgetDrafts() {
    if (drafts_ > 0) matcher_.Rollback(std::exchange(drafts_, 0));
  }

  void Follow(const std::vector<int32_t>& tokens) {
    ForgetDrafts();
    for (const int32_t token : tokens) matches_ = matches_ && matcher_.AcceptToken(token);
  }

  void AnswerRows(uint32_t job, const std::vector<int32_t>& drafts) {
    ForgetDrafts();
    if (!matches_) return Answer(MaskReply::Kind::kNoMatch, job, sizeof(MaskReply));
    for (size_t row = 0; AnswerRow(job) && row < drafts.size(); ++row) {
      const bool ends = std::ranges::find(matcher_.GetStopTokenIds(), drafts[row]) !=
                        matcher_.GetStopTokenIds().end();
      if (ends || !matcher_.AcceptToken(drafts[row])) return;
      ++drafts_;
    }
  }

  // Returns whether a row may follow.
  bool AnswerRow(uint32_t job) {
    auto* const words = reinterpret_cast<int32_t*>(answer_.data() + sizeof(MaskReply));
    int64_t shape = static_cast<int64_t>((answer_.size() - sizeof(MaskReply)) / sizeof(int32_t));
    DLTensor mask{.data = words,
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &shape,
                  .strides = nullptr,
                  .byte_offset = 0};
    matcher_.FillNextTokenBitmask(&mask);
    const bool any = std::any_of(words, words + shape, [](int32_t word) { return word != 0; });
    if (any) {
      Answer(MaskReply::Kind::kOk, job, answer_.size());
    } else {
      Answer(MaskReply::Kind::kDeadEnd, job, sizeof(MaskReply));
    }
    return any;
  }

  void Answer(MaskReply::Kind kind, uint32_t job, size_t size) {
    const MaskReply answer{.kind = kind, .job = job};
    std::memcpy(answer_.data(), &answer, sizeof(answer));
    // The walk ends by itself once its socket has closed.
    SendMessage(socket(), std::span(answer_).first(size), 0);
  }

  const Descriptor socket_;
  const HostHeader& limits_;
  xgrammar::GrammarMatcher matcher_;
  int drafts_ = 0;       // tokens that the matcher has accepted beyond the output
  bool matches_ = true;  // the output matches the grammar
  std::vector<std::byte> answer_;
};

std::optional<xgrammar::CompiledGrammar> Compile(int grammar_socket,
                                                 const xgrammar::TokenizerInfo& vocabulary,
                                                 const HostHeader& limits) {
  std::vector<std::byte> message(kMaxSourceMessage);
  const ssize_t size = ReceiveMessage(grammar_socket, message, 0);
  if (size < static_cast<ssize_t>(sizeof(SourceHeader))) return std::nullopt;
  SourceHeader header;
  std::memcpy(&header, message.data(), sizeof(header));
  const GrammarSource source{
      .kind = static_cast<GrammarSource::Kind>(header.kind),
      .text = std::string(reinterpret_cast<const char*>(message.data()) + sizeof(header),
                          static_cast<size_t>(size) - sizeof(header)),
      .compact = header.compact != 0};
  std::optional<xgrammar::CompiledGrammar> compiled;
  std::string answer(1, static_cast<char>(CompileResult::kOk));
  constexpr CompileResult kExceeded = CompileResult::kExceeded, kNoRoom = CompileResult::kNoRoom;
  BeginLimit({.ms = limits.compile_ms,
              .socket = grammar_socket,
              .exceeded = BytesOf(kExceeded),
              .no_room = BytesOf(kNoRoom)});
  const auto compile = [&] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
    try {
      compiled = CompileSource(source, vocabulary);
    } catch (const std::bad_alloc&) {
      Exceed();
    } catch (const std::exception& error) {
      answer = static_cast<char>(CompileResult::kNotAGrammar);
      answer += std::string_view(error.what()).substr(0, kMaxMessageBytes);
    }
  };
  // A thread, so that its priority is below that of steps, and that of masks is not.
  try {
    std::thread(compile).join();
  } catch (const std::system_error&) {  // the machine gives no thread
    answer[0] = static_cast<char>(kNoRoom);
  }
  EndLimit();
  SendMessage(grammar_socket, std::as_bytes(std::span(answer)), 0);
  return compiled;
}

}  // namespace

void RunWorker(int grammar_socket, const xgrammar::TokenizerInfo& vocabulary,
               const HostHeader& limits, WorkerMemory* memory) {
  StartLimits(grammar_socket, memory);
  const std::optional<xgrammar::CompiledGrammar> grammar =
      Compile(grammar_socket, vocabulary, limits);
  if (!grammar) return;
  std::list<Walk> walks;
  std::vector<pollfd> polled;
  while (true) {
    polled.assign(1, {.fd = grammar_socket, .events = POLLIN, .revents = 0});
    for (const Walk& walk : walks)
      polled.push_back({.fd = walk.socket(), .events = POLLIN, .revents = 0});
    if (poll(polled.data(), polled.size(), -1) < 0) continue;
    size_t i = 1;
    for (auto walk = walks.begin(); walk != walks.end(); ++i) {
      const bool ends = polled[i].revents != 0 && !walk->Handle();
      walk = ends ? walks.erase(walk) : std::next(walk);
    }
    if (polled[0].revents == 0) continue;
    Descriptor socket = ReceiveDescriptor(grammar_socket);
    if (!socket.ok()) return;
    walks.emplace_back(std::move(socket), *grammar, limits);
  }
}

}  // namespace polysketch::grammar_host
