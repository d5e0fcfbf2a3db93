// Tokens to the syntax tree.
#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "base/bounded_json.h"
#include "server/chat/builtins.h"
#include "server/chat/syntax.h"

namespace polysketch::chat {
namespace {

using Kind = Token::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Block> Run() {
    Block block;
    PS_RETURN_IF_ERROR(ParseBlock({}, &block));
    return block;
  }

 private:
  using Pointer = Result<ExpressionPointer>;

  // --- tokens ---
  const Token& Next() const { return tokens_[at_]; }
  const Token& Take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool Is(Kind kind, std::string_view text) const {
    return Next().kind == kind && Next().text == text;
  }
  bool IsOperator(std::string_view text) const { return Is(Kind::kOperator, text); }
  bool IsName(std::string_view text) const { return Is(Kind::kName, text); }
  bool Accept(Kind kind, std::string_view text) {
    if (!Is(kind, text)) return false;
    Take();
    return true;
  }
  bool AcceptOperator(std::string_view text) { return Accept(Kind::kOperator, text); }
  bool AcceptName(std::string_view text) { return Accept(Kind::kName, text); }
  Status Wrong(std::string_view expected) const {
    const std::string found =
        Next().kind == Kind::kEnd ? "the end of the template" : Abbreviate(Next().text);
    return InvalidArgument("line ", Next().line, ": expected ", expected, ", found ", found);
  }
  Status Expect(std::string_view text) { return AcceptOperator(text) ? Status() : Wrong(text); }
  Result<std::string> Name(std::string_view expected) {
    if (Next().kind != Kind::kName) return Wrong(expected);
    return Take().text;
  }
  Status TagEnd() {
    if (Next().kind != Kind::kTagEnd) return Wrong("%}");
    Take();
    return Status();
  }

  // --- nodes ---
  // The line of a node is that of `token`, its first or its operator.
  Pointer Node(Op op, int line, std::string name, std::vector<ExpressionPointer> args,
               std::vector<std::pair<std::string, ExpressionPointer>> named = {}) {
    auto node = std::make_unique<Expression>();
    node->op = op;
    node->line = line;
    node->name = std::move(name);
    node->args = std::move(args);
    node->named = std::move(named);
    for (const ExpressionPointer& arg : node->args)
      if (arg != nullptr) node->depth = std::max(node->depth, arg->depth + 1);
    for (const auto& [key, arg] : node->named) node->depth = std::max(node->depth, arg->depth + 1);
    if (node->depth > kMaxSyntaxDepth) return TooDeep(line);
    return node;
  }
  static std::vector<ExpressionPointer> Args(ExpressionPointer a, ExpressionPointer b = nullptr) {
    std::vector<ExpressionPointer> args;
    args.push_back(std::move(a));
    if (b != nullptr) args.push_back(std::move(b));
    return args;
  }
  Pointer Literal(Value value, int line) {
    auto node = std::make_unique<Expression>();
    node->line = line;
    node->value = std::move(value);
    return node;
  }
  static Status TooDeep(int line) {
    return InvalidArgument("line ", line, ": expected nesting of at most ", kMaxSyntaxDepth,
                           ", found more");
  }
  // Counts what is around the code of a scope.
  class Counted {
   public:
    explicit Counted(int* count) : count_(count) { ++*count_; }
    ~Counted() { --*count_; }

   private:
    int* const count_;
  };
  bool TooManyLevels() const { return level_ > kMaxSyntaxDepth; }

  // --- expressions, the weakest operator first ---
  Pointer ParseExpression() {
    const Counted level(&level_);
    if (TooManyLevels()) return TooDeep(Next().line);
    PS_ASSIGN_OR_RETURN(ExpressionPointer value, ParseOr());
    while (IsName("if")) {
      const int line = Take().line;
      const Counted inside(&conditions_);
      PS_ASSIGN_OR_RETURN(ExpressionPointer condition, ParseOr());
      ExpressionPointer otherwise;
      if (AcceptName("else")) {
        PS_ASSIGN_OR_RETURN(otherwise, ParseExpression());
      }
      std::vector<ExpressionPointer> args = Args(std::move(condition), std::move(value));
      args.push_back(std::move(otherwise));
      PS_ASSIGN_OR_RETURN(value, Node(Op::kIf, line, "", std::move(args)));
    }
    return value;
  }

