// What every call of the command-line client carries.
#include "clients/cpp/rpc.h"

#include <google/rpc/errors.pb.h>
#include <grpcpp/test/client_context_test_peer.h>

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

using Metadata = std::multimap<std::string, std::string>;

Metadata Sent(const CallOptions& options) {
  grpc::ClientContext context;
  Prepare(options, &context);
  return grpc::testing::ClientContextTestPeer(&context).GetSendInitialMetadata();
}

TEST(RpcTest, SendsTheMetadataThatWasAskedFor) {
  EXPECT_EQ(Sent({}), Metadata{});
  CallOptions options;
  options.request_id = "r-1";
  options.tenant = "acme";
  options.session = "s-1";
  options.connection.api_key = "secret";
  EXPECT_EQ(Sent(options), (Metadata{{"authorization", "Bearer secret"},
                                     {"x-request-id", "r-1"},
                                     {"x-tenant-id", "acme"},
                                     {"x-session-id", "s-1"}}));
  // gRPC aborts the process for metadata that HTTP/2 cannot carry.
  options = {};
  options.session = "s\n1";
  EXPECT_EQ(Sent(options), Metadata{});
}

TEST(RpcTest, ReadsTheReasonOfTheServer) {
  google::rpc::ErrorInfo info;
  info.set_reason("QUEUE_FULL");
  google::rpc::Status details;
  details.add_details()->PackFrom(google::rpc::RetryInfo());
  details.add_details()->PackFrom(info);
  const auto reason = [](const std::string& bytes) {
    return ErrorReason(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", bytes));
  };
  EXPECT_EQ(reason(details.SerializeAsString()), "QUEUE_FULL");
  EXPECT_EQ(reason(""), "");
  EXPECT_EQ(reason("\xff other bytes"), "");
}

}  // namespace
}  // namespace polysketch
