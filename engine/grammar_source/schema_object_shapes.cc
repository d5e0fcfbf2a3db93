// Shapes of objects: their properties, and names that have no schema of their own.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/grammar_source/schema_shapes.h"

namespace polysketch {
namespace {

using Type = JsonValue::Type;
using ShapeKind = Shape::Kind;

bool IsClosed(const JsonValue& schema) {
  const JsonValue* const others = schema.Find("additionalProperties");
  return others != nullptr && others->IsFalse();
}

}  // namespace

// The schemas of property `name`; unset if no object has it.
std::optional<Conjunction> SchemaShapes::SchemasOf(const Branch& branch, const std::string& name) {
  Conjunction schemas;
  for (const JsonValue* const schema : branch.sources) {
    bool named = false;
    const JsonValue* const properties = schema->Find("properties");
    if (const JsonValue* const own = properties == nullptr ? nullptr : properties->Find(name)) {
      AddSchema(own, &schemas);
      named = true;
    }
    if (const JsonValue* const patterns = schema->Find("patternProperties")) {
      for (const auto& [text, of_pattern] : patterns->members) {
        const auto pattern = document_->PatternOf(*schema, "patternProperties", text);
        if (!IsOk(pattern.status(), &error_)) return std::nullopt;
        if (!FoundIn(**pattern, ToCodePoints(name))) continue;
        AddSchema(&of_pattern, &schemas);
        named = true;
      }
    }
    const JsonValue* const additional = schema->Find("additionalProperties");
    if (!named && additional != nullptr) {
      if (additional->IsFalse()) return std::nullopt;
      AddSchema(additional, &schemas);
    }
    const JsonValue* const names = schema->Find("propertyNames");
    if (names != nullptr && !validator_.Accepts(*names, {.type = Type::kString, .text = name})) {
      if (error_.ok()) error_ = validator_.error();
      return std::nullopt;
    }
  }
  return schemas;
}

bool SchemaShapes::MergeObject(const Branch& branch, Shape* shape) {
  if (!MergeCounts(branch, "minProperties", "maxProperties", shape)) return false;
  std::vector<std::string> names;
  std::map<std::string, bool> required;  // by name
  const auto name = [&](const std::string& text, bool is_required) {
    const auto [at, inserted] = required.try_emplace(text, is_required);
    if (inserted) names.push_back(text);
    at->second = at->second || is_required;
  };
  for (const JsonValue* const schema : branch.sources) {
    for (const char* const keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
      if (schema->Find(keyword) != nullptr)
        return Fail(*schema, keyword, "this keyword is supported beside enum and const only");
    }
    if (const JsonValue* const properties = schema->Find("properties")) {
      for (const auto& member : properties->members) name(member.first, false);
    }
  }
  for (const JsonValue* const schema : branch.sources) {
    if (const JsonValue* const list = schema->Find("required")) {
      for (const JsonValue& one : list->items) name(one.text, true);
    }
  }
  for (const std::string& text : names) {
    std::optional<Conjunction> schemas = SchemasOf(branch, text);
    if (!error_.ok()) return false;
    if (schemas) {
      shape->properties.push_back({text, *std::move(schemas), required[text]});
    } else if (required[text]) {
      return false;
    }
  }
  return MergeNames(branch, shape);
}

// What the sources of a branch say of names that are not in `properties` and `required`.
struct SchemaShapes::OtherNames {
  Conjunction additional;                // of their values
  bool open = false;                     // there may be other names
  bool closed = false;                   // there may be none
  const JsonValue* patterned = nullptr;  // the source with patternProperties
  const JsonValue* named = nullptr;      // the source with propertyNames
};

// additionalProperties, patternProperties and propertyNames.
bool SchemaShapes::MergeNames(const Branch& branch, Shape* shape) {
  OtherNames names;
  names.open = shape->properties.empty();
  if (!ReadOtherNames(branch, &names)) return false;
  if (names.patterned != nullptr) {
    for (const JsonValue* const schema : branch.sources) {
      if (schema != names.patterned && IsClosed(*schema)) return true;
    }
    return MergePattern(std::move(names), shape);
  }
  if (names.closed || !names.open) return true;
  if (names.named != nullptr) return MergePropertyNames(std::move(names), shape);
  shape->rest = std::move(names.additional);
  return true;
}

bool SchemaShapes::ReadOtherNames(const Branch& branch, OtherNames* names) {
  for (const JsonValue* const schema : branch.sources) {
    const JsonValue* const others = schema->Find("additionalProperties");
    if (schema->Find("properties") != nullptr && others == nullptr) names->open = false;
    if (others != nullptr && others->IsFalse()) names->closed = true;
    if (schema->Find("propertyNames") != nullptr) {
      if (names->named != nullptr)
        return Fail(*schema, "propertyNames", "expected one, found another beside it");
      names->named = schema;
    }
    const JsonValue* const patterns = schema->Find("patternProperties");
    if (patterns == nullptr || patterns->members.empty()) continue;
    if (names->patterned != nullptr || patterns->members.size() > 1)
      return Fail(*schema, "patternProperties", "expected one pattern for the names of an object");
    names->patterned = schema;
  }
  for (const JsonValue* const schema : branch.sources) {
    const JsonValue* const others = schema->Find("additionalProperties");
    if (others == nullptr || others->IsFalse()) continue;
    if (names->patterned != nullptr)
      return Fail(*schema, "additionalProperties", "expected false beside patternProperties");
    names->open = true;
    AddSchema(others, &names->additional);
  }
  return true;
}

bool SchemaShapes::MergePattern(OtherNames names, Shape* shape) {
  const JsonValue& patterned = *names.patterned;
  const auto& [text, schema] = patterned.Find("patternProperties")->members[0];
  const auto pattern = document_->PatternOf(patterned, "patternProperties", text);
  if (!IsOk(pattern.status(), &error_)) return false;
  if (names.named != nullptr)
    return Fail(*names.named, "propertyNames", "expected none beside patternProperties");
  for (const ShapeProperty& property : shape->properties) {
    if (FoundIn(**pattern, ToCodePoints(property.name))) {
      return Fail(
          patterned, "patternProperties",
          StrCat("expected a pattern that matches no other property, found one that matches \"",
                 property.name, "\""));
    }
  }
  shape->pattern = *pattern;
  shape->source = &patterned;
  AddSchema(&schema, &names.additional);
  shape->rest = std::move(names.additional);
  return true;
}

bool SchemaShapes::MergePropertyNames(OtherNames others, Shape* shape) {
  const auto names = Of({others.named->Find("propertyNames")});
  if (!IsOk(names.status(), &error_)) return false;
  const auto is_name = [](const Shape& name) {
    return name.kind == ShapeKind::kValue && name.value->Is(Type::kString);
  };
  if (std::all_of((*names)->begin(), (*names)->end(), is_name)) {
    for (const Shape& name : **names) {
      const bool known = std::any_of(
          shape->properties.begin(), shape->properties.end(),
          [&](const ShapeProperty& property) { return property.name == name.value->text; });
      if (!known) shape->properties.push_back({name.value->text, others.additional, false});
    }
    return true;
  }
  shape->rest = std::move(others.additional);
  for (const Shape& name : **names) {
    if (name.kind != ShapeKind::kString || name.pattern == nullptr) continue;
    if (name.min > 0 || name.max >= 0 || !shape->properties.empty()) break;
    shape->pattern = name.pattern;
    shape->source = others.named;
    return true;
  }
  return Fail(*others.named, "propertyNames", "expected an enum, or a pattern and no properties");
}

}  // namespace polysketch
