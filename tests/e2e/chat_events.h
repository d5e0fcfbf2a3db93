// What tests of chats over HTTP send, and the events that they get.
#pragma once

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace polysketch::e2e {

// A conversation of one message.
inline nlohmann::json Messages(const std::string& content) {
  return nlohmann::json::array({{{"role", "user"}, {"content", content}}});
}

struct Event {
  std::string name;
  nlohmann::json data;
};

// The events of a stream, without [DONE].
inline std::vector<Event> Events(const std::string& body) {
  std::vector<Event> events;
  std::istringstream lines(body);
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("event: ")) name = line.substr(7);
    if (line.starts_with("data: ") && line != "data: [DONE]")
      events.push_back({std::exchange(name, ""), nlohmann::json::parse(line.substr(6))});
  }
  return events;
}

}  // namespace polysketch::e2e