  Pointer ParseOr() { return ParseBinary(Op::kOr, Kind::kName, {"or"}, &Parser::ParseAnd); }
  Pointer ParseAnd() { return ParseBinary(Op::kAnd, Kind::kName, {"and"}, &Parser::ParseNot); }

  Pointer ParseNot() {
    if (!IsName("not")) return ParseCompare();
    const Counted level(&level_);
    if (TooManyLevels()) return TooDeep(Next().line);
    const int line = Take().line;
    PS_ASSIGN_OR_RETURN(ExpressionPointer operand, ParseNot());
    return Node(Op::kNot, line, "", Args(std::move(operand)));
  }

  // The operator of a comparison, or an empty string.
  std::string TakeComparison() {
    for (const std::string_view op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (AcceptOperator(op)) return std::string(op);
    }
    if (AcceptName("in")) return "in";
    const bool not_in = IsName("not") && at_ + 1 < tokens_.size() &&
                        tokens_[at_ + 1].kind == Kind::kName && tokens_[at_ + 1].text == "in";
    if (!not_in) return "";
    Take();
    Take();
    return "not in";
  }

  Pointer ParseCompare() {
    PS_ASSIGN_OR_RETURN(ExpressionPointer left, ParseSum());
    const int line = Next().line;
    std::vector<ExpressionPointer> args = Args(std::move(left));
    std::vector<std::string> operators;
    for (std::string op = TakeComparison(); !op.empty(); op = TakeComparison()) {
      operators.push_back(std::move(op));
      PS_ASSIGN_OR_RETURN(ExpressionPointer right, ParseSum());
      args.push_back(std::move(right));
    }
    if (operators.empty()) return std::move(args[0]);
    PS_ASSIGN_OR_RETURN(ExpressionPointer node, Node(Op::kCompare, line, "", std::move(args)));
    node->operators = std::move(operators);
    return node;
  }

  // Operators of the same strength, tokens of `kind`, from left to right.
  Pointer ParseBinary(Op op, Kind kind, std::initializer_list<std::string_view> operators,
                      Pointer (Parser::*operand)()) {
    PS_ASSIGN_OR_RETURN(ExpressionPointer left, (this->*operand)());
    while (Next().kind == kind &&
           std::find(operators.begin(), operators.end(), Next().text) != operators.end()) {
      const Token token = Take();
      PS_ASSIGN_OR_RETURN(ExpressionPointer right, (this->*operand)());
      PS_ASSIGN_OR_RETURN(left, Node(op, token.line, op == Op::kBinary ? token.text : "",
                                     Args(std::move(left), std::move(right))));
    }
    return left;
  }
  Pointer ParseCalculation(std::initializer_list<std::string_view> operators,
                           Pointer (Parser::*operand)()) {
    return ParseBinary(Op::kBinary, Kind::kOperator, operators, operand);
  }
  Pointer ParseSum() { return ParseCalculation({"+", "-"}, &Parser::ParseConcatenation); }
  Pointer ParseConcatenation() { return ParseCalculation({"~"}, &Parser::ParseProduct); }
  Pointer ParseProduct() { return ParseCalculation({"*", "/", "//", "%"}, &Parser::ParsePower); }
  Pointer ParsePower() { return ParseCalculation({"**"}, &Parser::ParseFiltered); }

  // Filters and tests bind more tightly than the operators above, and less tightly than a sign.
  Pointer ParseFiltered() {
    PS_ASSIGN_OR_RETURN(ExpressionPointer value, ParseUnary());
    return ParseFilters(std::move(value));
  }

  Pointer ParseFilters(ExpressionPointer value) {
    while (true) {
      const int line = Next().line;
      if (AcceptOperator("|")) {
        PS_ASSIGN_OR_RETURN(value, ParseFilter(std::move(value)));
      } else if (IsOperator("(")) {
        PS_ASSIGN_OR_RETURN(value, WithArguments(Op::kCall, "", line, std::move(value)));
      } else if (AcceptName("is")) {
        const bool negated = AcceptName("not");
        PS_ASSIGN_OR_RETURN(value, ParseTest(std::move(value), line));
        if (negated) {
          PS_ASSIGN_OR_RETURN(value, Node(Op::kNot, line, "", Args(std::move(value))));
        }
      } else {
        return value;
      }
    }
  }

