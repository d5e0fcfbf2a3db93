#include "server/tracing/http_post.h"

#include <curl/curl.h>

#include <algorithm>

#include "base/check.h"

namespace polysketch {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

size_t DropBytes(char*, size_t size, size_t count, void*) { return size * count; }

// libcurl is initialised once for the process.
void InitialiseLibrary() {
  static const CURLcode result = curl_global_init(CURL_GLOBAL_DEFAULT);
  PS_CHECK(result == CURLE_OK) << "curl_global_init: " << curl_easy_strerror(result);
}

}  // namespace

struct HttpPost::Curl {
  Curl() : easy(curl_easy_init()), multi(curl_multi_init()) {
    PS_CHECK(easy != nullptr && multi != nullptr) << "libcurl has no memory";
    headers = curl_slist_append(headers, "Content-Type: application/json");
    headers = curl_slist_append(headers, "Expect:");  // no wait for 100 Continue
  }
  ~Curl() {
    curl_easy_cleanup(easy);
    curl_multi_cleanup(multi);
    curl_slist_free_all(headers);
  }
  Curl(const Curl&) = delete;
  Curl& operator=(const Curl&) = delete;

  CURL* const easy;
  CURLM* const multi;  // so that another thread can wake the transfer
  curl_slist* headers = nullptr;
};

HttpPost::HttpPost(const std::string& url, const PostHeaders& headers, milliseconds connect_timeout)
    : curl_((InitialiseLibrary(), std::make_unique<Curl>())) {
  for (const auto& [name, value] : headers) {
    const std::string line =
        value.empty() ? name + ";" : name + ": " + value;  // ";": an empty value
    curl_->headers = curl_slist_append(curl_->headers, line.c_str());
  }
  CURL* easy = curl_->easy;
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, curl_->headers);
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "polysketch-server");
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect_timeout.count()));
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, DropBytes);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);  // does not wait for a name server
}

HttpPost::~HttpPost() = default;

Status HttpPost::Send(const std::string& body,
                      const std::function<steady_clock::time_point()>& deadline) {
  CURL* easy = curl_->easy;
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.data());
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl_multi_add_handle(curl_->multi, easy);
  Status status(Code::kDeadlineExceeded, "no response in time");
  while (true) {
    int running = 0;
    curl_multi_perform(curl_->multi, &running);
    int left = 0;
    if (const CURLMsg* message = curl_multi_info_read(curl_->multi, &left)) {
      const CURLcode result = message->data.result;
      long code = 0;
      curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
      if (result != CURLE_OK) {
        status = Unavailable(curl_easy_strerror(result));
      } else {
        status = code / 100 == 2 ? Status() : Unavailable("HTTP status ", code);
      }
      break;
    }
    const auto time = std::chrono::ceil<milliseconds>(deadline() - steady_clock::now());
    if (time.count() <= 0) break;
    const auto wait = std::min(time, milliseconds(60'000));
    curl_multi_poll(curl_->multi, nullptr, 0, static_cast<int>(wait.count()), nullptr);
  }
  curl_multi_remove_handle(curl_->multi, easy);
  return status;
}

void HttpPost::Wake() { curl_multi_wakeup(curl_->multi); }

}  // namespace polysketch
