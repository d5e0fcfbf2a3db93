// Names of clients: the key of a connection, gRPC's peer, and the principal that they count for.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/principal.h"

namespace polysketch {

class Caller;

// The key of a connection: the address of its client, "127.0.0.1:4711" or "::1:4711". The key is
// the same for the socket's address and for gRPC's peer ("ipv4:127.0.0.1:4711",
// "ipv6:%5B::1%5D:4711"). IPv4 addresses in IPv6 form become IPv4, as in gRPC's peer. Connections
// of a unix socket are numbered: "unix:7".
std::string ConnectionKey(const sockaddr_storage& address);
std::string ConnectionKey(std::string_view grpc_peer);

// The name of a connection's socket at gRPC, which gRPC reports as its peer with a scheme before
// it. `id`: makes the name unique.
std::string PeerName(uint64_t id, const std::string& key);
// The address of the client in gRPC's form ("ipv4:127.0.0.1:4711", "unix:7"), from a peer that gRPC
// reports.
std::string ClientPeer(std::string_view grpc_peer);

// The principal of a connection: its address without the port, of IPv6 the first 64 bits. All
// connections of a unix socket are parts of one principal.
Principal PrincipalOfKey(std::string_view key);
// The principal of a request. `caller`: null without API keys. `tenant`: x-tenant-id; empty or
// malformed: none. `grpc_peer`: as ClientPeer returns it.
Principal PrincipalOf(const Caller* caller, std::string_view tenant, std::string_view grpc_peer);

// The same, with the connection for a part if it names none.
Principal OfConnection(Principal principal, std::string_view grpc_peer);

}  // namespace polysketch
