// What the tests say to a server over gRPC. gRPC's headers stay in rpc.cc: each translation unit
// that sees them costs 15 seconds.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"

namespace polysketch::e2e {

struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout = {};
  std::vector<std::pair<std::string, std::string>> metadata = {};
  std::map<std::string, std::string>* initial_metadata = nullptr;  // out, may be null
};

// A call that is under way. Destroying it cancels it.
template <typename Response>
class ReadStream {
 public:
  virtual ~ReadStream() = default;
  // False when nothing more comes.
  virtual bool Read(Response* response) = 0;
  // May be called from any thread.
  virtual void Cancel() = 0;
  // Drops what was not read, and waits for the end.
  virtual Status Finish() = 0;
};

template <typename Request, typename Response>
class Stream : public ReadStream<Response> {
 public:
  // False when the call has ended.
  virtual bool Write(const Request& request) = 0;
  virtual void WritesDone() = 0;
};

using CompleteStream = ReadStream<v1::CompleteResponse>;
using ScoreStream = Stream<v1::ScoreRequest, v1::ScoreResponse>;
using ByteStream = Stream<std::string, std::string>;

// A completion that is read as it comes, on a thread of its own: a sequence whose client does not
// read is idle after a while and leaves its slot to others. Destroying it cancels it.
class ReadCompletion {
 public:
  explicit ReadCompletion(std::unique_ptr<CompleteStream> stream)
      : stream_(std::move(stream)), reader_([this] { (void)stream_->Finish(); }) {}
  ~ReadCompletion() { Cancel(); }
  void Cancel() { stream_->Cancel(); }

 private:
  const std::unique_ptr<CompleteStream> stream_;
  std::jthread reader_;
};

enum class Health { kServing, kNotServing, kUnknown, kServiceUnknown };
using HealthStream = ReadStream<Health>;

// A completion, all of its messages put together.
struct Completion {
  Status status;
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the tokens that have one
  std::vector<v1::TokenLogprob> details;
  v1::Finish finish;
  int messages = 0;
  int progress_messages = 0;
};

struct Score {
  Status status;
  int64_t first = 0;  // index of the first token with a log-probability
  std::vector<float> logprobs;
  std::vector<bool> greedy;
  v1::ScoreFinish finish;
};

struct ChannelOptions {
  // HTTP/2 windows as small as they can be, so that a client that does not read is felt soon.
  bool small_windows = false;
  // Connects before the first call, with the retries of gRPC. Of many threads that connect at once,
  // gRPC 1.51 now and then fails one with "No such file or directory", and the call that waits.
  bool connect_first = false;
};

// Thread-safe. Each has a connection of its own.
class Client {
 public:
  explicit Client(const std::string& address, const ChannelOptions& options = {});
  ~Client();

  Completion Complete(const v1::CompleteRequest& request, const CallOptions& options = {});
  Completion CompleteUnary(const v1::CompleteRequest& request, const CallOptions& options = {});
  std::unique_ptr<CompleteStream> StartComplete(const v1::CompleteRequest& request,
                                                const CallOptions& options = {});
  std::unique_ptr<ScoreStream> StartScore(const CallOptions& options = {});
  // Writes what `next` gives until it returns false, and reads on another thread.
  Score ScoreAll(const std::function<bool(v1::ScoreRequest*)>& next,
                 const CallOptions& options = {});
  // Ids in chunks of that many.
  Score ScoreTokens(const std::vector<int32_t>& tokens, size_t chunk,
                    const CallOptions& options = {});

  Status Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response);
  Status Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response);
  Status GetModel(v1::GetModelResponse* response);
  Result<v1::Session> CreateSession();
  // Ids in one chunk.
  Result<v1::Session> AppendSession(const std::string& session, const std::vector<int32_t>& tokens,
                                    int64_t expected_position);
  Result<v1::Snapshot> SnapshotSession(const std::string& session);

  Result<Health> CheckHealth(const std::string& service);
  std::unique_ptr<HealthStream> WatchHealth(const std::string& service);

  // A call of any method ("/polysketch.v1.PolySketch/Complete") with bytes as they are.
  std::unique_ptr<ByteStream> StartRaw(const std::string& method, const CallOptions& options = {});
  // One message of bytes; the answers are dropped.
  Status CallRaw(const std::string& method, const std::string& bytes);

 private:
  struct Stubs;
  const std::unique_ptr<Stubs> stubs_;
};

// A greedy request for text or ids.
v1::CompleteRequest Greedy(const std::string& prompt, int max_tokens);
v1::CompleteRequest Greedy(const std::vector<int32_t>& prompt, int max_tokens);

}  // namespace polysketch::e2e
