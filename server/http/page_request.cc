#include "server/http/page_request.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/bounded_json.h"
#include "base/utf8.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxBodyBytes = 1 << 20;

// Keeps a page of another site from using the server through a browser: such a page can neither
// send JSON without a preflight request, nor set this server's address as its origin.
Status CheckSender(const HttpRequest& request) {
  PS_RETURN_IF_ERROR(CheckJsonType(request));
  const std::string_view origin = request.Header("Origin");
  if (!origin.empty() && origin != StrCat("http://", request.Header("Host")) &&
      origin != StrCat("https://", request.Header("Host"))) {
    return Status(
        Code::kPermissionDenied,
        StrCat("Origin: expected the server's own page, found \"", Abbreviate(origin), "\""));
  }
  return Status();
}

// The number of an integer in JSON; of a string, in which the JSON form of a message has it too.
std::optional<int64_t> IntegerOf(const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

// Sets the field that `name` names. protobuf's own reader takes "yes" for true, and its errors name
// no field.
Status SetField(const std::string& name, const Json& value, google::protobuf::Message* message) {
  using Type = google::protobuf::FieldDescriptor::CppType;
  const google::protobuf::Descriptor& descriptor = *message->GetDescriptor();
  const google::protobuf::Reflection& fields = *message->GetReflection();
  const google::protobuf::FieldDescriptor* field = descriptor.FindFieldByName(name);
  if (field == nullptr) field = descriptor.FindFieldByCamelcaseName(name);
  if (field == nullptr || field->is_repeated())
    return InvalidArgument(Abbreviate(name), ": expected a field of ", descriptor.name(),
                           ", found an unknown one");
  const auto expected = [&](std::string_view what) {
    return InvalidArgument(name, ": expected ", what, ", found ", Abbreviate(JsonText(value)));
  };
  switch (field->cpp_type()) {
    case Type::CPPTYPE_BOOL:
      if (!value.is_boolean()) return expected("true or false");
      fields.SetBool(message, field, value.get<bool>());
      return Status();
    case Type::CPPTYPE_STRING:
      if (!value.is_string()) return expected("a string");
      fields.SetString(message, field, value.get<std::string>());
      return Status();
    case Type::CPPTYPE_INT32:
    case Type::CPPTYPE_INT64: {
      const bool is_long = field->cpp_type() == Type::CPPTYPE_INT64;
      const auto number = IntegerOf(value);
      if (!number || (!is_long && *number != static_cast<int32_t>(*number)))
        return expected(is_long ? "an integer of 64 bits" : "an integer of 32 bits");
      if (is_long) {
        fields.SetInt64(message, field, *number);
      } else {
        fields.SetInt32(message, field, static_cast<int32_t>(*number));
      }
      return Status();
    }
    default:
      return expected("a field of strings, booleans and integers");
  }
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
  const Result<Json> body = ParseJson<Json>(request.body);
  if (!body.ok()) return InvalidArgument("the body: ", body.status().message());
  if (!body->is_object())
    return InvalidArgument("the body: expected a JSON object, found ", Abbreviate(JsonText(*body)));
  for (const auto& [name, value] : body->items()) {
    if (!value.is_null()) PS_RETURN_IF_ERROR(SetField(name, value, message));
  }
  return Status();
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
