// JSON as the commands print it: keys in the order they were added, numbers as short as they can
// be.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>

#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

using Json = nlohmann::ordered_json;

// A float32 as the shortest decimal that reads back as the same float32.
Json FloatToJson(float value);

// Every field of a message by its name in the .proto file; 64-bit numbers as numbers. Unset fields
// that track presence are null.
Json MessageToJson(const google::protobuf::Message& message);

// "cache_miss": why nothing came from a stored prompt; nothing is added where something did.
void AddCacheMiss(v1::CacheMiss miss, Json* json);

// Prints one line on stdout. Numbers that JSON lacks (nan, inf) are null, and bytes that are not
// UTF-8 are U+FFFD.
void PrintJson(const Json& json);

}  // namespace polysketch
