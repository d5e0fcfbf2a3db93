#include "clients/cpp/json.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace polysketch {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

Json SingularToJson(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  if (field->has_presence() && !reflection.HasField(message, field)) return nullptr;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.GetUInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return FloatToJson(reflection.GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetEnum(message, field)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(message, field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(reflection.GetMessage(message, field));
  }
  return nullptr;
}

}  // namespace

Json FloatToJson(float value) {
  if (!std::isfinite(value)) return nullptr;
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits) - 1, value);
  PS_CHECK(error == std::errc()) << "a float32 has at most 16 characters";
  *end = '\0';
  return std::strtod(digits, nullptr);
}

Json MessageToJson(const Message& message) {
  Json json = Json::object();
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* field = descriptor.field(i);
    PS_CHECK(!field->is_repeated()) << field->full_name() << ": no message that is printed has one";
    json[field->name()] = SingularToJson(message, field);
  }
  return json;
}

void AddCacheMiss(v1::CacheMiss miss, Json* json) {
  if (miss != v1::CACHE_MISS_UNSPECIFIED) (*json)["cache_miss"] = v1::CacheMiss_Name(miss);
}

void PrintJson(const Json& json) {
  const std::string line = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
}

}  // namespace polysketch
