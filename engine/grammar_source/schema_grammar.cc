#include "engine/grammar_source/schema_grammar.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/grammar_source/ebnf.h"
#include "engine/grammar_source/pattern_grammar.h"
#include "engine/grammar_source/schema_shapes.h"

namespace polysketch {
namespace {

using ShapeKind = Shape::Kind;

// Columns of a line's indentation.
constexpr int kMaxIndentation = 32;
constexpr size_t kMaxEbnfBytes = size_t{16} << 20;
// Of an object: its properties times the counts of them that matter.
constexpr size_t kMaxObjectStates = 20'000;
// Of a string without an upper bound: the lower one up to which it has characters that JSON
// escapes.
constexpr int64_t kMaxLeastCharacters = 32;
// Characters of a name that tell it apart from the names of a schema.
constexpr size_t kMaxNameDepth = 64;

// What stands between the parts of arrays and objects.
struct Spacing {
  Ebnf inside;  // after [ { and a comma, before ] }
  Ebnf comma;
  Ebnf colon;
};

Spacing SpacingOf(bool compact, EbnfRules* rules) {
  if (compact) return {Ebnf(), Ebnf::Literal(", "), Ebnf::Literal(": ")};
  const Ebnf blank = Ebnf::Class({{'\t', '\t'}, {' ', ' '}});
  const Ebnf line = Ebnf::Sequence({Ebnf::Literal("\n"), Ebnf::Repeat(blank, 0, kMaxIndentation)});
  const Ebnf inside = rules->Add(Ebnf::Choice({Ebnf(), Ebnf::Literal(" "), line}));
  return {inside, Ebnf::Sequence({Ebnf::Literal(","), inside}),
          Ebnf::Sequence({Ebnf::Literal(":"), Ebnf::Repeat(Ebnf::Literal(" "), 0, 1)})};
}

class SchemaGrammar {
 public:
  SchemaGrammar(SchemaDocument* document, bool compact, EbnfRules* rules)
      : document_(document),
        shapes_(document),
        rules_(*rules),
        spacing_(SpacingOf(compact, rules)) {}

  // The rule of the schema.
  Result<Ebnf> Write() {
    const Conjunction root = {&document_->root()};
    PS_RETURN_IF_ERROR(Explore(root));
    FindValid();
    if (!nodes_.at(root).valid)
      return document_->Error(
          document_->root(), "",
          "expected a schema that a value is valid under, found one that excludes every value");
    for (auto& [schemas, node] : nodes_) {
      if (!node.valid) continue;
      std::vector<Ebnf> choices;
      for (const Shape& shape : *node.shapes) {
        if (!IsValid(shape)) continue;
        PS_ASSIGN_OR_RETURN(Ebnf choice, OfShape(shape));
        choices.push_back(std::move(choice));
      }
      rules_.Define(node.rule, Ebnf::Choice(choices));
      if (rules_.bytes() > kMaxEbnfBytes) {
        return document_->Error(document_->root(), "",
                                StrCat("expected a grammar of at most ", kMaxEbnfBytes,
                                       " bytes, found ", rules_.bytes(), " or more"));
      }
    }
    return Ebnf::Rule(nodes_.at(root).rule);
  }

 private:
  struct Node {
    std::string rule;
    const std::vector<Shape>* shapes = nullptr;
    bool valid = false;  // a value is
  };

  static std::vector<const Conjunction*> ChildrenOf(const Shape& shape) {
    std::vector<const Conjunction*> children;
    for (const Conjunction& item : shape.prefix) children.push_back(&item);
    for (const ShapeProperty& property : shape.properties) children.push_back(&property.schema);
    if (shape.rest) children.push_back(&*shape.rest);
    return children;
  }

  // Gives every conjunction that is reached from `root` a node.
  Status Explore(const Conjunction& root) {
    std::deque<Conjunction> waiting = {root};
    nodes_.try_emplace(root);
    while (!waiting.empty()) {
      const Conjunction schemas = std::move(waiting.front());
      waiting.pop_front();
      PS_ASSIGN_OR_RETURN(const std::vector<Shape>* const shapes, shapes_.Of(schemas));
      nodes_[schemas].shapes = shapes;
      nodes_[schemas].rule = rules_.Declare();
      for (const Shape& shape : *shapes) {
        for (const Conjunction* const child : ChildrenOf(shape)) {
          if (nodes_.try_emplace(*child).second) waiting.push_back(*child);
        }
      }
    }
    return Status();
  }

