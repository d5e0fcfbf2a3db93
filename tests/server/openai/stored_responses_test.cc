#include "server/openai/stored_responses.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/store/open_state_store.h"
#include "server/http/request_path.h"
#include "server/openai/response_items.h"
#include "server/openai/response_store.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using Key = StoredResponses::Key;

StoredResponse Of(size_t bytes, const std::string& previous = "") {
  return {.body = std::string(bytes, 'x'), .input = "[]", .previous = previous};
}

Status Unlimited(int64_t) { return Status(); }

TEST(StoredResponses, BelongToATenant) {
  StoredResponses texts(1 << 20, seconds(60));
  texts.Keep({"acme", "s"}, "tenant acme", Of(5));
  ASSERT_NE(texts.Find({"acme", "s"}), nullptr);
  EXPECT_EQ(texts.Find({"acme", "s"})->body, "xxxxx");
  EXPECT_EQ(texts.Find({"other", "s"}), nullptr);
  EXPECT_FALSE(texts.Remove({"other", "s"}));
  EXPECT_TRUE(texts.Remove({"acme", "s"}));
  EXPECT_FALSE(texts.Remove({"acme", "s"}));
  EXPECT_EQ(texts.stats().bytes, 0);
  EXPECT_EQ(texts.stats().responses, 0);
}

TEST(StoredResponses, AConversationEndsWhereATextIsGone) {
  StoredResponses texts(1 << 20, seconds(60));
  texts.Keep({"", "a"}, "x", Of(1));
  texts.Keep({"", "b"}, "x", Of(2, "a"));
  texts.Keep({"", "c"}, "x", Of(3, "b"));
  const auto sizes = [&] {
    std::vector<size_t> found;
    const auto conversation = FindConversation({"", "c"}, &texts, nullptr, Unlimited, 10);
    for (const auto& response : *conversation) found.push_back(response->body.size());
    return found;
  };
  EXPECT_EQ(sizes(), (std::vector<size_t>{3, 2, 1}));
  texts.Remove({"", "a"});
  EXPECT_EQ(sizes(), (std::vector<size_t>{3, 2}));
}

// Whatever one client stores, the texts of the others stay while they are fewer.
TEST(StoredResponses, TheClientThatHoldsTheMostMakesRoom) {
  constexpr int64_t kLimit = 64 << 10;
  StoredResponses texts(kLimit, seconds(60));
  texts.Keep({"", "small"}, "quiet", Of(1000));
  for (int i = 0; i < 200; ++i) {
    texts.Keep({"", "s" + std::to_string(i)}, "loud", Of(4000));
    ASSERT_LE(texts.stats().bytes, kLimit);
  }
  EXPECT_NE(texts.Find({"", "small"}), nullptr);
  EXPECT_NE(texts.Find({"", "s199"}), nullptr);
  EXPECT_EQ(texts.Find({"", "s0"}), nullptr);  // the oldest
  EXPECT_GT(texts.stats().responses, 10);
  // One that would take a quarter of all room is not kept, nor is its former text.
  texts.Keep({"", "s199"}, "loud", Of(kLimit / 4 + 1));
  EXPECT_EQ(texts.Find({"", "s199"}), nullptr);
  StoredResponses none(0, seconds(60));
  none.Keep({"", "s"}, "x", Of(1));
  EXPECT_EQ(none.Find({"", "s"}), nullptr);
}

TEST(StoredResponses, Expire) {
  StoredResponses::Clock::time_point now{};
  StoredResponses texts(1 << 20, seconds(60), [&] { return now; });
  texts.Keep({"", "a"}, "x", Of(1));
  now += seconds(30);
  texts.Keep({"", "b"}, "x", Of(1));
  now += seconds(30);
  EXPECT_EQ(texts.Find({"", "a"}), nullptr);
  EXPECT_NE(texts.Find({"", "b"}), nullptr);
  EXPECT_EQ(texts.stats().responses, 1);
}

