#include "clients/loadgen/grpc_stream.h"

#include <string>
#include <utility>

#include "base/status.h"

namespace polysketch::loadgen {

GrpcStream::GrpcStream(StreamParts parts, const CallOptions& call, float temperature,
                       v1::PolySketch::Stub* stub)
    : Stream(std::move(parts)), stub_(stub) {
  const Request& request = this->request();
  message_.mutable_prompt()->mutable_tokens()->mutable_ids()->Assign(request.prompt.begin(),
                                                                     request.prompt.end());
  if (!request.session.empty()) message_.set_session(request.session);
  message_.set_max_tokens(static_cast<int32_t>(request.output_tokens));
  message_.set_ignore_eos(true);  // outputs have the sampled lengths
  message_.mutable_sampling()->set_temperature(temperature);
  message_.mutable_sampling()->set_seed(request.seed);
  Prepare(call, &context_);
}

void GrpcStream::Start() {
  stub_->async()->Complete(&context_, &message_, this);
  StartRead(&response_);
  StartCall();
}

void GrpcStream::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone follows
  const auto& tokens = response_.delta().tokens();
  if (!tokens.empty()) AddMessage(tokens.size(), tokens.data());
  if (response_.has_finish()) {
    result_.prompt_tokens = response_.finish().usage().prompt_tokens();
    result_.cached_tokens = response_.finish().usage().cached_tokens();
  }
  StartRead(&response_);
}

void GrpcStream::OnDone(const grpc::Status& status) {
  End(std::string(CodeName(static_cast<Code>(status.error_code()))));
}

}  // namespace polysketch::loadgen
