// The messages of every RPC: bytes of the wire, parsed, checked and converted as server/rpc does,
// then a call that is run to its answer on a small engine (tests/server/rpc/call_runner.h, which
// has the form of an input).
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cmath>

#include "engine/sampler/sampling_params.h"
#include "engine/session/session_table.h"
#include "engine/snapshot/snapshot_file.h"
#include "server/convert/chunk_tokenizer.h"
#include "server/convert/convert.h"
#include "server/convert/status_map.h"
#include "server/convert/wire.h"
#include "server/gateway/generate_request.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/rpc/call_runner.h"
#include "tests/server/rpc/fake_tokenizer.h"

namespace polysketch {
namespace {

using testing::FakeTokenizer;

constexpr int32_t kMaxNewTokens = 1 << 20;

const RequestRules& Rules() {
  static const FakeTokenizer tokenizer;
  static const RequestRules rules = {.tokenizer = &tokenizer,
                                     .add_bos = true,
                                     .bos_id = FakeTokenizer::kBos,
                                     .vocab_size = FakeTokenizer::kVocabulary,
                                     .max_prompt_tokens = 1 << 20,
                                     .max_new_tokens = kMaxNewTokens,
                                     .max_priority = 8};
  return rules;
}

// Errors of a call fit the header that carries them, details included.
void CheckCallError(const Status& status) {
  fuzz::CheckError(status);
  PS_CHECK(status.message().size() <= fuzz::kMaxGrpcError) << status.message().size() << " bytes";
  PS_CHECK(ToGrpcStatus(status).error_message().size() <= fuzz::kMaxGrpcError);
}

std::string Serialized(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream output(&stream);
  output.SetSerializationDeterministic(true);
  PS_CHECK(message.SerializeToCodedStream(&output));
  output.Trim();
  return bytes;
}

grpc::ByteBuffer Slices(std::string_view bytes, size_t cut) {
  const grpc::Slice slices[] = {grpc::Slice(std::string(bytes.substr(0, cut))),
                                grpc::Slice(std::string(bytes.substr(cut)))};
  return grpc::ByteBuffer(slices, 2);
}

// Parses a message. Its slices, and a way over the wire, change nothing.
template <typename Message>
bool Parse(std::string_view bytes, Message* message) {
  const Status status = ParseMessage(Slices(bytes, bytes.size()), message);
  Message other;
  const Status split = ParseMessage(Slices(bytes, bytes.size() / 3), &other);
  PS_CHECK(status.ToString() == split.ToString()) << status.ToString() << " " << split.ToString();
  if (!status.ok()) {
    CheckCallError(status);
    return false;
  }
  const std::string once = Serialized(*message);
  PS_CHECK(once == Serialized(other));
  Message again;
  PS_CHECK(ParseMessage(SerializeMessage(*message), &again).ok());
  PS_CHECK(once == Serialized(again));
  return true;
}

bool IsIn(float value, float min, float max) { return value >= min && value <= max; }

void CheckSamplingRanges(const SamplingParams& sampling) {
  PS_CHECK(IsIn(sampling.temperature, 0, 100));
  PS_CHECK(sampling.top_k >= 0);
  PS_CHECK(sampling.top_p > 0 && sampling.top_p <= 1);
  PS_CHECK(IsIn(sampling.min_p, 0, 1));
  PS_CHECK(IsIn(sampling.repetition_penalty, 0.01f, 100));
  PS_CHECK(IsIn(sampling.frequency_penalty, -2, 2));
  PS_CHECK(IsIn(sampling.presence_penalty, -2, 2));
  for (const auto& [id, bias] : sampling.logit_bias) {
    PS_CHECK(id >= 0 && id < FakeTokenizer::kVocabulary && IsIn(bias, -100, 100)) << id;
  }
}

void CheckRanges(const GenerateParams& params) {
  CheckSamplingRanges(params.sampling);
  PS_CHECK(params.max_tokens.value_or(0) >= 0 && params.max_tokens.value_or(0) <= kMaxNewTokens);
  PS_CHECK(params.n >= 1 && params.n <= params.best_of && params.best_of <= 64);
  PS_CHECK(params.stop.size() <= 16 && params.stop_token_ids.size() <= 1024);
  for (const std::string& stop : params.stop) {
    PS_CHECK(!stop.empty() && stop.size() <= 1024 && ValidUtf8Prefix(stop) == stop.size());
  }
  for (const int32_t id : params.stop_token_ids)
    PS_CHECK(id >= 0 && id < FakeTokenizer::kVocabulary);
  PS_CHECK(params.min_tokens >= 0 &&
           params.min_tokens <= params.max_tokens.value_or(kMaxNewTokens));
  PS_CHECK(params.logprobs.value_or(0) >= 0 && params.logprobs.value_or(0) <= 20);
  PS_CHECK(params.draft_tokens.value_or(0) >= 0 && params.logprobs_from >= 0);
}

// Any replica continues a completion that this one accepted.
void CheckMigrates(const GenerateParams& params) {
  Snapshot snapshot;
  snapshot.pending = {1, 2};
  snapshot.history.seen = TokenSet(FakeTokenizer::kVocabulary);
  Generation generation;
  generation.params = params;
  generation.params.logprobs_from = 0;  // Generation::scored_from holds it
  generation.max_tokens = params.max_tokens.value_or(kMaxNewTokens);
  snapshot.generation = generation;
  const SnapshotBinding binding;
  const std::string bytes = EncodeSnapshot(snapshot, binding, StateEncoding::kF32);
  const DecodeLimits limits = {{FakeTokenizer::kVocabulary, kMaxNewTokens, true}, 0};
  const auto decoded = DecodeSnapshot(bytes, binding, limits);
  PS_CHECK(decoded.ok()) << decoded.status().ToString();
  // Without several choices, best_of travels as 1.
  PS_CHECK(decoded->generation->params == generation.params);
}

// Tokens of the chunks of an input, or an error. The ids do not depend on how text is cut.
template <typename Message>
void CheckChunk(const Message& chunk, const RequestRules& rules, ChunkTokenizer* tokenizer,
                std::string* text, std::vector<int32_t>* tokens) {
  const bool is_text = !chunk.has_tokens() && chunk.has_text();
  const Status status = tokenizer->Append(chunk, rules, /*continued=*/false, tokens);
  if (!status.ok()) return CheckCallError(status);
  if (is_text) *text += chunk.text();
  for (const int32_t id : *tokens) PS_CHECK(id >= 0 && id < rules.vocab_size) << id;
}

void CheckText(const std::string& text, std::vector<int32_t> tokens, ChunkTokenizer* tokenizer) {
  const Status status = tokenizer->Finish(&tokens);
  if (!status.ok()) return CheckCallError(status);
  if (text.empty() || tokens.empty()) return;
  const auto whole = Rules().tokenizer->Encode(text);
  PS_CHECK(whole.ok()) << whole.status().ToString();
  std::vector<int32_t> expected = {FakeTokenizer::kBos};
  expected.insert(expected.end(), whole->begin(), whole->end());
  PS_CHECK(tokens == expected);
}

// The rule of choices has one string for each text, which the text cannot leave.
void CheckChoices(std::string_view rule, const v1::OutputChoices& choices) {
  constexpr std::string_view kBegin = "root ::= ", kOr = " | ";
  PS_CHECK(rule.starts_with(kBegin)) << rule;
  rule.remove_prefix(kBegin.size());
  for (int i = 0; i < choices.texts_size(); ++i) {
    if (i > 0) {
      PS_CHECK(rule.starts_with(kOr)) << rule;
      rule.remove_prefix(kOr.size());
    }
    PS_CHECK(rule.starts_with('"')) << rule;
    std::string text;
    size_t at = 1;
    for (; at < rule.size() && rule[at] != '"'; ++at) {
      PS_CHECK(static_cast<unsigned char>(rule[at]) >= 0x20) << rule;
      if (rule[at] != '\\') {
        text += rule[at];
      } else if (rule[++at] == 'u') {  // a code point below U+0100
        const int c = std::stoi(std::string(rule.substr(at + 1, 4)), nullptr, 16);
        PS_CHECK(c < 0x100) << rule;
        if (c >= 0x80) text += static_cast<char>(0xC0 | c >> 6);
        text += static_cast<char>(c < 0x80 ? c : 0x80 | (c & 0x3F));
        at += 4;
      } else {
        text += rule[at];
      }
    }
    PS_CHECK(text == choices.texts(i)) << rule;
    rule.remove_prefix(at + 1);
  }
  PS_CHECK(rule.empty()) << rule;
}

void CheckCompletion(const v1::CompleteRequest& request) {
  const Result<GenerateParams> params = ToGenerateParams(request, Rules());
  if (params.ok()) {
    CheckRanges(*params);
    PS_CHECK(params->grammar.has_value() == request.has_structured_output());
    if (request.structured_output().has_choice())
      CheckChoices(params->grammar->text, request.structured_output().choice());
    CheckMigrates(*params);
  } else {
    CheckCallError(params.status());
  }
  const Result<int> priority = ToPriority(request, Rules().max_priority);
  if (priority.ok()) {
    PS_CHECK(std::abs(*priority) <= Rules().max_priority);
  } else {
    CheckCallError(priority.status());
  }
  const Result<CacheParams> cache = ToCacheParams(request.cache());
  if (cache.ok()) {
    PS_CHECK(std::is_sorted(cache->points.begin(), cache->points.end()));
  } else {
    CheckCallError(cache.status());
  }
  ChunkTokenizer tokenizer;
  std::vector<int32_t> tokens;
  std::string text;
  CheckChunk(request.prompt(), Rules(), &tokenizer, &text, &tokens);
  CheckText(text, std::move(tokens), &tokenizer);
}

// Calls visit(message) for each message of a stream.
template <typename Message, typename Visit>
void ForEachMessage(std::string_view bytes, const Visit& visit) {
  while (bytes.size() >= 2) {
    const size_t length = static_cast<uint8_t>(bytes[0]) | static_cast<uint8_t>(bytes[1]) << 8;
    Message message;
    const std::string_view one = bytes.substr(2, length);
    if (!Parse(one, &message)) return;
    visit(message);
    bytes.remove_prefix(2 + one.size());
  }
}

template <typename Message>
void CheckInput(std::string_view bytes) {
  ChunkTokenizer tokenizer;
  std::string text;
  std::vector<int32_t> tokens;
  ForEachMessage<Message>(bytes, [&](const Message& message) {
    CheckChunk(message, Rules(), &tokenizer, &text, &tokens);
  });
  CheckText(text, std::move(tokens), &tokenizer);
}

template <typename Message>
void CheckOne(std::string_view bytes) {
  Message message;
  Parse(bytes, &message);
}

void CheckComplete(std::string_view bytes) {
  v1::CompleteRequest request;
  if (Parse(bytes, &request)) CheckCompletion(request);
}

void CheckGenerate(std::string_view bytes) {
  vllm_engine::GenerateRequest request;
  if (!Parse(bytes, &request)) return;
  const Result<v1::CompleteRequest> complete = ToCompleteRequest(request, Rules());
  if (!complete.ok()) return CheckCallError(complete.status());
  PS_CHECK(FormOf(request).logprobs.value_or(0) >= 0);
  CheckCompletion(*complete);
}

void CheckCompleteStream(std::string_view bytes) {
  CheckInput<v1::CompleteStreamRequest>(bytes);
  ForEachMessage<v1::CompleteStreamRequest>(bytes, [](const v1::CompleteStreamRequest& message) {
    if (message.has_request()) CheckCompletion(message.request());
  });
}

void CheckCompleteWithState(std::string_view bytes) {
  ForEachMessage<v1::CompleteWithStateRequest>(bytes, [](const auto& message) {
    if (message.has_request()) CheckCompletion(message.request());
  });
}

void CheckDetokenize(std::string_view bytes) {
  v1::DetokenizeRequest request;
  if (!Parse(bytes, &request)) return;
  const std::span<const int32_t> ids(request.tokens().data(),
                                     static_cast<size_t>(request.tokens().size()));
  const Status status = CheckTokenIds("tokens", ids, Rules().vocab_size);
  if (!status.ok()) return CheckCallError(status);
  for (const int32_t id : ids) PS_CHECK(id >= 0 && id < Rules().vocab_size);
}

// --- sessions: a table in memory, as that of the server, with one session that is empty ---

constexpr char kTenant[] = "tenant";

class Sessions {
 public:
  Sessions() : table_(Options()) {
    const auto created =
        table_.Create(SessionUser{kTenant}, /*durable=*/false, std::chrono::seconds(0));
    PS_CHECK(created.ok()) << created.status().ToString();
    session_ = created->id;
  }