// What a server that drains has written, other servers find: for the rest of its time, and for its
// tenant.
TEST(StoredResponses, AreInTheStoreAfterADrain) {
  const testing::TemporaryFolder folder;
  const auto store = *OpenStateStore("dir:" + folder.path().string());
  StoredResponses::Clock::time_point now{};
  StoredResponses before(1 << 20, seconds(60), [&] { return now; }), after(1 << 20, seconds(60));
  const std::string first(32, 'a'), second(32, 'b'), old(32, 'c');
  before.Keep({"acme", old}, "x", Of(7));
  now += seconds(50);
  before.Keep({"acme", first}, "x", Of(5));
  before.Keep({"acme", second}, "x", Of(6, first));
  before.Keep({"", "no-key"}, "x", Of(6));
  now += seconds(10);
  EXPECT_EQ(before.NewestFirst().size(), 3u);
  SaveResponses(before, store.get());
  const auto sizes = [&](const std::string& tenant, const std::string& session, size_t most = 10) {
    std::vector<size_t> found;
    const auto stored = FindConversation({tenant, session}, &after, store.get(), Unlimited, most);
    for (const auto& one : *stored) found.push_back(one->body.size());
    return found;
  };
  EXPECT_EQ(sizes("acme", second), (std::vector<size_t>{6, 5}));
  EXPECT_EQ(sizes("acme", second, 1), (std::vector<size_t>{6}));
  EXPECT_TRUE(sizes("acme", old).empty());
  EXPECT_TRUE(sizes("other", second).empty());
  EXPECT_TRUE(sizes("acme", "../t.acme").empty());  // no key of an entry
  // Memory for it is counted first.
  const auto none = [](int64_t) { return ResourceExhausted("no memory"); };
  EXPECT_EQ(FindConversation({"acme", first}, &after, store.get(), none, 1).status().code(),
            Code::kResourceExhausted);
  EXPECT_TRUE(*RemoveResponse({"acme", first}, &after, store.get()));
  EXPECT_FALSE(*RemoveResponse({"acme", first}, &after, store.get()));
  EXPECT_EQ(sizes("acme", second), (std::vector<size_t>{6}));
}

TEST(StoredResponses, AreReadWholeOrNotAtAll) {
  const std::string bytes = EncodeResponse({.body = "{}", .input = "[]", .previous = "p"});
  const auto read = DecodeResponse(bytes);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->body + read->input + read->previous, "{}[]p");
  EXPECT_EQ(DecodeResponse(bytes + "x").status().code(), Code::kDataLoss);
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(DecodeResponse(bytes.substr(0, i)).status().code(), Code::kDataLoss) << i;
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_EQ(DecodeResponse(damaged).status().code(), Code::kDataLoss) << i;
  }
}

TEST(ResponseItems, ArgumentsKeepWhatIsNull) {
  const json items = json::parse(InputItems(
      nlohmann::ordered_json::parse(R"([{"type": "function_call", "call_id": "c", "name": "f",
          "status": null, "arguments": {"a": null, "b": [null, {"c": null}]}}])"),
      "n"));
  EXPECT_FALSE(items[0].contains("status"));
  EXPECT_EQ(items[0]["arguments"], json::parse(R"({"a": null, "b": [null, {"c": null}]})"));
}

TEST(ResponseItems, HaveIdsAndTheFormOfLists) {
  const json text = json::parse(InputItems("Hello", "n"));
  EXPECT_EQ(
      text,
      json::parse(R"([{"type": "message", "role": "user", "id": "msg_n_0", "status": "completed",
                                   "content": [{"type": "input_text", "text": "Hello"}]}])"));
  const json items = json::parse(
      InputItems(json::parse(R"([{"role": "assistant", "content": "Yes", "id": "msg_own"},
                      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                      {"type": "function_call_output", "call_id": "c", "output": "5"}])"),
                 "n"));
  EXPECT_EQ(items[0]["id"], "msg_own");
  EXPECT_EQ(items[0]["content"][0]["type"], "output_text");
  EXPECT_EQ(items[1]["id"], "fc_n_1");
  EXPECT_EQ(items[2]["id"], "fco_n_2");
}

