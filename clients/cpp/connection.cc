#include "clients/cpp/connection.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/environment.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

constexpr char kDefaultPort[] = "50051";
constexpr char kDefaultHttpPort[] = "8000";

// A field of ConnectionOptions by its option and its variable.
struct Field {
  const char* option;
  const char* variable;
  const char* value;
  std::string ConnectionOptions::*field;
  const char* help;
};

constexpr Field kFields[] = {
    {"--server", "POLYSKETCH_SERVER", "HOST:PORT", &ConnectionOptions::server,
     "Server address. Default: 127.0.0.1:50051; without a port: 50051.\n"
     "Environment: POLYSKETCH_SERVER."},
    {"--tls-ca", "POLYSKETCH_TLS_CA", "FILE", &ConnectionOptions::tls_ca,
     "Calls by TLS. PEM file of the certificates that sign the server's.\n"
     "Environment: POLYSKETCH_TLS_CA."},
    {"--cert", "POLYSKETCH_CERT", "FILE", &ConnectionOptions::cert,
     "Calls by TLS. PEM file of the client's certificate (mTLS).\nEnvironment: POLYSKETCH_CERT."},
    {"--key", "POLYSKETCH_KEY", "FILE", &ConnectionOptions::key,
     "PEM file of the private key of --cert. Environment: POLYSKETCH_KEY."},
    {"--api-key", "POLYSKETCH_API_KEY", "KEY", &ConnectionOptions::api_key,
     "API key (authorization: Bearer KEY). Other users of the machine can see\n"
     "options; the environment variable is safer. Environment: POLYSKETCH_API_KEY."},
};

// Checks a value and brings it into the form of the field.
Status SetField(const Field& field, const std::string& text, ConnectionOptions* options) {
  if (field.field == &ConnectionOptions::api_key) PS_RETURN_IF_ERROR(CheckMetadata(text));
  if (field.field != &ConnectionOptions::server) {
    options->*field.field = text;
    return Status();
  }
  PS_ASSIGN_OR_RETURN(options->server, ServerAddress(text));
  return Status();
}

// Reads a PEM file. option: "--tls-ca". An empty name reads nothing.
Status ReadPem(const char* option, const std::string& path, std::string* pem) {
  if (path.empty()) return Status();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  *pem = content.str();
  if (!file) return InvalidArgument(option, ": cannot read ", path);
  if (pem->find("-----BEGIN ") != std::string::npos) return Status();
  return InvalidArgument(option, ": expected PEM, found no line -----BEGIN in ", path);
}

bool IsPort(std::string_view text) {
  uint16_t port = 0;
  return ParseValue(std::string(text), &port).ok() && port > 0;
}

// Whether gRPC resolves `text` by a scheme of its own.
bool HasScheme(const std::string& text) {
  for (const char* scheme : {"dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "xds:"}) {
    if (text.starts_with(scheme)) return true;
  }
  return false;
}

// HOST:PORT of `text`, with `port` if it names none, and with the loopback address if it is a port
// alone; empty: `text` is no address.
std::string WithPort(const std::string& text, const char* port) {
  if (text.empty() || text.find_first_of("/ \t\n@?") != std::string::npos) return "";
  const auto colons = std::ranges::count(text, ':');
  if (text[0] == '[') {  // an IPv6 address
    const size_t end = text.find(']');
    if (end == std::string::npos) return "";
    if (end + 1 == text.size()) return StrCat(text, ":", port);
    return text[end + 1] == ':' && IsPort(text.substr(end + 2)) ? text : "";
  }
  if (colons > 1) return StrCat("[", text, "]:", port);
  if (colons == 0) {
    const bool number =
        std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number) return IsPort(text) ? "127.0.0.1:" + text : "";
    return StrCat(text, ":", port);
  }
  const size_t colon = text.find(':');
  return colon > 0 && IsPort(text.substr(colon + 1)) ? text : "";
}

}  // namespace