  // Jinja looks up a name inside of a condition only when it is used.
  Pointer ParseFilter(ExpressionPointer value) {
    const int line = Next().line;
    const Builtin* filter = FindFilter(Next().text);
    if (filter == nullptr && conditions_ == 0)
      return Wrong("a filter that docs/chat-templates.md lists");
    PS_ASSIGN_OR_RETURN(const std::string name, Name("the name of a filter"));
    PS_ASSIGN_OR_RETURN(ExpressionPointer node,
                        WithArguments(Op::kFilter, name, line, std::move(value)));
    node->builtin = filter;
    return node;
  }

  Pointer ParseTest(ExpressionPointer value, int line) {
    const Builtin* test = FindTest(Next().text);
    if (test == nullptr && conditions_ == 0)
      return Wrong("a test that docs/chat-templates.md lists");
    PS_ASSIGN_OR_RETURN(const std::string name, Name("the name of a test"));
    ExpressionPointer node;
    if (BeginsTestArgument()) {  // is divisibleby 3
      PS_ASSIGN_OR_RETURN(ExpressionPointer argument, ParsePostfix());
      PS_ASSIGN_OR_RETURN(node,
                          Node(Op::kTest, line, name, Args(std::move(value), std::move(argument))));
    } else {
      PS_ASSIGN_OR_RETURN(node, WithArguments(Op::kTest, name, line, std::move(value)));
    }
    node->builtin = test;
    return node;
  }
  bool BeginsTestArgument() const {
    switch (Next().kind) {
      case Kind::kString:
      case Kind::kInteger:
      case Kind::kFloat:
        return true;
      case Kind::kName: {
        static constexpr std::string_view kOthers[] = {"else", "or", "and", "if",
                                                       "is",   "in", "not"};
        return std::find(std::begin(kOthers), std::end(kOthers), Next().text) == std::end(kOthers);
      }
      default:
        return IsOperator("[") || IsOperator("{");
    }
  }

  Pointer ParseUnary() {
    const bool minus = IsOperator("-");
    if (!minus && !IsOperator("+")) return ParsePostfix();
    const Counted level(&level_);
    if (TooManyLevels()) return TooDeep(Next().line);
    const int line = Take().line;
    PS_ASSIGN_OR_RETURN(ExpressionPointer operand, ParseUnary());
    return Node(minus ? Op::kNegate : Op::kPlus, line, "", Args(std::move(operand)));
  }

