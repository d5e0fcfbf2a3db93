// What the HTTP server and the calls read besides the bodies of the OpenAI API: targets of
// requests, the headers Host and Origin, bodies of the status page, traceparent and request ids.
//
// The first byte selects what is read: 'p' a path, 'r' the head of a request, 'h' the lines Host
// and Origin, 't' a traceparent, '1' to '6' the body of a path of the status page.
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/util/message_differencer.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http.hpp>

#include "polysketch/v1/polysketch.pb.h"
#include "server/convert/convert.h"
#include "server/convert/request_id.h"
#include "server/convert/wire.h"
#include "server/http/allowed_hosts.h"
#include "server/http/page_request.h"
#include "server/http/request_head.h"
#include "server/http/request_path.h"
#include "server/tracing/trace_context.h"
#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

// Every byte as an escape.
std::string Escaped(std::string_view path) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    escaped += {'%', kHex[byte >> 4], kHex[byte & 15]};
  }
  return escaped;
}

void CheckPath(std::string_view target) {
  const std::optional<std::string> path = DecodedPath(target);
  const std::string_view raw = target.substr(0, target.find_first_of("?#"));
  if (!path.has_value()) {
    PS_CHECK(raw.find('%') != std::string_view::npos);
    return;
  }
  PS_CHECK(path->starts_with('/') && path->size() <= raw.size() + 1);
  PS_CHECK(path->find("//") == std::string::npos);
  PS_CHECK(path->size() == 1 || path->back() != '/');
  const bool whole = raw.find("%") == std::string_view::npos && raw.starts_with('/') &&
                     raw.find("//") == std::string_view::npos && !raw.ends_with('/');
  if (whole) PS_CHECK(*path == raw);
  PS_CHECK(DecodedPath(Escaped(*path)) == path);
  PS_CHECK(DecodedPath(StrCat(raw, "?%")) == path);
}

// The size of the head that `text` begins with, found when its bytes come in parts of `part` bytes;
// 0: there is none, or an error.
size_t HeadSize(std::string_view text, size_t part) {
  HeadScanner scanner(1024);
  for (size_t size = 0; size < text.size();) {
    size = std::min(size + part, text.size());
    const Result<size_t> found = scanner.Find(text.substr(0, size));
    if (!found.ok()) fuzz::CheckError(found.status());
    if (!found.ok() || *found > 0) return found.ok() ? *found : 0;
  }
  return 0;
}

void CheckHead(std::string_view text) {
  const size_t size = HeadSize(text, std::max<size_t>(1, text.size()));
  PS_CHECK(HeadSize(text, 1) == size && HeadSize(text, 7) == size) << text;
  if (size == 0) return;
  const std::string_view head = text.substr(0, size);
  PS_CHECK(size <= 1024 && head.ends_with("\r\n")) << head;
  PS_CHECK(head.find("\n ") == std::string_view::npos) << head;
  for (size_t i = 0; i < size; ++i) PS_CHECK((head[i] == '\n') == (i > 0 && head[i - 1] == '\r'));
  boost::beast::http::request_parser<boost::beast::http::string_body> parser;
  boost::system::error_code error;
  parser.put(boost::asio::buffer(head), error);
  if (error || !parser.is_header_done()) return;
  const BeastRequest& request = parser.get();
  const Status framing = CheckFraming(request, 16);
  if (!framing.ok()) return fuzz::CheckError(framing);
  // The parser and the server agree where the request ends.
  PS_CHECK(ContentLength(request).value_or(0) == parser.content_length().value_or(0));
  PS_CHECK(parser.chunked() == (request.count("Transfer-Encoding") == 1));
  const Result<RequestTarget> target =
      ParseTarget(std::string_view(request.method_string()), std::string_view(request.target()));
  if (!target.ok()) return fuzz::CheckError(target.status());
  (void)DecodedQuery(target->query);
  PS_CHECK(target->path == "*" || target->path.starts_with('/')) << target->path;
}

