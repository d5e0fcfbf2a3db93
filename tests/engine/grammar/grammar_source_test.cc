// Patterns and JSON Schemas as EBNF: what is refused, and why. differential_test.py compares what
// the grammars accept with Python's re and jsonschema.
#include <string>

#include "base/utf8.h"
#include "engine/grammar_source/code_points.h"
#include "engine/grammar_source/ebnf.h"
#include "engine/grammar_source/pattern.h"
#include "engine/grammar_source/translate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace polysketch {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = GrammarSource::Kind;

std::string Error(Kind kind, const std::string& text) {
  const auto ebnf = ToEbnf({kind, text});
  EXPECT_FALSE(ebnf.ok()) << text << "\n" << (ebnf.ok() ? *ebnf : "");
  return ebnf.ok() ? "" : ebnf.status().message();
}
std::string SchemaError(const std::string& schema) { return Error(Kind::kJsonSchema, schema); }

TEST(CodePoints, SurrogatesAreInNoSet) {
  EXPECT_EQ(CodePoints::All().ranges(),
            (std::vector<CodePoints::Range>{{0, 0xd7ff}, {0xe000, 0x10ffff}}));
  EXPECT_TRUE(CodePoints::All().Complement().empty());
  EXPECT_TRUE((CodePoints{{0xd800, 0xdfff}}).empty());
  const CodePoints set = {{'a', 'c'}, {'b', 'e'}, {'f', 'f'}};
  EXPECT_EQ(set.ranges(), (std::vector<CodePoints::Range>{{'a', 'f'}}));
  EXPECT_EQ((set - CodePoints{{'c', 'd'}}).ranges(),
            (std::vector<CodePoints::Range>{{'a', 'b'}, {'e', 'f'}}));
}

TEST(Ebnf, EscapesHaveAFixedLength) {
  EXPECT_EQ(EbnfLiteral("Dear Ann,\nBest"), R"("Dear Ann,\u000aBest")");
  EXPECT_EQ(EbnfLiteral("\"\\\xc3\xa9\x7f"), "\"\\u0022\\u005c\xc3\xa9\\u007f\"");
  EXPECT_EQ(EbnfClass({{'a', 'z'}, {0x1f600, 0x1f600}}), R"([a-z\U0001f600])");
}

TEST(Pattern, WhatIsNotSupportedIsNamed) {
  const auto error = [](const std::string& text) { return Error(Kind::kRegex, text); };
  EXPECT_THAT(error("a(?=b)"), HasSubstr("look-ahead"));
  EXPECT_THAT(error("a(?!b)"), HasSubstr("look-ahead"));
  EXPECT_THAT(error("(?<=a)b"), HasSubstr("(?<="));
  EXPECT_THAT(error("(a)\\1"), HasSubstr("back-reference"));
  EXPECT_THAT(error("(?P<n>a)(?P=n)"), HasSubstr("back-reference"));
  EXPECT_THAT(error("\\bword\\b"), HasSubstr("word boundary"));
  EXPECT_THAT(error("(?i)a"), HasSubstr("flag"));
  EXPECT_THAT(error("\\p{L}"), HasSubstr("Unicode property"));
  EXPECT_THAT(error("a++"), HasSubstr("possessive"));
  EXPECT_THAT(error("(?>a)"), HasSubstr("atomic"));
  EXPECT_THAT(error("\\012"), HasSubstr("octal"));
  EXPECT_THAT(error("\\q"), HasSubstr("\\q"));
  // Other characters in ECMA-262.
  EXPECT_THAT(error("\\Aa"), HasSubstr("\\A is not supported: expected ^"));
  EXPECT_THAT(error("a\\Z"), HasSubstr("\\Z is not supported: expected $"));
  EXPECT_THAT(error("[\\A]"), HasSubstr("\\A is not supported"));
  EXPECT_THAT(error("\\U0001F600"), HasSubstr("\\U is not supported: expected \\u{X}"));
  EXPECT_THAT(error("a{,3}"), StartsWith("at character 3 of the pattern: {,N} is not supported"));
  EXPECT_THAT(error("a{,}"), HasSubstr("{,N} is not supported: expected {0,N}"));
  EXPECT_THAT(error("a^b"), HasSubstr("^"));
  EXPECT_THAT(error("(a$)+"), HasSubstr("anchor"));
}

