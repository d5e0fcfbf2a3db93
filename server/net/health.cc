#include "server/net/health.h"

#include <grpcpp/support/server_callback.h>

#include <optional>
#include <string>

#include "server/convert/status_map.h"
#include "server/convert/wire.h"
#include "server/net/counted_call.h"

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
class HealthService::WatchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  WatchCall(HealthService* service, grpc::CallbackServerContext* context,
            const grpc::ByteBuffer& bytes)
      : service_(service), counted_(service->connections_, context) {
    HealthCheckRequest request;
    const polysketch::Status parsed = ParseMessage(bytes, &request);
    known_ = IsKnown(request.service());
    std::lock_guard lock(service_->mutex_);
    service_->watches_.insert(this);
    if (service_->ended_ || counted_.verdict() != ConnectionTable::Verdict::kAccepted) {
      End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no watches now"));
    } else if (!parsed.ok()) {
      End(ToGrpcStatus(parsed));
    } else {
      Update();
    }
  }

  // Writes the status if it is news; a write outstanding is followed by the newest status only.
  void Update() {
    if (ended_ || writing_) return;
    const Status status = !known_ ? HealthCheckResponse::SERVICE_UNKNOWN : service_->status();
    if (sent_ == status) return;
    sent_ = status;
    HealthCheckResponse response;
    response.set_status(status);
    response_ = SerializeMessage(response);
    writing_ = true;
    StartWrite(&response_);
  }

  void End(const grpc::Status& status) {
    if (ended_) return;
    ended_ = true;
    Finish(status);
  }

  // The same behind the newest status: a watcher learns that the server is not serving before its
  // call ends, even if it is still being told the status before.
  void EndAfterNews(const grpc::Status& status) {
    last_words_ = status;
    if (!writing_) End(status);
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(service_->mutex_);
    writing_ = false;
    if (!ok) return End(grpc::Status::CANCELLED);
    Update();
    if (!writing_ && last_words_) End(*last_words_);
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
  bool known_ = false;
  Status sent_ = HealthCheckResponse::UNKNOWN;  // never sent
  grpc::ByteBuffer response_;
  bool writing_ = false;
  bool ended_ = false;
  std::optional<grpc::Status> last_words_;
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
    watch->EndAfterNews(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server ends"));
}

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  HealthCheckRequest message;
  if (const polysketch::Status parsed = ParseMessage(*request, &message); !parsed.ok()) {
    return new CheckCall(connections_, context, ToGrpcStatus(parsed));
  }
  if (!IsKnown(message.service())) {
    return new CheckCall(connections_, context,
                         grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service"));
  }
  HealthCheckResponse answer;
  {
    std::lock_guard lock(mutex_);
    answer.set_status(status());
  }
  *response = SerializeMessage(answer);
  return new CheckCall(connections_, context, grpc::Status::OK);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return new WatchCall(this, context, *request);
}

}  // namespace polysketch
