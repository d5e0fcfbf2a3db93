#include "engine/grammar_source/schema_shapes.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace polysketch {
namespace {

using Type = JsonValue::Type;
using ShapeKind = Shape::Kind;

enum TypeBit : unsigned {
  kNull = 1,
  kBoolean = 2,
  kInteger = 4,
  kNumber = 8,  // that is no integer
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAll = 127,
};

unsigned BitsOf(const JsonValue& type) {
  if (type.Is(Type::kArray)) {
    unsigned bits = 0;
    for (const JsonValue& one : type.items) bits |= BitsOf(one);
    return bits;
  }
  const std::string& name = type.text;
  return name == "null"      ? kNull
         : name == "boolean" ? kBoolean
         : name == "integer" ? kInteger
         : name == "number"  ? kInteger | kNumber
         : name == "string"  ? kString
         : name == "array"   ? kArray
                             : kObject;
}

// Keywords that say something about values of one type alone.
struct TypeKeyword {
  std::string_view name;
  unsigned types;
};
constexpr TypeKeyword kTypeKeywords[] = {
    {"additionalItems", kArray},
    {"additionalProperties", kObject},
    {"contains", kArray},
    {"dependencies", kObject},
    {"dependentRequired", kObject},
    {"dependentSchemas", kObject},
    {"exclusiveMaximum", kInteger | kNumber},
    {"exclusiveMinimum", kInteger | kNumber},
    {"format", kString},
    {"items", kArray},
    {"maxItems", kArray},
    {"maxLength", kString},
    {"maxProperties", kObject},
    {"maximum", kInteger | kNumber},
    {"minItems", kArray},
    {"minLength", kString},
    {"minProperties", kObject},
    {"minimum", kInteger | kNumber},
    {"multipleOf", kInteger | kNumber},
    {"pattern", kString},
    {"patternProperties", kObject},
    {"prefixItems", kArray},
    {"properties", kObject},
    {"propertyNames", kObject},
    {"required", kObject},
    {"uniqueItems", kArray},
};

bool IsTrue(const JsonValue* value) { return value != nullptr && value->boolean; }
}  // namespace

void AddSchema(const JsonValue* schema, Conjunction* schemas) {
  const bool any = schema->Is(Type::kBoolean) ? schema->boolean : schema->members.empty();
  if (!any && std::find(schemas->begin(), schemas->end(), schema) == schemas->end())
    schemas->push_back(schema);
}

bool SchemaShapes::Fail(const JsonValue& schema, std::string_view keyword,
                        const std::string& message) {
  if (error_.ok()) error_ = document_->Error(schema, keyword, message);
  return false;
}

Result<const std::vector<Shape>*> SchemaShapes::Of(const Conjunction& schemas) {
  const auto at = shapes_.find(schemas);
  if (at != shapes_.end()) return &at->second;
  if (shapes_.size() >= kMaxConjunctions)
    return InvalidArgument("the schema: expected at most ", kMaxConjunctions,
                           " different schemas, found more");
  std::vector<Shape> shapes;
  building_.push_back(schemas);
  const Status status = Build(schemas, &shapes);
  building_.pop_back();
  PS_RETURN_IF_ERROR(status);
  return &shapes_.emplace(schemas, std::move(shapes)).first->second;
}

Status SchemaShapes::Build(const Conjunction& schemas, std::vector<Shape>* shapes) {
  std::vector<Branch> stack(1);
  for (auto schema = schemas.rbegin(); schema != schemas.rend(); ++schema)
    stack[0].pending.push_back({*schema, -1});
  while (!stack.empty() && error_.ok()) {
    Branch branch = std::move(stack.back());
    stack.pop_back();
    if (!Expand(&branch)) continue;
    if (branch.choices.empty()) {
      Merge(branch, shapes);
    } else {
      Choose(branch, &stack);
    }
    if (stack.size() + shapes->size() > kMaxChoices && !schemas.empty()) {
      Fail(*schemas[0], "",
           StrCat("expected at most ", kMaxChoices, " choices, found ",
                  stack.size() + shapes->size(), " or more"));
    }
  }
  return error_;
}

bool SchemaShapes::Expand(Branch* branch) {
  while (!branch->pending.empty()) {
    const Pending next = branch->pending.back();
    branch->pending.pop_back();
    const JsonValue& schema = *next.schema;
    if (schema.Is(Type::kBoolean)) {
      if (!schema.boolean) return false;
      continue;
    }
    for (int at = next.parent; at >= 0; at = branch->trail[static_cast<size_t>(at)].parent) {
      if (branch->trail[static_cast<size_t>(at)].schema == &schema)
        return Fail(schema, "$ref",
                    "expected a reference that ends, found one that leads back to itself");
    }
    const int self = static_cast<int>(branch->trail.size());
    branch->trail.push_back(next);
    auto& sources = branch->sources;
    if (std::find(sources.begin(), sources.end(), &schema) != sources.end()) continue;
    if (!IsOk(document_->Check(schema), &error_)) return false;
    sources.push_back(&schema);
    std::vector<Pending> added;
    if (schema.Find("$ref") != nullptr) {
      const auto target = document_->Target(schema);
      if (!IsOk(target.status(), &error_)) return false;
      added.push_back({*target, self});
    }
    if (const JsonValue* const all = schema.Find("allOf")) {
      for (const JsonValue& one : all->items) added.push_back({&one, self});
    }
    branch->pending.insert(branch->pending.end(), added.rbegin(), added.rend());
    for (const char* const keyword : {"anyOf", "oneOf"}) {
      if (schema.Find(keyword) == nullptr) continue;
      branch->choices.push_back({&schema, self});
      branch->keywords.push_back(keyword);
    }
  }
  return true;
}

