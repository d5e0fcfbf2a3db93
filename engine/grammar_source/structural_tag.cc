#include "engine/grammar_source/structural_tag.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "engine/grammar_source/code_points.h"
#include "engine/grammar_source/ebnf.h"
#include "engine/grammar_source/json_value.h"
#include "engine/grammar_source/pattern.h"
#include "engine/grammar_source/pattern_grammar.h"
#include "engine/grammar_source/schema_grammar.h"

namespace polysketch {
namespace {

using Type = JsonValue::Type;

constexpr size_t kMaxTriggerCharacters = 128;

class TagGrammar {
 public:
  explicit TagGrammar(bool compact) : compact_(compact) {}

  Result<std::string> Write(const JsonValue& root) {
    PS_ASSIGN_OR_RETURN(const std::string* const type, Text(root, "", "type"));
    if (*type != "structural_tag")
      return InvalidArgument("/type: expected structural_tag, found \"", *type, "\"");
    PS_RETURN_IF_ERROR(CheckMembers(root, "", {"type", "format"}));
    PS_ASSIGN_OR_RETURN(const JsonValue* const format, Member(root, "", "format", Type::kObject));
    PS_ASSIGN_OR_RETURN(const Ebnf whole, OfFormat(*format, "/format"));
    return rules_.Finish(whole);
  }

 private:
  // Recursion: a JsonValue nests at most kMaxValueDepth deep.
  Result<Ebnf> OfFormat(const JsonValue& format, const std::string& path) {
    if (!format.Is(Type::kObject))
      return InvalidArgument(path, ": expected an object, found ", format.TypeName());
    PS_ASSIGN_OR_RETURN(const std::string* const type, Text(format, path, "type"));
    if (*type == "const_string") {
      PS_RETURN_IF_ERROR(CheckMembers(format, path, {"type", "value"}));
      PS_ASSIGN_OR_RETURN(const std::string* const value, Text(format, path, "value"));
      return Ebnf::Literal(*value);
    }
    if (*type == "json_schema") return OfSchema(format, path);
    if (*type == "regex") return OfRegex(format, path);
    if (*type == "sequence" || *type == "or") {
      PS_RETURN_IF_ERROR(CheckMembers(format, path, {"type", "elements"}));
      PS_ASSIGN_OR_RETURN(std::vector<Ebnf> parts, Formats(format, path, "elements"));
      return *type == "or" ? rules_.Add(Ebnf::Choice(parts)) : Ebnf::Sequence(parts);
    }
    if (*type == "tag") return OfTag(format, path, 0);
    if (*type == "tags_with_separator") return OfSeparated(format, path);
    if (*type == "triggered_tags") return OfTriggered(format, path);
    return InvalidArgument(path,
                           "/type: expected const_string, json_schema, regex, sequence, or, tag, "
                           "tags_with_separator or triggered_tags, found \"",
                           *type, "\"");
  }

  Result<Ebnf> OfSchema(const JsonValue& format, const std::string& path) {
    PS_RETURN_IF_ERROR(CheckMembers(format, path, {"type", "json_schema", "lenient"}));
    const JsonValue* const schema = format.Find("json_schema");
    if (schema == nullptr) return InvalidArgument(path, "/json_schema: expected one, found none");
    PS_ASSIGN_OR_RETURN(const bool lenient, Flag(format, path, "lenient"));
    EbnfRules before;
    if (lenient) before = rules_;
    Result<Ebnf> value = AddSchema(*schema, compact_, &rules_);
    if (value.ok()) return value;
    if (!lenient) {
      return InvalidArgument(path, "/json_schema",
                             value.status().message().starts_with('/') ? "" : ": ",
                             value.status().message());
    }
    rules_ = std::move(before);
    PS_ASSIGN_OR_RETURN(JsonValue any, ParseJsonValue(R"({"type": "object"})"));
    return AddSchema(std::move(any), compact_, &rules_);
  }

  Result<Ebnf> OfRegex(const JsonValue& format, const std::string& path) {
    PS_RETURN_IF_ERROR(CheckMembers(format, path, {"type", "pattern"}));
    PS_ASSIGN_OR_RETURN(const std::string* const text, Text(format, path, "pattern"));
    const Result<Pattern> pattern = ParsePattern(*text);
    Result<Ebnf> regex = pattern.ok() ? PatternToEbnf(*pattern, {.whole = true}, &rules_)
                                      : Result<Ebnf>(pattern.status());
    if (regex.ok()) return regex;
    return InvalidArgument(path, "/pattern: ", regex.status().message());
  }

