#include "server/http/allowed_hosts.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
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

bool IsLetterOrDigit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

bool IsHostName(std::string_view name) {
  if (name.starts_with('[')) {
    in6_addr address{};
    return name.ends_with(']') &&
           inet_pton(AF_INET6, std::string(name.substr(1, name.size() - 2)).c_str(), &address) == 1;
  }
  const auto in_name = [](char c) {
    return IsLetterOrDigit(c) || c == '.' || c == '-' || c == '_';
  };
  return !name.empty() && std::ranges::all_of(name, in_name);
}

bool IsOrigin(std::string_view origin) {
  const auto in_scheme = [](char c) {
    return IsLetterOrDigit(c) || c == '.' || c == '-' || c == '+';
  };
  const std::string_view scheme = origin.substr(0, origin.find("://"));
  if (scheme.empty() || scheme.size() == origin.size() || !std::ranges::all_of(scheme, in_scheme))
    return false;
  const std::string_view rest = origin.substr(scheme.size() + 3), host = WithoutPort(rest);
  if (!IsHostName(host) || host.size() == rest.size()) return IsHostName(host);
  const std::string_view port = rest.substr(host.size());
  int number = 0;
  const char* const end = port.data() + port.size();
  const bool whole = port[0] == ':' && std::from_chars(port.data() + 1, end, number).ptr == end;
  // Browsers leave out the port of the scheme.
  const int left_out = EqualsIgnoringCase(scheme, "https")  ? 443
                       : EqualsIgnoringCase(scheme, "http") ? 80
                                                            : 0;
  return whole && number > 0 && number <= 65535 && number != left_out;
}

// `is`: whether an entry of the list, which is not "*", is right.
Result<std::string> ParseList(std::string_view text, bool (*is)(std::string_view),
                              std::string_view expected) {
  std::string list;
  for (bool last = text.empty(); !last;) {
    std::string_view entry = text.substr(0, text.find(','));
    last = entry.size() == text.size();
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    if (entry != "*" && !is(entry))
      return InvalidArgument("expected ", expected, ", or *, separated by commas, found \"", entry,
                             "\"");
    list += StrCat(list.empty() ? "" : ",", entry);
  }
  return list;
}

}  // namespace

Result<std::string> ParseHostList(std::string_view text) {
  return ParseList(text, IsHostName, "names of hosts without ports");
}

Result<std::string> ParseOriginList(std::string_view text) {
  return ParseList(text, IsOrigin,
                   "origins as browsers send them, such as https://app.example, without a path and "
                   "without the port of the scheme");
}

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
