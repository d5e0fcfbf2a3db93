#include "server/net/frame_filter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace polysketch {
namespace {

using namespace std::string_literals;

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return frame + payload;
}
std::string Open(uint32_t stream) {
  return Frame(FrameType::kHeaders, kEndHeadersFlag, stream, "\x83\x86");
}
std::string Data(uint32_t stream, const std::string& payload, uint8_t flags = 0) {
  return Frame(FrameType::kData, flags, stream, payload);
}
// The prefix of a message and as many of its bytes as asked.
std::string Message(uint32_t size, size_t sent) {
  std::string message(1, '\0');
  for (const int shift : {24, 16, 8, 0}) message.push_back(static_cast<char>(size >> shift));
  return message + std::string(sent, 'm');
}
std::string Reset(uint32_t stream, Http2Error error) {
  std::string frame;
  AppendRstStream(stream, error, &frame);
  return frame;
}
std::string WindowUpdate(uint32_t stream, uint32_t bytes) {
  std::string frame;
  AppendWindowUpdate(stream, bytes, &frame);
  return frame;
}

struct Ledger final : MessageMemory {
  int64_t limit = 1 << 20;
  int64_t held = 0;
  bool Charge(const FrameFilter&, int64_t bytes) override {
    if (held + bytes > limit) return false;
    held += bytes;
    return true;
  }
  void Release(const FrameFilter&, int64_t bytes) override { held -= bytes; }
};

class FrameFilterTest : public ::testing::Test {
 protected:
  FrameFilterTest() {
    EXPECT_TRUE(FromClient(std::string(kHttp2Preface)).ok());
    EXPECT_EQ(Take(&output_.to_server), kHttp2Preface);
  }
  Status FromClient(const std::string& bytes) { return filter_.FromClient(bytes, now_); }
  Status FromServer(const std::string& bytes) { return filter_.FromServer(bytes, now_); }
  static std::string Take(std::string* bytes) { return std::exchange(*bytes, std::string()); }
  std::string ToServer() { return Take(&output_.to_server); }
  std::string ToClient() { return Take(&output_.to_client); }
  // How many of a frame pass within one instant.
  int Passing(const std::string& frame, int most) { return Passing(frame, most, &filter_); }
  int Passing(const std::string& frame, int most, FrameFilter* filter) {
    for (int i = 0; i < most; ++i) {
      const Status status = filter->FromClient(frame, now_);
      output_.to_server.clear();
      if (!status.ok()) {
        EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
        return i;
      }
    }
    return most;
  }

  FrameLimits limits_{.header_bytes = 1000,
                      .header_fields = 20,
                      .open_streams = 4,
                      .resets_per_second = 2,
                      .control_frames_per_second = 10,
                      .stall_deadline = std::chrono::seconds(30)};
  Ledger ledger_;
  FrameFilter::Output output_;
  FrameFilter filter_{limits_, {}, &ledger_, &output_};
  FrameFilter::TimePoint now_{std::chrono::hours(1)};
};

TEST_F(FrameFilterTest, HonestFramesPassHoweverTheyAreCut) {
  const std::string frames =
      Frame(FrameType::kSettings, 0, 0, "\0\x03\0\0\0\x64"s) + Open(1) +
      Data(1, Message(10, 10) + Message(3000, 100)) +
      Data(1, std::string(2900, 'm'), kEndStreamFlag) +
      Frame(FrameType::kHeaders, kPaddedFlag | kPriorityFlag, 3, "\x03\0\0\0\0\x10\x83pad"s) +
      Frame(FrameType::kContinuation, kEndHeadersFlag, 3, "\x86") +
      Data(3, "\x02" + Message(2, 2) + "pp", kPaddedFlag | kEndStreamFlag) + WindowUpdate(0, 100) +
      Frame(FrameType::kPing, 0, 0, "01234567");
  for (size_t cut = 1; cut <= frames.size(); cut = cut * 3 + 1) {
    FrameFilter filter(limits_, {}, &ledger_, &output_);
    const std::string all = std::string(kHttp2Preface) + frames;
    for (size_t at = 0; at < all.size(); at += cut)
      ASSERT_TRUE(filter.FromClient(std::string_view(all).substr(at, cut), now_).ok()) << cut;
    EXPECT_EQ(ToServer(), all) << cut;
    EXPECT_EQ(ToClient(), "");
    EXPECT_EQ(filter.held(), 0);
  }
}

