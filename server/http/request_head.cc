#include "server/http/request_head.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "server/http/http_exchange.h"
#include "server/http/request_path.h"

namespace polysketch {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Whether `text` is what RFC 9110 has in Host, and an absolute target after "//": a name or an
// address, and perhaps a port. It may be empty.
bool IsAuthority(std::string_view text) {
  const size_t end = text.starts_with('[') ? text.find(']') : text.find(':');
  if (text.starts_with('[') && end == std::string_view::npos) return false;
  std::string_view port = text.substr(std::min(text.size(), text.starts_with('[') ? end + 1 : end));
  if (!port.empty() && port.front() != ':') return false;
  if (port.size() > 1 && !IsDigits(port.substr(1))) return false;
  const std::string_view name = text.substr(0, text.size() - port.size());
  static constexpr std::string_view kOthers = "-._~%!$&'()*+,;=:[]";  // besides letters and digits
  return std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

std::string_view Value(const BeastRequest& head, http::field name) {
  const auto value = head[name];
  return {value.data(), value.size()};
}

}  // namespace

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

Status MalformedRequest(const std::string& message) {
  return InvalidArgument(message).WithReason(Reason::kMalformedRequest);
}

Status HeaderTooLarge(int64_t max_bytes) {
  return InvalidArgument("the header: expected at most ", max_bytes, " bytes, found more")
      .WithReason(Reason::kHeaderTooLarge);
}

Result<size_t> HeadScanner::Find(std::string_view bytes) {
  const auto limit = static_cast<size_t>(max_bytes_);
  for (; scanned_ < std::min(bytes.size(), limit); ++scanned_) {
    const char c = bytes[scanned_];
    const bool after_cr = scanned_ > 0 && bytes[scanned_ - 1] == '\r';
    if (after_cr != (c == '\n'))
      return MalformedRequest(
          "the header: expected lines that end with CRLF, found CR or LF alone");
    if (c == '\n') {
      if (scanned_ - line_ == 1) return scanned_ + 1;  // the empty line
      line_ = scanned_ + 1;
    } else if (scanned_ == line_ && line_ > 0 && (c == ' ' || c == '\t')) {
      return MalformedRequest("the header: expected a field, found a line that continues another");
    } else if (IsControl(c) && c != '\r') {
      return MalformedRequest("the header: expected text, found a control character");
    }
  }
  if (bytes.size() <= limit) return size_t{0};
  if (line_ > 0) return HeaderTooLarge(max_bytes_);
  return InvalidArgument("the request line: expected at most ", max_bytes_, " bytes, found more")
      .WithReason(Reason::kTargetTooLong);
}

Status CheckFraming(const BeastRequest& head, int64_t max_fields) {
  if (std::distance(head.begin(), head.end()) > max_fields) {
    return InvalidArgument("the header: expected at most ", max_fields, " fields, found more")
        .WithReason(Reason::kHeaderTooLarge);
  }
  const size_t hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11)) {
    return MalformedRequest(
        StrCat("Host: expected the field once, found it ", hosts == 0 ? "not at all" : "again"));
  }
  if (!IsAuthority(Value(head, http::field::host)))
    return MalformedRequest("Host: expected a name or an address, and perhaps a port");
  const size_t lengths = head.count(http::field::content_length);
  const size_t encodings = head.count(http::field::transfer_encoding);
  if (lengths > 0 && !ContentLength(head).has_value())
    return MalformedRequest("Content-Length: expected one number");
  if (encodings == 0) return Status();
  if (lengths > 0)
    return MalformedRequest("Transfer-Encoding: expected none beside Content-Length");
  if (encodings > 1 || head.version() < 11 ||
      !EqualsIgnoringCase(Value(head, http::field::transfer_encoding), "chunked")) {
    return MalformedRequest("Transfer-Encoding: expected chunked, once and in HTTP/1.1");
  }
  return Status();
}

std::optional<uint64_t> ContentLength(const BeastRequest& head) {
  const std::string_view text = Value(head, http::field::content_length);
  if (head.count(http::field::content_length) != 1 || !IsDigits(text)) return std::nullopt;
  uint64_t length = 0;
  const auto error = std::from_chars(text.data(), text.data() + text.size(), length).ec;
  return error == std::errc() ? std::make_optional(length) : std::nullopt;
}

Result<RequestTarget> ParseTarget(std::string_view method, std::string_view target) {
  RequestTarget parsed;
  if (target == "*" && method == "OPTIONS") {
    parsed.path = "*";
    return parsed;
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!EqualsIgnoringCase(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const std::string_view authority =
        target.substr(0, std::min(target.size(), target.find_first_of("/?#")));
    if (authority.empty() || !IsAuthority(authority))
      return MalformedRequest("the target: expected a name or an address after http://");
    parsed.authority = std::string(authority);
    target.remove_prefix(authority.size());
    break;
  }
  if (!parsed.authority.has_value() && !target.starts_with('/'))
    return MalformedRequest("the target: expected a path that begins with /, or a URL");
  std::optional<std::string> path = DecodedPath(target);
  if (!path.has_value())
    return MalformedRequest("the path: expected two hexadecimal digits after %");
  parsed.path = *std::move(path);
  target = target.substr(0, target.find('#'));
  if (const size_t mark = target.find('?'); mark != std::string_view::npos)
    parsed.query = std::string(target.substr(mark + 1));
  return parsed;
}

}  // namespace polysketch
