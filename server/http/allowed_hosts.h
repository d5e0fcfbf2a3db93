// Which names the Host and Origin headers of a request may have. A web page whose name an attacker
// resolves to this machine (DNS rebinding) could otherwise use the server through a visitor's
// browser.
#pragma once

#include <string>
#include <string_view>

namespace polysketch {

// Whether `host`, the value of a Host header, names the server. IP addresses and "localhost" always
// do. Other names must be in `allowed`, separated by commas; "*" allows any name.
bool IsAllowedHost(std::string_view host, std::string_view allowed);

// The value of Access-Control-Allow-Origin for `origin`, the value of an Origin header; empty: none.
// `allowed`: origins ("https://app.example") separated by commas; "*" allows any.
std::string AllowedOrigin(std::string_view origin, std::string_view allowed);

// Whether only this machine can reach a listener at `address`: "127.0.0.1:8000", "[::1]:8000",
// "localhost:8000", "unix:PATH".
bool IsLoopback(std::string_view address);

// The value of --http-hosts that is meant by an empty one: any name, but none for an address that
// only this machine can reach.
std::string DefaultAllowedHosts(std::string_view listen_address);

}  // namespace polysketch