  // The tag without the first `skipped` bytes of what begins it.
  Result<Ebnf> OfTag(const JsonValue& tag, const std::string& path, size_t skipped) {
    PS_RETURN_IF_ERROR(CheckMembers(tag, path, {"type", "begin", "content", "end"}));
    PS_ASSIGN_OR_RETURN(const std::string* const begin, Text(tag, path, "begin"));
    PS_ASSIGN_OR_RETURN(const std::string* const end, Text(tag, path, "end"));
    PS_ASSIGN_OR_RETURN(const JsonValue* const content,
                        Member(tag, path, "content", Type::kObject));
    const Ebnf before = Ebnf::Literal(std::string_view(*begin).substr(skipped));
    const JsonValue* const type = content->Find("type");
    if (type != nullptr && type->text == "any_text") {
      PS_RETURN_IF_ERROR(CheckMembers(*content, path + "/content", {"type"}));
      PS_ASSIGN_OR_RETURN(const Ebnf until, TextUntil(*end, Ebnf(), false, path + "/end"));
      return Ebnf::Sequence({before, until});
    }
    PS_ASSIGN_OR_RETURN(const Ebnf inside, OfFormat(*content, path + "/content"));
    return Ebnf::Sequence({before, inside, Ebnf::Literal(*end)});
  }

  // One of the tags.
  Result<Ebnf> OneOf(const JsonValue& format, const std::string& path, size_t skipped) {
    PS_ASSIGN_OR_RETURN(const JsonValue* const tags, Member(format, path, "tags", Type::kArray));
    if (tags->items.empty()) return InvalidArgument(path, "/tags: expected tags, found none");
    std::vector<Ebnf> choices;
    for (size_t i = 0; i < tags->items.size(); ++i) {
      const std::string at = StrCat(path, "/tags/", i);
      if (!tags->items[i].Is(Type::kObject))
        return InvalidArgument(at, ": expected an object, found ", tags->items[i].TypeName());
      PS_ASSIGN_OR_RETURN(Ebnf choice, OfTag(tags->items[i], at, skipped));
      choices.push_back(std::move(choice));
    }
    return rules_.Add(Ebnf::Choice(choices));
  }

  Result<Ebnf> OfSeparated(const JsonValue& format, const std::string& path) {
    PS_RETURN_IF_ERROR(CheckMembers(
        format, path, {"type", "tags", "separator", "at_least_one", "stop_after_first"}));
    PS_ASSIGN_OR_RETURN(const std::string* const separator, Text(format, path, "separator"));
    PS_ASSIGN_OR_RETURN(const bool at_least_one, Flag(format, path, "at_least_one"));
    PS_ASSIGN_OR_RETURN(const bool stop_after_first, Flag(format, path, "stop_after_first"));
    PS_ASSIGN_OR_RETURN(Ebnf tags, OneOf(format, path, 0));
    if (!stop_after_first) {
      const Ebnf more = Ebnf::Repeat(Ebnf::Sequence({Ebnf::Literal(*separator), tags}), 0, -1);
      tags = Ebnf::Sequence({tags, more});
    }
    return at_least_one ? tags : Ebnf::Repeat(tags, 0, 1);
  }

  // Text without the trigger, and tags where it is.
  Result<Ebnf> OfTriggered(const JsonValue& format, const std::string& path) {
    PS_RETURN_IF_ERROR(CheckMembers(
        format, path, {"type", "triggers", "tags", "at_least_one", "stop_after_first"}));
    PS_ASSIGN_OR_RETURN(const bool at_least_one, Flag(format, path, "at_least_one"));
    if (at_least_one)
      return InvalidArgument(path, "/at_least_one: expected false, or tags_with_separator");
    PS_ASSIGN_OR_RETURN(const bool stop_after_first, Flag(format, path, "stop_after_first"));
    PS_ASSIGN_OR_RETURN(const JsonValue* const triggers,
                        Member(format, path, "triggers", Type::kArray));
    if (triggers->items.size() != 1 || !triggers->items[0].Is(Type::kString))
      return InvalidArgument(path, "/triggers: expected one text, found ", triggers->Shown());
    const std::string& bytes = triggers->items[0].text;
    const JsonValue* const tags = format.Find("tags");
    for (const JsonValue& tag : tags == nullptr ? std::vector<JsonValue>() : tags->items) {
      const JsonValue* const begin = tag.Find("begin");
      if (begin != nullptr && !begin->text.starts_with(bytes))
        return InvalidArgument(path, "/tags: expected each to begin with the trigger");
    }
    PS_ASSIGN_OR_RETURN(const Ebnf tag, OneOf(format, path, bytes.size()));
    return TextUntil(bytes, tag, /*free=*/true, path + "/triggers/0", !stop_after_first);
  }

