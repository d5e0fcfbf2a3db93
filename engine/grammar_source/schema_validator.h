// Whether a value is valid under a schema: the values of `enum` and `const` are tried, so that a
// grammar lists those that all keywords beside them allow.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/grammar_source/json_value.h"
#include "engine/grammar_source/schema_document.h"

namespace polysketch {

class SchemaValidator {
 public:
  explicit SchemaValidator(SchemaDocument* document) : document_(document) {}

  // False after an error too.
  bool Accepts(const JsonValue& schema, const JsonValue& value);
  // The first keyword that could not be decided.
  const Status& error() const { return error_; }

 private:
  bool Fail(const JsonValue& schema, const char* keyword, const std::string& message);
  bool AcceptsCombined(const JsonValue& schema, const JsonValue& value);
  bool AcceptsNumber(const JsonValue& schema, const JsonValue& value);
  bool AcceptsString(const JsonValue& schema, const JsonValue& value);
  bool AcceptsArray(const JsonValue& schema, const JsonValue& value);
  bool AcceptsObject(const JsonValue& schema, const JsonValue& value);
  bool AcceptsMember(const JsonValue& schema, const std::string& name, const JsonValue& value);

  SchemaDocument* const document_;
  Status error_;
  int depth_ = 0;
};

// Whether `type` of a schema names the type of a value.
bool IsOfType(const JsonValue& value, const JsonValue& type);
// The count that `keyword` has, else `absent`.
int64_t CountOf(const JsonValue& schema, std::string_view keyword, int64_t absent);

}  // namespace polysketch
