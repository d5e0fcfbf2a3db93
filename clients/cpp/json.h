// JSON output of the commands: keys in the order of insertion, numbers with the fewest digits.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

using Json = nlohmann::ordered_json;

// The shortest decimal that reads back as the same float32. Null: not finite.
Json FloatToJson(float value);

// Every field of a message, by its name in the .proto file. Unsigned 64-bit integers, which are
// seeds, are strings: many readers of JSON round numbers above 2^53. An unset field with presence
// is null.
Json MessageToJson(const google::protobuf::Message& message);

// Adds "cache_miss", unless it is unspecified.
void AddCacheMiss(v1::CacheMiss miss, Json* json);

// One line without its end. Bytes that are not UTF-8 become U+FFFD; nan and inf become null.
std::string JsonText(const Json& json);
// Prints one line on stdout. On a terminal, C1 control characters are escaped too.
void PrintJson(const Json& json);

}  // namespace polysketch
