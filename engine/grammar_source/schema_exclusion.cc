// Whether the choices of oneOf exclude each other: a value of one choice must be valid under no
// other. What is decided is whether the values that a shape holds are certainly not valid under a
// schema.
#include <algorithm>
#include <utility>

#include "engine/grammar_source/schema_shapes.h"

namespace polysketch {
namespace {

using Type = JsonValue::Type;
using ShapeKind = Shape::Kind;

constexpr int kMaxExclusionDepth = 16;

// Whether no value of the shape has the type.
bool IsOtherType(const Shape& shape, const JsonValue& type) {
  const auto names = [&](std::string_view name) {
    return type.Is(Type::kString) ? type.text == name
                                  : std::any_of(type.items.begin(), type.items.end(),
                                                [&](const auto& one) { return one.text == name; });
  };
  switch (shape.kind) {
    case ShapeKind::kValue:
      return !IsOfType(*shape.value, type);
    case ShapeKind::kNull:
      return !names("null");
    case ShapeKind::kBoolean:
      return !names("boolean");
    case ShapeKind::kNumber:
      return !names("number") && !names("integer");
    case ShapeKind::kString:
      return !names("string");
    case ShapeKind::kArray:
      return !names("array");
    case ShapeKind::kObject:
      return !names("object");
  }
  return false;
}

bool IsOfKind(const JsonValue& value, ShapeKind kind) {
  switch (value.type) {
    case Type::kNull:
      return kind == ShapeKind::kNull;
    case Type::kBoolean:
      return kind == ShapeKind::kBoolean;
    case Type::kNumber:
      return kind == ShapeKind::kNumber;
    case Type::kString:
      return kind == ShapeKind::kString;
    case Type::kArray:
      return kind == ShapeKind::kArray;
    case Type::kObject:
      return kind == ShapeKind::kObject;
  }
  return true;
}

// Whether the lengths of a shape are outside those of two keywords.
bool IsOtherLength(const Shape& shape, const JsonValue& schema, const char* min, const char* max) {
  const int64_t most = CountOf(schema, max, -1);
  return (most >= 0 && shape.min > most) || (shape.max >= 0 && shape.max < CountOf(schema, min, 0));
}

bool IsOtherRange(const NumberRange& range, const JsonValue& schema) {
  const JsonValue* const min = schema.Find("minimum");
  const JsonValue* const max = schema.Find("maximum");
  const JsonValue* const above = schema.Find("exclusiveMinimum");
  const JsonValue* const below = schema.Find("exclusiveMaximum");
  const auto below_all = [&](const JsonValue* bound, bool exclusive) {
    if (bound == nullptr || !range.max) return false;
    const int order = range.max->value.Compare(bound->number);
    return order < 0 || (order == 0 && (exclusive || range.max->exclusive));
  };
  const auto above_all = [&](const JsonValue* bound, bool exclusive) {
    if (bound == nullptr || !range.min) return false;
    const int order = range.min->value.Compare(bound->number);
    return order > 0 || (order == 0 && (exclusive || range.min->exclusive));
  };
  return below_all(min, false) || below_all(above, true) || above_all(max, false) ||
         above_all(below, true);
}

// OpenAPI's discriminator names the property that tells the choices apart; pydantic does not
// require it where it has a default.
std::string TagOf(const JsonValue& schema) {
  const JsonValue* const discriminator = schema.Find("discriminator");
  const JsonValue* const name =
      discriminator == nullptr ? nullptr : discriminator->Find("propertyName");
  return name == nullptr || !name->Is(Type::kString) ? "" : name->text;
}

}  // namespace

void SchemaShapes::RequireTag(const JsonValue& schema, std::vector<Shape>* shapes) {
  const std::string tag = TagOf(schema);
  for (Shape& shape : *shapes) {
    for (ShapeProperty& property : shape.properties)
      property.required = property.required || (!tag.empty() && property.name == tag);
  }
}

void SchemaShapes::CheckExclusion(const Exclusion& exclusion, const std::vector<Shape>& shapes) {
  const auto& schemas = exclusion.schema->Find("oneOf")->items;
  for (size_t i = 0; i < schemas.size() && error_.ok(); ++i) {
    if (i == exclusion.chosen) continue;
    for (const Shape& shape : shapes) {
      if (Refutes(shape, schemas[i], 0)) continue;
      Fail(*exclusion.schema, "oneOf",
           StrCat("expected choices that exclude each other, found that a value of choice ",
                  exclusion.chosen, " may be valid under choice ", i, " too: use anyOf"));
      return;
    }
  }
}

bool SchemaShapes::RefutesAll(const Conjunction& schemas, const JsonValue& schema, int depth) {
  const bool known = building_.size() < kMaxBuilding &&
                     std::find(building_.begin(), building_.end(), schemas) == building_.end();
  if (!known) return false;
  const auto shapes = Of(schemas);
  if (!IsOk(shapes.status(), &error_)) return false;
  return std::all_of((*shapes)->begin(), (*shapes)->end(),
                     [&](const Shape& shape) { return Refutes(shape, schema, depth); });
}

bool SchemaShapes::Refutes(const Shape& shape, const JsonValue& schema, int depth) {
  if (schema.Is(Type::kBoolean)) return !schema.boolean;
  if (depth > kMaxExclusionDepth || !error_.ok()) return false;
  if (shape.kind == ShapeKind::kValue) {
    const bool refutes = !validator_.Accepts(schema, *shape.value);
    if (error_.ok()) error_ = validator_.error();
    return refutes;
  }
  const JsonValue* const type = schema.Find("type");
  if (type != nullptr && IsOtherType(shape, *type)) return true;
  if (schema.Find("$ref") != nullptr) {
    const auto target = document_->Target(schema);
    if (target.ok() && Refutes(shape, **target, depth + 1)) return true;
  }
  const auto refuted = [&](const JsonValue& one) { return Refutes(shape, one, depth + 1); };
  const JsonValue* const all = schema.Find("allOf");
  if (all != nullptr && std::any_of(all->items.begin(), all->items.end(), refuted)) return true;
  for (const char* const keyword : {"anyOf", "oneOf"}) {
    const JsonValue* const any = schema.Find(keyword);
    if (any != nullptr && std::all_of(any->items.begin(), any->items.end(), refuted)) return true;
  }
  const JsonValue* const only = schema.Find("const");
  if (only != nullptr && !IsOfKind(*only, shape.kind)) return true;
  const JsonValue* const values = schema.Find("enum");
  const auto is_other = [&](const JsonValue& value) { return !IsOfKind(value, shape.kind); };
  if (values != nullptr && std::all_of(values->items.begin(), values->items.end(), is_other))
    return true;
  switch (shape.kind) {
    case ShapeKind::kNumber:
      return IsOtherRange(shape.range, schema);
    case ShapeKind::kString:
      return IsOtherLength(shape, schema, "minLength", "maxLength");
    case ShapeKind::kArray:
      return IsOtherLength(shape, schema, "minItems", "maxItems");
    case ShapeKind::kObject:
      return RefutesObject(shape, schema, depth);
    default:
      return false;
  }
}

bool SchemaShapes::RefutesObject(const Shape& shape, const JsonValue& schema, int depth) {
  const auto has = [&](const std::string& name) {
    const auto at = std::find_if(shape.properties.begin(), shape.properties.end(),
                                 [&](const ShapeProperty& own) { return own.name == name; });
    return at == shape.properties.end() ? nullptr : &*at;
  };
  const JsonValue* const properties = schema.Find("properties");
  const JsonValue* const required = schema.Find("required");
  const auto is_required = [&](const std::string& name) {
    return required != nullptr &&
           std::any_of(required->items.begin(), required->items.end(),
                       [&](const JsonValue& one) { return one.text == name; });
  };
  if (required != nullptr && !shape.rest) {
    for (const JsonValue& name : required->items) {
      if (has(name.text) == nullptr) return true;
    }
  }
  const JsonValue* const others = schema.Find("additionalProperties");
  const bool closed =
      schema.Find("patternProperties") == nullptr && others != nullptr && others->IsFalse();
  for (const ShapeProperty& own : shape.properties) {
    const JsonValue* const other = properties == nullptr ? nullptr : properties->Find(own.name);
    if (other == nullptr) {
      if (own.required && closed) return true;
      continue;
    }
    // One of the two requires the property: a value that is valid under both has it.
    if ((own.required || is_required(own.name)) && RefutesAll(own.schema, *other, depth + 1))
      return true;
  }
  return false;
}

}  // namespace polysketch
