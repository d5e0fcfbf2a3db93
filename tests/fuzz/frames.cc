// The filter of HTTP/2 frames: what it does is independent of how the bytes are cut, what passes is
// whole frames, and every byte that was charged is released.
#include "server/net/frame_filter.h"

#include <utility>

#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

class Ledger final : public MessageMemory {
 public:
  bool Charge(const FrameFilter&, int64_t bytes) override {
    PS_CHECK(bytes >= 0);
    if (held_ + bytes > 100'000) return false;
    held_ += bytes;
    return true;
  }
  void Release(const FrameFilter&, int64_t bytes) override {
    PS_CHECK(bytes >= 0 && bytes <= held_) << bytes << " of " << held_;
    held_ -= bytes;
  }
  int64_t held() const { return held_; }

 private:
  int64_t held_ = 0;
};

struct Run {
  FrameFilter::Output output;
  Status status;
};

// A script: each step is a direction, a length, and the bytes.
Run Play(std::string_view script, size_t cut, Ledger* ledger) {
  Run run;
  const FrameLimits limits{.header_bytes = 2000, .header_fields = 30, .open_streams = 5};
  FrameFilter filter(limits, {}, ledger, &run.output);
  FrameFilter::TimePoint now{std::chrono::hours(1)};
  run.status = filter.FromClient(kHttp2Preface, now);
  while (script.size() >= 2 && run.status.ok()) {
    const auto step = static_cast<uint8_t>(script[0]);
    std::string_view bytes = script.substr(2, static_cast<uint8_t>(script[1]));
    script.remove_prefix(2 + bytes.size());
    now += std::chrono::seconds(step >> 4);
    for (; !bytes.empty() && run.status.ok(); bytes.remove_prefix(std::min(cut, bytes.size()))) {
      const std::string_view piece = bytes.substr(0, cut);
      run.status = step % 4 == 0 ? filter.FromServer(piece, now) : filter.FromClient(piece, now);
    }
    if (run.status.ok() && step % 16 == 5) run.status = filter.CheckDeadlines(now);
    if (run.status.ok() && step % 16 == 6) run.status = filter.ResetLargest();
    PS_CHECK(filter.held() == ledger->held());
  }
  return run;
}

// Bytes that one side gets are frames; the last one may not be whole.
void CheckFrames(std::string_view bytes) {
  FrameCursor cursor;
  std::string_view piece;
  while (cursor.Next(&bytes, &piece) != FrameCursor::Part::kNone) {
  }
}

void CheckScript(std::string_view script) {
  Ledger ledger;
  const Run whole = Play(script, 255, &ledger);
  PS_CHECK(ledger.held() == 0);
  if (!whole.status.ok()) fuzz::CheckError(whole.status);
  for (const size_t cut : {1, 7}) {
    const Run pieces = Play(script, cut, &ledger);
    PS_CHECK(ledger.held() == 0);
    PS_CHECK(pieces.status.code() == whole.status.code()) << pieces.status.message();
    if (!whole.status.ok()) continue;
    PS_CHECK(pieces.output.to_server == whole.output.to_server);
    PS_CHECK(pieces.output.to_client == whole.output.to_client);
  }
  PS_CHECK(whole.output.to_server.starts_with(kHttp2Preface));
  CheckFrames(std::string_view(whole.output.to_server).substr(kHttp2Preface.size()));
}

// A header block is the same, however it is cut.
void CheckHeaderBlock(std::string_view block) {
  const auto scan = [block](size_t cut) {
    HeaderBlockScanner scanner(2000, 30);
    scanner.Begin();
    for (size_t at = 0; at < block.size(); at += cut) {
      if (const Status status = scanner.Add(block.substr(at, cut)); !status.ok())
        return status.code();
    }
    return scanner.End().code();
  };
  if (block.size() > 2000) return;  // the limit of bytes may come first
  const Code whole = scan(block.size() + 1);
  for (const size_t cut : {1, 2, 7}) PS_CHECK(scan(cut) == whole);
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  polysketch::CheckScript(bytes);
  polysketch::CheckHeaderBlock(bytes);
  return 0;
}
