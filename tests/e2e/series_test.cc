// Prometheus keeps every series that it has ever seen: whatever clients put into requests, the
// server must not make new ones.
#include <random>
#include <set>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/e2e/rpc.h"
#include "tests/e2e/server.h"
#include "tests/testing/environment.h"

namespace polysketch::e2e {
namespace {

// Names with their labels.
std::set<std::string> Series(const Server& server) {
  std::set<std::string> series;
  std::istringstream page(server.MetricsPage());
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("#")) series.insert(line.substr(0, line.rfind(' ')));
  }
  return series;
}

// What is legal in a header's value, of any length up to 200.
std::string Attribute(std::mt19937* random) {
  std::string text((*random)() % 200, '\0');
  for (char& c : text) c = static_cast<char>(' ' + (*random)() % 95);
  return text;
}

std::string Word(std::mt19937* random) {
  std::string text(1 + (*random)() % 30, '\0');
  for (char& c : text) c = static_cast<char>('a' + (*random)() % 26);
  return text;
}

TEST(Series, StayConstantUnderHostileAttributes) {
  const Server server;
  Client client(server.address());
  const Status before_status = client.Complete(Greedy("It was", 2)).status;
  ASSERT_TRUE(before_status.ok()) << before_status.ToString();
  const std::set<std::string> before = Series(server);
  ASSERT_GT(before.size(), 100u);

  std::mt19937 random(7);
  const std::string methods[] = {"Complete", "CompleteUnary", "Tokenize", "Detokenize", "GetModel"};
  for (int i = 0; i < testing::Count(500, 10000); ++i) {
    CallOptions options;
    options.metadata = {{"x-request-id", Attribute(&random)},
                        {"x-tenant-id", Attribute(&random)},
                        {"traceparent", Attribute(&random)},
                        {"user-agent", Attribute(&random)},
                        {StrCat("x-", Word(&random)), Attribute(&random)}};
    options.timeout = std::chrono::seconds(60);
    std::string method = StrCat("/polysketch.v1.PolySketch/", methods[random() % 5]);
    if (i % 5 == 1) method = StrCat("/polysketch.v1.PolySketch/", Word(&random));
    if (i % 5 == 2) method = StrCat("/", Word(&random), "/", Word(&random));
    std::string bytes = Attribute(&random);  // hardly ever a message
    if (i % 5 == 3) {
      v1::CompleteRequest request = Greedy(Attribute(&random), 1);
      request.add_stop(Attribute(&random));
      request.mutable_sampling()->set_seed(random());
      bytes = request.SerializeAsString();
    }
    const auto call = client.StartRaw(method, options);
    call->Write(bytes);
    call->WritesDone();
    (void)call->Finish();  // however it ended
  }
  EXPECT_TRUE(server.BecomesIdle());
  const std::set<std::string> after = Series(server);
  for (const std::string& series : after) EXPECT_TRUE(before.contains(series)) << series;
  EXPECT_EQ(after.size(), before.size());
}

}  // namespace
}  // namespace polysketch::e2e
