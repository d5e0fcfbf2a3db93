#include "server/net/router.h"

#include "server/convert/request_id.h"
#include "server/convert/status_map.h"
#include "server/net/peer.h"

namespace polysketch {
namespace {

// A call over gRPC.
class GrpcCall final : public grpc::ServerGenericBidiReactor, public CallContext {
 public:
  GrpcCall(const Router& router, grpc::GenericCallbackServerContext* context)
      : context_(context), reactor_(router.Start(this)) {}

  std::string_view method() const override { return context_->method(); }
  std::string peer() const override { return ClientPeer(context_->peer()); }
  std::vector<std::string_view> Metadata(std::string_view key) const override {
    std::vector<std::string_view> values;
    const auto [first, last] = context_->client_metadata().equal_range({key.data(), key.size()});
    for (auto at = first; at != last; ++at)
      values.emplace_back(at->second.data(), at->second.size());
    return values;
  }
  std::chrono::system_clock::time_point deadline() const override {
    // A far deadline ("99999999H") does not fit into a time_point.
    const gpr_timespec deadline =
        gpr_convert_clock_type(context_->raw_deadline(), GPR_CLOCK_REALTIME);
    const gpr_timespec left = gpr_time_sub(deadline, gpr_now(GPR_CLOCK_REALTIME));
    constexpr int64_t kYear = 365 * 24 * 3600;
    if (left.tv_sec > kYear) return std::chrono::system_clock::time_point::max();
    return context_->deadline();
  }
  void AddInitialMetadata(const std::string& key, const std::string& value) override {
    context_->AddInitialMetadata(key, value);
  }
  void StartRead(grpc::ByteBuffer* message) override { Base::StartRead(message); }
  void StartWrite(const grpc::ByteBuffer* message) override { Base::StartWrite(message); }
  void StartWriteAndFinish(const grpc::ByteBuffer* message) override {
    Base::StartWriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK);
  }
  void Finish(const Status& status) override {
    if (const auto delay = status.retry_after(); delay.has_value())
      context_->AddTrailingMetadata("retry-after-ms", StrCat(delay->count()));
    Base::Finish(ToGrpcStatus(status));
  }
  void TryCancel() override { context_->TryCancel(); }
  bool IsCancelled() const override { return context_->IsCancelled(); }

  void OnReadDone(bool ok) override { reactor_->OnReadDone(ok); }
  void OnWriteDone(bool ok) override { reactor_->OnWriteDone(ok); }
  void OnCancel() override { reactor_->OnCancel(); }
  void OnDone() override {
    reactor_->OnDone();
    delete this;
  }

 private:
  using Base = grpc::ServerGenericBidiReactor;

  grpc::GenericCallbackServerContext* const context_;
  // gRPC reports nothing before CreateReactor has returned.
  CallReactor* const reactor_;
};

}  // namespace

Status Router::Admit(CallContext* context) const {
  if (guard_ == nullptr || context->caller() != nullptr) return Status();
  if (context->method().starts_with(StrCat("/", kHealthService, "/"))) return Status();
  PS_ASSIGN_OR_RETURN(std::shared_ptr<const Caller> caller,
                      guard_->Admit(context->Metadata("authorization")));
  context->set_caller(std::move(caller));
  return Status();
}

CallReactor* Router::Start(CallContext* context) const {
  if (const Status status = Admit(context); !status.ok()) return Refuse(context, status);
  const auto found = handlers_.find(std::string(context->method()));
  if (found != handlers_.end()) return found->second(context);
  return Refuse(context, Status(Code::kUnimplemented, "unknown method"));
}

CallReactor* Router::Refuse(CallContext* context, const Status& status) const {
  const std::vector<std::string_view> ids = context->Metadata(kRequestIdKey);
  const bool named = ids.size() == 1 && IsRequestId(ids.front());
  const std::string id = named ? std::string(ids.front()) : NewRequestId();
  context->AddInitialMetadata(kRequestIdKey, id);
  refusals_->Add(status, {.id = id, .peer = context->peer(), .method = context->method()});
  return new RefusedCall(connections_, context, status);
}

grpc::ServerGenericBidiReactor* Router::CreateReactor(grpc::GenericCallbackServerContext* context) {
  return new GrpcCall(*this, context);
}

}  // namespace polysketch