  Pointer ParsePostfix() {
    PS_ASSIGN_OR_RETURN(ExpressionPointer value, ParsePrimary());
    while (true) {
      const int line = Next().line;
      if (AcceptOperator(".")) {
        if (Next().kind == Kind::kInteger) {  // an element
          PS_ASSIGN_OR_RETURN(ExpressionPointer place, ParseNumber());
          PS_ASSIGN_OR_RETURN(value,
                              Node(Op::kItem, line, "", Args(std::move(value), std::move(place))));
          continue;
        }
        PS_ASSIGN_OR_RETURN(std::string name, Name("the name of an attribute"));
        PS_ASSIGN_OR_RETURN(value,
                            Node(Op::kAttribute, line, std::move(name), Args(std::move(value))));
      } else if (AcceptOperator("[")) {
        PS_ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value), line));
      } else if (IsOperator("(")) {
        PS_ASSIGN_OR_RETURN(value, WithArguments(Op::kCall, "", line, std::move(value)));
      } else {
        return value;
      }
    }
  }

  Pointer ParseSubscript(ExpressionPointer object, int line) {
    std::vector<ExpressionPointer> parts;
    bool colon = false;
    ExpressionPointer part;
    while (!IsOperator("]")) {
      if (AcceptOperator(":")) {
        colon = true;
        parts.push_back(std::move(part));
      } else if (part != nullptr) {
        return Wrong("] or :");
      } else {
        PS_ASSIGN_OR_RETURN(part, ParseExpression());
      }
    }
    parts.push_back(std::move(part));
    PS_RETURN_IF_ERROR(Expect("]"));
    if (!colon && parts[0] == nullptr)
      return InvalidArgument("line ", line, ": expected a key between [ and ], found none");
    if (parts.size() > 3)
      return InvalidArgument("line ", line, ": expected a slice of three parts, found more");
    if (colon) parts.resize(3);
    std::vector<ExpressionPointer> args = Args(std::move(object));
    for (ExpressionPointer& one : parts) args.push_back(std::move(one));
    return Node(colon ? Op::kSlice : Op::kItem, line, "", std::move(args));
  }

  // Parses (a, name=b), if it is there; `input` becomes the first argument.
  Pointer WithArguments(Op op, std::string name, int line, ExpressionPointer input) {
    std::vector<ExpressionPointer> args = Args(std::move(input));
    std::vector<std::pair<std::string, ExpressionPointer>> named;
    if (AcceptOperator("(")) {
      while (!AcceptOperator(")")) {
        const bool is_named = Next().kind == Kind::kName && at_ + 1 < tokens_.size() &&
                              tokens_[at_ + 1].kind == Kind::kOperator &&
                              tokens_[at_ + 1].text == "=";
        std::string key;
        if (is_named) {
          key = Take().text;
          Take();
        } else if (IsOperator("*") || IsOperator("**")) {
          key = Take().text;
        }
        PS_ASSIGN_OR_RETURN(ExpressionPointer value, ParseExpression());
        if (!key.empty()) {
          named.emplace_back(std::move(key), std::move(value));
        } else if (named.empty()) {
          args.push_back(std::move(value));
        } else {
          return InvalidArgument("line ", line,
                                 ": expected named arguments at the end, found others");
        }
        if (!IsOperator(")")) PS_RETURN_IF_ERROR(Expect(","));
      }
    }
    return Node(op, line, std::move(name), std::move(args), std::move(named));
  }

  Pointer ParsePrimary() {
    const Token token = Next();
    switch (token.kind) {
      case Kind::kString:
        return ParseStrings();
      case Kind::kInteger:
      case Kind::kFloat:
        return ParseNumber();
      case Kind::kName:
        Take();
        if (token.text == "true" || token.text == "True")
          return Literal(Value::Bool(true), token.line);
        if (token.text == "false" || token.text == "False")
          return Literal(Value::Bool(false), token.line);
        if (token.text == "none" || token.text == "None")
          return Literal(Value::NoneValue(), token.line);
        return Node(Op::kName, token.line, token.text, {});
      default:
        if (AcceptOperator("[")) return ParseElements("]", {}, token.line);
        if (AcceptOperator("{")) return ParseDict(token.line);
        if (AcceptOperator("(")) return ParseParentheses(token.line);
        return Wrong("an expression");
    }
  }

  Pointer ParseStrings() {
    const int line = Next().line;
    std::string text;
    while (Next().kind == Kind::kString) text += Take().text;
    return Literal(Value::TemplateString(text), line);
  }

  Pointer ParseNumber() {
    const Token token = Take();
    const char* const end = token.text.data() + token.text.size();
    if (token.kind == Kind::kFloat) {
      double value = 0;
      if (std::from_chars(token.text.data(), end, value).ec != std::errc())
        return InvalidArgument("line ", token.line, ": expected a number of 64 bits, found ",
                               token.text);
      return Literal(Value::Float(value), token.line);
    }
    const char letter = token.text.size() > 2 ? static_cast<char>(token.text[1] | 0x20) : '\0';
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    int64_t value = 0;
    if (std::from_chars(token.text.data() + (base == 10 ? 0 : 2), end, value, base).ec !=
        std::errc())
      return InvalidArgument("line ", token.line, ": expected an integer of 64 bits, found ",
                             token.text);
    return Literal(Value::Int(value), token.line);
  }

  // A list, or a tuple.
  Pointer ParseElements(std::string_view close, std::vector<ExpressionPointer> elements, int line) {
    while (!AcceptOperator(close)) {
      PS_ASSIGN_OR_RETURN(ExpressionPointer element, ParseExpression());
      elements.push_back(std::move(element));
      if (!IsOperator(close)) PS_RETURN_IF_ERROR(Expect(","));
    }
    return Node(close == "]" ? Op::kList : Op::kTuple, line, "", std::move(elements));
  }

  Pointer ParseParentheses(int line) {
    if (IsOperator(")")) return ParseElements(")", {}, line);
    PS_ASSIGN_OR_RETURN(ExpressionPointer first, ParseExpression());
    if (AcceptOperator(")")) return first;
    PS_RETURN_IF_ERROR(Expect(","));
    return ParseElements(")", Args(std::move(first)), line);
  }

  Pointer ParseDict(int line) {
    std::vector<ExpressionPointer> args;
    while (!AcceptOperator("}")) {
      PS_ASSIGN_OR_RETURN(ExpressionPointer key, ParseExpression());
      PS_RETURN_IF_ERROR(Expect(":"));
      PS_ASSIGN_OR_RETURN(ExpressionPointer value, ParseExpression());
      args.push_back(std::move(key));
      args.push_back(std::move(value));
      if (!IsOperator("}")) PS_RETURN_IF_ERROR(Expect(","));
    }
    return Node(Op::kDict, line, "", std::move(args));
  }

  // --- statements ---
  // Parses up to a tag of one of these names, which it takes; "" without names at the end of the
  // template.
  Status ParseBlock(std::initializer_list<std::string_view> ends, Block* block,
                    std::string* end = nullptr) {
    const Counted level(&level_);
    if (TooManyLevels()) return TooDeep(Next().line);
    while (Next().kind != Kind::kEnd) {
      const Token token = Take();
      if (token.kind == Kind::kText) {
        New(Action::kText, token.line, block)->text = token.text;
        continue;
      }
      if (token.kind == Kind::kOutputBegin) {
        Statement* const output = New(Action::kOutput, token.line, block);
        PS_ASSIGN_OR_RETURN(output->expression, ParseTuple());
        if (Next().kind != Kind::kOutputEnd) return Wrong("}}");
        Take();
        continue;
      }
      if (Next().kind == Kind::kName &&
          std::find(ends.begin(), ends.end(), Next().text) != ends.end()) {
        *end = Take().text;
        return Status();
      }
      PS_RETURN_IF_ERROR(ParseTag(block));
    }
    return ends.size() == 0 ? Status() : Wrong(StrCat("{% ", *(ends.end() - 1), " %}"));
  }

  static Statement* New(Action action, int line, Block* block) {
    block->push_back(std::make_unique<Statement>());
    block->back()->action = action;
    block->back()->line = line;
    return block->back().get();
  }

  Status ParseTag(Block* block) {
    const int line = Next().line;
    if (AcceptName("if")) return ParseIf(New(Action::kIf, line, block));
    if (AcceptName("for")) return ParseFor(New(Action::kFor, line, block));
    if (AcceptName("set")) return ParseSet(New(Action::kSet, line, block));
    if (AcceptName("macro")) return ParseMacro(New(Action::kMacro, line, block));
    // Marks the text of the assistant, for training: a scope of its own.
    if (AcceptName("generation"))
      return ParseScope("endgeneration", New(Action::kScope, line, block));
    if (AcceptName("with")) return ParseWith(New(Action::kScope, line, block));
    if (AcceptName("filter")) {
      Statement* const statement = New(Action::kFilterBlock, line, block);
      PS_ASSIGN_OR_RETURN(statement->expression, ParseFilter(Captured(line)));
      PS_ASSIGN_OR_RETURN(statement->expression, ParseFilters(std::move(statement->expression)));
      return ParseScope("endfilter", statement);
    }
    const bool breaks = IsName("break");
    if (!breaks && !IsName("continue"))
      return Wrong("if, for, set, macro, break, continue, with, filter or generation");
    if (loops_ == 0) return Wrong("a loop around it");
    Take();
    New(breaks ? Action::kBreak : Action::kContinue, line, block);
    return TagEnd();
  }

  // The body up to the tag `name`.
  Status ParseScope(std::string_view name, Statement* statement) {
    PS_RETURN_IF_ERROR(TagEnd());
    std::string end;
    PS_RETURN_IF_ERROR(ParseBlock({name}, &statement->body, &end));
    return TagEnd();
  }
  // What a block has written, to be filtered.
  static ExpressionPointer Captured(int line) {
    auto node = std::make_unique<Expression>();
    node->op = Op::kCaptured;
    node->line = line;
    return node;
  }

  // with a = 1, b = 2: each value is that of the names outside.
  Status ParseWith(Statement* statement) {
    while (Next().kind == Kind::kName) {
      statement->targets.push_back(Take().text);
      PS_RETURN_IF_ERROR(Expect("="));
      PS_ASSIGN_OR_RETURN(ExpressionPointer value, ParseExpression());
      statement->values.push_back(std::move(value));
      if (!AcceptOperator(",")) break;
    }
    return ParseScope("endwith", statement);
  }

  Status ParseIf(Statement* statement) {
    const Counted level(&level_);
    if (TooManyLevels()) return TooDeep(statement->line);
    const Counted inside(&conditions_);
    PS_ASSIGN_OR_RETURN(statement->expression, ParseTuple());
    PS_RETURN_IF_ERROR(TagEnd());
    std::string end;
    PS_RETURN_IF_ERROR(ParseBlock({"elif", "else", "endif"}, &statement->body, &end));
    if (end == "elif") return ParseIf(New(Action::kIf, Next().line, &statement->otherwise));
    PS_RETURN_IF_ERROR(TagEnd());
    if (end == "endif") return Status();
    PS_RETURN_IF_ERROR(ParseBlock({"endif"}, &statement->otherwise, &end));
    return TagEnd();
  }

  Status ParseTargets(Statement* statement) {
    const bool parentheses = AcceptOperator("(");
    do {
      PS_ASSIGN_OR_RETURN(std::string name, Name("a name"));
      if (AcceptOperator(".")) {
        PS_ASSIGN_OR_RETURN(const std::string field, Name("the name of a field"));
        name += "." + field;
      }
      statement->targets.push_back(std::move(name));
    } while (AcceptOperator(","));
    return parentheses ? Expect(")") : Status();
  }

  Status ParseFor(Statement* statement) {
    PS_RETURN_IF_ERROR(ParseTargets(statement));
    if (!AcceptName("in")) return Wrong("in");
    // `if` is the condition of the loop.
    PS_ASSIGN_OR_RETURN(statement->expression, ParseTuple(&Parser::ParseOr));
    if (AcceptName("if")) {
      PS_ASSIGN_OR_RETURN(statement->condition, ParseExpression());
    }
    PS_RETURN_IF_ERROR(TagEnd());
    std::string end;
    {
      const Counted inside(&loops_);
      PS_RETURN_IF_ERROR(ParseBlock({"else", "endfor"}, &statement->body, &end));
    }
    PS_RETURN_IF_ERROR(TagEnd());
    if (end == "endfor") return Status();
    PS_RETURN_IF_ERROR(ParseBlock({"endfor"}, &statement->otherwise, &end));
    return TagEnd();
  }

  Status ParseSet(Statement* statement) {
    PS_RETURN_IF_ERROR(ParseTargets(statement));
    if (AcceptOperator("=")) {
      PS_ASSIGN_OR_RETURN(statement->expression, ParseTuple());
      return TagEnd();
    }
    if (statement->targets.size() != 1 || (Next().kind != Kind::kTagEnd && !IsOperator("|")))
      return Wrong("=");
    statement->action = Action::kSetBlock;
    PS_ASSIGN_OR_RETURN(statement->expression, ParseFilters(Captured(statement->line)));
    return ParseScope("endset", statement);
  }

  Status ParseMacro(Statement* statement) {
    Macro& macro = statement->macro;
    PS_ASSIGN_OR_RETURN(macro.name, Name("the name of a macro"));
    PS_RETURN_IF_ERROR(Expect("("));
    while (!AcceptOperator(")")) {
      PS_ASSIGN_OR_RETURN(std::string name, Name("the name of a parameter"));
      ExpressionPointer value;
      if (AcceptOperator("=")) {
        PS_ASSIGN_OR_RETURN(value, ParseExpression());
      }
      macro.parameters.emplace_back(std::move(name), std::move(value));
      if (!IsOperator(")")) PS_RETURN_IF_ERROR(Expect(","));
    }
    PS_RETURN_IF_ERROR(TagEnd());
    std::string end;
    const int loops = std::exchange(loops_, 0);
    PS_RETURN_IF_ERROR(ParseBlock({"endmacro"}, &macro.body, &end));
    loops_ = loops;
    return TagEnd();
  }

  // An expression, or several with commas between them.
  Pointer ParseTuple(Pointer (Parser::*parse)() = &Parser::ParseExpression) {
    PS_ASSIGN_OR_RETURN(ExpressionPointer first, (this->*parse)());
    if (!IsOperator(",")) return first;
    const int line = Next().line;
    std::vector<ExpressionPointer> elements = Args(std::move(first));
    while (AcceptOperator(",")) {
      if (Next().kind == Kind::kTagEnd || Next().kind == Kind::kOutputEnd) break;
      PS_ASSIGN_OR_RETURN(ExpressionPointer element, (this->*parse)());
      elements.push_back(std::move(element));
    }
    return Node(Op::kTuple, line, "", std::move(elements));
  }

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;
  int conditions_ = 0;
};

}  // namespace

Result<Block> ParseTemplate(std::string_view text) {
  PS_ASSIGN_OR_RETURN(std::vector<Token> tokens, SplitTemplate(text));
  return Parser(std::move(tokens)).Run();
}

}  // namespace polysketch::chat