  // Text to the first place of `mark`, the mark, and `after`: a state of the rules for each number
  // of its characters that the text ends with. `free`: the text may end without the mark. `again`:
  // more such text may follow.
  Result<Ebnf> TextUntil(const std::string& mark, const Ebnf& after, bool free,
                         const std::string& path, bool again = false) {
    const std::u32string trigger = ToCodePoints(mark);
    if (trigger.empty() || trigger.size() > kMaxTriggerCharacters) {
      return InvalidArgument(path, ": expected 1 to ", kMaxTriggerCharacters, " characters, found ",
                             trigger.size());
    }
    std::vector<std::string> states;
    for (size_t i = 0; i < trigger.size(); ++i) states.push_back(rules_.Declare());
    const auto state = [&](size_t i) { return Ebnf::Rule(states[i]); };
    const Ebnf end = again ? Ebnf::Sequence({after, state(0)}) : after;
    for (size_t i = 0; i < trigger.size(); ++i) {
      CodePoints others = CodePoints::All();
      std::vector<Ebnf> choices;
      if (free) choices.emplace_back();
      for (const char32_t c : CharactersOf(trigger)) {
        const size_t next = NextMatch(trigger, i, c);
        if (next == 0) continue;
        others = others - CodePoints{{c, c}};
        choices.push_back(
            Ebnf::Sequence({Ebnf::Class({{c, c}}), next == trigger.size() ? end : state(next)}));
      }
      // A row of them is one step, not a recursion for each.
      if (i == 0) {
        rules_.Define(states[i], Ebnf::Sequence({Ebnf::Repeat(Ebnf::Class(others), 0, -1),
                                                 Ebnf::Choice(choices)}));
      } else {
        choices.push_back(Ebnf::Sequence({Ebnf::Class(others), state(0)}));
        rules_.Define(states[i], Ebnf::Choice(choices));
      }
    }
    return state(0);
  }

  static std::u32string CharactersOf(std::u32string text) {
    std::sort(text.begin(), text.end());
    text.erase(std::unique(text.begin(), text.end()), text.end());
    return text;
  }

  // How many characters of `trigger` a text ends with that ended with `matched` of them before `c`.
  static size_t NextMatch(const std::u32string& trigger, size_t matched, char32_t c) {
    const std::u32string text = trigger.substr(0, matched) + c;
    for (size_t length = text.size(); length > 0; --length) {
      if (text.ends_with(trigger.substr(0, length))) return length;
    }
    return 0;
  }

  Result<std::vector<Ebnf>> Formats(const JsonValue& format, const std::string& path,
                                    const char* name) {
    PS_ASSIGN_OR_RETURN(const JsonValue* const list, Member(format, path, name, Type::kArray));
    if (list->items.empty())
      return InvalidArgument(path, "/", name, ": expected formats, found none");
    std::vector<Ebnf> parts;
    for (size_t i = 0; i < list->items.size(); ++i) {
      PS_ASSIGN_OR_RETURN(Ebnf part, OfFormat(list->items[i], StrCat(path, "/", name, "/", i)));
      parts.push_back(std::move(part));
    }
    return parts;
  }

  static Result<const JsonValue*> Member(const JsonValue& object, const std::string& path,
                                         const char* name, Type type) {
    const JsonValue* const value = object.Find(name);
    if (value != nullptr && value->Is(type)) return value;
    return InvalidArgument(path, "/", name, ": expected ", JsonValue{.type = type}.TypeName(),
                           ", found ", value == nullptr ? "none" : value->TypeName());
  }
  static Result<const std::string*> Text(const JsonValue& object, const std::string& path,
                                         const char* name) {
    PS_ASSIGN_OR_RETURN(const JsonValue* const value, Member(object, path, name, Type::kString));
    return &value->text;
  }
  static Result<bool> Flag(const JsonValue& object, const std::string& path, const char* name) {
    if (object.Find(name) == nullptr) return false;
    PS_ASSIGN_OR_RETURN(const JsonValue* const value, Member(object, path, name, Type::kBoolean));
    return value->boolean;
  }
  static Status CheckMembers(const JsonValue& object, const std::string& path,
                             std::initializer_list<std::string_view> known) {
    for (const auto& [name, value] : object.members) {
      if (std::ranges::find(known, name) == known.end())
        return InvalidArgument(path, ": expected a member of the format, found \"", name, "\"");
    }
    return Status();
  }

  const bool compact_;
  EbnfRules rules_;
};

}  // namespace

Result<std::string> StructuralTagToEbnf(std::string_view tag, bool compact) {
  PS_ASSIGN_OR_RETURN(const JsonValue root, ParseJsonValue(tag));
  if (!root.Is(Type::kObject))
    return InvalidArgument("expected an object, found ", root.TypeName());
  return TagGrammar(compact).Write(root);
}

}  // namespace polysketch
