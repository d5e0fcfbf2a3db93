#include "clients/cpp/http_call.h"

#include <curl/curl.h>
#include <strings.h>

#include <cctype>
#include <memory>

#include "base/check.h"

namespace polysketch {
namespace {

// Of an answer that says what is wrong.
constexpr size_t kMaxErrorBytes = size_t{1} << 20;

struct FreeCurl {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using Headers = std::unique_ptr<curl_slist, FreeCurl>;

struct Transfer {
  CURL* curl;
  const std::function<Status(std::string_view)>& take;
  const std::function<bool()>& stopped;
  HttpReply reply = {};
  Status status = {};  // of `take`
};

// A number of bytes other than `size * count` ends the transfer.
size_t OnBytes(char* data, size_t size, size_t count, void* user) {
  Transfer& transfer = *static_cast<Transfer*>(user);
  const std::string_view bytes(data, size * count);
  long code = 0;
  curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &code);
  if (code == 200) {
    transfer.status = transfer.take(bytes);
  } else {
    transfer.reply.body += bytes;
    if (transfer.reply.body.size() > kMaxErrorBytes)
      transfer.status = Unavailable("the answer of status ", code, " is too long");
  }
  return transfer.status.ok() && !transfer.stopped() ? bytes.size() : 0;
}

// A line of the answer's head.
size_t OnHeader(char* data, size_t size, size_t count, void* user) {
  constexpr std::string_view kName = "x-request-id:";
  std::string_view line(data, size * count);
  if (line.size() < kName.size() || strncasecmp(line.data(), kName.data(), kName.size()) != 0)
    return line.size();
  std::string_view value = line.substr(kName.size());
  while (!value.empty() && std::isspace(static_cast<unsigned char>(value.front())) != 0)
    value.remove_prefix(1);
  while (!value.empty() && std::isspace(static_cast<unsigned char>(value.back())) != 0)
    value.remove_suffix(1);
  static_cast<Transfer*>(user)->reply.request_id = value;
  return line.size();
}

int OnProgress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Transfer*>(user)->stopped() ? 1 : 0;
}

void AddHeader(const std::string& line, Headers* headers) {
  headers->reset(curl_slist_append(headers->release(), line.c_str()));
}

// `pem` outlives the transfer.
void SetPem(CURL* curl, CURLoption option, const std::string& pem) {
  if (pem.empty()) return;
  curl_blob blob = {const_cast<char*>(pem.data()), pem.size(), CURL_BLOB_NOCOPY};
  curl_easy_setopt(curl, option, &blob);
}

void SetOptions(CURL* curl, const ConnectionOptions& connection, const HttpRequest& request) {
  const char* const scheme = connection.tls() ? "https://" : "http://";
  curl_easy_setopt(curl, CURLOPT_URL, StrCat(scheme, request.server, request.path).c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_PROXY, "");  // as for gRPC
  curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "polysketch-cli");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_TCP_NODELAY, 1L);
  SetPem(curl, CURLOPT_CAINFO_BLOB, connection.tls_ca_pem);
  SetPem(curl, CURLOPT_SSLCERT_BLOB, connection.cert_pem);
  SetPem(curl, CURLOPT_SSLKEY_BLOB, connection.key_pem);
  if (request.body.empty()) return;
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.data());
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
}

}  // namespace

Result<HttpReply> CallHttp(const ConnectionOptions& connection, const HttpRequest& request,
                           const std::function<Status(std::string_view)>& take,
                           const std::function<bool()>& stopped) {
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  PS_CHECK(initialised == CURLE_OK) << "curl_global_init: " << curl_easy_strerror(initialised);
  const std::unique_ptr<CURL, FreeCurl> curl(curl_easy_init());
  PS_CHECK(curl != nullptr) << "libcurl has no memory";
  SetOptions(curl.get(), connection, request);
  Headers headers;
  AddHeader("Content-Type: application/json", &headers);
  AddHeader("Expect:", &headers);  // no wait for 100 Continue
  if (!connection.api_key.empty())
    AddHeader("Authorization: Bearer " + connection.api_key, &headers);
  for (const std::string& line : request.headers) AddHeader(line, &headers);
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());

  Transfer transfer{.curl = curl.get(), .take = take, .stopped = stopped};
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, OnBytes);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl.get(), CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl.get(), CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFODATA, &transfer);
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  const CURLcode result = curl_easy_perform(curl.get());
  if (!transfer.status.ok()) return transfer.status;
  if (result != CURLE_OK && stopped()) return Status(Code::kCancelled, "stopped");
  if (result == CURLE_COULDNT_CONNECT) {
    return Unavailable(
        "nothing answers at ", request.server,
        "; is polysketch-server running there? (--server HOST:PORT sets the address of its "
        "HTTP port)");
  }
  if (result != CURLE_OK)
    return Unavailable("no answer from ", request.server, ": ", curl_easy_strerror(result));
  long code = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &code);
  transfer.reply.status = static_cast<int>(code);
  return std::move(transfer.reply);
}

}  // namespace polysketch