TEST_F(FrameFilterTest, OtherProtocolsEndAtOnce) {
  FrameFilter filter(limits_, {}, &ledger_, &output_);
  EXPECT_EQ(filter.FromClient("GET / HTTP/1.1\r\n", now_).code(), Code::kInvalidArgument);
}

TEST_F(FrameFilterTest, BoundsHeaderBlocks) {
  ASSERT_TRUE(FromClient(Frame(FrameType::kHeaders, 0, 1, "\x83\x86")).ok());
  const std::string fields = Frame(FrameType::kContinuation, 0, 1, std::string(6, '\x90'));
  EXPECT_EQ(Passing(fields, 100), 3);
}

TEST_F(FrameFilterTest, BoundsEmptyContinuations) {
  ASSERT_TRUE(FromClient(Frame(FrameType::kHeaders, 0, 1, "\x83\x86")).ok());
  EXPECT_EQ(Passing(Frame(FrameType::kContinuation, 0, 1, ""), 1000), 100);
}

TEST_F(FrameFilterTest, ContinuationsFollowTheirHeaders) {
  EXPECT_EQ(FromClient(Frame(FrameType::kContinuation, 0, 1, "")).code(), Code::kInvalidArgument);
  FrameFilter filter(limits_, {}, &ledger_, &output_);
  const std::string begun = std::string(kHttp2Preface) + Frame(FrameType::kHeaders, 0, 1, "\x83");
  ASSERT_TRUE(filter.FromClient(begun, now_).ok());
  EXPECT_EQ(filter.FromClient(Frame(FrameType::kPing, 0, 0, "01234567"), now_).code(),
            Code::kInvalidArgument);
}

TEST_F(FrameFilterTest, BoundsFramesThatCarryNothing) {
  for (const std::string& frame : {Frame(FrameType::kPing, kAckFlag, 0, "01234567"),
                                   Frame(FrameType::kSettings, kAckFlag, 0, ""), WindowUpdate(0, 1),
                                   Data(1, ""), Frame(FrameType::kPriority, 0, 1, "\0\0\0\0\x10"s),
                                   Frame(static_cast<FrameType>(0x55), 0, 0, "")}) {
    FrameFilter filter(limits_, {}, &ledger_, &output_);
    ASSERT_TRUE(filter.FromClient(std::string(kHttp2Preface) + Open(1), now_).ok());
    EXPECT_NEAR(Passing(frame, 1000, &filter), 100, 10) << static_cast<int>(frame[3]);
  }
}

TEST_F(FrameFilterTest, FramesWithAnAnswerCountTenTimes) {
  EXPECT_EQ(Passing(Frame(FrameType::kPing, 0, 0, "01234567"), 1000), 10);
  now_ += std::chrono::seconds(60);
  FrameFilter filter(limits_, {}, &ledger_, &output_);
  ASSERT_TRUE(filter.FromClient(kHttp2Preface, now_).ok());
  EXPECT_EQ(Passing(Frame(FrameType::kSettings, 0, 0, ""), 1000, &filter), 10);
}

TEST_F(FrameFilterTest, BoundsOneByteData) {
  ASSERT_TRUE(FromClient(Open(1) + Data(1, Message(5000, 0))).ok());
  EXPECT_EQ(Passing(Data(1, "m"), 1000), 99);
}

TEST_F(FrameFilterTest, SmallMessagesAreNoFlood) {
  ASSERT_TRUE(FromClient(Open(1)).ok());
  EXPECT_EQ(Passing(Data(1, Message(3, 3)), 1000), 1000);
}

