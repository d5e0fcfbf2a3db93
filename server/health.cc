#include "server/health.h"

#include <grpcpp/support/server_callback.h>

#include <string>

#include "server/call.h"

namespace polysketch {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

bool IsKnown(const std::string& name) { return name.empty() || name == "polysketch.v1.PolySketch"; }

}  // namespace

class HealthService::CheckCall final : public grpc::ServerUnaryReactor {
 public:
  CheckCall(ConnectionTable* connections, grpc::CallbackServerContext* context,
            const grpc::Status& status)
      : counted_(connections, context) {
    Finish(status);
  }
  void OnDone() override {
    counted_.End();
    delete this;
  }

 private:
  CountedCall counted_;
};

// All methods but OnDone and the constructor run under the service's mutex or take it.
class HealthService::WatchCall final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  WatchCall(HealthService* service, grpc::CallbackServerContext* context, bool known)
      : service_(service), counted_(service->connections_, context), known_(known) {
    std::lock_guard lock(service_->mutex_);
    service_->watches_.insert(this);
    if (service_->ended_ || counted_.verdict() != ConnectionTable::Verdict::kAccepted) {
      End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no watches now"));
    } else {
      Update();
    }
  }

  // Writes the status if it is news; a write outstanding is followed by the newest status only.
  void Update() {
    if (ended_ || writing_) return;
    const Status status = !known_ ? HealthCheckResponse::SERVICE_UNKNOWN : service_->status();
    if (response_.status() == status) return;  // UNKNOWN, which is never sent, at first
    response_.set_status(status);
    writing_ = true;
    StartWrite(&response_);
  }

  void End(const grpc::Status& status) {
    if (ended_) return;
    ended_ = true;
    Finish(status);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(service_->mutex_);
    writing_ = false;
    ok ? Update() : End(grpc::Status::CANCELLED);
  }
  void OnCancel() override {
    std::lock_guard lock(service_->mutex_);
    End(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    counted_.End();
    {
      std::lock_guard lock(service_->mutex_);
      service_->watches_.erase(this);
    }
    delete this;
  }

 private:
  HealthService* const service_;
  CountedCall counted_;
  const bool known_;
  HealthCheckResponse response_;
  bool writing_ = false;
  bool ended_ = false;
};

// mutex_ held.
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
  for (WatchCall* watch : watches_)
    watch->End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server ends"));
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  if (!IsKnown(request->service())) {
    return new CheckCall(connections_, context,
                         grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service"));
  }
  {
    std::lock_guard lock(mutex_);
    response->set_status(status());
  }
  return new CheckCall(connections_, context, grpc::Status::OK);
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext* context, const HealthCheckRequest* request) {
  return new WatchCall(this, context, IsKnown(request->service()));
}

}  // namespace polysketch
