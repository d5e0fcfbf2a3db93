#include "engine/grammar_source/schema_validator.h"

#include <algorithm>
#include <vector>

namespace polysketch {
namespace {

using Type = JsonValue::Type;

constexpr int kMaxSchemaDepth = 300;  // of references and of schemas in schemas

bool IsNamed(const JsonValue& value, std::string_view type) {
  switch (value.type) {
    case Type::kNull:
      return type == "null";
    case Type::kBoolean:
      return type == "boolean";
    case Type::kNumber:
      return type == "number" || (type == "integer" && value.number.IsInteger());
    case Type::kString:
      return type == "string";
    case Type::kArray:
      return type == "array";
    case Type::kObject:
      return type == "object";
  }
  return false;
}

// Whether the number of a keyword allows the value.
bool Allows(const JsonValue& schema, const char* keyword, bool (*allows)(int order),
            const Decimal& value) {
  const JsonValue* const bound = schema.Find(keyword);
  return bound == nullptr || allows(value.Compare(bound->number));
}

}  // namespace

bool IsOfType(const JsonValue& value, const JsonValue& type) {
  if (type.Is(Type::kString)) return IsNamed(value, type.text);
  return std::any_of(type.items.begin(), type.items.end(),
                     [&](const JsonValue& one) { return IsNamed(value, one.text); });
}

int64_t CountOf(const JsonValue& schema, std::string_view keyword, int64_t absent) {
  const JsonValue* const count = schema.Find(keyword);
  return count == nullptr ? absent : count->number.ToInteger().value_or(absent);
}

bool SchemaValidator::Fail(const JsonValue& schema, const char* keyword,
                           const std::string& message) {
  if (error_.ok()) error_ = document_->Error(schema, keyword, message);
  return false;
}

bool SchemaValidator::Accepts(const JsonValue& schema, const JsonValue& value) {
  if (schema.Is(Type::kBoolean)) return schema.boolean;
  if (!error_.ok()) return false;
  if (depth_ >= kMaxSchemaDepth)
    return Fail(schema, "$ref",
                "expected references that end, found one that leads back to itself");
  ++depth_;
  bool accepts = true;
  if (const JsonValue* const type = schema.Find("type")) accepts = IsOfType(value, *type);
  if (const JsonValue* const only = schema.Find("const")) accepts = accepts && value == *only;
  if (const JsonValue* const values = schema.Find("enum")) {
    accepts = accepts &&
              std::find(values->items.begin(), values->items.end(), value) != values->items.end();
  }
  accepts = accepts && AcceptsCombined(schema, value);
  if (accepts && value.Is(Type::kNumber)) accepts = AcceptsNumber(schema, value);
  if (accepts && value.Is(Type::kString)) accepts = AcceptsString(schema, value);
  if (accepts && value.Is(Type::kArray)) accepts = AcceptsArray(schema, value);
  if (accepts && value.Is(Type::kObject)) accepts = AcceptsObject(schema, value);
  --depth_;
  return accepts && error_.ok();
}

bool SchemaValidator::AcceptsCombined(const JsonValue& schema, const JsonValue& value) {
  for (const char* const unknown :
       {"$dynamicRef", "$recursiveRef", "unevaluatedItems", "unevaluatedProperties"}) {
    if (schema.Find(unknown) != nullptr)
      return Fail(schema, unknown, "this keyword is not supported");
  }
  if (schema.Find("$ref") != nullptr) {
    const auto target = document_->Target(schema);
    if (!IsOk(target.status(), &error_)) return false;
    if (!Accepts(**target, value)) return false;
  }
  const auto count = [&](const JsonValue& schemas) {
    return std::count_if(schemas.items.begin(), schemas.items.end(),
                         [&](const JsonValue& one) { return Accepts(one, value); });
  };
  if (const JsonValue* const all = schema.Find("allOf")) {
    if (count(*all) != std::ssize(all->items)) return false;
  }
  if (const JsonValue* const any = schema.Find("anyOf")) {
    if (count(*any) == 0) return false;
  }
  if (const JsonValue* const one = schema.Find("oneOf")) {
    if (count(*one) != 1) return false;
  }
  if (const JsonValue* const excluded = schema.Find("not")) {
    if (Accepts(*excluded, value)) return false;
  }
  if (const JsonValue* const condition = schema.Find("if")) {
    const JsonValue* const then = schema.Find(Accepts(*condition, value) ? "then" : "else");
    if (then != nullptr && !Accepts(*then, value)) return false;
  }
  return error_.ok();
}

bool SchemaValidator::AcceptsNumber(const JsonValue& schema, const JsonValue& value) {
  const Decimal& number = value.number;
  if (const JsonValue* const divisor = schema.Find("multipleOf")) {
    const auto multiple = number.IsMultipleOf(divisor->number);
    if (!multiple) return Fail(schema, "multipleOf", "expected at most 17 digits");
    if (!*multiple) return false;
  }
  return Allows(
             schema, "minimum", [](int order) { return order >= 0; }, number) &&
         Allows(
             schema, "maximum", [](int order) { return order <= 0; }, number) &&
         Allows(
             schema, "exclusiveMinimum", [](int order) { return order > 0; }, number) &&
         Allows(
             schema, "exclusiveMaximum", [](int order) { return order < 0; }, number);
}

bool SchemaValidator::AcceptsString(const JsonValue& schema, const JsonValue& value) {
  const std::u32string characters = ToCodePoints(value.text);
  const auto length = std::ssize(characters);
  const int64_t max = CountOf(schema, "maxLength", -1);
  if (length < CountOf(schema, "minLength", 0) || (max >= 0 && length > max)) return false;
  if (const JsonValue* const text = schema.Find("pattern")) {
    const auto pattern = document_->PatternOf(schema, "pattern", text->text);
    if (!IsOk(pattern.status(), &error_)) return false;
    if (!FoundIn(**pattern, characters)) return false;
  }
  const JsonValue* const format = schema.Find("format");
  if (format == nullptr) return true;
  const auto pattern = document_->FormatOf(schema, format->text);
  if (!IsOk(pattern.status(), &error_)) return false;
  return *pattern == nullptr || FoundIn(**pattern, characters);
}

bool SchemaValidator::AcceptsArray(const JsonValue& schema, const JsonValue& value) {
  const auto& items = value.items;
  const int64_t max = CountOf(schema, "maxItems", -1);
  if (std::ssize(items) < CountOf(schema, "minItems", 0)) return false;
  if (max >= 0 && std::ssize(items) > max) return false;
  const JsonValue* prefix = schema.Find("prefixItems");
  const JsonValue* rest = schema.Find("items");
  if (rest != nullptr && rest->Is(Type::kArray)) {
    prefix = rest;
    rest = schema.Find("additionalItems");
  }
  const size_t before = prefix == nullptr ? 0 : prefix->items.size();
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonValue* const of_item = i < before ? &prefix->items[i] : rest;
    if (of_item != nullptr && !Accepts(*of_item, items[i])) return false;
  }
  const JsonValue* const unique = schema.Find("uniqueItems");
  if (unique != nullptr && unique->boolean) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (std::find(items.begin() + static_cast<ptrdiff_t>(i) + 1, items.end(), items[i]) !=
          items.end())
        return false;
    }
  }
  if (const JsonValue* const contained = schema.Find("contains")) {
    const int64_t most = CountOf(schema, "maxContains", -1);
    const auto count = std::count_if(items.begin(), items.end(), [&](const JsonValue& item) {
      return Accepts(*contained, item);
    });
    if (count < CountOf(schema, "minContains", 1) || (most >= 0 && count > most)) return false;
  }
  return true;
}