TEST_F(FrameFilterTest, WindowUpdatesForDataAreNoFlood) {
  ASSERT_TRUE(FromClient(Open(1)).ok());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(FromServer(Data(1, "answer")).ok());
    ASSERT_TRUE(FromClient(WindowUpdate(0, 6) + WindowUpdate(1, 6)).ok()) << i;
  }
}

TEST_F(FrameFilterTest, HoldsCreditUntilTheServerNeedsIt) {
  ASSERT_TRUE(FromClient(Open(1)).ok());
  ToServer();
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(FromServer(Data(1, std::string(600, 'x'))).ok());
    const std::string update = WindowUpdate(1, 600);
    ASSERT_TRUE(FromClient(update.substr(0, 11)).ok());
    ASSERT_TRUE(FromClient(update.substr(11)).ok());
    EXPECT_EQ(ToServer(), "") << i;
  }
  // By the header of the DATA that uses up half of the window.
  ASSERT_TRUE(FromServer(Data(1, std::string(6000, 'x')).substr(0, 9)).ok());
  EXPECT_EQ(ToServer(), WindowUpdate(1, 30000));
}

TEST_F(FrameFilterTest, AnyFrameTakesCreditAlong) {
  const std::string ping = Frame(FrameType::kPing, 0, 0, "01234567");
  ASSERT_TRUE(FromClient(Open(1)).ok());
  ASSERT_TRUE(FromServer(Data(1, "answer")).ok());
  ToServer();
  ASSERT_TRUE(FromClient(WindowUpdate(0, 6) + WindowUpdate(1, 6)).ok());
  EXPECT_EQ(ToServer(), "");
  ASSERT_TRUE(FromClient(ping.substr(0, 9)).ok());
  EXPECT_EQ(ToServer(), WindowUpdate(0, 6) + WindowUpdate(1, 6) + ping.substr(0, 9));
  ASSERT_TRUE(FromServer(Data(1, std::string(60000, 'x'))).ok());
  ASSERT_TRUE(FromClient(ping.substr(9)).ok());
  EXPECT_EQ(ToServer(), ping.substr(9));
}

TEST_F(FrameFilterTest, FramesOfNoMeaningMayBeInterrupted) {
  ASSERT_TRUE(FromClient(Open(1)).ok());
  ToServer();
  const std::string unknown = Frame(static_cast<FrameType>(0x55), 0, 0, "payload");
  ASSERT_TRUE(FromClient(WindowUpdate(1, 5) + unknown.substr(0, 12)).ok());
  EXPECT_EQ(ToServer(), "");
  ASSERT_TRUE(FromServer(Data(1, std::string(65535, 'x'))).ok());
  EXPECT_EQ(ToServer(), WindowUpdate(1, 5));
  ASSERT_TRUE(FromClient(unknown.substr(12) + Open(3)).ok());
  EXPECT_EQ(ToServer(), Open(3));
}

TEST_F(FrameFilterTest, InitialWindowsOfTheClientCount) {
  const std::string settings =
      Frame(FrameType::kSettings, 0, 0, "\0\x03\0\0\0\x64\0\x04\0\0\0\x0a"s);
  for (size_t cut = 1; cut <= settings.size(); ++cut) {
    FrameFilter filter(limits_, {}, &ledger_, &output_);
    ASSERT_TRUE(filter.FromClient(std::string(kHttp2Preface) + Open(1), now_).ok());
    for (size_t at = 0; at < settings.size(); at += cut)
      ASSERT_TRUE(filter.FromClient(std::string_view(settings).substr(at, cut), now_).ok());
    EXPECT_EQ(ToServer(), std::string(kHttp2Preface) + Open(1) + settings);
    ASSERT_TRUE(filter.FromClient(WindowUpdate(1, 9), now_).ok());  // the window is 10
    EXPECT_EQ(ToServer(), "");
    ASSERT_TRUE(filter.FromClient(WindowUpdate(1, 1), now_).ok());
    EXPECT_EQ(ToServer(), WindowUpdate(1, 10)) << cut;
  }
}