// Replaces the last choice of `branch` by its schemas.
void SchemaShapes::Choose(const Branch& branch, std::vector<Branch>* stack) {
  const Pending choice = branch.choices.back();
  const std::string_view keyword = branch.keywords.back();
  const auto& schemas = choice.schema->Find(keyword)->items;
  for (size_t i = schemas.size(); i-- > 0;) {
    Branch& chosen = stack->emplace_back(branch);
    chosen.choices.pop_back();
    chosen.keywords.pop_back();
    chosen.pending.push_back({&schemas[i], choice.parent});
    if (keyword == "oneOf") chosen.exclusions.push_back({choice.schema, i});
  }
}

void SchemaShapes::Merge(const Branch& branch, std::vector<Shape>* shapes) {
  std::vector<Shape> merged;
  if (MergeValues(branch, &merged)) {
    shapes->insert(shapes->end(), merged.begin(), merged.end());
    return;
  }
  for (const JsonValue* const schema : branch.sources) RefuseUnheld(*schema);
  const unsigned types = TypesOf(branch);
  if (types & kObject) {
    Shape shape{.kind = ShapeKind::kObject};
    if (MergeObject(branch, &shape)) merged.push_back(std::move(shape));
  }
  if (types & kArray) {
    Shape shape{.kind = ShapeKind::kArray};
    if (MergeArray(branch, &shape)) merged.push_back(std::move(shape));
  }
  if (types & kString) {
    Shape shape{.kind = ShapeKind::kString};
    if (MergeString(branch, &shape)) merged.push_back(std::move(shape));
  }
  if (types & (kNumber | kInteger)) {
    Shape shape{.kind = ShapeKind::kNumber};
    if (MergeNumber(branch, (types & kNumber) == 0, &shape)) merged.push_back(std::move(shape));
  }
  if (types & kBoolean) merged.push_back({.kind = ShapeKind::kBoolean});
  if (types & kNull) merged.push_back({.kind = ShapeKind::kNull});
  for (const Exclusion& exclusion : branch.exclusions) {
    RequireTag(*exclusion.schema, &merged);
    CheckExclusion(exclusion, merged);
  }
  shapes->insert(shapes->end(), merged.begin(), merged.end());
}

// If a schema lists values: those that all schemas accept.
bool SchemaShapes::MergeValues(const Branch& branch, std::vector<Shape>* shapes) {
  std::vector<const JsonValue*> values;
  bool listed = false;
  for (const JsonValue* const schema : branch.sources) {
    if (const JsonValue* const only = schema->Find("const"); only != nullptr && !listed) {
      values = {only};
      listed = true;
    }
    if (const JsonValue* const list = schema->Find("enum"); list != nullptr && !listed) {
      for (const JsonValue& value : list->items) values.push_back(&value);
      listed = true;
    }
  }
  for (const JsonValue* const value : values) {
    const bool valid =
        std::all_of(branch.sources.begin(), branch.sources.end(),
                    [&](const JsonValue* schema) { return validator_.Accepts(*schema, *value); });
    if (valid) shapes->push_back({.kind = ShapeKind::kValue, .value = value});
  }
  if (error_.ok()) error_ = validator_.error();
  return listed;
}

void SchemaShapes::RefuseUnheld(const JsonValue& schema) {
  for (const char* const keyword :
       {"$dynamicRef", "$recursiveRef", "not", "if", "unevaluatedItems", "unevaluatedProperties"}) {
    if (schema.Find(keyword) != nullptr)
      Fail(schema, keyword, "this keyword is supported beside enum and const only");
  }
}

unsigned SchemaShapes::TypesOf(const Branch& branch) const {
  unsigned types = kAll, meant = 0;
  bool typed = false;
  for (const JsonValue* const schema : branch.sources) {
    if (const JsonValue* const type = schema->Find("type")) {
      types &= BitsOf(*type);
      typed = true;
    }
    for (const TypeKeyword& keyword : kTypeKeywords) {
      if (schema->Find(keyword.name) != nullptr) meant |= keyword.types;
    }
  }
  // Without a type, the type that the keywords are about.
  return typed || meant == 0 ? types : meant;
}

bool SchemaShapes::MergeCounts(const Branch& branch, const char* min, const char* max,
                               Shape* shape) {
  for (const JsonValue* const schema : branch.sources) {
    shape->min = std::max(shape->min, CountOf(*schema, min, 0));
    const int64_t most = CountOf(*schema, max, -1);
    if (most >= 0 && most <= kMaxMost)
      shape->max = shape->max < 0 ? most : std::min(shape->max, most);
    if (shape->min > kMaxLeast)
      return Fail(*schema, min, StrCat("expected at most ", kMaxLeast, ", found ", shape->min));
  }
  return shape->max < 0 || shape->min <= shape->max;
}

