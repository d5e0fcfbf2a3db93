// Renders templates for compare_templates.py. A line of standard input is a JSON object with
// "template" and "variables"; its line of standard output is {"text": ...} or {"error": ...}.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "server/chat/interpreter.h"
#include "server/chat/syntax.h"

namespace polysketch::chat {
namespace {

using nlohmann::ordered_json;

Result<std::string> RenderLine(const ordered_json& line) {
  PS_ASSIGN_OR_RETURN(const Block block,
                      ParseTemplate(line.at("template").get_ref<const std::string&>()));
  Dict variables;
  for (const auto& [name, variable] : line.at("variables").items()) {
    PS_ASSIGN_OR_RETURN(Value value, Value::FromJson(variable));
    variables.Set(name, std::move(value));
  }
  PS_ASSIGN_OR_RETURN(const MarkedText text, Render(block, variables));
  return text.text();
}

}  // namespace
}  // namespace polysketch::chat

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = polysketch::chat::RenderLine(nlohmann::ordered_json::parse(line));
    nlohmann::json answer;
    if (text.ok()) {
      answer["text"] = *text;
    } else {
      answer["error"] = text.status().message();
    }
    std::cout << answer.dump() << std::endl;
  }
}