TEST_F(FrameFilterTest, CreditThatIsAnErrorIsTheServersToReport) {
  for (const std::string& frame :
       {WindowUpdate(1, 0), WindowUpdate(0, 0x7fffffff), WindowUpdate(0, 0x80000001),
        WindowUpdate(5, 100), Frame(FrameType::kWindowUpdate, 0, 1, "\0\0\1"s)}) {
    FrameFilter filter(limits_, {}, &ledger_, &output_);
    const std::string start = std::string(kHttp2Preface) + Open(1);
    ASSERT_TRUE(filter.FromClient(start + frame, now_).ok());
    EXPECT_EQ(ToServer(), start + frame);
  }
}

TEST_F(FrameFilterTest, AnAnswerThatHasEndedNeedsNoCredit) {
  ASSERT_TRUE(FromClient(Open(1) + Open(3) + Open(5)).ok());
  ASSERT_TRUE(FromClient(WindowUpdate(1, 5) + WindowUpdate(3, 5) + WindowUpdate(5, 5)).ok());
  ASSERT_TRUE(FromServer(Data(1, "last", kEndStreamFlag)).ok());
  ASSERT_TRUE(FromServer(Reset(3, Http2Error::kNoError)).ok());
  ToServer();
  ASSERT_TRUE(FromClient(Open(7)).ok());
  EXPECT_EQ(ToServer(), WindowUpdate(5, 5) + Open(7));
}

TEST_F(FrameFilterTest, DropsUnknownFramesAndPriority) {
  ASSERT_TRUE(FromClient(Frame(static_cast<FrameType>(0x55), 0, 0, "payload") +
                         Frame(FrameType::kPriority, 0, 1, "\0\0\0\0\x10"s) + Open(1))
                  .ok());
  EXPECT_EQ(ToServer(), Open(1));
}

TEST_F(FrameFilterTest, BoundsOpenStreamsAndResets) {
  for (const uint32_t stream : {1, 3, 5, 7}) ASSERT_TRUE(FromClient(Open(stream)).ok());
  EXPECT_EQ(FromClient(Open(9)).code(), Code::kResourceExhausted);
  uint32_t stream = 11;
  int resets = 0;
  FrameFilter filter(limits_, {}, &ledger_, &output_);
  ASSERT_TRUE(filter.FromClient(kHttp2Preface, now_).ok());
  while (filter.FromClient(Open(stream) + Reset(stream, Http2Error::kCancel), now_).ok()) {
    stream += 2;
    ++resets;
  }
  EXPECT_EQ(resets, 6);
}

TEST_F(FrameFilterTest, ResetsByTheServerCountAndEndStreams) {
  uint32_t stream = 1;
  for (; stream < 200; stream += 2) {  // NO_ERROR: an answer before the end of the request
    ASSERT_TRUE(FromClient(Open(stream)).ok());
    ASSERT_TRUE(
        FromServer(Frame(FrameType::kHeaders, kEndHeadersFlag | kEndStreamFlag, stream, "x") +
                   Reset(stream, Http2Error::kNoError))
            .ok());
  }
  int resets = 0;
  for (;
       FromClient(Open(stream)).ok() && FromServer(Reset(stream, Http2Error::kProtocolError)).ok();
       stream += 2)
    ++resets;
  EXPECT_EQ(resets, 6);
}

TEST_F(FrameFilterTest, CountsPartsOfMessages) {
  ASSERT_TRUE(FromClient(Open(1) + Data(1, Message(5000, 3000))).ok());
  EXPECT_EQ(ledger_.held, 3005);
  ASSERT_TRUE(FromClient(Data(1, std::string(2000, 'm') + Message(100, 10))).ok());
  EXPECT_EQ(ledger_.held, 15);
  ASSERT_TRUE(FromClient(Reset(1, Http2Error::kCancel)).ok());
  EXPECT_EQ(ledger_.held, 0);
}

