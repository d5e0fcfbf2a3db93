#include "server/openai/growing_json.h"

#include "base/check.h"
#include "base/status.h"
#include "server/http/json_text.h"

namespace polysketch {

void AppendElements(std::string_view elements, std::string* text) {
  if (elements.empty()) return;
  if (!text->empty() && text->back() != '[') *text += ',';
  *text += elements;
}

std::string WithMember(const nlohmann::ordered_json& object, std::string_view name,
                       std::string_view value) {
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
