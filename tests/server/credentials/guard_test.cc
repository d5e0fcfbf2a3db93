#include "server/credentials/guard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iomanip>
#include <thread>

#include "base/logging.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Time = RateLimit::Clock::time_point;

std::string Hex(const Sha256& hash) {
  std::ostringstream text;
  for (const int byte : hash) text << std::hex << std::setw(2) << std::setfill('0') << byte;
  return text.str();
}

std::string Line(const std::string& name, const std::string& key, const std::string& more = "") {
  return StrCat(R"({"name": ")", name, R"(", "sha256": ")", Hex(Sha256Of(key)),
                R"(", "tenant": "tenant-of-)", name, "\"", more, "}\n");
}

class GuardTest : public ::testing::Test {
 protected:
  GuardTest() { SetLogLevel(LogLevel::kError); }
  ~GuardTest() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) { std::ofstream(path_) << text; }
  void Open(const std::string& text) {
    Write(text);
    Result<std::unique_ptr<Guard>> guard = Guard::Open(path_);
    ASSERT_TRUE(guard.ok()) << guard.status().ToString();
    guard_ = *std::move(guard);
  }
  Result<std::shared_ptr<const Caller>> Admit(const std::string& value, Time now = {}) {
    return guard_->Admit({value}, now);
  }
  Code CodeOf(const std::string& value, Time now = {}) { return Admit(value, now).status().code(); }

  const std::string path_ = std::filesystem::path(::testing::TempDir()) /
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::unique_ptr<Guard> guard_;
  const Time start_ = RateLimit::Clock::now() + std::chrono::hours(1);
};

TEST_F(GuardTest, KnowsItsKeys) {
  Open(Line("a", "secret-a") + Line("b", "secret-b"));
  EXPECT_EQ((*Admit("Bearer secret-a"))->key().tenant, "tenant-of-a");
  EXPECT_EQ((*Admit("bearer  secret-b"))->key().name, "b");
  for (const char* value :
       {"", "Bearer", "Bearer ", "Bearer  ", "Basic secret-a", "secret-a", "Bearersecret-a"}) {
    EXPECT_EQ(CodeOf(value), Code::kUnauthenticated) << value;
  }
  for (const char* value : {"Bearer secret-A", "Bearer secret-a ", "Bearer secret-ab"})
    EXPECT_EQ(CodeOf(value), Code::kUnauthenticated) << value;
  EXPECT_EQ(guard_->Admit({}).status().message(),
            "authorization: expected \"Bearer KEY\", found none");
  EXPECT_EQ(guard_->Admit({"Bearer secret-a", "Bearer secret-a"}).status().message(),
            "authorization: expected \"Bearer KEY\" once, found another form");
  EXPECT_EQ(guard_->refused(), (RefusedCounts{9, 3, 0, 0}));
}

TEST_F(GuardTest, EveryByteOfAHashCounts) {
  const Sha256 hash = Sha256Of("secret-a");
  std::string text;
  for (size_t i = 0; i < hash.size(); ++i) {
    Sha256 other = hash;
    other[i] ^= 1;
    text +=
        StrCat(R"({"name": "k)", i, R"(", "sha256": ")", Hex(other), R"(", "tenant": "t"})", "\n");
  }
  Open(text);
  EXPECT_EQ(CodeOf("Bearer secret-a"), Code::kUnauthenticated);
}

TEST_F(GuardTest, RequestsAMinute) {
  Open(Line("a", "secret-a", R"(, "requests_per_minute": 3)") + Line("b", "secret-b"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(CodeOf("Bearer secret-a", start_), Code::kOk) << i;
  const Status refused = Admit("Bearer secret-a", start_).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.message(), "the API key a: expected at most 3 requests a minute");
  ASSERT_TRUE(refused.retry_after().has_value());
  EXPECT_GE(*refused.retry_after(), seconds(20));
  EXPECT_LE(*refused.retry_after(), milliseconds(20010));
  EXPECT_EQ(CodeOf("Bearer secret-b", start_), Code::kOk);
  EXPECT_EQ(CodeOf("Bearer secret-a", start_ + seconds(19)), Code::kResourceExhausted);
  // Refused requests do not count.
  EXPECT_EQ(CodeOf("Bearer secret-a", start_ + *refused.retry_after()), Code::kOk);
  EXPECT_EQ(CodeOf("Bearer secret-a", start_ + seconds(21)), Code::kResourceExhausted);
  EXPECT_EQ(guard_->refused(), (RefusedCounts{0, 0, 3, 0}));
}

TEST_F(GuardTest, TokensAMinute) {
  Open(Line("a", "secret-a", R"(, "tokens_per_minute": 100)"));
  const auto caller = Admit("Bearer secret-a", start_);
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(CodeOf("Bearer secret-a", start_), Code::kOk);  // nothing is settled yet
  (*caller)->SettleTokens(0, 0, 250);
  const Status refused = Admit("Bearer secret-a", start_).status();
  EXPECT_EQ(refused.message(), "the API key a: expected at most 100 tokens a minute");
  EXPECT_GE(*refused.retry_after(), seconds(90));
  EXPECT_LE(*refused.retry_after(), seconds(91));
  EXPECT_EQ(CodeOf("Bearer secret-a", start_ + seconds(89)), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf("Bearer secret-a", start_ + *refused.retry_after()), Code::kOk);
}

TEST_F(GuardTest, TokensAreReservedUntilARequestEnds) {
  Open(Line("a", "secret-a", R"(, "tokens_per_minute": 1000)"));
  std::vector<std::shared_ptr<const Caller>> requests;
  for (int i = 0; i < 60; ++i) requests.push_back(*Admit("Bearer secret-a", start_));
  int64_t reserved = 0;
  std::optional<Status> refused;
  for (const auto& request : requests) {
    const Result<int64_t> taken = request->ReserveTokens(400, start_);
    taken.ok() ? void(reserved += *taken) : void(refused = taken.status());
  }
  EXPECT_EQ(reserved, 800);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->message(), "the API key a: expected at most 1000 tokens a minute");
  EXPECT_GE(*refused->retry_after(), seconds(12));  // 200 of 1,000 tokens are missing
  EXPECT_LE(*refused->retry_after(), milliseconds(12010));
  EXPECT_EQ(guard_->refused(), (RefusedCounts{0, 0, 0, 58}));
  // What a request did not process is there for the next one at once.
  requests[0]->SettleTokens(1, 400, 30);
  EXPECT_EQ(*requests[2]->ReserveTokens(400, start_), 400);
  EXPECT_FALSE(requests[3]->ReserveTokens(400, start_).ok());
  requests[1]->SettleTokens(1, 400, 400);
  EXPECT_FALSE(requests[3]->ReserveTokens(400, start_).ok()) << "these were processed";
}