  SessionTable* table() { return &table_; }
  // The one that exists at first; a client would have its id.
  const std::string& session() const { return session_; }

 private:
  static SessionOptions Options() {
    SessionOptions options;
    options.codec.limits = {{FakeTokenizer::kVocabulary, kMaxNewTokens, true}, 0};
    options.memory = 1 << 20;
    options.max_per_tenant = 100;
    return options;
  }

  SessionTable table_;
  std::string session_;
};

void CheckSession(const Result<SessionInfo>& session) {
  if (!session.ok()) return CheckCallError(session.status());
  PS_CHECK(session->ttl.count() > 0) << session->ttl.count();
  v1::Session message;
  ToProto(*session, &message);
  PS_CHECK(message.ttl_seconds() > 0 || session->ttl < std::chrono::seconds(1));
}

void CheckCreateSession(std::string_view bytes) {
  v1::CreateSessionRequest request;
  if (!Parse(bytes, &request)) return;
  Sessions sessions;
  CheckSession(sessions.table()->Create(SessionUser{kTenant}, request.durable(),
                                        ToTtl(request.ttl_seconds())));
}

void CheckForkSession(std::string_view bytes) {
  v1::ForkSessionRequest request;
  if (!Parse(bytes, &request)) return;
  const Result<int> count = ToForkCount(request);
  if (!count.ok()) return CheckCallError(count.status());
  Sessions sessions;
  for (const std::string& session : {request.session(), sessions.session()}) {
    const auto forks =
        sessions.table()->Fork(SessionUser{kTenant}, session, *count, ExpectedPosition(request));
    if (!forks.ok()) {
      CheckCallError(forks.status());
      continue;
    }
    PS_CHECK(std::ssize(*forks) == *count && session == sessions.session());
    for (const SessionInfo& fork : *forks) CheckSession(fork);
  }
}

void CheckSnapshotSession(std::string_view bytes) {
  v1::SnapshotSessionRequest request;
  if (!Parse(bytes, &request)) return;
  Sessions sessions;
  // An empty session has no snapshot.
  for (const std::string& session : {request.session(), sessions.session()}) {
    const auto snapshot =
        sessions.table()->TakeSnapshot(SessionUser{kTenant}, session, ToTtl(request.ttl_seconds()));
    CheckCallError(snapshot.status());
  }
}

void CheckRestoreSession(std::string_view bytes) {
  v1::RestoreSessionRequest request;
  if (!Parse(bytes, &request)) return;
  const auto restored = Sessions().table()->Restore(
      SessionUser{kTenant}, request.snapshot(), request.durable(), ToTtl(request.ttl_seconds()));
  CheckCallError(restored.status());  // there is none
}

void CheckDeleteSession(std::string_view bytes) {
  v1::DeleteSessionRequest request;
  if (!Parse(bytes, &request)) return;
  Sessions sessions;
  const Status status = sessions.table()->Delete(kTenant, request.session());
  if (!status.ok()) CheckCallError(status);
  PS_CHECK(status.ok() == (request.session() == sessions.session()));
  PS_CHECK(sessions.table()->Delete("other", sessions.session()).code() == Code::kNotFound);
}

// In the order of kFuzzedCalls.
constexpr void (*kChecks[])(std::string_view bytes) = {
    CheckComplete,
    CheckCompleteStream,
    CheckCompleteWithState,
    CheckInput<v1::ScoreRequest>,
    CheckInput<v1::AppendRequest>,
    CheckDetokenize,
    CheckOne<v1::TokenizeRequest>,
    CheckCreateSession,
    CheckForkSession,
    CheckSnapshotSession,
    CheckRestoreSession,
    CheckOne<v1::ListSessionsRequest>,
    CheckDeleteSession,
    CheckOne<v1::GetModelRequest>,
    CheckGenerate,
};

static_assert(std::size(kChecks) == std::size(testing::kFuzzedCalls));

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto log = google::protobuf::SetLogHandler(nullptr);  // as the server
  (void)log;
  static auto* const runner =
      new polysketch::testing::CallRunner;  // threads that end with the process
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  polysketch::kChecks[data[0] % std::size(polysketch::kChecks)](bytes.substr(1));
  runner->RunInput(bytes);
  return 0;
}
