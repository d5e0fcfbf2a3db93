// Score: tokens stream in through a bounded feed, log-probabilities stream out.
#include <iterator>
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
  // `before`: tokens that precede the input. `return_tokens`: of the request.
  ScoreRenderer(int64_t before, bool return_tokens)
      : before_(before), return_tokens_(return_tokens) {}

  std::optional<grpc::ByteBuffer> Render(Event event, EventQueue* /*events*/) override {
    v1::ScoreResponse response;
    if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
      ToProto(*progress, response.mutable_progress());
    } else if (const auto* score = std::get_if<ScoreEvent>(&event)) {
      ToProto(*score, response.mutable_logprobs());
      const std::vector<int32_t>& ids = score->tokens;
      if (return_tokens_)
        response.mutable_logprobs()->mutable_tokens()->Add(ids.begin(), ids.end());
    } else {
      return std::nullopt;  // not an event of a score
    }
    return SerializeMessage(response);
  }
  Result<Messages> RenderFinish(const FinishEvent& finish) override {
    v1::ScoreResponse response;
    ToProto(finish, before_, response.mutable_finish());
    return Messages{SerializeMessage(response)};
  }

 private:
  const int64_t before_;
  const bool return_tokens_;
};

class ScoreInput final : public CallInput {
 public:
  explicit ScoreInput(EngineCall* call) : call_(call) {}

  Status OnMessage(const grpc::ByteBuffer& bytes) override {
    v1::ScoreRequest message;
    PS_RETURN_IF_ERROR(call_->Parse(bytes, &message));
    if (std::exchange(started_, true)) {
      if (!message.session().empty() || message.has_expected_position())
        return InvalidArgument("session: expected in the first message only");
      if (message.return_tokens())
        return InvalidArgument("return_tokens: expected in the first message only");
      if (message.far_mass())
        return InvalidArgument("far_mass: expected in the first message only");
      return Add(message);
    }
    return_tokens_ = message.return_tokens();
    far_mass_ = message.far_mass();
    if (message.session().empty()) {
      if (!message.has_expected_position()) return Add(message);
      return InvalidArgument("expected_position: expected with a session only");
    }
    const std::string session = message.session();
    call_->PostToSession(session,
                         [this, call = call_->shared_from_this(), message = std::move(message)] {
                           if (Status status = Begin(message); !status.ok()) call->Fail(status);
                         });
    return Status();
  }

  Status OnEnd() override {
    if (feed_ == nullptr) return InvalidArgument("input: expected text or tokens, found none");
    std::vector<int32_t> tokens;
    PS_RETURN_IF_ERROR(tokenizer_.Finish(&tokens));
    PS_RETURN_IF_ERROR(call_->ReserveTokens(std::ssize(tokens)));
    if (!tokens.empty()) feed_->Push(std::move(tokens));
    feed_->Close();
    return Status();
  }

 private:
  // On a thread of the session.
  Status Begin(const v1::ScoreRequest& first) {
    PS_ASSIGN_OR_RETURN(start_, call_->ReadSession(first.session(), ExpectedPosition(first)));
    if (first.input_case() != v1::ScoreRequest::INPUT_NOT_SET) return Add(first);
    call_->Read();
    return Status();
  }

  Status Add(const v1::ScoreRequest& message) {
    if (message.input_case() == v1::ScoreRequest::INPUT_NOT_SET) {
      return InvalidArgument("input: expected text or tokens, found neither");
    }
    std::vector<int32_t> tokens;
    const bool continued = start_ != nullptr;
    PS_RETURN_IF_ERROR(tokenizer_.Append(message, call_->model().rules, continued, &tokens));
    // The tokens wait in the feed until the next message is read.
    PS_RETURN_IF_ERROR(call_->HoldMessage(std::ssize(tokens) * int64_t{sizeof(int32_t)}));
    PS_RETURN_IF_ERROR(call_->ReserveTokens(std::ssize(tokens)));
    if (feed_ == nullptr) PS_RETURN_IF_ERROR(Submit());
    // If the feed is full, its on_room callback reads the next message.
    if (tokens.empty() || feed_->Push(std::move(tokens))) call_->Read();
    return Status();
  }

  Status Submit() {
    feed_ = std::make_shared<TokenFeed>(kFeedTokens);
    feed_->SetOnRoom([weak = call_->weak_from_this(), writers = call_->service()->writers] {
      writers->Post([weak] {
        if (const auto call = weak.lock()) call->Read();
      });
    });
    ScoreRequest request;
    request.feed = feed_;
    request.start = start_;
    request.far_mass = far_mass_;
    const int64_t before = start_ == nullptr ? 0 : start_->tokens();
    return call_->Submit(std::move(request),
                         std::make_unique<ScoreRenderer>(before, return_tokens_));
  }

  EngineCall* const call_;
  bool started_ = false;                   // a message has arrived
  bool return_tokens_ = false;             // of the first message
  bool far_mass_ = false;                  // the same
  std::shared_ptr<const Snapshot> start_;  // null: the empty sequence
  ChunkTokenizer tokenizer_;
  std::shared_ptr<TokenFeed> feed_;  // null before the first chunk
};

}  // namespace

void AddScoreMethod(ServiceContext* context, Router* router) {
  AddEngineMethod<ScoreInput>("Score", context, router);
}

}  // namespace polysketch
