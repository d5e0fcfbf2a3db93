// Score: tokens stream in through a bounded feed, log-probabilities stream out.
#include <memory>
#include <utility>

#include "server/convert/chunk_tokenizer.h"
#include "server/convert/wire.h"
#include "server/rpc/engine_call.h"
#include "server/rpc/service.h"

namespace polysketch {
namespace {

// Maximum tokens between the client and the engine: those of several steps, so that neither waits
// for the other.
constexpr size_t kFeedTokens = 16384;

class ScoreRenderer final : public Renderer {
 public:
  std::optional<grpc::ByteBuffer> Render(Event event, EventQueue* /*events*/) override {
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
  Result<Messages> RenderFinish(const FinishEvent& finish) override {
    v1::ScoreResponse response;
    ToProto(finish, response.mutable_finish());
    return Messages{SerializeMessage(response)};
  }
};

class ScoreInput final : public CallInput {
 public:
  explicit ScoreInput(EngineCall* call) : call_(call) {}

  Status OnMessage(const grpc::ByteBuffer& bytes) override {
    v1::ScoreRequest message;
    PS_RETURN_IF_ERROR(ParseMessage(bytes, &message));
    if (message.input_case() == v1::ScoreRequest::INPUT_NOT_SET) {
      return InvalidArgument("input: expected text or tokens, found neither");
    }
    std::vector<int32_t> tokens;
    PS_RETURN_IF_ERROR(
        tokenizer_.Append(message, call_->model().rules, /*continued=*/false, &tokens));
    if (feed_ == nullptr) PS_RETURN_IF_ERROR(Submit());
    // If the feed is full, its on_room callback reads the next message.
    if (tokens.empty() || feed_->Push(std::move(tokens))) call_->Read();
    return Status();
  }

  Status OnEnd() override {
    if (feed_ == nullptr) return InvalidArgument("input: expected text or tokens, found none");
    std::vector<int32_t> tokens;
    PS_RETURN_IF_ERROR(tokenizer_.Finish(&tokens));
    if (!tokens.empty()) feed_->Push(std::move(tokens));
    feed_->Close();
    return Status();
  }

 private:
  Status Submit() {
    feed_ = std::make_shared<TokenFeed>(kFeedTokens);
    feed_->SetOnRoom([weak = call_->weak_from_this(), writers = call_->service()->writers] {
      writers->Post([weak] {
        if (const auto call = weak.lock()) call->Read();
      });
    });
    ScoreRequest request;
    request.feed = feed_;
    return call_->Submit(std::move(request), std::make_unique<ScoreRenderer>());
  }

  EngineCall* const call_;
  ChunkTokenizer tokenizer_;
  std::shared_ptr<TokenFeed> feed_;  // null before the first chunk
};

}  // namespace

void AddScoreMethod(ServiceContext* context, Router* router) {
  AddEngineMethod<ScoreInput>("Score", context, router);
}

}  // namespace polysketch
