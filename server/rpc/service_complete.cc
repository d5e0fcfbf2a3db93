#include <grpcpp/support/server_callback.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "server/convert/wire.h"
#include "server/rpc/generate_call.h"
#include "server/rpc/service.h"
#include "server/rpc/stream_call.h"

namespace polysketch {
namespace {

// A slow reader gets its backlog in messages of at most this many tokens.
constexpr int kMaxDeltaTokens = 256;
// Of a state: below the 4 MiB that gRPC takes by default.
constexpr size_t kStatePartBytes = size_t{1} << 20;

// Streams events and, where they were asked for, the parts of the state.
template <typename Base>
class EventWriter : public Base {
 protected:
  using Base::Base;

  std::optional<grpc::ByteBuffer> Render(Event event) override {
    v1::CompleteResponse response;
    if (const auto* progress = std::get_if<ProgressEvent>(&event)) {
      ToProto(*progress, response.mutable_progress());
    } else if (const auto* choice = std::get_if<ChoiceEvent>(&event)) {
      ToProto(*choice, response.mutable_choice());
    } else if (const auto* first = std::get_if<TokenEvent>(&event)) {
      v1::Delta* delta = response.mutable_delta();
      this->Append(*first, delta);
      while (delta->tokens_size() < kMaxDeltaTokens) {
        std::optional<Event> next = this->NextEvent();
        if (!next.has_value()) break;
        const auto* token = std::get_if<TokenEvent>(&*next);
        if (token == nullptr || token->echoed != first->echoed || token->choice != first->choice) {
          this->HoldBack(std::move(*next));
          break;
        }
        this->Append(*token, delta);
      }
    } else {
      return std::nullopt;  // not an event of a completion
    }
    return SerializeMessage(response);
  }

  std::vector<grpc::ByteBuffer> RenderFinish(const FinishEvent& finish) override {
    std::vector<grpc::ByteBuffer> messages;
    std::string_view state = this->returned_state();
    while (!state.empty()) {
      v1::CompleteResponse part;
      part.set_state(std::string(state.substr(0, kStatePartBytes)));
      messages.push_back(SerializeMessage(part));
      state.remove_prefix(std::min(state.size(), kStatePartBytes));
    }
    v1::CompleteResponse response;
    this->FillFinish(finish, response.mutable_finish());
    messages.push_back(SerializeMessage(response));
    return messages;
  }
};

class CompleteCall final
    : public EventWriter<StreamCall<grpc::ServerWriteReactor<grpc::ByteBuffer>, GenerateCall>> {
 public:
  CompleteCall(ServiceContext* service, grpc::CallbackServerContext* context)
      : EventWriter("Complete", service, context) {}

  void Begin(const grpc::ByteBuffer& request) { Start(request); }
};

class CompleteWithStateCall final : public EventWriter<BidiCall<GenerateCall>> {
 public:
  CompleteWithStateCall(ServiceContext* service, grpc::CallbackServerContext* context)
      : EventWriter("CompleteWithState", service, context) {}

 private:
  Status Take(const grpc::ByteBuffer& bytes) override {
    v1::CompleteWithStateRequest message;
    PS_RETURN_IF_ERROR(ParseMessage(bytes, &message));
    if (request_.has_value()) {
      return InvalidArgument("request: expected it last and once, found another message");
    }
    if (message.has_request()) {
      request_ = std::move(*message.mutable_request());
    } else if (message.part_case() == v1::CompleteWithStateRequest::kState) {
      if (state_.size() + message.state().size() > MaxStateBytes()) {
        return InvalidArgument("state: expected at most ", MaxStateBytes(), " bytes");
      }
      state_ += message.state();
    } else {
      return InvalidArgument("part: expected a state or a request, found neither");
    }
    Read();
    return Status();
  }

  void CloseInput() override {
    if (!request_.has_value()) {
      return Fail(InvalidArgument("request: expected one behind the state, found none"));
    }
    Run(SerializeMessage(*request_), std::move(state_));
  }

  // What a snapshot of the largest state can take.
  size_t MaxStateBytes() const {
    const DecodeLimits& limits = call_.model()->sessions->options().codec.limits;
    return limits.max_state_bytes + (size_t{1} << 20);
  }

  std::string state_;
  std::optional<v1::CompleteRequest> request_;
};

class CompleteUnaryCall final : public grpc::ServerUnaryReactor, public GenerateCall {
 public:
  CompleteUnaryCall(ServiceContext* service, grpc::CallbackServerContext* context,
                    grpc::ByteBuffer* response)
      : GenerateCall("CompleteUnary", service, context), response_(response) {}

  void Begin(const grpc::ByteBuffer& request) { Start(request); }
  void OnCancel() override { Cancelled(); }
  void OnDone() override { RpcDone(); }

 private:
  bool CanReturnState() const override { return false; }
  std::optional<grpc::ByteBuffer> Render(Event event) override {
    if (const auto* token = std::get_if<TokenEvent>(&event)) {
      // Echo is before all choices.
      Append(*token, token->echoed || !several_choices() ? &all_ : &choices_[token->choice].output);
    } else if (const auto* choice = std::get_if<ChoiceEvent>(&event)) {
      ToProto(*choice, &choices_[choice->choice].finish);
    }
    return std::nullopt;
  }
  std::vector<grpc::ByteBuffer> RenderFinish(const FinishEvent& finish) override {
    v1::CompleteUnaryResponse response;
    FillFinish(finish, response.mutable_finish());
    response.set_text(all_.text() + response.finish().text());
    response.mutable_finish()->clear_text();
    response.mutable_tokens()->Swap(all_.mutable_tokens());
    response.mutable_logprobs()->Swap(all_.mutable_logprobs());
    for (auto& [index, choice] : choices_) {
      v1::Choice* out = response.add_choices();
      out->set_text(choice.output.text() + choice.finish.text());
      choice.finish.clear_text();
      out->mutable_tokens()->Swap(choice.output.mutable_tokens());
      out->mutable_logprobs()->Swap(choice.output.mutable_logprobs());
      out->mutable_finish()->Swap(&choice.finish);
    }
    return {SerializeMessage(response)};
  }
  void StartMessage(const grpc::ByteBuffer*) override {}
  void FinishWith(const grpc::ByteBuffer* last_message) override {
    *response_ = *last_message;
    Finish(grpc::Status::OK);
  }
  void FinishWith(const grpc::Status& status) override { Finish(status); }

  struct Choice {
    v1::Delta output;
    v1::ChoiceFinish finish;
  };
  grpc::ByteBuffer* const response_;
  v1::Delta all_;
  std::map<int, Choice> choices_;  // of several
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* PolySketchService::Complete(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<CompleteCall>(context_, context);
  call->Begin(*request);
  return call.get();  // pinned until OnDone, which cannot come before this returns
}

grpc::ServerUnaryReactor* PolySketchService::CompleteUnary(grpc::CallbackServerContext* context,
                                                           const grpc::ByteBuffer* request,
                                                           grpc::ByteBuffer* response) {
  const auto call = std::make_shared<CompleteUnaryCall>(context_, context, response);
  call->Begin(*request);
  return call.get();
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* PolySketchService::CompleteWithState(
    grpc::CallbackServerContext* context) {
  const auto call = std::make_shared<CompleteWithStateCall>(context_, context);
  call->Begin();
  return call.get();
}

}  // namespace polysketch