bool SchemaShapes::MergeNumber(const Branch& branch, bool integer, Shape* shape) {
  NumberRange& range = shape->range;
  range.integer = integer;
  const auto tighten = [](std::optional<Bound>* bound, const JsonValue* value, bool exclusive,
                          bool upper) {
    if (value == nullptr) return;
    const Decimal& limit = value->number;
    const bool tighter = !*bound || (upper ? limit < (*bound)->value : limit > (*bound)->value) ||
                         (limit == (*bound)->value && exclusive);
    if (tighter) *bound = {.value = limit, .exclusive = exclusive};
  };
  for (const JsonValue* const schema : branch.sources) {
    tighten(&range.min, schema->Find("minimum"), false, false);
    tighten(&range.min, schema->Find("exclusiveMinimum"), true, false);
    tighten(&range.max, schema->Find("maximum"), false, true);
    tighten(&range.max, schema->Find("exclusiveMaximum"), true, true);
    const JsonValue* const divisor = schema->Find("multipleOf");
    if (divisor == nullptr) continue;
    const auto modulus = divisor->number.ToInteger();
    if (!integer || !modulus || *modulus > kMaxModulus || range.multiple_of > 1) {
      return Fail(*schema, "multipleOf",
                  StrCat("expected one whole number of at most ", kMaxModulus,
                         ", for integers, found ", divisor->Shown()));
    }
    range.multiple_of = *modulus;
  }
  if (range.multiple_of == 1 || (!range.min && !range.max)) return true;
  EbnfRules scratch;
  const bool bounded = range.min && range.max;
  if (!bounded || (range.min->value <= range.max->value && !NumbersWithin(range, &scratch))) {
    for (const JsonValue* const schema : branch.sources) {
      if (schema->Find("multipleOf") == nullptr) continue;
      return Fail(*schema, "multipleOf",
                  StrCat("expected no bounds beside it, or a minimum and a maximum with 1 to ",
                         kMaxMultiples, " multiples between them"));
    }
  }
  return true;
}

bool SchemaShapes::MergeString(const Branch& branch, Shape* shape) {
  for (const JsonValue* const schema : branch.sources) {
    for (const char* const keyword : {"pattern", "format"}) {
      const JsonValue* const text = schema->Find(keyword);
      if (text == nullptr) continue;
      const auto found = std::string_view(keyword) == "format"
                             ? document_->FormatOf(*schema, text->text)
                             : document_->PatternOf(*schema, keyword, text->text);
      if (!IsOk(found.status(), &error_)) return false;
      const Pattern* const pattern = *found;
      if (pattern == nullptr) continue;
      if (shape->pattern != nullptr && shape->pattern != pattern)
        return Fail(*schema, keyword,
                    "expected one pattern or format for a string, found another beside it");
      shape->pattern = pattern;
      shape->source = schema;
    }
  }
  return MergeCounts(branch, "minLength", "maxLength", shape);
}

bool SchemaShapes::MergeArray(const Branch& branch, Shape* shape) {
  if (!MergeCounts(branch, "minItems", "maxItems", shape)) return false;
  size_t before = 0;
  bool open = true;
  struct Items {
    const JsonValue* prefix;
    const JsonValue* rest;
  };
  std::vector<Items> all;
  for (const JsonValue* const schema : branch.sources) {
    if (schema->Find("contains") != nullptr)
      return Fail(*schema, "contains", "this keyword is supported beside enum and const only");
    if (IsTrue(schema->Find("uniqueItems")) && (shape->max < 0 || shape->max > 1)) {
      return Fail(*schema, "uniqueItems",
                  "true is supported beside enum, const and a maxItems of at most 1 only");
    }
    Items items{schema->Find("prefixItems"), schema->Find("items")};
    if (items.rest != nullptr && items.rest->Is(Type::kArray))
      items = {items.rest, schema->Find("additionalItems")};
    if (items.prefix != nullptr) {
      before = std::max(before, items.prefix->items.size());
      // Items after a prefix that says nothing of them are left out.
      if (items.rest == nullptr) open = false;
    }
    if (items.prefix != nullptr || items.rest != nullptr) all.push_back(items);
  }
  const auto at = [&](size_t i) {
    Conjunction schemas;
    for (const Items& items : all) {
      const bool in_prefix = items.prefix != nullptr && i < items.prefix->items.size();
      const JsonValue* const schema = in_prefix ? &items.prefix->items[i] : items.rest;
      if (schema != nullptr) AddSchema(schema, &schemas);
    }
    return schemas;
  };
  for (size_t i = 0; i < before && (shape->max < 0 || std::ssize(shape->prefix) < shape->max); ++i)
    shape->prefix.push_back(at(i));
  if (open || shape->min > static_cast<int64_t>(before)) shape->rest = at(before);
  return true;
}

}  // namespace polysketch
