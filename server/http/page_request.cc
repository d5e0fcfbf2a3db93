#include "server/http/page_request.h"

#include <google/protobuf/util/json_util.h>

#include "base/utf8.h"
#include "server/http/http_errors.h"

namespace polysketch {
namespace {

constexpr size_t kMaxBodyBytes = 1 << 20;

// Keeps a page of another site from using the server through a browser: such a page can neither
// send JSON without a preflight request, nor set this server's address as its origin.
Status CheckSender(const HttpRequest& request) {
  PS_RETURN_IF_ERROR(CheckJsonType(request));
  const std::string_view origin = request.Header("Origin");
  if (!origin.empty() && origin != StrCat("http://", request.Header("Host")) &&
      origin != StrCat("https://", request.Header("Host"))) {
    return Status(Code::kPermissionDenied, "Origin: expected the server's own page");
  }
  return Status();
}

}  // namespace

Status ReadPageRequest(const HttpRequest& request, google::protobuf::Message* message) {
  PS_RETURN_IF_ERROR(CheckSender(request));
  if (request.body.size() > kMaxBodyBytes) {
    return InvalidArgument("the body: expected at most ", kMaxBodyBytes, " bytes, found ",
                           request.body.size())
        .WithReason(Reason::kBodyTooLarge);
  }
  if (const size_t valid = ValidUtf8Prefix(request.body); valid < request.body.size())
    return InvalidArgument("the body: expected UTF-8, found another byte at position ", valid);
  const auto parsed = google::protobuf::util::JsonStringToMessage(request.body, message);
  if (parsed.ok()) return Status();
  // The message quotes a part of the body, which may begin and end within characters.
  return InvalidArgument("the body: expected the JSON form of ", message->GetDescriptor()->name(),
                         ": ", WholeCharacters(std::string(parsed.message())));
}

Result<std::string> JsonLine(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string line;
  if (!google::protobuf::util::MessageToJsonString(message, &line, options).ok())
    return Internal("the message has no JSON form");
  return line + "\n";
}

}  // namespace polysketch
