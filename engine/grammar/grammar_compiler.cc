#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <condition_variable>
#include <list>
#include <mutex>
#include <utility>

#include "base/shares.h"
#include "base/utf8.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grammar_host.h"
#include "engine/grammar/host_protocol.h"
#include "engine/grammar/sockets.h"
#include "engine/sampler/sampling_params.h"

namespace polysketch {
namespace {

static_assert(grammar_host::kMaxSourceMessage ==
              sizeof(grammar_host::SourceHeader) + kMaxGrammarBytes);

// Of the compilation on a busy machine, whose processor time is limited by the worker itself.
constexpr int kCompileTimeoutMs = 60'000;

Status Exceeds(const GrammarLimits& limits) {
  return InvalidArgument("structured_output: expected a grammar that takes at most ",
                         limits.compile_ms, " ms to compile, ", limits.mask_ms, " ms a token and ",
                         limits.memory_bytes >> 20, " MiB, found one that takes more");
}

Status NoRoomOf(const GrammarLimits& limits) {
  return ResourceExhausted("structured_output: all grammars together take at most ",
                           limits.total_bytes >> 20,
                           " MiB (--grammar-memory), and this one took the most; try again later");
}

std::string ProgramBesideThis() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string self(path, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return self.substr(0, self.rfind('/') + 1) + grammar_host::kProgram;
}

// The bytes that a token adds to a text; empty for one that no output may have.
std::string_view AllowedBytes(const Tokenizer& tokenizer, int id) {
  if (id >= tokenizer.vocab_size() || id == tokenizer.unk_id()) return {};
  return tokenizer.PieceBytes(id);
}

// The standard input of the host.
std::string HostInput(const Tokenizer& tokenizer, int vocab_size,
                      const std::vector<int32_t>& eos_ids, const GrammarLimits& limits) {
  const grammar_host::HostHeader header{.compile_ms = limits.compile_ms,
                                        .mask_ms = limits.mask_ms,
                                        .memory_bytes = limits.memory_bytes,
                                        .total_bytes = limits.total_bytes,
                                        .vocab_size = vocab_size,
                                        .eos_count = static_cast<int32_t>(eos_ids.size())};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(eos_ids.data()), eos_ids.size() * sizeof(int32_t));
  for (int id = 0; id < vocab_size; ++id) {
    const std::string_view token = AllowedBytes(tokenizer, id);
    const auto size = static_cast<uint32_t>(token.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes.append(token);
  }
  return bytes;
}

std::vector<uint32_t> DroppedSpaces(const Tokenizer& tokenizer, int vocab_size) {
  std::vector<uint32_t> bits((static_cast<size_t>(vocab_size) + 31) / 32);
  if (!tokenizer.StripsLeadingSpace()) return bits;
  for (int id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    if (tokenizer.Piece(id).starts_with("\u2581"))
      bits[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  }
  return bits;
}

bool Closed(int socket) {
  pollfd polled{.fd = socket, .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 0) != 0;  // a worker sends nothing after its answer
}

// Sends the source and waits for the worker's answer.
Status CompileIn(int socket, const GrammarSource& source, const GrammarLimits& limits) {
  const grammar_host::SourceHeader header{.kind = static_cast<uint8_t>(source.kind),
                                          .compact = static_cast<uint8_t>(source.compact)};
  std::string request(reinterpret_cast<const char*>(&header), sizeof(header));
  request += source.text;
  if (grammar_host::SendMessage(socket, std::as_bytes(std::span(request)), 0) < 0)
    return GrammarProcessEnded();
  pollfd polled{.fd = socket, .events = POLLIN, .revents = 0};
  const auto ready =
      grammar_host::Uninterrupted([&] { return poll(&polled, 1, kCompileTimeoutMs); });
  std::string answer(2048, '\0');
  const ssize_t size =
      ready > 0 ? grammar_host::ReceiveMessage(socket, std::as_writable_bytes(std::span(answer)), 0)
                : 0;
  if (size < 1) return GrammarProcessEnded();
  answer.resize(static_cast<size_t>(size));
  if (answer[0] == static_cast<char>(grammar_host::CompileResult::kOk)) return Status();
  if (answer[0] == static_cast<char>(grammar_host::CompileResult::kExceeded))
    return Exceeds(limits);
  if (answer[0] == static_cast<char>(grammar_host::CompileResult::kNoRoom)) return NoRoomOf(limits);
  // The message may end within a character.
  const std::string_view message = std::string_view(answer).substr(1);
  return InvalidArgument("structured_output: ", message.substr(0, ValidUtf8Prefix(message)));
}

}  // namespace

// The grammars that are alive. Thread-safe.
class AliveGrammars {
 public:
  // Whether the principal may have one more.
  bool MayAdd(const Principal& principal) {
    const std::lock_guard lock(mutex_);
    return held_.Fits(principal, 1, GrammarCompiler::kMaxGrammars - held_.total(), /*first=*/true);
  }
  void Add(const Principal& principal, int more) {
    const std::lock_guard lock(mutex_);
    held_.Add(principal, more);
  }

 private:
  std::mutex mutex_;
  Shares held_;  // guarded by mutex_
};

class WorkerGrammar final : public Grammar {
 public:
  // `principal`: that the grammar was compiled for first.
  WorkerGrammar(Descriptor socket, std::shared_ptr<const std::vector<uint32_t>> dropped_spaces,
                const GrammarLimits& limits, std::shared_ptr<AliveGrammars> alive,
                Principal principal)
      : socket_(std::move(socket)),
        dropped_spaces_(std::move(dropped_spaces)),
        limits_(limits),
        alive_(std::move(alive)),
        principal_(std::move(principal)) {
    alive_->Add(principal_, 1);
  }
  ~WorkerGrammar() override { alive_->Add(principal_, -1); }

