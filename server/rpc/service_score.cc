#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "server/convert/wire.h"
#include "server/rpc/service.h"
#include "server/rpc/stream_call.h"

namespace polysketch {
namespace {

// Tokens between the client and the engine: some steps' worth, so that neither waits for the other.
constexpr size_t kFeedTokens = 16384;

class ScoreCall final : public BidiCall<EngineCall> {
 public:
  ScoreCall(ServiceContext* service, grpc::CallbackServerContext* context)
      : BidiCall("Score", service, context) {}

 private:
  std::shared_ptr<ScoreCall> Self() {
    return std::static_pointer_cast<ScoreCall>(shared_from_this());
  }

  // --- input ---

  Status Take(const grpc::ByteBuffer& bytes) override {
    const RequestRules& rules = call_.model()->rules;
    v1::ScoreRequest message;
    PS_RETURN_IF_ERROR(ParseMessage(bytes, &message));
    if (message.input_case() == v1::ScoreRequest::INPUT_NOT_SET) {
      return InvalidArgument("input: expected text or tokens, found neither");
    }
    if (kind_ != v1::ScoreRequest::INPUT_NOT_SET && kind_ != message.input_case()) {
      return InvalidArgument("input: expected chunks of one kind, found text and tokens");
    }
    std::vector<int32_t> tokens;
    if (message.has_tokens()) {
      const auto& ids = message.tokens().ids();
      PS_RETURN_IF_ERROR(
          CheckTokenIds("tokens.ids", std::span(ids.data(), ids.size()), rules.vocab_size));
      tokens.assign(ids.begin(), ids.end());
    } else {
      PS_RETURN_IF_ERROR(RequireTokenizer(rules, "text"));
      if (encoder_ == nullptr) {
        encoder_ = std::make_unique<IncrementalEncoder>(rules.tokenizer);
        if (rules.add_bos) tokens.push_back(rules.bos_id);
      }
      PS_RETURN_IF_ERROR(AppendText(encoder_->Append(message.text()), &tokens));
    }
    if (kind_ == v1::ScoreRequest::INPUT_NOT_SET) PS_RETURN_IF_ERROR(Open());
    kind_ = message.input_case();
    if (Push(std::move(tokens))) Read();  // otherwise the feed reads on when it has room
    return Status();
  }

  static Status AppendText(Result<std::vector<int32_t>> encoded, std::vector<int32_t>* tokens) {
    if (!encoded.ok())
      return Status(encoded.status().code(), StrCat("text: ", encoded.status().message()));
    tokens->insert(tokens->end(), encoded->begin(), encoded->end());
    return Status();
  }

  // Submits the request with the first chunk.
  Status Open() {
    auto feed = std::make_shared<TokenFeed>(kFeedTokens);
    // The feed and the call hold each other until OnEnded.
    feed->SetOnRoom([self = Self(), writers = call_.service()->writers] {
      writers->Post([self] { self->Read(); });
    });
    {
      std::lock_guard lock(mutex_);
      feed_ = feed;
    }
    ScoreRequest request;
    request.feed = feed;
    return Submit(std::move(request));
  }

  // Whether to read on now.
  bool Push(std::vector<int32_t> tokens) {
    const std::shared_ptr<TokenFeed> feed = Feed();
    if (feed == nullptr) return false;  // the request has ended
    return tokens.empty() || feed->Push(std::move(tokens));
  }

  void CloseInput() override {
    if (kind_ == v1::ScoreRequest::INPUT_NOT_SET)
      return Fail(InvalidArgument("input: expected text or tokens, found none"));
    std::vector<int32_t> tokens;
    if (encoder_ != nullptr) {
      if (Status status = AppendText(encoder_->Finish(), &tokens); !status.ok())
        return Fail(status);
    }
    Push(std::move(tokens));
    if (const std::shared_ptr<TokenFeed> feed = Feed()) feed->Close();
  }

  std::shared_ptr<TokenFeed> Feed() {
    std::lock_guard lock(mutex_);
    return feed_;
  }

  // --- output ---

  std::optional<grpc::ByteBuffer> Render(Event event) override {
    v1::ScoreResponse response;
    if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
      ToProto(*progress, response.mutable_progress());
    } else if (const auto* score = std::get_if<ScoreEvent>(&event)) {
      ToProto(*score, response.mutable_logprobs());
    } else {
      return std::nullopt;  // not an event of a score
    }
    return SerializeMessage(response);
  }
  std::vector<grpc::ByteBuffer> RenderFinish(const FinishEvent& finish) override {
    v1::ScoreResponse response;
    ToProto(finish, response.mutable_finish());
    return {SerializeMessage(response)};
  }
  void OnEnded() override { feed_.reset(); }

  v1::ScoreRequest::InputCase kind_ = v1::ScoreRequest::INPUT_NOT_SET;
  std::unique_ptr<IncrementalEncoder> encoder_;
  std::shared_ptr<TokenFeed> feed_;  // guarded by mutex_
};

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PolySketchService::Score(
    grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<ScoreCall>(context_, context);
  call->Begin();
  return call.get();  // pinned until OnDone
}

}  // namespace polysketch