TEST_F(FrameFilterTest, MemoryComesBackAtTheEndOfTheConnection) {
  {
    FrameFilter filter(limits_, {}, &ledger_, &output_);
    const std::string half = Data(1, Message(5000, 3000)).substr(0, 1000);
    ASSERT_TRUE(filter.FromClient(std::string(kHttp2Preface) + Open(1) + half, now_).ok());
    EXPECT_EQ(ledger_.held, 3005);
  }
  EXPECT_EQ(ledger_.held, 0);
}

TEST_F(FrameFilterTest, ResetsAStreamThatDoesNotFit) {
  ledger_.limit = 4000;
  ASSERT_TRUE(FromClient(Open(1) + Open(3) + Data(1, Message(9000, 3000))).ok());
  ToServer();
  const std::string more = Data(1, std::string(2000, 'm'));
  ASSERT_TRUE(FromClient(more.substr(0, 500)).ok());
  ASSERT_TRUE(FromClient(more.substr(500) + Data(1, "late") + Data(3, Message(5, 5))).ok());
  EXPECT_EQ(ToServer(), Reset(1, Http2Error::kCancel) + Data(3, Message(5, 5)));
  // The room of the dropped bytes in the connection's window comes back.
  EXPECT_EQ(ToClient(),
            WindowUpdate(0, 2000) + Reset(1, Http2Error::kEnhanceYourCalm) + WindowUpdate(0, 4));
  EXPECT_EQ(ledger_.held, 0);
}

TEST_F(FrameFilterTest, ResetLargestCompletesTheFrameThatHasBegun) {
  ASSERT_TRUE(FromClient(Open(1) + Open(3) + Data(3, Message(9000, 100))).ok());
  const std::string frame = Data(1, Message(9000, 3000));
  ASSERT_TRUE(FromClient(frame.substr(0, 1000)).ok());
  ToServer();
  ASSERT_TRUE(filter_.ResetLargest().ok());
  EXPECT_EQ(ToServer(), std::string(frame.size() - 1000, '\0') + Reset(1, Http2Error::kCancel));
  EXPECT_EQ(ToClient(), Reset(1, Http2Error::kEnhanceYourCalm));
  EXPECT_EQ(ledger_.held, 105);
  ASSERT_TRUE(FromClient(frame.substr(1000) + Open(5)).ok());
  EXPECT_EQ(ToServer(), Open(5));
}

TEST_F(FrameFilterTest, AHeaderBlockCannotBeCompletedInTheClientsPlace) {
  ASSERT_TRUE(
      FromClient(Open(1) + Data(1, Message(9000, 100)) + Frame(FrameType::kHeaders, 0, 3, "\x83"))
          .ok());
  EXPECT_EQ(filter_.ResetLargest().code(), Code::kResourceExhausted);
}

TEST_F(FrameFilterTest, MessagesAndHeaderBlocksHaveDeadlines) {
  ASSERT_TRUE(FromClient(Open(1) + Data(1, Message(3 << 20, 100))).ok());
  now_ += std::chrono::seconds(119);  // 30 s, and 30 s for each MiB
  ASSERT_TRUE(filter_.CheckDeadlines(now_).ok());
  EXPECT_EQ(ToClient(), "");
  now_ += std::chrono::seconds(2);
  ASSERT_TRUE(filter_.CheckDeadlines(now_).ok());
  EXPECT_EQ(ToClient(), Reset(1, Http2Error::kEnhanceYourCalm));
  ASSERT_TRUE(FromClient(Frame(FrameType::kHeaders, 0, 3, "\x83")).ok());
  now_ += std::chrono::seconds(31);
  EXPECT_EQ(filter_.CheckDeadlines(now_).code(), Code::kResourceExhausted);
}

