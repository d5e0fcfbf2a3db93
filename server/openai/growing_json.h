// JSON that is made in parts, as text: a reply of any size is bytes that were counted when they came,
// not a tree of values that takes ten times as much and is printed at once.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polysketch {

// An object whose members are arrays that grow, or values that stay.
class GrowingObject {
 public:
  // Appends the arrays of `part` to those of the object. Each part has the same members.
  void Add(const nlohmann::ordered_json& part);
  // Appends to `text` the object of what `first` has and then of what this has. Both have members.
  void AppendTo(const GrowingObject& first, std::string* text) const;
  bool empty() const { return members_.empty(); }
  // Drops the elements, not the members.
  void Clear();
  // Of the text.
  int64_t bytes() const;

 private:
  struct Member {
    std::string name;
    std::string text;  // of an array: its elements, without the brackets
    bool array = false;
  };
  std::vector<Member> members_;
};

// The text of `object` with `value`, JSON text, as the member `name`, which is an empty array in `object`
// and in none of its members.
std::string WithMember(const nlohmann::ordered_json& object, std::string_view name,
                       std::string_view value);
// The same for the text of the object.
std::string WithMember(std::string object, std::string_view name, std::string_view value);

// The bytes of a string in JSON, without the quotes.
int64_t EscapedBytes(std::string_view text);

}  // namespace polysketch
