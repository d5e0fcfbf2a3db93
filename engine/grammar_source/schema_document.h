// A JSON Schema as it was written: the types of its keywords, its references and patterns.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/grammar_source/json_value.h"
#include "engine/grammar_source/pattern.h"

namespace polysketch {

// Whether a status is OK. *first becomes the first one that is not.
inline bool IsOk(const Status& status, Status* first) {
  if (first->ok()) *first = status;
  return status.ok();
}

class SchemaDocument {
 public:
  explicit SchemaDocument(JsonValue root) : root_(std::move(root)) {}
  SchemaDocument(const SchemaDocument&) = delete;
  SchemaDocument& operator=(const SchemaDocument&) = delete;

  const JsonValue& root() const { return root_; }

  // Checks that every keyword of `schema`, and of the schemas in it, has a value of its type.
  // Keywords that JSON Schema does not know are annotations.
  Status Check(const JsonValue& schema);
  // The schema that `$ref` of `schema` names. Checked.
  Result<const JsonValue*> Target(const JsonValue& schema);
  // `keyword` of `schema` is a regular expression.
  Result<const Pattern*> PatternOf(const JsonValue& schema, const std::string& keyword,
                                   const std::string& text);
  // The pattern of `format` of `schema`; null for one that JSON Schema does not define, which is an
  // annotation. INVALID_ARGUMENT for one that it defines and that has no pattern here.
  Result<const Pattern*> FormatOf(const JsonValue& schema, const std::string& format);

  // INVALID_ARGUMENT that begins with the path of `keyword` (may be empty) in `schema`.
  Status Error(const JsonValue& schema, std::string_view keyword, const std::string& message) const;

 private:
  Status CheckKeyword(const JsonValue& schema, const std::string& name, const JsonValue& value);

  const JsonValue root_;
  std::set<const JsonValue*> checked_;
  std::map<std::string, Pattern> patterns_;
};

}  // namespace polysketch