TEST(Pattern, ErrorsNameTheCharacter) {
  const auto error = [](const std::string& text) { return Error(Kind::kRegex, text); };
  EXPECT_THAT(error("(a"), StartsWith("at character 3 of the pattern: expected )"));
  EXPECT_THAT(error("a)"), HasSubstr("at character 2"));
  EXPECT_THAT(error("*a"), HasSubstr("something to repeat"));
  EXPECT_THAT(error("a**"), HasSubstr("one repetition"));
  EXPECT_THAT(error("a{3,2}"), HasSubstr("in order"));
  EXPECT_THAT(error("a{99999999999999999999}"), HasSubstr("at most 10000"));
  EXPECT_THAT(error("[z-a]"), HasSubstr("in order"));
  EXPECT_THAT(error("[a"), HasSubstr("expected ]"));
  EXPECT_THAT(error("[]"), HasSubstr("class"));
  EXPECT_THAT(error("\\x4"), HasSubstr("2 hexadecimal digits"));
  EXPECT_THAT(error("\\ud83d"), HasSubstr("half of a pair"));
  EXPECT_THAT(error("\\"), HasSubstr("after \\"));
  EXPECT_THAT(error(std::string(100'000, '(')), HasSubstr("at most 100 groups"));
}

TEST(Pattern, LengthsAndMatches) {
  const auto parse = [](const char* text) { return ParsePattern(text).value(); };
  EXPECT_EQ(LengthOf(parse("a(b|cd){2,3}e?")).min, 3);
  EXPECT_EQ(LengthOf(parse("a(b|cd){2,3}e?")).max, 8);
  EXPECT_EQ(LengthOf(parse("a*")).max, -1);
  EXPECT_TRUE(FoundIn(parse("b+$"), U"abb"));
  EXPECT_FALSE(FoundIn(parse("^b"), U"ab"));
  EXPECT_TRUE(FoundIn(parse("\\ud83d\\ude00"), U"\U0001f600"));
  EXPECT_FALSE(FoundIn(parse("^.$"), U"\n"));
  EXPECT_TRUE(FoundIn(parse("(a{2}){3}"), U"aaaaaa"));
  EXPECT_FALSE(FoundIn(parse("(a{2}){3}"), U"aaaaa"));
}

TEST(Schema, ErrorsAreUtf8) {
  for (const std::string schema : {"{\"a\"\u0182:1}", "\u0182", "{\"a\":\"\u0182\"\u0182}"}) {
    const std::string error = SchemaError(schema);
    EXPECT_THAT(error, HasSubstr("expected JSON"));
    EXPECT_EQ(ValidUtf8Prefix(error), error.size()) << error;
  }
}

// Each keyword that the grammar would not hold, with its path.
TEST(Schema, WhatIsNotHeldIsRefused) {
  EXPECT_THAT(
      SchemaError(R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true})"),
      StartsWith("/uniqueItems: "));
  EXPECT_THAT(SchemaError(R"({"properties": {"a": {"type": "string", "not": {"const": "x"}}}})"),
              StartsWith("/properties/a/not: "));
  EXPECT_THAT(SchemaError(R"({"if": {"type": "string"}, "then": {"maxLength": 2}})"),
              StartsWith("/if: "));
  EXPECT_THAT(SchemaError(R"({"type": "array", "contains": {"const": 1}})"),
              StartsWith("/contains: "));
  EXPECT_THAT(SchemaError(R"({"type": "object", "dependentRequired": {"a": ["b"]}})"),
              StartsWith("/dependentRequired: "));
  EXPECT_THAT(SchemaError(R"({"type": "object", "unevaluatedProperties": false})"),
              StartsWith("/unevaluatedProperties: "));
  EXPECT_THAT(SchemaError(R"({"$dynamicRef": "#a"})"), StartsWith("/$dynamicRef: "));
  EXPECT_THAT(SchemaError(R"({"type": "number", "multipleOf": 0.1})"), StartsWith("/multipleOf: "));
  EXPECT_THAT(SchemaError(R"({"type": "integer", "multipleOf": 3, "minimum": 1})"),
              StartsWith("/multipleOf: "));
  EXPECT_THAT(SchemaError(R"-({"type": "string", "pattern": "a(?=b)"})-"),
              StartsWith("/pattern: "));
  EXPECT_THAT(SchemaError(R"({"type": "string", "pattern": "(ab|c)+", "maxLength": 3})"),
              StartsWith("/pattern: "));
  EXPECT_THAT(SchemaError(R"({"type": "string", "format": "iri"})"), StartsWith("/format: "));
  EXPECT_THAT(SchemaError(R"({"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"})"),
              StartsWith("/allOf/1/pattern: "));
  EXPECT_THAT(SchemaError(R"({"$defs": {"a~/b": {"not": {}}}, "$ref": "#/$defs/a~0~1b"})"),
              StartsWith("/$defs/a~0~1b/not: "));
  EXPECT_THAT(SchemaError(R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})"),
              StartsWith("/oneOf: expected choices that exclude each other"));
}

TEST(Schema, ValuesOfKeywordsHaveTheirTypes) {
  EXPECT_THAT(SchemaError(R"({"minLength": "3"})"), StartsWith("/minLength: expected a count"));
  EXPECT_THAT(SchemaError(R"({"minLength": -1})"), StartsWith("/minLength: expected a count"));
  EXPECT_THAT(SchemaError(R"({"exclusiveMinimum": true})"), StartsWith("/exclusiveMinimum: "));
  EXPECT_THAT(SchemaError(R"({"required": "a"})"), StartsWith("/required: "));
  EXPECT_THAT(SchemaError(R"({"properties": {"a": 3}})"), StartsWith("/properties: "));
  EXPECT_THAT(SchemaError(R"({"anyOf": []})"), StartsWith("/anyOf: "));
  EXPECT_THAT(SchemaError(R"({"items": {"type": ["string", "nul"]}})"),
              StartsWith("/items/type: "));
  EXPECT_THAT(SchemaError(R"({"$defs": {"unused": {"enum": 3}}})"),
              StartsWith("/$defs/unused/enum: "));
  EXPECT_THAT(SchemaError("3"), StartsWith("the schema: "));
  const std::pair<const char*, const char*> found[] = {
      {R"({"anyOf": []})", "/anyOf: expected an array of at least one schema, found []"},
      {R"({"oneOf": [{}, 5]})", "/oneOf: expected an array of at least one schema, found [{},5]"},
      {R"({"type": []})",
       "/type: expected array, boolean, integer, null, number, object, string, or an array of at "
       "least one of these, found []"},
      {R"({"required": ["a", null]})",
       "/required: expected an array of strings, found [\"a\",null]"},
      {R"({"minItems": -1.0})", "/minItems: expected a count, found -1.0"},
      {R"({"properties": {"a\n": true, "b": "x"}})",
       "/properties: expected an object of schemas, found {\"a\\n\":true,\"b\":\"x\"}"},
      {R"({"type": "integer", "multipleOf": 1001})",
       "/multipleOf: expected one whole number of at most 1000, for integers, found 1001"},
      {R"({"type": "string", "minLength": 1000000000})",
       "/minLength: expected at most 100000, found 1000000000"}};
  for (const auto& [schema, message] : found) EXPECT_EQ(SchemaError(schema), message);
  std::string values = "0";
  for (int i = 1; i < 1025; ++i) values += StrCat(",", i);
  EXPECT_EQ(SchemaError(StrCat("{\"enum\": [", values, "]}")),
            "the schema: expected at most 1024 choices, found 1025 or more");
  // No longer than a line.
  EXPECT_LT(SchemaError(StrCat("{\"required\": [", values, "]}")).size(), 200u);
}

TEST(Schema, ReferencesAreWithinTheSchema) {
  EXPECT_THAT(SchemaError(R"({"$ref": "https://example.com/s.json"})"), StartsWith("/$ref: "));
  EXPECT_THAT(SchemaError(R"({"$ref": "#/$defs/none"})"), HasSubstr("no schema at"));
  EXPECT_THAT(SchemaError(R"({"$ref": "#"})"), HasSubstr("leads back to itself"));
  EXPECT_THAT(SchemaError(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})"),
              HasSubstr("leads back to itself"));
  EXPECT_THAT(SchemaError(R"({"$ref": "#/properties", "properties": {"type": {"enum": 1}}})"),
              HasSubstr("/properties/type/enum"));
}

TEST(Schema, WithoutAValue) {
  EXPECT_THAT(SchemaError("false"), HasSubstr("excludes every value"));
  EXPECT_THAT(SchemaError(R"({"type": "integer", "enum": [20], "maximum": 10})"),
              HasSubstr("excludes every value"));
  EXPECT_THAT(SchemaError(R"({"type": "integer", "minimum": 1.2, "maximum": 1.8})"),
              HasSubstr("excludes every value"));
  EXPECT_THAT(SchemaError(R"({"additionalProperties": false, "required": ["a"]})"),
              HasSubstr("excludes every value"));
  // A value would have to contain another of the same schema, without end.
  EXPECT_THAT(SchemaError(R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
              HasSubstr("excludes every value"));
}

TEST(Schema, SizesAreBounded) {
  EXPECT_THAT(SchemaError(std::string(131'000, '[')), HasSubstr("at most 100"));
  std::string all = R"({"allOf": [)", choice = R"({"anyOf": [)";
  for (int i = 0; i < 12; ++i) choice += StrCat(i > 0 ? "," : "", R"({"minLength": )", i, "}");
  choice += "]}";
  for (int i = 0; i < 12; ++i) {
    if (i > 0) all += ",";
    all += choice;
  }
  EXPECT_THAT(SchemaError(all + "]}"), HasSubstr("at most 1024 choices"));
  EXPECT_THAT(SchemaError(R"({"type": "string", "minLength": 1000000000})"),
              StartsWith("/minLength: expected at most"));
  EXPECT_THAT(SchemaError(R"({"const": 1e100000})"), HasSubstr("JSON"));
}

TEST(Ebnf, PartsThatAreDroppedOrDoMoreAreRefused) {
  const auto error = [](const std::string& text) { return Error(Kind::kEbnf, text); };
  EXPECT_THAT(error(std::string("root ::= \"a\"\0 | \"b\"", 19)), HasSubstr("U+0000"));
  EXPECT_THAT(error("root ::= \"a\"{1,4294967297}"), HasSubstr("at most 1000000"));
  EXPECT_THAT(error(R"-(root ::= Regex("a"))-"), HasSubstr("macro Regex"));
  EXPECT_THAT(error(R"-(root ::= a
a[temperature=0.5] ::= "x")-"),
              HasSubstr("attributes"));
  EXPECT_EQ(ToEbnf({Kind::kEbnf, R"-(root ::= "\x41b\\x41" [\x22-\x2fa\]\x1] # \x41)-"}).value(),
            R"-(root ::= "\u0041b\\x41" [\u0022-\u002fa\]\x1] # \x41)-");
  for (const std::string fine : {R"-(root ::= "Regex{4294967297}" [a-z{9999999}]{2,} # Token(
a::="b" root[x]{3}
)-",
                                 "root ::= \"\\\"\" [\\]] Tokens"}) {
    EXPECT_TRUE(ToEbnf({Kind::kEbnf, fine}).ok())
        << ToEbnf({Kind::kEbnf, fine}).status().ToString();
  }
}

}  // namespace
}  // namespace polysketch