TEST_F(FrameFilterTest, AClientThatWaitsForTheServerIsNotLate) {
  ASSERT_TRUE(FromClient(Open(1)).ok());
  std::string rest = Message(1 << 20, 65530);
  ASSERT_TRUE(FromClient(Data(1, rest)).ok());  // the whole window
  for (int i = 0; i < 10; ++i) {
    now_ += std::chrono::seconds(20);
    ASSERT_TRUE(filter_.CheckDeadlines(now_).ok());
    EXPECT_EQ(ToClient(), "");
  }
  ASSERT_TRUE(FromServer(WindowUpdate(1, 1000) + WindowUpdate(0, 1000)).ok());
  ToClient();
  now_ += std::chrono::seconds(61);
  ASSERT_TRUE(filter_.CheckDeadlines(now_).ok());
  EXPECT_EQ(ToClient(), Reset(1, Http2Error::kEnhanceYourCalm));
}

TEST_F(FrameFilterTest, OwnFramesWaitForTheEndOfTheServersFrame) {
  ASSERT_TRUE(FromClient(Open(1) + Open(3) + Data(3, Message(9, 3))).ok());
  const std::string answer = Data(1, "the answer of the server");
  ASSERT_TRUE(FromServer(answer.substr(0, 20)).ok());
  ASSERT_TRUE(filter_.ResetLargest().ok());
  ASSERT_TRUE(FromServer(answer.substr(20)).ok());
  EXPECT_EQ(ToClient(), answer + Reset(3, Http2Error::kEnhanceYourCalm));
  const std::string headers = Frame(FrameType::kHeaders, 0, 1, "\x88");
  const std::string rest = Frame(FrameType::kContinuation, kEndHeadersFlag, 1, "\x88");
  ASSERT_TRUE(FromServer(headers).ok());
  ASSERT_TRUE(FromClient(Data(3, "late")).ok());
  ASSERT_TRUE(FromServer(rest).ok());
  EXPECT_EQ(ToClient(), headers + rest + WindowUpdate(0, 4));
}

TEST_F(FrameFilterTest, RefusesFramesThatAreNoHttp2) {
  const auto refused = [this](const std::string& frame) {
    FrameFilter filter(limits_, {}, &ledger_, &output_);
    EXPECT_TRUE(filter.FromClient(kHttp2Preface, now_).ok());
    return filter.FromClient(frame, now_).code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused(Open(2)));
  EXPECT_TRUE(refused(Open(0)));
  EXPECT_TRUE(refused(Data(1, "x")));
  EXPECT_TRUE(refused(Frame(FrameType::kHeaders, kPriorityFlag, 1, "1234")));
  EXPECT_TRUE(refused(Frame(FrameType::kHeaders, kPaddedFlag, 1, "")));
  EXPECT_TRUE(refused(Frame(FrameType::kPushPromise, 0, 1, "")));
  EXPECT_TRUE(refused(Frame(FrameType::kPing, 0, 0, std::string(20000, 'x'))));
}

TEST_F(FrameFilterTest, RandomBytesNeverHarm) {
  uint64_t random = 1;
  for (int round = 0; round < 2000; ++round) {
    FrameFilter filter(limits_, {}, &ledger_, &output_);
    std::string bytes(kHttp2Preface);
    for (int i = 0; i < 30; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const auto type = static_cast<FrameType>(random >> 60);
      bytes += Frame(type, static_cast<uint8_t>(random >> 40), (random >> 33) % 8,
                     std::string((random >> 20) % 64, static_cast<char>(random >> 50)));
    }
    for (size_t at = 0; at < bytes.size(); at += 97) {
      if (!filter.FromClient(std::string_view(bytes).substr(at, 97), now_).ok()) break;
      ASSERT_GE(filter.held(), 0);
    }
    (void)filter.ResetLargest();
    output_ = {};
  }
  EXPECT_EQ(ledger_.held, 0);
}

}  // namespace
}  // namespace polysketch
