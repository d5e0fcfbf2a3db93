#include "server/net/peer.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "server/credentials/guard.h"

namespace polysketch {
namespace {

TEST(PrincipalOfTest, WithoutKeysItIsTheAddressOrTheNetwork) {
  const auto name = [](std::string_view peer) { return PrincipalOf(nullptr, "", peer).name; };
  EXPECT_EQ(name("ipv4:10.0.0.1:4711"), "host 10.0.0.1");
  EXPECT_EQ(name("ipv4:10.0.0.1:4712"), "host 10.0.0.1");
  EXPECT_EQ(name("ipv6:[2001:db8:1:2:3:4:5:6]:80"), "host 2001:db8:1:2::");
  EXPECT_EQ(name("ipv6:%5B2001:db8:1:2:ffff::1%5D:81"), "host 2001:db8:1:2::");
  EXPECT_EQ(name("ipv6:[::ffff:10.0.0.1]:80"), "host 10.0.0.1");
  EXPECT_EQ(name("ipv6:[fe80::1:2:3:4%eth0]:80"), "host fe80::");
  EXPECT_EQ(name("ipv6:%5B::1%5D:80"), "host ::");
}

TEST(PrincipalOfTest, ATenantWithoutAKeyIsAPartOfItsAddress) {
  EXPECT_EQ(PrincipalOf(nullptr, "acme", "ipv4:10.0.0.1:4711"),
            (Principal{"host 10.0.0.1", "acme"}));
  EXPECT_EQ(PrincipalOf(nullptr, "a b", "ipv4:10.0.0.1:4711"), (Principal{"host 10.0.0.1", ""}));
}

TEST(PrincipalOfTest, WithKeysItIsTheTenantOfTheKeyFromAnyAddress) {
  const Caller caller(ApiKey{.name = "a key", .tenant = "acme"}, nullptr);
  EXPECT_EQ(PrincipalOf(&caller, "other", "ipv4:10.0.0.1:4711"), (Principal{"tenant acme", ""}));
  EXPECT_EQ(PrincipalOf(&caller, "", "unix:7"), (Principal{"tenant acme", ""}));
}

TEST(PrincipalOfTest, ConnectionsOfAUnixSocketArePartsOfOnePrincipal) {
  EXPECT_EQ(PrincipalOf(nullptr, "", "unix:7"), (Principal{"unix", "unix:7"}));
  EXPECT_EQ(PrincipalOf(nullptr, "acme", "unix:7"), (Principal{"unix", "acme"}));
  EXPECT_EQ(PrincipalOfKey("unix:8"), (Principal{"unix", "unix:8"}));
  EXPECT_EQ(ConnectionKey("unix:8"), "unix:8");
}

TEST(ClientPeerTest, IsTheAddressInTheNameOfTheSocket) {
  const auto peer = [](const std::string& key) {
    return ClientPeer(StrCat("unix-abstract:", PeerName(12, key)));
  };
  EXPECT_EQ(peer("127.0.0.1:4711"), "ipv4:127.0.0.1:4711");
  EXPECT_EQ(peer("::1:4711"), "ipv6:[::1]:4711");
  EXPECT_EQ(peer("unix:7"), "unix:7");
  EXPECT_EQ(ClientPeer("ipv4:127.0.0.1:4711"), "ipv4:127.0.0.1:4711");
}

}  // namespace
}  // namespace polysketch