TEST_F(GuardTest, ARetryAfterIsTrue) {
  Open(Line("a", "secret-a", R"(, "tokens_per_minute": 600)"));
  const auto first = *Admit("Bearer secret-a", start_), second = *Admit("Bearer secret-a", start_);
  EXPECT_EQ(*first->ReserveTokens(500, start_), 500);
  const Status refused = second->ReserveTokens(500, start_).status();
  const auto wait = *refused.retry_after();
  EXPECT_FALSE(second->ReserveTokens(500, start_ + wait - milliseconds(50)).ok());
  EXPECT_TRUE(second->ReserveTokens(500, start_ + wait).ok()) << wait.count();
}

TEST_F(GuardTest, ARequestAloneNeedsOneToken) {
  Open(Line("a", "secret-a", R"(, "tokens_per_minute": 100)"));
  const auto admit = [this] { return *Admit("Bearer secret-a", start_); };
  const auto first = admit();
  EXPECT_EQ(*first->ReserveTokens(1'000'000, start_), 100) << "at most a minute's";
  // The other calls of its HTTP request are one with it; another request is not.
  EXPECT_EQ(*first->ReserveTokens(50, start_), 50);
  const auto second = admit();
  EXPECT_FALSE(second->ReserveTokens(1, start_).ok());
  first->SettleTokens(2, 150, 20);
  EXPECT_EQ(*second->ReserveTokens(1000, start_), 100) << "it runs alone, and 80 are left";
  second->SettleTokens(1, 100, 300);
  // What it processed beyond its minute others wait for.
  const Status refused = Admit("Bearer secret-a", start_).status();
  EXPECT_GE(*refused.retry_after(), seconds(132));
  EXPECT_LE(*refused.retry_after(), seconds(133));
}

TEST_F(GuardTest, ReadsItsFileAgain) {
  Open(Line("a", "secret-a", R"(, "requests_per_minute": 1)") + Line("b", "secret-b"));
  EXPECT_EQ(CodeOf("Bearer secret-a", start_), Code::kOk);
  const auto becomes = [&](const std::string& value, Code code) {
    const auto end = std::chrono::steady_clock::now() + seconds(20);
    while (CodeOf(value, start_) != code) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return true;
  };
  // A wrong file changes nothing; the right one after it does.
  Write(Line("c", "secret-c") + "{\n");
  std::this_thread::sleep_for(seconds(3));
  EXPECT_EQ(CodeOf("Bearer secret-c", start_), Code::kUnauthenticated);
  EXPECT_EQ(CodeOf("Bearer secret-b", start_), Code::kOk);
  Write(Line("a", "secret-new", R"(, "requests_per_minute": 2)") + Line("c", "secret-c"));
  EXPECT_TRUE(becomes("Bearer secret-c", Code::kOk));
  EXPECT_EQ(CodeOf("Bearer secret-a", start_), Code::kUnauthenticated);
  EXPECT_EQ(CodeOf("Bearer secret-b", start_), Code::kUnauthenticated);
  // What "a" has used stays used.
  EXPECT_EQ(CodeOf("Bearer secret-new", start_), Code::kOk);
  EXPECT_EQ(CodeOf("Bearer secret-new", start_), Code::kResourceExhausted);
}

TEST_F(GuardTest, AWrongFileIsNamed) {
  Write("{}");
  EXPECT_EQ(Guard::Open(path_).status().message(),
            path_ + ": line 1: name: expected a string, found none");
  EXPECT_EQ(Guard::Open("/nonexistent").status().message(),
            "/nonexistent: No such file or directory");
  EXPECT_EQ(Guard::Open("/dev/null").status().message(), "/dev/null: expected a regular file");
}

}  // namespace
}  // namespace polysketch
