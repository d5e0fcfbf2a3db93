#include "engine/grammar_source/schema_document.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <optional>
#include <utility>

namespace polysketch {
namespace {

using Type = JsonValue::Type;

// What the value of a keyword is.
enum class Expects {
  kSchema,
  kSchemas,
  kSchemaOrSchemas,  // items
  kSchemaMap,
  kNumber,
  kPositive,
  kCount,
  kBoolean,
  kString,
  kNames,
  kNameLists,     // dependentRequired
  kDependencies,  // a schema or names for each property
  kValues,
  kTypes,
};

struct Keyword {
  std::string_view name;
  Expects expects;
};

constexpr Keyword kKeywords[] = {
    {"$anchor", Expects::kString},
    {"$defs", Expects::kSchemaMap},
    {"$dynamicRef", Expects::kString},
    {"$recursiveRef", Expects::kString},
    {"$ref", Expects::kString},
    {"additionalItems", Expects::kSchema},
    {"additionalProperties", Expects::kSchema},
    {"allOf", Expects::kSchemas},
    {"anyOf", Expects::kSchemas},
    {"contains", Expects::kSchema},
    {"definitions", Expects::kSchemaMap},
    {"dependencies", Expects::kDependencies},
    {"dependentRequired", Expects::kNameLists},
    {"dependentSchemas", Expects::kSchemaMap},
    {"else", Expects::kSchema},
    {"enum", Expects::kValues},
    {"exclusiveMaximum", Expects::kNumber},
    {"exclusiveMinimum", Expects::kNumber},
    {"format", Expects::kString},
    {"if", Expects::kSchema},
    {"items", Expects::kSchemaOrSchemas},
    {"maxContains", Expects::kCount},
    {"maxItems", Expects::kCount},
    {"maxLength", Expects::kCount},
    {"maxProperties", Expects::kCount},
    {"maximum", Expects::kNumber},
    {"minContains", Expects::kCount},
    {"minItems", Expects::kCount},
    {"minLength", Expects::kCount},
    {"minProperties", Expects::kCount},
    {"minimum", Expects::kNumber},
    {"multipleOf", Expects::kPositive},
    {"not", Expects::kSchema},
    {"oneOf", Expects::kSchemas},
    {"pattern", Expects::kString},
    {"patternProperties", Expects::kSchemaMap},
    {"prefixItems", Expects::kSchemas},
    {"properties", Expects::kSchemaMap},
    {"propertyNames", Expects::kSchema},
    {"required", Expects::kNames},
    {"then", Expects::kSchema},
    {"type", Expects::kTypes},
    {"unevaluatedItems", Expects::kSchema},
    {"unevaluatedProperties", Expects::kSchema},
    {"uniqueItems", Expects::kBoolean},
};

constexpr std::string_view kTypeNames[] = {"array",  "boolean", "integer", "null",
                                           "number", "object",  "string"};

bool IsCount(const JsonValue& value) {
  return value.Is(Type::kNumber) && !value.number.negative() && value.number.ToInteger();
}
bool IsName(const JsonValue& value) { return value.Is(Type::kString); }
bool IsType(const JsonValue& value) {
  return IsName(value) && std::find(std::begin(kTypeNames), std::end(kTypeNames), value.text) !=
                              std::end(kTypeNames);
}
bool IsSchema(const JsonValue& value) {
  return value.Is(Type::kObject) || value.Is(Type::kBoolean);
}
bool AreAll(const JsonValue& value, bool (*is)(const JsonValue&)) {
  return value.Is(Type::kArray) && std::all_of(value.items.begin(), value.items.end(), is);
}
bool AreNames(const JsonValue& value) { return AreAll(value, IsName); }
bool MapsTo(const JsonValue& value, bool (*is)(const JsonValue&)) {
  return value.Is(Type::kObject) &&
         std::all_of(value.members.begin(), value.members.end(),
                     [is](const auto& member) { return is(member.second); });
}

// What is expected instead of `value`; null if it is right.
const char* Mismatch(Expects expects, const JsonValue& value) {
  const auto unless = [](bool right, const char* expected) { return right ? nullptr : expected; };
  switch (expects) {
    case Expects::kSchema:
      return unless(IsSchema(value), "a schema");
    case Expects::kSchemas:
      return unless(!value.items.empty() && AreAll(value, IsSchema),
                    "an array of at least one schema");
    case Expects::kSchemaOrSchemas:
      return unless(IsSchema(value) || AreAll(value, IsSchema), "a schema or an array of schemas");
    case Expects::kSchemaMap:
      return unless(MapsTo(value, IsSchema), "an object of schemas");
    case Expects::kNumber:
      return unless(value.Is(Type::kNumber), "a number");
    case Expects::kPositive:
      return unless(value.Is(Type::kNumber) && value.number > Decimal(), "a number above zero");
    case Expects::kCount:
      return unless(IsCount(value), "a count");
    case Expects::kBoolean:
      return unless(value.Is(Type::kBoolean), "a boolean");
    case Expects::kString:
      return unless(IsName(value), "a string");
    case Expects::kNames:
      return unless(AreNames(value), "an array of strings");
    case Expects::kNameLists:
      return unless(MapsTo(value, AreNames), "an object of arrays of strings");
    case Expects::kDependencies:
      return unless(MapsTo(value, [](const JsonValue& v) { return IsSchema(v) || AreNames(v); }),
                    "an object of schemas or arrays of strings");
    case Expects::kValues:
      return unless(value.Is(Type::kArray), "an array");
    case Expects::kTypes:
      return unless(IsType(value) || (!value.items.empty() && AreAll(value, IsType)),
                    "array, boolean, integer, null, number, object, string, or an array of at "
                    "least one of these");
  }
  return nullptr;
}

std::string PointerToken(std::string_view name) {
  std::string token = "/";
  for (const char c : name) {
    if (c == '~' || c == '/') {
      token += c == '~' ? "~0" : "~1";
    } else {
      token += c;
    }
  }
  return token;
}

// The path of `target` below `value`; nullopt if it is not there.
std::optional<std::string> PathTo(const JsonValue& value, const JsonValue* target) {
  if (&value == target) return "";
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (const auto rest = PathTo(value.items[i], target)) return StrCat('/', i, *rest);
  }
  for (const auto& [name, member] : value.members) {
    if (const auto rest = PathTo(member, target)) return PointerToken(name) + *rest;
  }
  return std::nullopt;
}

// Undoes %XX of a URI's fragment.
std::string DecodeFragment(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool hex = text[i] == '%' && i + 2 < text.size() &&
                     std::isxdigit(static_cast<unsigned char>(text[i + 1])) != 0 &&
                     std::isxdigit(static_cast<unsigned char>(text[i + 2])) != 0;
    if (hex) {
      decoded += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

// The value that a JSON pointer names; null if there is none.
const JsonValue* Follow(const JsonValue* value, std::string_view pointer) {
  while (value != nullptr && !pointer.empty()) {
    pointer.remove_prefix(1);
    const std::string_view raw = pointer.substr(0, pointer.find('/'));
    pointer.remove_prefix(raw.size());
    std::string token;
    for (size_t i = 0; i < raw.size(); ++i) {
      const bool escape =
          raw[i] == '~' && i + 1 < raw.size() && (raw[i + 1] == '0' || raw[i + 1] == '1');
      token += escape ? (raw[++i] == '0' ? '~' : '/') : raw[i];
    }
    if (value->Is(Type::kArray)) {
      const bool index = !token.empty() && token.size() < 8 &&
                         std::all_of(token.begin(), token.end(),
                                     [](unsigned char c) { return std::isdigit(c) != 0; });
      const size_t i = index ? std::stoul(token) : value->items.size();
      value = i < value->items.size() ? &value->items[i] : nullptr;
    } else {
      value = value->Find(token);
    }
  }
  return value;
}

const JsonValue* FindByAnchor(const JsonValue& value, std::string_view name) {
  const JsonValue* const anchor = value.Find("$anchor");
  if (anchor != nullptr && anchor->Is(Type::kString) && anchor->text == name) return &value;
  for (const JsonValue& item : value.items) {
    if (const JsonValue* const found = FindByAnchor(item, name)) return found;
  }
  for (const auto& [key, member] : value.members) {
    if (const JsonValue* const found = FindByAnchor(member, name)) return found;
  }
  return nullptr;
}

}  // namespace

Status SchemaDocument::Error(const JsonValue& schema, std::string_view keyword,
                             const std::string& message) const {
  std::string path = PathTo(root_, &schema).value_or("");
  if (!keyword.empty()) path += PointerToken(keyword);
  return InvalidArgument(path.empty() ? "the schema" : path, ": ", message);
}

Status SchemaDocument::Check(const JsonValue& schema) {
  if (!IsSchema(schema))
    return Error(schema, "", StrCat("expected a schema, found ", schema.Shown()));
  if (!checked_.insert(&schema).second) return Status();
  for (const auto& [name, value] : schema.members)
    PS_RETURN_IF_ERROR(CheckKeyword(schema, name, value));
  return Status();
}

Status SchemaDocument::CheckKeyword(const JsonValue& schema, const std::string& name,
                                    const JsonValue& value) {
  const Keyword* const keyword =
      std::find_if(std::begin(kKeywords), std::end(kKeywords),
                   [&name](const Keyword& known) { return known.name == name; });
  if (keyword == std::end(kKeywords)) return Status();
  if (const char* const expected = Mismatch(keyword->expects, value)) {
    return Error(schema, name, StrCat("expected ", expected, ", found ", value.Shown()));
  }
  switch (keyword->expects) {
    case Expects::kSchema:
      return Check(value);
    case Expects::kSchemas:
    case Expects::kSchemaOrSchemas:
      if (IsSchema(value)) return Check(value);
      for (const JsonValue& item : value.items) PS_RETURN_IF_ERROR(Check(item));
      return Status();
    case Expects::kSchemaMap:
    case Expects::kDependencies:
      for (const auto& [key, member] : value.members) {
        if (IsSchema(member)) PS_RETURN_IF_ERROR(Check(member));
      }
      return Status();
    default:
      return Status();
  }
}

Result<const JsonValue*> SchemaDocument::Target(const JsonValue& schema) {
  std::string_view ref = schema.Find("$ref")->text;
  const JsonValue* const id = root_.Find("$id");
  if (id != nullptr && id->Is(Type::kString) && !id->text.empty() && ref.starts_with(id->text)) {
    const std::string_view rest = ref.substr(id->text.size());
    if (rest.empty() || rest.starts_with('#')) ref = rest.empty() ? "#" : rest;
  }
  if (!ref.starts_with('#'))
    return Error(
        schema, "$ref",
        StrCat("expected a reference within the schema, which begins with #, found \"", ref, "\""));
  const std::string fragment = DecodeFragment(ref.substr(1));
  const JsonValue* const target = fragment.empty() || fragment[0] == '/'
                                      ? Follow(&root_, fragment)
                                      : FindByAnchor(root_, fragment);
  if (target == nullptr || !IsSchema(*target))
    return Error(schema, "$ref",
                 StrCat("expected a reference to a schema, found no schema at \"", ref, "\""));
  PS_RETURN_IF_ERROR(Check(*target));
  return target;
}

Result<const Pattern*> SchemaDocument::PatternOf(const JsonValue& schema,
                                                 const std::string& keyword,
                                                 const std::string& text) {
  const auto at = patterns_.find(text);
  if (at != patterns_.end()) return &at->second;
  Result<Pattern> pattern = ParsePattern(text);
  if (!pattern.ok()) return Error(schema, keyword, pattern.status().message());
  return &patterns_.emplace(text, std::move(pattern).value()).first->second;
}

}  // namespace polysketch
