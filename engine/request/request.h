// What a caller submits to the engine: plain data, no gRPC. A request is submitted together with
// the EventStream that its events go to (engine/engine.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/principal.h"
#include "engine/request/clock.h"
#include "engine/request/event_stream.h"
#include "engine/request/params.h"
#include "engine/request/token_feed.h"

namespace polysketch {

class Grammar;  // engine/grammar/grammar.h

using RequestId = uint64_t;

struct RequestInfo {
  std::string id;           // x-request-id, or made by the server; in logs
  std::string traceparent;  // passed through to logs
  // x-tenant-id, or that of the API key: whose sessions, snapshots and cached prompts the request
  // reads. Empty: the tenant without a name.
  std::string tenant;
  Principal principal;  // whose share of the server the request takes
  Clock::time_point arrival = Clock::now();
  Clock::time_point deadline = Clock::time_point::max();
  int priority = 0;            // a higher priority is served first
  bool record_chunks = false;  // FinishEvent::chunks
};

// How a completion uses the prefix cache.
struct CacheParams {
  bool read = true;
  bool write = true;
  // Positions of the prompt, in ascending order and above 0, whose states are stored too.
  std::vector<int64_t> points = {};
  std::string salt = {};  // only requests with the same one share states
};

struct GenerateRequest {
  RequestInfo info;
  std::vector<int32_t> prompt;  // token ids, BOS included; may be empty after a `start`
  GenerateParams params;
  // Compiled from params.grammar, or from that of the Generation of `start`; null without one.
  std::shared_ptr<const Grammar> grammar = nullptr;
  // The sequence that the prompt continues; null: the empty sequence. A snapshot with a Generation
  // is a migrated completion that resumes: `params` is then ignored and `prompt` must be empty.
  std::shared_ptr<const Snapshot> start = nullptr;
  bool keep = false;  // FinishEvent holds a snapshot of the whole sequence
  CacheParams cache = {};
  // Whether MigrateAll ends it. False for a client that cannot resume it: it then runs to its end.
  bool migrates = true;
  // The values of `start` came from a client: logits that are not finite are its error then, and
  // not the model's. A migrated completion keeps it: Generation::client_start.
  bool client_start = false;
};

struct ScoreRequest {
  RequestInfo info;
  std::shared_ptr<TokenFeed> feed;
  // The sequence that the input continues, without a Generation; null: the empty sequence.
  std::shared_ptr<const Snapshot> start = nullptr;
  bool far_mass = false;  // FinishEvent::far_mass
};

}  // namespace polysketch