  // A schema that is needed for a value of itself alone has none.
  void FindValid() {
    bool changed = true;
    while (changed) {
      changed = false;
      for (auto& [schemas, node] : nodes_) {
        if (node.valid) continue;
        node.valid = std::any_of(node.shapes->begin(), node.shapes->end(),
                                 [this](const Shape& shape) { return IsValid(shape); });
        changed = changed || node.valid;
      }
    }
  }

  bool IsValid(const Conjunction& schemas) const { return nodes_.at(schemas).valid; }
  bool IsValid(const std::optional<Conjunction>& schemas) const {
    return schemas && IsValid(*schemas);
  }

  bool IsValid(const Shape& shape) const {
    switch (shape.kind) {
      case ShapeKind::kNumber: {
        EbnfRules scratch;
        return NumbersWithin(shape.range, &scratch).has_value();
      }
      case ShapeKind::kArray: {
        const auto prefix = std::ssize(shape.prefix);
        for (int64_t i = 0; i < std::min<int64_t>(prefix, shape.min); ++i) {
          if (!IsValid(shape.prefix[static_cast<size_t>(i)])) return false;
        }
        return shape.min <= prefix || IsValid(shape.rest);
      }
      case ShapeKind::kObject: {
        int64_t required = 0, possible = 0;
        for (const ShapeProperty& property : shape.properties) {
          const bool valid = IsValid(property.schema);
          if (property.required && !valid) return false;
          required += property.required ? 1 : 0;
          possible += valid ? 1 : 0;
        }
        if (IsValid(shape.rest)) ++possible;
        return possible >= shape.min && (shape.max < 0 || required <= shape.max);
      }
      default:
        return true;
    }
  }

  Result<Ebnf> OfShape(const Shape& shape) {
    switch (shape.kind) {
      case ShapeKind::kValue:
        return OfValue(*shape.value);
      case ShapeKind::kNull:
        return Ebnf::Literal("null");
      case ShapeKind::kBoolean:
        return rules_.Add(Ebnf::Choice({Ebnf::Literal("true"), Ebnf::Literal("false")}));
      case ShapeKind::kNumber:
        return rules_.Add(*NumbersWithin(shape.range, &rules_));
      case ShapeKind::kString:
        return OfString(shape);
      case ShapeKind::kArray:
        return OfArray(shape);
      case ShapeKind::kObject:
        return OfObject(shape);
    }
    return Ebnf();
  }

  Ebnf RuleOf(const Conjunction& schemas) { return Ebnf::Rule(nodes_.at(schemas).rule); }

  Ebnf OfValue(const JsonValue& value) {
    using Type = JsonValue::Type;
    std::vector<Ebnf> parts;
    switch (value.type) {
      case Type::kNull:
        return Ebnf::Literal("null");
      case Type::kBoolean:
        return Ebnf::Literal(value.boolean ? "true" : "false");
      case Type::kNumber:
        return Ebnf::Literal(value.text);
      case Type::kString:
        return Ebnf::Literal(JsonString(value.text));
      case Type::kArray:
        for (const JsonValue& item : value.items) {
          parts.push_back(parts.empty() ? spacing_.inside : spacing_.comma);
          parts.push_back(OfValue(item));
        }
        break;
      case Type::kObject:
        for (const auto& [name, member] : value.members) {
          parts.push_back(parts.empty() ? spacing_.inside : spacing_.comma);
          parts.push_back(Ebnf::Literal(JsonString(name)));
          parts.push_back(spacing_.colon);
          parts.push_back(OfValue(member));
        }
        break;
    }
    const bool array = value.type == Type::kArray;
    return Ebnf::Sequence({Ebnf::Literal(array ? "[" : "{"), Ebnf::Sequence(parts), spacing_.inside,
                           Ebnf::Literal(array ? "]" : "}")});
  }

  Result<Ebnf> OfString(const Shape& shape) {
    const Ebnf quote = Ebnf::Literal("\"");
    if (shape.pattern == nullptr) {
      if (shape.max < 0 && shape.min <= kMaxLeastCharacters)
        return Ebnf::Sequence({quote, JsonStringEnd(shape.min, &rules_)});
      const Ebnf text = Ebnf::Repeat(Ebnf::Class(PlainInJson()), shape.min, shape.max);
      return Ebnf::Sequence({quote, text, quote});
    }
    const PatternUse use{.form = TextForm::kJson, .min_length = shape.min, .max_length = shape.max};
    const Result<Ebnf> text = PatternToEbnf(*shape.pattern, use, &rules_);
    if (!text.ok()) {
      const char* const keyword = shape.source->Find("pattern") != nullptr ? "pattern" : "format";
      return document_->Error(*shape.source, keyword, text.status().message());
    }
    return rules_.Add(Ebnf::Sequence({quote, *text, quote}));
  }

