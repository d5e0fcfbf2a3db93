#include "server/net/health.h"

#include <optional>
#include <string>

#include "grpc/health/v1/health_list.pb.h"
#include "server/convert/wire.h"

namespace polysketch {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using grpc::health::v1::HealthListRequest;
using grpc::health::v1::HealthListResponse;

const Status kCancelled(Code::kCancelled, "the client cancelled");

bool IsKnown(const HealthCheckRequest& request) {
  return request.service().empty() || request.service() == kPolySketchService;
}

grpc::ByteBuffer Response(HealthService::Status status) {
  HealthCheckResponse response;
  response.set_status(status);
  return SerializeMessage(response);
}

}  // namespace

Result<grpc::ByteBuffer> HealthService::Check(const grpc::ByteBuffer& bytes) const {
  HealthCheckRequest request;
  PS_RETURN_IF_ERROR(ParseMessage(bytes, &request));
  if (!IsKnown(request)) return NotFound("unknown service");
  std::lock_guard lock(mutex_);
  return Response(status());
}

Result<grpc::ByteBuffer> HealthService::List(const grpc::ByteBuffer& bytes) const {
  HealthListRequest request;
  PS_RETURN_IF_ERROR(ParseMessage(bytes, &request));
  HealthListResponse response;
  std::lock_guard lock(mutex_);
  for (const char* name : {"", kPolySketchService})
    (*response.mutable_statuses())[name].set_status(status());
  return SerializeMessage(response);
}

class HealthService::WatchCall final : public CountedReactor {
 public:
  WatchCall(HealthService* service, CallContext* context)
      : CountedReactor(service->connections_, context), service_(service) {
    context_->StartRead(&bytes_);
  }

  // The callers of the next three methods hold the service's mutex_.

  // Writes the status if the client does not have it. While a write is outstanding it does nothing;
  // OnWriteDone then writes the newest status.
  void Update() {
    if (ended_ || writing_) return;
    const Status status = known_ ? service_->status() : HealthCheckResponse::SERVICE_UNKNOWN;
    if (sent_ == status) return;
    sent_ = status;
    bytes_ = Response(status);
    writing_ = true;
    context_->StartWrite(&bytes_);
  }
  void End(const polysketch::Status& status) {
    if (ended_) return;
    ended_ = true;
    context_->Finish(status);
  }
  // Ends the watch after the newest status has been written.
  void EndAfterUpdate(const polysketch::Status& status) {
    end_status_ = status;
    if (!writing_) End(status);
  }

  void OnReadDone(bool ok) override {
    HealthCheckRequest request;
    const polysketch::Status parsed = ok ? ParseMessage(bytes_, &request) : polysketch::Status();
    std::lock_guard lock(service_->mutex_);
    if (!ok) return End(InvalidArgument("expected a message, found none"));
    if (!parsed.ok()) return End(parsed);
    if (service_->ended_ || verdict() != ConnectionTable::Verdict::kAccepted)
      return End(Unavailable("no watches now"));
    known_ = IsKnown(request);
    service_->watches_.insert(this);
    Update();
  }
  void OnWriteDone(bool ok) override {
    std::lock_guard lock(service_->mutex_);
    writing_ = false;
    if (!ok) return End(kCancelled);
    Update();
    if (!writing_ && end_status_) End(*end_status_);
  }
  void OnCancel() override {
    std::lock_guard lock(service_->mutex_);
    End(kCancelled);
  }
  void OnDone() override {
    {
      std::lock_guard lock(service_->mutex_);
      service_->watches_.erase(this);
    }
    CountedReactor::OnDone();
  }

 private:
  HealthService* const service_;
  grpc::ByteBuffer bytes_;  // the request, then the write outstanding
  // Guarded by the service's mutex_:
  bool known_ = false;
  Status sent_ = HealthCheckResponse::UNKNOWN;  // UNKNOWN: nothing was sent yet
  bool writing_ = false;
  bool ended_ = false;
  std::optional<polysketch::Status> end_status_;  // set by EndAfterUpdate
};

void HealthService::AddMethods(Router* router) {
  const auto add = [this, router](const char* rpc, auto answer) {
    router->Add(kHealthService, rpc, [this, answer](CallContext* context) {
      return new AnsweredCall(
          connections_, context, /*limited=*/false,
          [this, answer](const grpc::ByteBuffer& request) { return (this->*answer)(request); });
    });
  };
  add("Check", &HealthService::Check);
  add("List", &HealthService::List);
  router->Add(kHealthService, "Watch",
              [this](CallContext* context) { return new WatchCall(this, context); });
}

HealthService::Status HealthService::status() const {
  return serving_ ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::SetServing(bool serving) {
  std::lock_guard lock(mutex_);
  serving_ = serving;
  for (WatchCall* watch : watches_) watch->Update();
}

void HealthService::EndWatches() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  for (WatchCall* watch : watches_) watch->EndAfterUpdate(Unavailable("the server ends"));
}

}  // namespace polysketch
