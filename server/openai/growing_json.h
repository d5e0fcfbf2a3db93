// JSON that is made in parts, as text: a reply of any size is bytes that were counted when they
// came, not a tree of values that takes ten times as much and is printed at once.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace polysketch {

// Appends elements of an array to others, or to text that ends with its bracket.
void AppendElements(std::string_view elements, std::string* text);

// The text of `object` with `value`, JSON text, as the member `name`, which is an empty array in
// `object` and in none of its members.
std::string WithMember(const nlohmann::ordered_json& object, std::string_view name,
                       std::string_view value);
// The same for the text of the object.
std::string WithMember(std::string object, std::string_view name, std::string_view value);

// The bytes of a string in JSON, without the quotes.
int64_t EscapedBytes(std::string_view text);

}  // namespace polysketch