Result<std::string> ServerAddress(const std::string& text) {
  const auto expected = [&text](const char* advice) {
    return InvalidArgument("expected HOST:PORT of the gRPC port, found '", text, "'", advice);
  };
  if (text.starts_with("http://")) {
    return expected("; write it without http:// (the HTTP port of a server is another one)");
  }
  if (text.starts_with("https://")) return expected("; write it without https:// and add --tls-ca");
  if (HasScheme(text)) return text;
  std::string address = WithPort(text, kDefaultPort);
  if (address.empty()) return expected("");
  return address;
}

Result<std::string> HttpServerAddress(const std::string& text) {
  std::string_view rest = text;
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.ends_with('/')) rest.remove_suffix(1);
  std::string address = WithPort(std::string(rest), kDefaultHttpPort);
  if (!address.empty()) return address;
  return InvalidArgument(
      "expected HOST:PORT of the HTTP port, found '", text, "'",
      text.starts_with("https://") ? "; write it without https:// and add --tls-ca" : "");
}

std::string HttpServerBeside(const std::string& server) {
  const size_t colon = server.rfind(':');
  if (HasScheme(server) || colon == std::string::npos) return "";
  return StrCat(server.substr(0, colon), ":", kDefaultHttpPort);
}

Status CheckMetadata(std::string_view value) {
  const auto bad = std::ranges::find_if(value, [](char c) { return c < 0x20 || c > 0x7e; });
  if (bad == value.end()) return Status();
  return InvalidArgument("expected printable ASCII characters, found another one at byte ",
                         bad - value.begin());
}

void AddCredentialOptions(CLI::App* app, ConnectionOptions* options) {
  for (const Field& field : kFields) {
    if (field.field == &ConnectionOptions::server) continue;
    AddOption(
        app, field.option, field.value, field.help,
        [&field, options](const std::string& text) { return SetField(field, text, options); });
  }
}

void AddConnectionOptions(CLI::App* app, ConnectionOptions* options) {
  const Field& server = kFields[0];
  AddOption(app, server.option, server.value, server.help,
            [options](const std::string& text) { return SetField(kFields[0], text, options); });
  AddCredentialOptions(app, options);
}

Status ResolveConnection(const EnvironmentLookup& environment, ConnectionOptions* options) {
  for (const Field& field : kFields) {
    const char* value = environment(field.variable);
    if (value == nullptr || *value == '\0' || !(options->*field.field).empty()) continue;
    const Status status = SetField(field, value, options);
    if (!status.ok()) return InvalidArgument(field.variable, ": ", status.message());
  }
  if (options->server.empty()) options->server = kDefaultServer;
  if (options->cert.empty() != options->key.empty()) {
    return InvalidArgument("--cert and --key: expected both or neither, found one");
  }
  PS_RETURN_IF_ERROR(ReadPem("--tls-ca", options->tls_ca, &options->tls_ca_pem));
  PS_RETURN_IF_ERROR(ReadPem("--cert", options->cert, &options->cert_pem));
  return ReadPem("--key", options->key, &options->key_pem);
}

void WarnOfUnknownVariables(const std::string& program) {
  // POLYSKETCH_SERVER_FLAGS: the names of the server's flags, separated by spaces (CMakeLists.txt).
  // The server's image contains the client, and sets variables of the server.
  const auto is_flag = [](std::string_view variable) {
    std::string flag(variable.substr(std::string_view("POLYSKETCH_").size()));
    for (char& c : flag) c = c == '_' ? '-' : static_cast<char>(std::tolower(c));
    return std::string(" config " POLYSKETCH_SERVER_FLAGS " ").find(StrCat(" ", flag, " ")) !=
           std::string::npos;
  };
  for (const std::string& name : UnknownVariables(environ, is_flag)) {
    std::cerr << program << ": warning: " << TerminalText(STDERR_FILENO, UnknownVariableText(name))
              << "\n";
  }
}

}  // namespace polysketch
