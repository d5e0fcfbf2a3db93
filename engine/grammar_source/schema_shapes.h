// What a JSON Schema allows, as a choice of shapes: values, and sets of values of one type. Schemas
// that must hold together ($ref and its siblings, allOf, the schemas of a property in several
// places) are merged; anyOf and oneOf become choices.
//
// What shapes hold is narrower than JSON Schema in one way, and never wider: see
// docs/structured-output.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/grammar_source/number_range.h"
#include "engine/grammar_source/schema_document.h"
#include "engine/grammar_source/schema_validator.h"

namespace polysketch {

// Schemas that must hold together; none: any value.
using Conjunction = std::vector<const JsonValue*>;
// Adds a schema that is not there and does not allow every value.
void AddSchema(const JsonValue* schema, Conjunction* schemas);

struct ShapeProperty {
  std::string name;
  Conjunction schema;
  bool required = false;
};

struct Shape {
  enum class Kind { kValue, kNull, kBoolean, kNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  const JsonValue* value = nullptr;  // of kValue
  NumberRange range = {};
  // Characters, items or properties; max < 0: without a bound.
  int64_t min = 0;
  int64_t max = -1;
  const Pattern* pattern = nullptr;      // of strings, and of names of further properties
  const JsonValue* source = nullptr;     // the schema that has the pattern, for errors
  std::vector<Conjunction> prefix = {};  // of items
  // Of items after `prefix`, and of properties that have no other schema; unset: there are none.
  std::optional<Conjunction> rest = {};
  std::vector<ShapeProperty> properties = {};
};

class SchemaShapes {
 public:
  static constexpr size_t kMaxChoices = 1024;       // of one conjunction
  static constexpr size_t kMaxConjunctions = 4096;  // of a schema
  // Schemas that are merged to decide whether choices of oneOf exclude each other.
  static constexpr size_t kMaxBuilding = 32;
  // Of lengths and counts: a lower bound above it is an error, an upper one is none, as no output
  // reaches it.
  static constexpr int64_t kMaxLeast = 100'000;
  static constexpr int64_t kMaxMost = 4'000'000;

  explicit SchemaShapes(SchemaDocument* document) : document_(document), validator_(document) {}

  // The shapes of `schemas`, none if no value is valid. INVALID_ARGUMENT names the keyword that
  // shapes do not hold. References remain valid.
  Result<const std::vector<Shape>*> Of(const Conjunction& schemas);

 private:
  struct Pending {
    const JsonValue* schema;
    int parent;  // in the trail
  };
  struct Exclusion {
    const JsonValue* schema;  // that has oneOf
    size_t chosen;
  };
  struct Branch {
    std::vector<const JsonValue*> sources;
    std::vector<Pending> pending;  // the last is the next
    std::vector<Pending> trail;
    std::vector<Pending> choices;  // schemas with keywords that `keywords` names
    std::vector<const char*> keywords;
    std::vector<Exclusion> exclusions;
  };

  // False after an error, and if no value is valid.
  bool Expand(Branch* branch);
  bool Fail(const JsonValue& schema, std::string_view keyword, const std::string& message);
  Status Build(const Conjunction& schemas, std::vector<Shape>* shapes);
  void Choose(const Branch& branch, std::vector<Branch>* stack);
  void Merge(const Branch& branch, std::vector<Shape>* shapes);
  bool MergeValues(const Branch& branch, std::vector<Shape>* shapes);
  void RefuseUnheld(const JsonValue& schema);
  unsigned TypesOf(const Branch& branch) const;
  bool MergeNumber(const Branch& branch, bool integer, Shape* shape);
  bool MergeString(const Branch& branch, Shape* shape);
  bool MergeArray(const Branch& branch, Shape* shape);
  bool MergeObject(const Branch& branch, Shape* shape);
  struct OtherNames;
  bool MergeNames(const Branch& branch, Shape* shape);
  bool ReadOtherNames(const Branch& branch, OtherNames* names);
  bool MergePattern(OtherNames names, Shape* shape);
  bool MergePropertyNames(OtherNames others, Shape* shape);
  bool MergeCounts(const Branch& branch, const char* min, const char* max, Shape* shape);
  std::optional<Conjunction> SchemasOf(const Branch& branch, const std::string& name);
  static void RequireTag(const JsonValue& schema, std::vector<Shape>* shapes);
  void CheckExclusion(const Exclusion& exclusion, const std::vector<Shape>& shapes);
  bool Refutes(const Shape& shape, const JsonValue& schema, int depth);
  bool RefutesAll(const Conjunction& schemas, const JsonValue& schema, int depth);
  bool RefutesObject(const Shape& shape, const JsonValue& schema, int depth);

  SchemaDocument* const document_;
  SchemaValidator validator_;
  std::map<Conjunction, std::vector<Shape>> shapes_;
  std::vector<Conjunction> building_;  // one for the sake of the one before it
  Status error_;
};

}  // namespace polysketch
