#include "server/openai/response_items.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "server/http/json_text.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxPageItems = 100;  // OpenAI's

std::string_view IdPrefix(std::string_view type) {
  if (type == "reasoning") return "rs_";
  if (type == "function_call") return "fc_";
  return type == "function_call_output" ? "fco_" : "msg_";
}

// A message in the form that a list has: its content is an array of parts.
void MakeMessage(Json* item) {
  const bool answers = item->value("role", Json("user")) == "assistant";
  Json& content = (*item)["content"];
  if (content.is_string()) {
    Json part = {{"type", answers ? "output_text" : "input_text"}, {"text", content}};
    if (answers) part["annotations"] = Json::array();
    content = Json::array({std::move(part)});
  }
}

// The items that a response adds to the list, in their order. `output`: with what it answered.
std::vector<Json> ItemsOf(const StoredResponse& response, bool output) {
  auto items = Json::parse(response.input).get<std::vector<Json>>();
  if (!output) return items;
  Json body = Json::parse(response.body);
  for (Json& item : body["output"]) items.push_back(std::move(item));
  return items;
}

// A member that is null counts as absent, but in the arguments of a call, which the model gets as
// they are. The value nests as a body may.
Json WithoutNulls(const Json& value) {
  if (!value.is_structured()) return value;
  Json kept = value.is_object() ? Json::object() : Json::array();
  for (const auto& [name, element] : value.items()) {
    if (value.is_array()) {
      kept.push_back(WithoutNulls(element));
    } else if (!element.is_null()) {  // the base's push_back looks for no other member of the name
      Json value_of = name == "arguments" ? element : WithoutNulls(element);
      kept.get_ref<Json::object_t&>().push_back({name, std::move(value_of)});
    }
  }
  return kept;
}

// Clients name items as they like, but a page begins after an id: one that came before gets a number.
// `ids`: those that came before, with their numbers of use.
void MakeUnique(Json* item, std::unordered_map<std::string, int64_t>* ids) {
  const auto own = (*item)["id"].get<std::string>();  // InputItems
  std::string id = own;
  while (!ids->try_emplace(id, 1).second) id = StrCat(own, "_", ++(*ids)[own]);
  (*item)["id"] = std::move(id);
}

}  // namespace

std::string InputItems(const Json& input, std::string_view name) {
  Json items = Json::array();
  if (input.is_string()) {
    items.push_back({{"role", "user"}, {"content", input}});
  } else {
    items = WithoutNulls(input);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    Json& item = items[i];
    if (!item.contains("type")) item["type"] = "message";
    const auto type = item["type"].get<std::string>();
    if (type == "message") MakeMessage(&item);
    const auto id = item.find("id");
    if (id == item.end() || !id->is_string() || id->empty())
      item["id"] = StrCat(IdPrefix(type), name, "_", i);
    if (type == "message" && !item.contains("status")) item["status"] = "completed";
  }
  return JsonText(items);
}

Result<ItemsQuery> ToItemsQuery(const std::vector<std::pair<std::string, std::string>>& query) {
  ItemsQuery parsed;
  for (const auto& [name, value] : query) {
    if (name == "limit") {
      const char* const end = value.data() + value.size();
      const auto read = std::from_chars(value.data(), end, parsed.limit);
      if (read.ec != std::errc() || read.ptr != end || parsed.limit < 1 ||
          parsed.limit > kMaxPageItems)
        return InvalidArgument("limit: expected 1 to ", kMaxPageItems, ", found \"", value, "\"");
    } else if (name == "order") {
      if (value != "asc" && value != "desc")
        return InvalidArgument("order: expected asc or desc, found \"", value, "\"");
      parsed.ascending = value == "asc";
    } else if (name == "after") {
      parsed.after = value;
    }
  }
  return parsed;
}

Result<std::string> ItemsPage(const std::vector<StoredResponses::Pointer>& conversation,
                              const ItemsQuery& query) {
  std::string data, first_id = "null", last_id = "null";  // JSON
  int64_t count = 0;
  std::unordered_map<std::string, int64_t> ids;
  bool begun = query.after.empty(), more = false;
  // One response is parsed at a time, and none that the page does not reach.
  for (size_t i = 0; i < conversation.size() && !more; ++i) {
    const size_t index = query.ascending ? conversation.size() - 1 - i : i;
    std::vector<Json> items = ItemsOf(*conversation[index], index > 0);
    if (!query.ascending) std::ranges::reverse(items);
    for (Json& item : items) {
      MakeUnique(&item, &ids);
      if (!begun) {
        begun = item.value("id", Json()) == query.after;
        continue;
      }
      more = count == query.limit;
      if (more) break;
      last_id = JsonText(item["id"]);
      if (count++ == 0) first_id = last_id;
      data += StrCat(data.empty() ? "" : ",", JsonText(item));
    }
  }
  if (!begun) {
    return InvalidArgument("after: expected the id of an item of the list, found \"", query.after,
                           "\"");
  }
  return StrCat(R"({"object":"list","first_id":)", first_id, R"(,"last_id":)", last_id,
                R"(,"has_more":)", more ? "true" : "false", R"(,"data":[)", data, "]}");
}

}  // namespace polysketch