  Ebnf OfArray(const Shape& shape) {
    const Ebnf end = Ebnf::Sequence({spacing_.inside, Ebnf::Literal("]")});
    const auto before = std::ssize(shape.prefix);
    // What follows the first `count` items; unset if the array cannot have that many.
    std::optional<Ebnf> after;
    const int64_t least = std::max<int64_t>(shape.min - before, 0);
    const int64_t most = shape.max < 0 ? -1 : shape.max - before;
    const Ebnf start = Ebnf::Sequence({Ebnf::Literal("["), spacing_.inside});
    if (before == 0) {
      const Ebnf empty = Ebnf::Sequence({start, Ebnf::Literal("]")});
      if (!IsValid(shape.rest) || most == 0) return rules_.Add(empty);
      const Ebnf item = RuleOf(*shape.rest);
      const Ebnf more = Ebnf::Repeat(Ebnf::Sequence({spacing_.comma, item}),
                                     std::max<int64_t>(least - 1, 0), most < 0 ? -1 : most - 1);
      std::vector<Ebnf> choices = {Ebnf::Sequence({start, item, more, end})};
      if (least == 0) choices.push_back(empty);
      return rules_.Add(Ebnf::Choice(choices));
    }
    if (most == 0 || !IsValid(shape.rest)) {
      if (least == 0) after = end;
    } else {
      const Ebnf item = Ebnf::Sequence({spacing_.comma, RuleOf(*shape.rest)});
      after = Ebnf::Sequence({Ebnf::Repeat(item, least, most), end});
    }
    for (int64_t i = before - 1; i >= 0; --i) {
      const Conjunction& schemas = shape.prefix[static_cast<size_t>(i)];
      std::vector<Ebnf> choices;
      if (after && IsValid(schemas)) {
        choices.push_back(
            Ebnf::Sequence({i > 0 ? spacing_.comma : Ebnf(), RuleOf(schemas), *after}));
      }
      if (i >= shape.min) choices.push_back(i > 0 ? end : Ebnf::Literal("]"));
      after.reset();
      if (!choices.empty()) after = rules_.Add(Ebnf::Choice(choices));
    }
    return Ebnf::Sequence({start, after.value_or(Ebnf())});
  }

  // A string that differs from all `names`, without characters that JSON escapes.
  Ebnf NameBeside(std::vector<std::u32string_view> names, size_t depth) {
    std::vector<Ebnf> choices;
    std::vector<CodePoints::Range> first;
    if (std::none_of(names.begin(), names.end(), [](auto name) { return name.empty(); }))
      choices.push_back(Ebnf());
    std::sort(names.begin(), names.end());
    for (size_t i = 0; i < names.size();) {
      if (names[i].empty()) {
        ++i;
        continue;
      }
      const char32_t c = names[i][0];
      std::vector<std::u32string_view> rests;
      for (; i < names.size() && names[i][0] == c; ++i) rests.push_back(names[i].substr(1));
      first.push_back({c, c});
      if (depth >= kMaxNameDepth || !PlainInJson().Contains(c)) continue;
      choices.push_back(
          Ebnf::Sequence({Ebnf::Class({{c, c}}), NameBeside(std::move(rests), depth + 1)}));
    }
    const CodePoints other = PlainInJson() - CodePoints(first);
    choices.push_back(
        Ebnf::Sequence({Ebnf::Class(other), Ebnf::Repeat(Ebnf::Class(PlainInJson()), 0, -1)}));
    return rules_.Add(Ebnf::Choice(choices));
  }

  // A name and a value of a property that has no schema of its own.
  Result<Ebnf> OtherProperty(const Shape& shape) {
    const Ebnf quote = Ebnf::Literal("\"");
    Ebnf name;
    if (shape.pattern != nullptr) {
      const Result<Ebnf> text = PatternToEbnf(*shape.pattern, {.form = TextForm::kJson}, &rules_);
      if (!text.ok()) {
        const char* const keyword = shape.source->Find("patternProperties") != nullptr
                                        ? "patternProperties"
                                        : "propertyNames";
        return document_->Error(*shape.source, keyword, text.status().message());
      }
      name = *text;
    } else {
      std::vector<std::u32string> own;
      for (const ShapeProperty& property : shape.properties)
        own.push_back(ToCodePoints(property.name));
      name = NameBeside({own.begin(), own.end()}, 0);
    }
    return rules_.Add(Ebnf::Sequence({quote, name, quote, spacing_.colon, RuleOf(*shape.rest)}));
  }