bool SchemaValidator::AcceptsMember(const JsonValue& schema, const std::string& name,
                                    const JsonValue& value) {
  bool named = false;
  if (const JsonValue* const properties = schema.Find("properties")) {
    const JsonValue* const own = properties->Find(name);
    named = own != nullptr;
    if (named && !Accepts(*own, value)) return false;
  }
  if (const JsonValue* const patterns = schema.Find("patternProperties")) {
    for (const auto& [text, of_pattern] : patterns->members) {
      const auto pattern = document_->PatternOf(schema, "patternProperties", text);
      if (!IsOk(pattern.status(), &error_)) return false;
      if (!FoundIn(**pattern, ToCodePoints(name))) continue;
      named = true;
      if (!Accepts(of_pattern, value)) return false;
    }
  }
  const JsonValue* const additional = schema.Find("additionalProperties");
  return named || additional == nullptr || Accepts(*additional, value);
}

bool SchemaValidator::AcceptsObject(const JsonValue& schema, const JsonValue& value) {
  const auto& members = value.members;
  const int64_t max = CountOf(schema, "maxProperties", -1);
  if (std::ssize(members) < CountOf(schema, "minProperties", 0)) return false;
  if (max >= 0 && std::ssize(members) > max) return false;
  const auto has_all = [&](const JsonValue& names) {
    return std::all_of(names.items.begin(), names.items.end(),
                       [&](const JsonValue& name) { return value.Find(name.text) != nullptr; });
  };
  if (const JsonValue* const required = schema.Find("required")) {
    if (!has_all(*required)) return false;
  }
  for (const auto& [name, member] : members) {
    if (!AcceptsMember(schema, name, member)) return false;
    if (const JsonValue* const names = schema.Find("propertyNames")) {
      if (!Accepts(*names, {.type = Type::kString, .text = name})) return false;
    }
  }
  for (const char* const keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const JsonValue* const dependencies = schema.Find(keyword);
    if (dependencies == nullptr) continue;
    for (const auto& [name, needed] : dependencies->members) {
      if (value.Find(name) == nullptr) continue;
      if (needed.Is(Type::kArray) ? !has_all(needed) : !Accepts(needed, value)) return false;
    }
  }
  return true;
}

}  // namespace polysketch
