#include "server/http/allowed_hosts.h"

#include <arpa/inet.h>

#include <algorithm>

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
  if (IsIpAddress(name) || EqualsIgnoringCase(name, "localhost")) return true;
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

std::string DefaultAllowedHosts(std::string_view listen_address) {
  return IsLoopback(listen_address) ? "" : "*";
}

}  // namespace polysketch