// What a browser may send is a part of what others may. Its Host is an address, or one of the names
// "machine", "localhost" and those below.
void CheckHeaders(std::string_view text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view host = text.substr(0, end);
  const std::string_view origin = text.substr(std::min(text.size(), end + 1));
  for (const char* address : {"127.0.0.1:8000", "0.0.0.0:8000"}) {
    const AllowedHosts hosts = AllowedHostsOf("", address, "machine");
    const Status any = CheckHost(host, /*browser=*/false, hosts);
    const Status browser = CheckHost(host, /*browser=*/true, hosts);
    PS_CHECK(browser.ok() <= any.ok());
    PS_CHECK(IsLoopback(address) ? any.ok() == browser.ok() : any.ok());
    const bool address_or_known =
        host.starts_with('[') || host.find_first_of("0123456789lLmM") != std::string_view::npos;
    PS_CHECK(!browser.ok() || address_or_known) << host;
  }
  const std::string listed = AllowedOrigin(origin, "https://a.example,http://b.example:8080");
  const bool known = EqualsIgnoringCase(origin, "https://a.example") ||
                     EqualsIgnoringCase(origin, "http://b.example:8080");
  PS_CHECK(listed == (known ? origin : std::string_view())) << listed;
  PS_CHECK(AllowedOrigin(origin, "").empty());
}

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

void CheckTrace(std::string_view text) {
  (void)IsRequestId(text);
  const bool valid = text.size() == 55 && text[2] == '-' && text[35] == '-' && text[52] == '-' &&
                     IsHex(text.substr(0, 2)) && IsHex(text.substr(3, 32)) &&
                     IsHex(text.substr(36, 16)) && IsHex(text.substr(53)) &&
                     !text.starts_with("ff") &&
                     text.substr(3, 32).find_first_not_of('0') != std::string_view::npos &&
                     text.substr(36, 16).find_first_not_of('0') != std::string_view::npos;
  PS_CHECK(IsTraceparent(text) == valid) << text;
  if (!valid) return;
  const std::optional<TraceContext> context = SampleCall(text, 0);
  const bool sampled = std::string_view("13579bdf").find(text[54]) != std::string_view::npos;
  PS_CHECK(context.has_value() == sampled);
  if (sampled) PS_CHECK(context->trace_id == text.substr(3, 32));
  if (sampled) PS_CHECK(context->parent_id == text.substr(36, 16));
}

void CheckConversion(const v1::ForkSessionRequest& request) {
  const auto count = ToForkCount(request);
  if (!count.ok()) fuzz::CheckError(count.status());
}
void CheckConversion(const google::protobuf::Message&) {}

// A line of JSON that a program can read.
void CheckLine(std::string_view line) {
  PS_CHECK(line.ends_with('\n') && line.find('\n') == line.size() - 1) << line;
  PS_CHECK(ValidUtf8Prefix(line) == line.size()) << line;
}

template <typename Message>
void CheckBody(const std::string& body) {
  HttpRequest request;
  request.headers = {{"Host", "127.0.0.1:8000"}, {"Content-Type", "application/json"}};
  request.body = body;
  Message message;
  if (const Status status = ReadPageRequest(request, &message); !status.ok())
    return fuzz::CheckError(status);
  // The message travels to the RPC as bytes, and has the same JSON form there.
  Message received;
  const Status status = ParseMessage(SerializeMessage(message), &received);
  PS_CHECK(status.ok()) << status.ToString();
  CheckConversion(received);
  const Result<std::string> line = JsonLine(received);
  PS_CHECK(line.ok()) << line.status().ToString();
  CheckLine(*line);
  request.body = *line;
  Message again;
  const Status read = ReadPageRequest(request, &again);
  PS_CHECK(read.ok()) << read.ToString() << " " << *line;
  PS_CHECK(google::protobuf::util::MessageDifferencer::Equals(received, again)) << *line;
}

constexpr void (*kBodies[])(const std::string& body) = {
    CheckBody<v1::CreateSessionRequest>,   CheckBody<v1::ForkSessionRequest>,
    CheckBody<v1::SnapshotSessionRequest>, CheckBody<v1::RestoreSessionRequest>,
    CheckBody<v1::ListSessionsRequest>,    CheckBody<v1::DeleteSessionRequest>,
};

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  static const auto log = google::protobuf::SetLogHandler(nullptr);  // as the server
  (void)log;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t body = static_cast<size_t>(data[0]) - '1';
  switch (data[0]) {
    case 'p':
      CheckPath(text);
      break;
    case 'r':
      CheckHead(text);
      break;
    case 'h':
      CheckHeaders(text);
      break;
    case 't':
      CheckTrace(text);
      break;
    default:
      if (body >= std::size(kBodies)) return -1;  // not for the corpus
      kBodies[body](text);
  }
  return 0;
}
