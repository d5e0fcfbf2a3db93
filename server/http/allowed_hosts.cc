#include "server/http/allowed_hosts.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "server/http/http_exchange.h"

namespace polysketch {
namespace {

std::string_view WithoutPort(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool IsIpAddress(std::string_view name) {
  in_addr address{};
  return name.starts_with('[') || inet_pton(AF_INET, std::string(name).c_str(), &address) == 1;
}

// "localhost" and names below it: browsers resolve them to the loopback (RFC 6761), and no registry
// has them.
bool IsLocalhost(std::string_view name) {
  constexpr std::string_view kDomain = ".localhost";
  if (EqualsIgnoringCase(name, "localhost")) return true;
  return name.size() > kDomain.size() &&
         EqualsIgnoringCase(name.substr(name.size() - kDomain.size()), kDomain);
}

// Whether `name`, which is not empty, is an entry of a list with commas.
bool IsListed(std::string_view name, std::string_view list) {
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    if (!name.empty() && EqualsIgnoringCase(name, entry)) return true;
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
  }
  return false;
}

}  // namespace

bool IsAllowedHost(std::string_view host, std::string_view allowed) {
  const std::string_view name = WithoutPort(host);
  if (IsIpAddress(name) || IsLocalhost(name)) return true;
  return IsListed(name, allowed) || IsListed("*", allowed);
}

std::string AllowedOrigin(std::string_view origin, std::string_view allowed) {
  if (origin.empty()) return "";
  if (IsListed("*", allowed)) return "*";
  return IsListed(origin, allowed) ? std::string(origin) : "";
}

bool IsLoopback(std::string_view address) {
  const std::string_view host = WithoutPort(address);
  return address.starts_with("unix:") || host == "localhost" || host == "[::1]" ||
         (IsIpAddress(host) && host.starts_with("127."));
}

AllowedHosts AllowedHostsOf(std::string_view flag, std::string_view listen_address,
                            std::string_view machine) {
  if (!flag.empty()) return {.any = std::string(flag), .browser = std::string(flag)};
  if (IsLoopback(listen_address)) return {};
  return {.any = "*", .browser = std::string(machine)};
}

Status CheckHost(std::string_view host, bool browser, const AllowedHosts& allowed) {
  const bool any = IsAllowedHost(host, allowed.any);
  if (any && (!browser || IsAllowedHost(host, allowed.browser))) return Status();
  const std::string_view expected =
      any ? "from a browser an IP address, localhost, the name of the server's machine"
          : "an IP address, localhost";
  return Status(Code::kPermissionDenied, StrCat("Host: expected ", expected,
                                                " or a name of --http-hosts, found \"", host, "\""))
      .WithReason(Reason::kHostRefused);
}

std::string MachineName() {
  char name[HOST_NAME_MAX + 1] = "";
  return gethostname(name, sizeof(name)) == 0 ? name : "";
}

}  // namespace polysketch
