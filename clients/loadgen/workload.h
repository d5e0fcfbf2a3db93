// The requests of a load test: a sequence that depends on the seed alone and not on times or on the
// server, except that later turns of a conversation contain the server's output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "clients/loadgen/distribution.h"

namespace polysketch::loadgen {

struct WorkloadOptions {
  Distribution prompt_tokens;  // per turn, without the shared prefix
  Distribution output_tokens;
  int64_t shared_prefix = 0;  // tokens of the prefix that precedes the first prompt
  int64_t prefixes = 1;       // number of shared prefixes; each conversation has one of them
  int64_t turns = 1;          // per conversation
  bool sessions = false;      // a session holds earlier turns: a prompt is its new tokens
  int32_t vocab_size = 1;
  uint64_t seed = 1;
};

struct Request {
  int64_t number = 0;   // of the conversation
  int64_t turn = 0;     // in the conversation
  std::string session;  // empty without sessions
  std::vector<int32_t> prompt;
  int64_t output_tokens = 0;
  uint64_t seed = 0;
};

class Workload {
 public:
  explicit Workload(const WorkloadOptions& options);

  // The first turn of the next conversation.
  Request Next();
  // Makes *request the next turn of its conversation, after `output`. Returns false after the last
  // turn.
  bool Continue(Request* request, const std::vector<int32_t>& output);

 private:
  void Append(int64_t count, Random* random, std::vector<int32_t>* tokens) const;

  const WorkloadOptions options_;
  std::vector<std::vector<int32_t>> prefixes_;
  int64_t next_ = 0;
};

}  // namespace polysketch::loadgen
