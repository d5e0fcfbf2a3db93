#include "server/openai/growing_json.h"

#include "base/check.h"
#include "base/status.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

void AppendElements(std::string_view elements, std::string* text) {
  if (elements.empty()) return;
  if (!text->empty() && text->back() != '[') *text += ',';
  *text += elements;
}

}  // namespace

void GrowingObject::Add(const Json& part) {
  if (members_.empty()) {
    for (const auto& [name, value] : part.items())
      members_.push_back({name, value.is_array() ? "" : JsonText(value), value.is_array()});
  }
  PS_CHECK(members_.size() == part.size());
  for (Member& member : members_) {
    if (!member.array) continue;
    const std::string text = JsonText(part.at(member.name));
    AppendElements(std::string_view(text).substr(1, text.size() - 2), &member.text);
  }
}

void GrowingObject::AppendTo(const GrowingObject& first, std::string* text) const {
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    *text += StrCat(i == 0 ? "{" : ",", JsonText(Json(member.name)), ":");
    if (!member.array) {
      *text += member.text;
      continue;
    }
    *text += '[';
    if (i < first.members_.size()) AppendElements(first.members_[i].text, text);
    AppendElements(member.text, text);
    *text += ']';
  }
  *text += '}';
}

void GrowingObject::Clear() {
  for (Member& member : members_) {
    if (member.array) std::string().swap(member.text);
  }
}

int64_t GrowingObject::bytes() const {
  int64_t bytes = 2;
  for (const Member& member : members_)
    bytes += static_cast<int64_t>(member.name.size() + member.text.size()) + 6;
  return bytes;
}

std::string WithMember(const Json& object, std::string_view name, std::string_view value) {
  return WithMember(JsonText(object), name, value);
}

std::string WithMember(std::string text, std::string_view name, std::string_view value) {
  // A string of JSON has no quote without a backslash before it.
  const std::string place = StrCat("\"", name, "\":[]");
  const size_t found = text.find(place);
  PS_CHECK(found != std::string::npos) << place;
  return text.replace(found + place.size() - 2, 2, value);
}

int64_t EscapedBytes(std::string_view text) {
  int64_t bytes = 0;
  for (const char c : text) {
    const bool letter = c == '"' || c == '\\' || (c >= '\b' && c <= '\r' && c != '\v');
    bytes += letter ? 2 : static_cast<unsigned char>(c) < 0x20 ? 6 : 1;
  }
  return bytes;
}

}  // namespace polysketch