  const std::vector<uint32_t>& dropped_spaces() const override { return *dropped_spaces_; }

  Result<int> OpenWalk() const override {
    PS_ASSIGN_OR_RETURN(auto ends, SocketPair());
    if (!grammar_host::SendDescriptor(socket_.get(), ends.second.get()))
      return GrammarProcessEnded();
    return ends.first.Release();
  }
  Status ExceededLimits() const override { return Exceeds(limits_); }
  Status NoRoom() const override { return NoRoomOf(limits_); }

  bool ended() const { return Closed(socket_.get()); }

 private:
  const Descriptor socket_;
  const std::shared_ptr<const std::vector<uint32_t>> dropped_spaces_;
  const GrammarLimits limits_;
  const std::shared_ptr<AliveGrammars> alive_;
  const Principal principal_;
};

class GrammarCompiler::Impl {
 public:
  Impl(const Tokenizer* tokenizer, int vocab_size, const std::vector<int32_t>& eos_ids,
       const GrammarLimits& limits)
      : has_eos_(!eos_ids.empty()),
        limits_(limits),
        dropped_spaces_(
            std::make_shared<const std::vector<uint32_t>>(DroppedSpaces(*tokenizer, vocab_size))),
        host_(limits.program.empty() ? ProgramBesideThis() : limits.program,
              HostInput(*tokenizer, vocab_size, eos_ids, limits)) {}

  Result<std::shared_ptr<const Grammar>> Compile(const GrammarSource& source,
                                                 const Principal& principal) {
    if (!has_eos_) {
      return FailedPrecondition(
          "structured_output: expected a model with EOS, which ends an output that is complete");
    }
    if (source.text.size() > kMaxGrammarBytes) {
      return InvalidArgument("structured_output: expected at most ", kMaxGrammarBytes,
                             " bytes, found ", source.text.size());
    }
    std::unique_lock lock(mutex_);
    if (auto cached = Cached(source)) return cached;
    compilation_ended_.wait(lock, [this] { return stopped_ || compilations_ < kMaxCompilations; });
    if (stopped_) return Unavailable("the server is shutting down").WithReason(Reason::kDraining);
    if (auto cached = Cached(source)) return cached;  // compiled by another request meanwhile
    if (!alive_->MayAdd(principal)) cache_.clear();
    if (!alive_->MayAdd(principal)) {
      return ResourceExhausted("structured_output: this client's share of ", kMaxGrammars,
                               " grammars is in use; try again later");
    }
    PS_ASSIGN_OR_RETURN(Descriptor socket, host_.StartWorker());
    ++compilations_;
    lock.unlock();
    const Status status = CompileIn(socket.get(), source, limits_);
    lock.lock();
    --compilations_;
    compilation_ended_.notify_one();
    PS_RETURN_IF_ERROR(status);
    auto grammar = std::make_shared<const WorkerGrammar>(std::move(socket), dropped_spaces_,
                                                         limits_, alive_, principal);
    cache_.emplace_front(source, grammar);
    if (cache_.size() > kCachedGrammars) cache_.pop_back();
    return std::shared_ptr<const Grammar>(std::move(grammar));
  }

  std::shared_ptr<const Grammar> Find(const GrammarSource& source) {
    const std::unique_lock lock(mutex_, std::try_to_lock);  // held while a process is started
    return lock.owns_lock() ? Cached(source) : nullptr;
  }

  void Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    host_.Stop();
    compilation_ended_.notify_all();
  }

 private:
  // Null if it is not cached; mutex_ held.
  std::shared_ptr<const Grammar> Cached(const GrammarSource& source) {
    const auto at = std::find_if(cache_.begin(), cache_.end(),
                                 [&](const auto& entry) { return entry.first == source; });
    if (at == cache_.end()) return nullptr;
    if (at->second->ended()) {
      cache_.erase(at);
      return nullptr;
    }
    cache_.splice(cache_.begin(), cache_, at);
    return at->second;
  }

  const bool has_eos_;
  const GrammarLimits limits_;
  const std::shared_ptr<const std::vector<uint32_t>> dropped_spaces_;
  const std::shared_ptr<AliveGrammars> alive_ = std::make_shared<AliveGrammars>();
  std::mutex mutex_;
  std::condition_variable compilation_ended_;
  // Guarded by mutex_:
  GrammarHost host_;
  int compilations_ = 0;
  bool stopped_ = false;
  // The one that was used last is the first.
  std::list<std::pair<GrammarSource, std::shared_ptr<const WorkerGrammar>>> cache_;
};

GrammarCompiler::GrammarCompiler(const Tokenizer* tokenizer, int vocab_size,
                                 const std::vector<int32_t>& eos_ids, const GrammarLimits& limits)
    : impl_(std::make_unique<Impl>(tokenizer, vocab_size, eos_ids, limits)) {}

GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const Grammar>> GrammarCompiler::Compile(const GrammarSource& source,
                                                                const Principal& principal) {
  return impl_->Compile(source, principal);
}

std::shared_ptr<const Grammar> GrammarCompiler::Find(const GrammarSource& source) {
  return impl_->Find(source);
}

void GrammarCompiler::Stop() { impl_->Stop(); }

}  // namespace polysketch
