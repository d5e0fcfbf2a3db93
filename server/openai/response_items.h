// Items of stored responses: those of an input with their ids, and pages of the items of a
// conversation.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/openai/stored_responses.h"

namespace polysketch {

// The items of `input`, a string or an array that ToResponseJob has accepted, as JSON. Those
// without an id get one of `name`.
std::string InputItems(const nlohmann::ordered_json& input, std::string_view name);

// Which items a page has.
struct ItemsQuery {
  int64_t limit = 20;
  bool ascending = false;
  std::string after = {};  // the id of the item before the page; empty: the page is the first
};

// Of the query of a request. INVALID_ARGUMENT names the parameter; others than these three have no
// effect.
Result<ItemsQuery> ToItemsQuery(const std::vector<std::pair<std::string, std::string>>& query);

// A page, as JSON, of the items that the first response of `conversation` was made of: the inputs
// of all, and the outputs of the others, which it continues. The last response comes first, as from
// StoredResponses.
Result<std::string> ItemsPage(const std::vector<StoredResponses::Pointer>& conversation,
                              const ItemsQuery& query);

}  // namespace polysketch
