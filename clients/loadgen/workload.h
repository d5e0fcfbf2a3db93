// What is asked of the server: a sequence of requests that depends on the seed alone, not on when
// they are sent or on what comes back (but for conversations, whose later prompts repeat it).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "clients/loadgen/distribution.h"

namespace polysketch::loadgen {

struct WorkloadOptions {
  Distribution prompt_tokens;
  Distribution output_tokens;
  int64_t shared_prefix = 0;  // tokens that prompts begin with, in front of their own
  int64_t prefixes = 1;       // different ones; each prompt takes one of them
  int64_t turns = 1;          // of a conversation
  bool sessions = false;      // the server holds what was said before: a turn is its new tokens
  int32_t vocab_size = 1;
  uint64_t seed = 1;
};

struct Request {
  int64_t number = 0;
  int64_t turn = 0;     // of its conversation
  std::string session;  // the server's name of it; empty without sessions
  std::vector<int32_t> prompt;
  int64_t output_tokens = 0;
  uint64_t seed = 0;
};

class Workload {
 public:
  explicit Workload(const WorkloadOptions& options);

  // The first turn of the next conversation.
  Request Next();
  // The turn behind `request`, to which the server answered `output`: everything so far (unless a
  // session has it) and a new prompt. False when that was the last.
  bool Continue(Request* request, const std::vector<int32_t>& output);

 private:
  void Append(int64_t count, Random* random, std::vector<int32_t>* tokens) const;

  const WorkloadOptions options_;
  std::vector<std::vector<int32_t>> prefixes_;
  int64_t next_ = 0;
};

}  // namespace polysketch::loadgen
