#include "server/net/peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <random>

#include "base/status.h"
#include "server/convert/request_id.h"
#include "server/credentials/guard.h"

namespace polysketch {
namespace {

constexpr std::string_view kPeerName = "polysketch/";  // and those parts that PeerName adds
constexpr std::string_view kUnix = "unix";

void EraseAll(std::string* text, std::string_view part) {
  for (size_t at = text->find(part); at != std::string::npos; at = text->find(part, at))
    text->erase(at, part.size());
}

// The address without the port, of IPv6 the first 64 bits. An IPv4 address in IPv6 form becomes
// IPv4.
std::string HostOf(std::string_view key) {
  std::string host(key.substr(0, key.rfind(':')));
  host.resize(std::min(host.find('%'), host.size()));  // the interface of a link-local address
  in6_addr address{};
  if (inet_pton(AF_INET6, host.c_str(), &address) != 1) return host;
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof(text));
    return text;
  }
  std::fill(std::begin(address.s6_addr) + 8, std::end(address.s6_addr), uint8_t{0});
  inet_ntop(AF_INET6, &address, text, sizeof(text));
  return text;
}

}  // namespace

std::string ConnectionKey(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  uint16_t port = 0;
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    port = ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    } else {
      inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    }
    port = ntohs(v6.sin6_port);
  }
  return StrCat(text, ":", port);
}

std::string ConnectionKey(std::string_view grpc_peer) {
  if (grpc_peer.starts_with(kUnix)) return std::string(grpc_peer);
  const size_t scheme = grpc_peer.find(':');
  std::string key(scheme == std::string_view::npos ? grpc_peer : grpc_peer.substr(scheme + 1));
  for (const std::string_view bracket : {"%5B", "%5D", "[", "]"}) EraseAll(&key, bracket);
  return key;
}

std::string PeerName(uint64_t id, const std::string& key) {
  // Names belong to the network namespace. The processes of several containers in it may have the
  // same id, and a name that can be guessed can be taken.
  static const uint32_t process = std::random_device()();
  return StrCat(kPeerName, process, "/", id, "/", key);
}

std::string ClientPeer(std::string_view grpc_peer) {
  const size_t name = grpc_peer.find(kPeerName);
  if (name == std::string_view::npos) return std::string(grpc_peer);
  std::string_view rest = grpc_peer.substr(name + kPeerName.size());
  for (int part = 0; part < 2; ++part) rest.remove_prefix(rest.find('/') + 1);
  if (rest.starts_with(kUnix)) return std::string(rest);
  const size_t port = rest.rfind(':');
  const std::string_view host = rest.substr(0, port);
  return host.find(':') == std::string_view::npos ? StrCat("ipv4:", rest)
                                                  : StrCat("ipv6:[", host, "]", rest.substr(port));
}

Principal PrincipalOfKey(std::string_view key) {
  if (key.starts_with(kUnix)) return {.name = std::string(kUnix), .part = std::string(key)};
  return {.name = StrCat("host ", HostOf(key))};
}

Principal PrincipalOf(const Caller* caller, std::string_view tenant, std::string_view grpc_peer) {
  if (caller != nullptr) return {.name = StrCat("tenant ", caller->key().tenant)};
  Principal principal = PrincipalOfKey(ConnectionKey(grpc_peer));
  if (IsRequestId(tenant)) principal.part = tenant;
  return principal;
}

Principal OfConnection(Principal principal, std::string_view grpc_peer) {
  if (principal.part.empty()) principal.part = grpc_peer;
  return principal;
}

}  // namespace polysketch
