// The server that a client calls, and the client's credentials: options, environment variables and
// files. Knows no gRPC.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "clients/cpp/options.h"

namespace polysketch {

constexpr char kDefaultServer[] = "127.0.0.1:50051";

struct ConnectionOptions {
  std::string server;  // HOST:PORT, or another name that gRPC resolves ("unix:/run/p.sock")
  std::string tls_ca;  // names of PEM files; empty: none
  std::string cert;
  std::string key;
  std::string api_key;  // empty: none

  // The contents of the files, after ResolveConnection.
  std::string tls_ca_pem;
  std::string cert_pem;
  std::string key_pem;

  bool tls() const { return !tls_ca.empty() || !cert.empty(); }
};

// Adds --server, --tls-ca, --cert, --key and --api-key to `app`.
void AddConnectionOptions(CLI::App* app, ConnectionOptions* options);
// The same without --server.
void AddCredentialOptions(CLI::App* app, ConnectionOptions* options);

// Like std::getenv: returns nullptr for a variable that is not set.
using EnvironmentLookup = std::function<const char*(const char*)>;

// Takes what no option gave from the environment, then the default server, and reads the files.
// INVALID_ARGUMENT names the option or the variable, what was expected and what was found.
Status ResolveConnection(const EnvironmentLookup& environment, ConnectionOptions* options);

// Returns the address of a server, with the default port if `text` names none. INVALID_ARGUMENT for
// a URL, which gRPC would take for the name of a host.
Result<std::string> ServerAddress(const std::string& text);

// The same of the HTTP port, whose default is another one. Takes http://HOST:PORT too.
Result<std::string> HttpServerAddress(const std::string& text);
// The default HTTP port beside the gRPC port of `server`, an address of ServerAddress; empty: gRPC
// resolves the address by a scheme of its own.
std::string HttpServerBeside(const std::string& server);

// INVALID_ARGUMENT unless HTTP/2 metadata can carry `value`: printable ASCII characters. The
// message does not repeat the value, which may be secret.
Status CheckMetadata(std::string_view value);

// Prints a line on stderr for each environment variable POLYSKETCH_* that no program reads.
void WarnOfUnknownVariables(const std::string& program);

}  // namespace polysketch
