// A grammar whose masks are a function of the output and that answers when the test says so, on a
// thread of the test.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/host_protocol.h"
#include "engine/grammar/sockets.h"

namespace polysketch::testing {

class FakeGrammar : public Grammar {
 public:
  // Whether `token` may follow `output`. At least one token always may.
  using Allows = std::function<bool(const std::vector<int32_t>& output, int32_t token)>;

  FakeGrammar(int vocab_size, int eos_id, Allows allows)
      : vocab_size_(vocab_size),
        eos_id_(eos_id),
        allows_(std::move(allows)),
        dropped_((static_cast<size_t>(vocab_size) + 31) / 32) {}
  ~FakeGrammar() override {
    for (std::thread& thread : threads_) thread.join();
  }

  const std::vector<uint32_t>& dropped_spaces() const override { return dropped_; }
  Status ExceededLimits() const override { return InvalidArgument("structured_output: ended"); }
  Status NoRoom() const override { return ResourceExhausted("structured_output: ended"); }
  Result<int> OpenWalk() const override {
    int ends[2];
    PS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    std::lock_guard lock(mutex_);
    threads_.emplace_back([this, socket = ends[1]] { Serve(Descriptor(socket)); });
    return ends[0];
  }

  // Called before each mask is answered.
  std::function<void()> before_answer = [] {};

 private:
  void Serve(const Descriptor& socket) const {
    using grammar_host::WalkRequest;
    std::vector<int32_t> output;
    std::vector<std::byte> message(1 << 16);
    while (true) {
      const ssize_t size = grammar_host::ReceiveMessage(socket.get(), message, 0);
      if (size < static_cast<ssize_t>(sizeof(WalkRequest))) return;
      WalkRequest request;
      std::memcpy(&request, message.data(), sizeof(request));
      std::vector<int32_t> tokens(request.count);
      if (!tokens.empty())
        std::memcpy(tokens.data(), message.data() + sizeof(request),
                    tokens.size() * sizeof(int32_t));
      if (request.kind == WalkRequest::Kind::kFollow) {
        output.insert(output.end(), tokens.begin(), tokens.end());
      } else {
        Answer(socket.get(), request.job, output, tokens);
      }
    }
  }
  void Answer(int socket, uint32_t job, std::vector<int32_t> output,
              const std::vector<int32_t>& drafts) const {
    for (size_t row = 0;; ++row) {
      std::vector<uint32_t> words(dropped_.size() + 2);
      words[0] = static_cast<uint32_t>(grammar_host::MaskReply::Kind::kOk);
      words[1] = job;
      for (int32_t id = 0; id < vocab_size_; ++id) {
        if (allows_(output, id)) words[2 + static_cast<size_t>(id) / 32] |= 1u << (id % 32);
      }
      before_answer();
      grammar_host::SendMessage(socket, std::as_bytes(std::span(words)), 0);
      if (row == drafts.size() || drafts[row] == eos_id_ || !allows_(output, drafts[row])) return;
      output.push_back(drafts[row]);
    }
  }

  const int vocab_size_;
  const int eos_id_;
  const Allows allows_;
  const std::vector<uint32_t> dropped_;
  mutable std::mutex mutex_;
  mutable std::vector<std::thread> threads_;
};

}  // namespace polysketch::testing
