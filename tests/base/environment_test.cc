#include "base/environment.h"

#include "gtest/gtest.h"

namespace polysketch {
namespace {

using Strings = std::vector<std::string>;

Strings Unknown(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return UnknownVariables(environment.data(),
                          [](std::string_view name) { return name == "POLYSKETCH_MAX_QUEUE"; });
}

TEST(Environment, NamesTheVariablesThatNoProgramReads) {
  EXPECT_EQ(
      Unknown({"POLYSKETCH_SEVER=x", "PATH=/bin", "POLYSKETCH_MAX_QEUE=3", "POLYSKETCH_MAX_QUEUE=3",
               "POLYSKETCH_SERVER=y", "POLYSKETCH_ISA=avx2", "POLYSKETCH_=1",
               "OTHER_POLYSKETCH_X=1", "POLYSKETCH_EMPTY="}),
      (Strings{"POLYSKETCH_", "POLYSKETCH_EMPTY", "POLYSKETCH_MAX_QEUE", "POLYSKETCH_SEVER"}));
}

TEST(Environment, LeavesOutTheServicesOfKubernetes) {
  EXPECT_EQ(Unknown({"POLYSKETCH_SERVICE_HOST=10.0.0.1", "POLYSKETCH_SERVICE_PORT=50051",
                     "POLYSKETCH_SERVICE_PORT_GRPC=50051", "POLYSKETCH_PORT=tcp://10.0.0.1:50051",
                     "POLYSKETCH_PORT_50051_TCP=tcp://10.0.0.1:50051",
                     "POLYSKETCH_PORT_50051_TCP_ADDR=10.0.0.1",
                     "POLYSKETCH_REDIS_PORT_6379_TCP_PROTO=tcp",
                     "POLYSKETCH_REDIS_SERVICE_HOST=10.0.0.2"}),
            Strings{});
  EXPECT_EQ(Unknown({"POLYSKETCH_PORTS=1", "POLYSKETCH_PORT_X=1"}),
            (Strings{"POLYSKETCH_PORTS", "POLYSKETCH_PORT_X"}));
}

}  // namespace
}  // namespace polysketch
