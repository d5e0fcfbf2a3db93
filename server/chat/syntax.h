// The syntax tree of a chat template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/chat/value.h"

namespace polysketch::chat {

struct Builtin;  // server/chat/builtins.h

// Nesting of expressions and statements. A deeper template is refused, so that the interpreter
// needs little stack.
inline constexpr int kMaxSyntaxDepth = 100;

enum class Op {
  kLiteral,    // value
  kName,       // name
  kList,       // args
  kTuple,      // args
  kDict,       // args: key, value, key, value
  kAttribute,  // args: object; name
  kItem,       // args: object, key
  kSlice,      // args: object, begin, end, step; a missing one is null
  kCall,       // args: callee, arguments; named
  kFilter,     // args: input, arguments; name, named, builtin
  kTest,       // args: input, arguments; name, named, builtin
  kCaptured,   // what the block has written that a filter follows
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kIf,       // args: condition, then, else (null: undefined)
  kCompare,  // args: a, b, c; operators: of a and b, of b and c, "in" and "not in" included
  kBinary,   // args: left, right; name: the operator
};

struct Expression;
using ExpressionPointer = std::unique_ptr<Expression>;

struct Expression {
  Op op = Op::kLiteral;
  int line = 0;
  int depth = 1;  // of the tree
  std::string name;
  Value value;
  std::vector<ExpressionPointer> args;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
  std::vector<std::string> operators;
  const Builtin* builtin = nullptr;  // null: the language has none of that name
};

enum class Action {
  kText,
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kFilterBlock,
  kScope,
  kMacro,
  kBreak,
  kContinue
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

// macro NAME(parameters): body.
struct Macro {
  std::string name;
  // A null default: the parameter is undefined unless the call gives it.
  std::vector<std::pair<std::string, ExpressionPointer>> parameters;
  Block body;
};

struct Statement {
  Action action = Action::kText;
  int line = 0;
  std::string text;  // kText
  // kFor, kSet, kScope: names; of kSet "ns.field" for a field of a namespace.
  std::vector<std::string> targets;
  // kOutput, kSet: the value; kFor: the values; kIf: the condition; kSetBlock, kFilterBlock: what
  // becomes of the text of the body. kFor: the condition, or null.
  ExpressionPointer expression, condition;
  std::vector<ExpressionPointer> values;  // kScope: of the targets
  Block body, otherwise;                  // of kIf: {% elif %} is an if in `otherwise`
  Macro macro;                            // kMacro
};

// INVALID_ARGUMENT: "line 3: expected ..., found ...".
Result<Block> ParseTemplate(std::string_view text);

// --- for the parser ---

struct Token {
  enum class Kind {
    kText,
    kOutputBegin,
    kOutputEnd,
    kTagBegin,
    kTagEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // of a string: its value
  int line = 0;
};

// Splits a template, with Hugging Face's settings: trim_blocks and lstrip_blocks. The last token is
// kEnd.
Result<std::vector<Token>> SplitTemplate(std::string_view text);

}  // namespace polysketch::chat