  Result<Ebnf> OfObject(const Shape& shape) {
    std::vector<const ShapeProperty*> properties;
    for (const ShapeProperty& property : shape.properties) {
      if (IsValid(property.schema)) properties.push_back(&property);
    }
    const size_t size = properties.size();
    // Counts above `cap` are alike.
    const auto bound = static_cast<size_t>(std::max<int64_t>({1, shape.min, shape.max}));
    const size_t cap = std::min(bound, std::max<size_t>(size, 1));
    if ((cap + 1) * (size + 1) > kMaxObjectStates) {
      return document_->Error(
          document_->root(), "",
          StrCat("expected objects of at most ", kMaxObjectStates,
                 " properties times counts of them, found ", (cap + 1) * (size + 1)));
    }
    // after[c]: what follows when c properties have been written, from property i on.
    std::vector<std::optional<Ebnf>> after(cap + 1);
    PS_RETURN_IF_ERROR(AddEnds(shape, cap, &after));
    for (size_t i = size; i-- > 0;) {
      const ShapeProperty& property = *properties[i];
      const Ebnf pair = Ebnf::Sequence(
          {Ebnf::Literal(JsonString(property.name)), spacing_.colon, RuleOf(property.schema)});
      std::vector<std::optional<Ebnf>> here(cap + 1);
      for (size_t count = 0; count <= cap; ++count) {
        std::vector<Ebnf> choices;
        const auto& next = after[std::min(count + 1, cap)];
        const bool room = shape.max < 0 || static_cast<int64_t>(count) < shape.max;
        if (room && next)
          choices.push_back(Ebnf::Sequence({count > 0 ? spacing_.comma : Ebnf(), pair, *next}));
        if (!property.required && after[count]) choices.push_back(*after[count]);
        if (!choices.empty()) here[count] = rules_.Add(Ebnf::Choice(choices));
      }
      after = std::move(here);
    }
    return rules_.Add(Ebnf::Sequence(
        {Ebnf::Literal("{"), spacing_.inside, after[0].value_or(Ebnf::Literal("}"))}));
  }

  // What follows the last property of the schema. Names of further properties may repeat, so that
  // one of them at most counts for the lower bound.
  Status AddEnds(const Shape& shape, size_t cap, std::vector<std::optional<Ebnf>>* after) {
    const bool open = IsValid(shape.rest);
    Ebnf pair;
    if (open) {
      PS_ASSIGN_OR_RETURN(pair, OtherProperty(shape));
    }
    for (size_t c = 0; c <= cap; ++c) {
      const auto count = static_cast<int64_t>(c);
      const bool enough = count >= shape.min;
      const Ebnf end =
          c > 0 ? Ebnf::Sequence({spacing_.inside, Ebnf::Literal("}")}) : Ebnf::Literal("}");
      std::vector<Ebnf> choices;
      const int64_t most = shape.max < 0 ? -1 : std::max<int64_t>(shape.max - count, 0);
      if (open && most != 0 && count + 1 >= shape.min) {
        const Ebnf more = Ebnf::Sequence({spacing_.comma, pair});
        const Ebnf close = Ebnf::Sequence({spacing_.inside, Ebnf::Literal("}")});
        choices.push_back(Ebnf::Sequence(
            {c > 0 ? more : pair, Ebnf::Repeat(more, 0, most < 0 ? -1 : most - 1), close}));
      }
      if (enough) choices.push_back(end);
      if (!choices.empty()) (*after)[c] = rules_.Add(Ebnf::Choice(choices));
    }
    return Status();
  }

  SchemaDocument* const document_;
  SchemaShapes shapes_;
  EbnfRules& rules_;
  const Spacing spacing_;
  std::map<Conjunction, Node> nodes_;
};

}  // namespace

Result<Ebnf> AddSchema(JsonValue schema, bool compact, EbnfRules* rules) {
  SchemaDocument document(std::move(schema));
  PS_RETURN_IF_ERROR(document.Check(document.root()));
  return SchemaGrammar(&document, compact, rules).Write();
}

Result<std::string> SchemaToEbnf(std::string_view schema, bool compact) {
  PS_ASSIGN_OR_RETURN(JsonValue root, ParseJsonValue(schema));
  EbnfRules rules;
  PS_ASSIGN_OR_RETURN(const Ebnf whole, AddSchema(std::move(root), compact, &rules));
  return rules.Finish(whole);
}

}  // namespace polysketch
