#include "clients/cpp/json.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

// An element of a repeated field, or with index -1 a singular field.
Json FieldToJson(const google::protobuf::Message& message, const FieldDescriptor* field,
                 int index) {
  const Reflection& reflection = *message.GetReflection();
  const auto get = [&](auto singular, auto repeated) -> decltype(auto) {
    return index < 0 ? (reflection.*singular)(message, field)
                     : (reflection.*repeated)(message, field, index);
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return FloatToJson(get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return get(&Reflection::GetString, &Reflection::GetRepeatedString);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(index < 0 ? reflection.GetMessage(message, field)
                                     : reflection.GetRepeatedMessage(message, field, index));
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

Json MessageToJson(const google::protobuf::Message& message) {
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  Json json = Json::object();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* field = descriptor.field(i);
    Json& value = json[field->name()];  // null
    if (field->is_repeated()) {
      value = Json::array();
      const int size = reflection.FieldSize(message, field);
      for (int j = 0; j < size; ++j) value.push_back(FieldToJson(message, field, j));
    } else if (!field->has_presence() || reflection.HasField(message, field)) {
      value = FieldToJson(message, field, -1);
    }
  }
  return json;
}

void AddCacheMiss(v1::CacheMiss miss, Json* json) {
  if (miss != v1::CACHE_MISS_UNSPECIFIED) (*json)["cache_miss"] = v1::CacheMiss_Name(miss);
}

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void PrintJson(const Json& json) {
  const std::string line = TerminalText(STDOUT_FILENO, JsonText(json)) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
}

}  // namespace polysketch