// Three turns: the items i0 o0 i1 o1 i2, without the last answer.
std::vector<StoredResponses::Pointer> ThreeTurns() {
  std::vector<StoredResponses::Pointer> conversation;
  for (int turn = 2; turn >= 0; --turn) {
    const std::string number = std::to_string(turn);
    conversation.push_back(std::make_shared<StoredResponse>(
        StoredResponse{.body = R"({"output": [{"id": "o)" + number + R"("}]})",
                       .input = R"([{"id": "i)" + number + R"("}])"}));
  }
  return conversation;
}

std::string PageOf(const ItemsQuery& query) {
  const Result<std::string> page = ItemsPage(ThreeTurns(), query);
  if (!page.ok()) return page.status().message();
  const json list = json::parse(*page);
  std::string ids;
  for (const json& item : list["data"]) ids += item["id"].get<std::string>() + " ";
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["first_id"], list["data"].empty() ? json() : list["data"].front()["id"]);
  EXPECT_EQ(list["last_id"], list["data"].empty() ? json() : list["data"].back()["id"]);
  return ids + (list["has_more"].get<bool>() ? "more" : "end");
}

TEST(ResponseItems, Pages) {
  EXPECT_EQ(PageOf({}), "i2 o1 i1 o0 i0 end");
  EXPECT_EQ(PageOf({.ascending = true}), "i0 o0 i1 o1 i2 end");
  EXPECT_EQ(PageOf({.limit = 2}), "i2 o1 more");
  EXPECT_EQ(PageOf({.limit = 2, .after = "o1"}), "i1 o0 more");
  EXPECT_EQ(PageOf({.limit = 2, .after = "o0"}), "i0 end");
  EXPECT_EQ(PageOf({.limit = 5}), "i2 o1 i1 o0 i0 end");
  EXPECT_EQ(PageOf({.limit = 3, .ascending = true, .after = "o0"}), "i1 o1 i2 end");
  EXPECT_EQ(PageOf({.after = "i0"}), "end");
  EXPECT_EQ(PageOf({.after = "o2"}), "after: expected the id of an item of the list, found \"o2\"");
}

// Clients name items as they like, and send answers again: each page begins after the one before.
TEST(ResponseItems, PagesEndWhereIdsRecur) {
  std::vector<StoredResponses::Pointer> conversation;
  for (int turn = 0; turn < 2; ++turn) {
    conversation.push_back(std::make_shared<StoredResponse>(StoredResponse{
        .body = R"({"output": [{"id": "a"}]})",
        .input = R"([{"id": "a", "n": 1}, {"id": "a_2"}, {"id": "a"}, {"id": "b"}])"}));
  }
  for (const bool ascending : {false, true}) {
    ItemsQuery query{.limit = 1, .ascending = ascending};
    std::set<std::string> ids;
    for (bool more = true; more; query.after = ids.empty() ? "" : query.after) {
      const json list = json::parse(*ItemsPage(conversation, query));
      ASSERT_EQ(list["data"].size(), 1u);
      query.after = list["last_id"];
      ASSERT_TRUE(ids.insert(query.after).second) << query.after;
      more = list["has_more"].get<bool>();
    }
    EXPECT_EQ(ids.size(), 9u);
  }
}

TEST(ResponseItems, QueriesAreChecked) {
  const auto parse = [](const char* query) { return ToItemsQuery(*DecodedQuery(query)); };
  const auto query = parse("limit=100&order=asc&after=a%2Fb+c&include[]=x&");
  ASSERT_TRUE(query.ok()) << query.status().ToString();
  EXPECT_EQ(query->limit, 100);
  EXPECT_TRUE(query->ascending);
  EXPECT_EQ(query->after, "a/b c");
  for (const char* wrong : {"limit=0", "limit=101", "limit=", "limit=5x", "order=", "order=up"})
    EXPECT_EQ(parse(wrong).status().code(), Code::kInvalidArgument) << wrong;
  for (const char* broken : {"a=%", "a=%4", "%zz=1"})
    EXPECT_FALSE(DecodedQuery(broken).has_value()) << broken;
  EXPECT_TRUE(DecodedQuery("")->empty());
}

}  // namespace
}  // namespace polysketch
