#include "clients/loadgen/stream.h"

#include <string>
#include <utility>

#include "base/status.h"

namespace polysketch::loadgen {

Stream::Stream(Request request, Clock::time_point run_start, Clock::time_point due,
               const CallOptions& call, float temperature, OnEnd on_end)
    : request_(std::move(request)), run_start_(run_start), due_(due), on_end_(std::move(on_end)) {
  message_.mutable_prompt()->mutable_tokens()->mutable_ids()->Assign(request_.prompt.begin(),
                                                                     request_.prompt.end());
  if (!request_.session.empty()) message_.set_session(request_.session);
  message_.set_max_tokens(static_cast<int32_t>(request_.output_tokens));
  message_.set_ignore_eos(true);  // outputs have the sampled lengths
  message_.mutable_sampling()->set_temperature(temperature);
  message_.mutable_sampling()->set_seed(request_.seed);
  Prepare(call, &context_);
  result_.start = Seconds(due_ - run_start_);
  result_.gaps.reserve(static_cast<size_t>(request_.output_tokens));
}

void Stream::Start(v1::PolySketch::Stub* stub) {
  stub->async()->Complete(&context_, &message_, this);
  StartRead(&response_);
  StartCall();
}

void Stream::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone follows
  if (const int count = response_.delta().tokens_size(); count > 0) {
    const double now = Seconds(Clock::now() - due_);
    if (result_.output_tokens == 0) {
      result_.first_token = now;
    } else {
      result_.gaps.push_back(static_cast<float>(now - result_.last_token));
    }
    result_.gaps.insert(result_.gaps.end(), static_cast<size_t>(count - 1), 0.0f);
    result_.last_token = now;
    result_.output_tokens += count;
    output_.insert(output_.end(), response_.delta().tokens().begin(),
                   response_.delta().tokens().end());
    if (on_tokens_) on_tokens_(count);
  }
  if (response_.has_finish()) {
    result_.prompt_tokens = response_.finish().usage().prompt_tokens();
    result_.cached_tokens = response_.finish().usage().cached_tokens();
  }
  StartRead(&response_);
}

void Stream::OnDone(const grpc::Status& status) {
  result_.end = Seconds(Clock::now() - run_start_);
  result_.status = CodeName(static_cast<Code>(status.error_code()));
  const OnEnd on_end = std::move(on_end_);  // outlives the stream
  on_end(this, std::move(result_), std::move(output_));
}

}  // namespace polysketch::loadgen
