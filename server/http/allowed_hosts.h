// Which names the Host and Origin headers of a request may have. A web page whose name an attacker
// resolves to this machine (DNS rebinding) could otherwise use the server through a visitor's
// browser.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace polysketch {

// The list of a flag, names separated by commas, without white space around them. INVALID_ARGUMENT
// for an entry that is neither the name of a host, without a port, nor an IP address, nor "*".
Result<std::string> ParseHostList(std::string_view text);
// The same of origins, in the form in which browsers send them: "https://app.example:8443".
// INVALID_ARGUMENT for one that no browser sends: with a path, or with the port of its scheme.
Result<std::string> ParseOriginList(std::string_view text);

// Whether `host`, the value of a Host header, names the server. IP addresses, "localhost" and names
// below it always do. Other names must be in `allowed`, separated by commas; "*" allows any name.
bool IsAllowedHost(std::string_view host, std::string_view allowed);

// The value of Access-Control-Allow-Origin for `origin`, the value of an Origin header; empty:
// none. `allowed`: origins ("https://app.example") separated by commas; "*" allows any.
std::string AllowedOrigin(std::string_view origin, std::string_view allowed);

// Whether only this machine can reach a listener at `address`: "127.0.0.1:8000", "[::1]:8000",
// "localhost:8000", "unix:PATH".
bool IsLoopback(std::string_view address);

// Lists of IsAllowedHost.
struct AllowedHosts {
  std::string any;      // of every request
  std::string browser;  // of a request that a page in a browser may have sent
};

// What --http-hosts with the value `flag` allows. Empty: no name at an address that only this
// machine can reach. At another address clients that are no browsers use names of services, which
// the server does not know: any name is allowed, but only `machine`, the name of this machine, to
// browsers.
AllowedHosts AllowedHostsOf(std::string_view flag, std::string_view listen_address,
                            std::string_view machine);

// Checks the Host header `host`; PERMISSION_DENIED names --http-hosts. `browser`: a page in a
// browser may have sent the request.
Status CheckHost(std::string_view host, bool browser, const AllowedHosts& allowed);

// The name of this machine, by gethostname; empty if it has none.
std::string MachineName();

}  // namespace polysketch
