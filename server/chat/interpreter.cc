#include "server/chat/interpreter.h"

#include <algorithm>
#include <map>

#include "server/chat/builtins.h"
#include "server/chat/operators.h"

namespace polysketch::chat {
namespace {

// Expressions and statements inside each other, calls of macros included. All of them take less
// than 1 MiB of stack; AddressSanitizer takes several times as much.
constexpr int kMaxDepth = 250;

enum class Flow { kNext, kBreak, kContinue };

struct Scope {
  std::map<std::string, Value> names;  // they come from requests: no choice of them makes it slow
  uint32_t number = 0;                 // no other scope of the rendering has it
};

class Interpreter {
 public:
  Interpreter(const Dict& variables, HoldMemory hold) : budget_(std::move(hold)) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables.entries()) scopes_[0].names[name] = value;
  }

  Result<MarkedText> Run(const Block& block) {
    PS_RETURN_IF_ERROR(Execute(block).status());
    return std::move(output_);
  }

 private:
  class Level {
   public:
    explicit Level(int* level) : level_(level) { ++*level_; }
    ~Level() { --*level_; }

   private:
    int* const level_;
  };
  Status CheckDepth(int line) const {
    if (level_ <= kMaxDepth) return Status();
    return InvalidArgument("line ", line, ": expected nesting of at most ", kMaxDepth,
                           " with calls of macros, found more");
  }
  // Names the line of an error, once.
  static Status At(int line, const Status& status) {
    if (status.ok() || status.code() == Code::kResourceExhausted ||
        status.message().starts_with("line ") || status.message().starts_with("the template "))
      return status;
    return Status(status.code(), StrCat("line ", line, ": ", status.message()));
  }
  template <typename T>
  static Result<T> At(int line, Result<T> result) {
    if (result.ok()) return result;
    return At(line, result.status());
  }

  // --- names ---
  void OpenScope() { scopes_.push_back({.names = {}, .number = ++scope_numbers_}); }
  const Value* Find(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->names.find(name); found != scope->names.end())
        return &found->second;
    }
    return nullptr;
  }
  Status Assign(const std::string& target, Value value) {
    const size_t dot = target.find('.');
    if (dot == target.npos) {
      scopes_.back().names[target] = std::move(value);
      return Status();
    }
    const Value* object = Find(target.substr(0, dot));
    if (object == nullptr || !object->is_namespace())
      return InvalidArgument("expected a namespace in ", target.substr(0, dot), ", found ",
                             object == nullptr ? "none" : object->TypeName());
    // It could hold itself.
    if (value.changes())
      return InvalidArgument("expected no namespace inside a namespace, found one");
    object->fields()->Set(target.substr(dot + 1), std::move(value));
    return Status();
  }
  // Assigns one value to one target, or the elements of a value to several.
  Status AssignAll(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) return Assign(targets[0], value);
    PS_ASSIGN_OR_RETURN(const List elements, Elements(value, &budget_));
    if (elements.size() != targets.size())
      return InvalidArgument("expected a list of ", targets.size(), " values, found ",
                             elements.size());
    for (size_t i = 0; i < targets.size(); ++i) PS_RETURN_IF_ERROR(Assign(targets[i], elements[i]));
    return Status();
  }

  // --- statements ---
  Result<Flow> Execute(const Block& block) {
    for (const auto& statement : block) {
      PS_ASSIGN_OR_RETURN(const Flow flow, At(statement->line, Execute(*statement)));
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Status Write(const MarkedText& text) {
    PS_RETURN_IF_ERROR(budget_.Spend(text.size()));
    if (output_.size() + text.size() > kMaxOutputBytes)
      return InvalidArgument("expected a prompt of at most ", kMaxOutputBytes,
                             " bytes, found more");
    output_.Append(text);
    return Status();
  }

  Result<Flow> Execute(const Statement& statement) {
    const Level level(&level_);
    PS_RETURN_IF_ERROR(CheckDepth(statement.line));
    PS_RETURN_IF_ERROR(budget_.Step());
    switch (statement.action) {
      case Action::kText:
        PS_RETURN_IF_ERROR(Write(MarkedText(statement.text, TextOrigin::kTemplate)));
        return Flow::kNext;
      case Action::kOutput: {
        PS_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
        if (value.string()) {
          PS_RETURN_IF_ERROR(Write(value.AsText()));
          return Flow::kNext;
        }
        PS_ASSIGN_OR_RETURN(const MarkedText text, TextOf(value, &budget_));
        PS_RETURN_IF_ERROR(Write(text));
        return Flow::kNext;
      }
      case Action::kIf: {
        PS_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.expression));
        return Execute(condition.Truth() ? statement.body : statement.otherwise);
      }
      case Action::kFor:
        return ExecuteFor(statement);
      case Action::kSet: {
        PS_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression));
        PS_RETURN_IF_ERROR(AssignAll(statement.targets, value));
        return Flow::kNext;
      }
      case Action::kSetBlock: {
        PS_ASSIGN_OR_RETURN(Value text, FilteredBody(statement));
        PS_RETURN_IF_ERROR(Assign(statement.targets[0], std::move(text)));
        return Flow::kNext;
      }
      case Action::kFilterBlock: {
        PS_ASSIGN_OR_RETURN(const Value value, FilteredBody(statement));
        PS_ASSIGN_OR_RETURN(const MarkedText text, TextOf(value, &budget_));
        PS_RETURN_IF_ERROR(Write(text));
        return Flow::kNext;
      }
      case Action::kScope:
        return ExecuteScope(statement);
      case Action::kMacro:
        PS_RETURN_IF_ERROR(Assign(statement.macro.name,
                                  Value::OfMacro({.macro = &statement.macro,
                                                  .scopes = static_cast<uint32_t>(scopes_.size()),
                                                  .scope = scopes_.back().number})));
        return Flow::kNext;
      case Action::kBreak:
        return Flow::kBreak;
      case Action::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  // What a block writes, in a scope of its own.
  Result<MarkedText> Captured(const Block& block) {
    MarkedText outer = std::exchange(output_, MarkedText());
    OpenScope();
    const Status status = Execute(block).status();
    scopes_.pop_back();
    MarkedText text = std::exchange(output_, std::move(outer));
    PS_RETURN_IF_ERROR(status);
    return text;
  }

  // The text of a body, through the filters after its tag.
  Result<Value> FilteredBody(const Statement& statement) {
    PS_ASSIGN_OR_RETURN(MarkedText text, Captured(statement.body));
    captured_ = Value::String(std::move(text));
    return Evaluate(*statement.expression);
  }

  Result<Flow> ExecuteScope(const Statement& statement) {
    std::map<std::string, Value> names;
    for (size_t i = 0; i < statement.values.size(); ++i) {
      PS_ASSIGN_OR_RETURN(names[statement.targets[i]], Evaluate(*statement.values[i]));
    }
    OpenScope();
    scopes_.back().names = std::move(names);
    Result<Flow> flow = Execute(statement.body);
    scopes_.pop_back();
    return flow;
  }

  Result<Flow> ExecuteFor(const Statement& statement) {
    PS_ASSIGN_OR_RETURN(const Value values, Evaluate(*statement.expression));
    PS_ASSIGN_OR_RETURN(List elements, Elements(values, &budget_));
    OpenScope();
    const Result<bool> completed = ExecuteLoop(statement, &elements);
    scopes_.back().names.clear();
    Result<Flow> flow = completed.ok() ? Result<Flow>(Flow::kNext) : completed.status();
    if (completed.ok() && !*completed) flow = Execute(statement.otherwise);
    scopes_.pop_back();
    return flow;
  }

  // Removes the elements that the condition of the loop excludes.
  Status Choose(const Statement& statement, List* elements) {
    if (statement.condition == nullptr) return Status();
    List chosen;
    for (const Value& element : *elements) {
      PS_RETURN_IF_ERROR(budget_.Step());
      PS_RETURN_IF_ERROR(AssignAll(statement.targets, element));
      PS_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.condition));
      if (condition.Truth()) chosen.push_back(element);
    }
    *elements = std::move(chosen);
    return Status();
  }

  // Returns whether an iteration reached the end of the body: as in Jinja, `break` and `continue`
  // do not.
  Result<bool> ExecuteLoop(const Statement& statement, List* elements) {
    PS_RETURN_IF_ERROR(Choose(statement, elements));
    PS_RETURN_IF_ERROR(budget_.Spend(elements->size(), Budget::kElement));
    const auto shared = std::make_shared<const List>(*elements);
    bool completed = false;
    for (size_t i = 0; i < shared->size(); ++i) {
      PS_RETURN_IF_ERROR(budget_.Step());
      scopes_.back().names.clear();
      scopes_.back().names["loop"] = Value::NewLoop({.elements = shared, .index = i});
      PS_RETURN_IF_ERROR(AssignAll(statement.targets, (*shared)[i]));
      PS_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body));
      if (flow == Flow::kBreak) break;
      completed = completed || flow == Flow::kNext;
    }
    return completed;
  }

  // --- expressions ---
  Result<Value> Evaluate(const Expression& expression) {
    const Level level(&level_);
    PS_RETURN_IF_ERROR(CheckDepth(expression.line));
    PS_RETURN_IF_ERROR(budget_.Step());
    return At(expression.line, EvaluateOp(expression));
  }

  Result<Value> EvaluateOp(const Expression& expression) {
    switch (expression.op) {
      case Op::kLiteral:
        return expression.value;
      case Op::kName:
        return EvaluateName(expression.name);
      case Op::kList:
      case Op::kTuple:
        return EvaluateList(expression);
      case Op::kDict:
        return EvaluateDict(expression);
      case Op::kAttribute: {
        PS_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.args[0]));
        return Attribute(object, expression.name);
      }
      case Op::kItem: {
        PS_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.args[0]));
        PS_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.args[1]));
        return Item(object, key, &budget_);
      }
      case Op::kSlice:
        return EvaluateSlice(expression);
      case Op::kCall:
        return EvaluateCall(expression);
      case Op::kFilter:
      case Op::kTest:
        return EvaluateFilter(expression);
      case Op::kCaptured:
        return captured_;
      case Op::kNot:
      case Op::kNegate:
      case Op::kPlus:
        return EvaluateUnary(expression);
      case Op::kAnd:
      case Op::kOr:
      case Op::kIf:
        return EvaluateChoice(expression);
      case Op::kCompare:
        return EvaluateComparisons(expression);
      case Op::kBinary: {
        PS_ASSIGN_OR_RETURN(const Value left, Evaluate(*expression.args[0]));
        PS_ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.args[1]));
        return Calculate(expression.name, left, right, &budget_);
      }
    }
    return Value();
  }

  Result<Value> EvaluateName(const std::string& name) {
    PS_RETURN_IF_ERROR(budget_.Spend(scopes_.size(), Budget::kElement));
    if (const Value* value = Find(name)) return *value;
    if (const Builtin* function = FindFunction(name)) return Value::OfFunction(function->name);
    return Value::Missing(name);
  }

  Result<Value> EvaluateList(const Expression& expression) {
    List list;
    for (const ExpressionPointer& arg : expression.args) {
      PS_ASSIGN_OR_RETURN(Value value, Evaluate(*arg));
      list.push_back(std::move(value));
    }
    return Value::FromList(std::move(list),
                           expression.op == Op::kTuple ? ListKind::kTuple : ListKind::kList);
  }

  Result<Value> EvaluateDict(const Expression& expression) {
    Dict dict;
    for (size_t i = 0; i < expression.args.size(); i += 2) {
      PS_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.args[i]));
      PS_ASSIGN_OR_RETURN(const std::string name, KeyOf(key));
      PS_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.args[i + 1]));
      dict.Set(name, std::move(value));
    }
    return Value::FromDict(std::move(dict));
  }

  Result<Value> EvaluateUnary(const Expression& expression) {
    PS_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.args[0]));
    if (expression.op == Op::kNot) return Value::Bool(!value.Truth());
    const bool minus = expression.op == Op::kNegate;
    if (value.floating()) return Value::Float(minus ? -value.AsDouble() : value.AsDouble());
    if (!value.number() || value.AsInt() == INT64_MIN)
      return InvalidArgument(minus ? "-" : "+", ": expected a number, found ", value.TypeName());
    return Value::Int(minus ? -value.AsInt() : value.AsInt());
  }

  // and, or, if: the parts that do not count are not evaluated.
  Result<Value> EvaluateChoice(const Expression& expression) {
    PS_ASSIGN_OR_RETURN(Value first, Evaluate(*expression.args[0]));
    const bool truth = first.Truth();
    if (expression.op == Op::kAnd && !truth) return first;
    if (expression.op == Op::kOr && truth) return first;
    if (expression.op != Op::kIf || truth) return Evaluate(*expression.args[1]);
    const bool has_else = expression.args.size() > 2 && expression.args[2] != nullptr;
    if (!has_else) return Value::Missing("the if without else");
    return Evaluate(*expression.args[2]);
  }

  // a < b < c: up to the first that is false.
  Result<Value> EvaluateComparisons(const Expression& expression) {
    PS_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.args[0]));
    for (size_t i = 0; i < expression.operators.size(); ++i) {
      PS_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.args[i + 1]));
      PS_ASSIGN_OR_RETURN(const bool truth,
                          Compare(expression.operators[i], left, right, &budget_));
      if (!truth) return Value::Bool(false);
      left = std::move(right);
    }
    return Value::Bool(true);
  }

  Result<Value> EvaluateSlice(const Expression& expression) {
    Value parts[4];
    for (size_t i = 0; i < 4; ++i) {
      if (expression.args[i] == nullptr) continue;
      PS_ASSIGN_OR_RETURN(parts[i], Evaluate(*expression.args[i]));
    }
    return SliceOf(parts[0], parts[1], parts[2], parts[3], &budget_);
  }

  // The arguments after the first of args, which is the input or the callee.
  Result<Arguments> EvaluateArguments(const Expression& expression) {
    Arguments arguments;
    for (size_t i = 1; i < expression.args.size(); ++i) {
      PS_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.args[i]));
      arguments.positional.push_back(std::move(value));
    }
    for (const auto& [name, arg] : expression.named) {
      PS_ASSIGN_OR_RETURN(Value value, Evaluate(*arg));
      if (name == "*") {
        PS_ASSIGN_OR_RETURN(const List more, Elements(value, &budget_));
        arguments.positional.insert(arguments.positional.end(), more.begin(), more.end());
        continue;
      }
      if (name == "**") {
        if (!value.dict()) return InvalidArgument("**: expected a dict, found ", value.TypeName());
        PS_RETURN_IF_ERROR(budget_.Spend(value.AsDict().entries().size(), Budget::kText));
        for (const auto& entry : value.AsDict().entries()) arguments.named.push_back(entry);
        continue;
      }
      arguments.named.emplace_back(name, std::move(value));
    }
    return arguments;
  }

  Result<Value> EvaluateFilter(const Expression& expression) {
    PS_ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.args[0]));
    PS_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
    if (expression.builtin == nullptr)
      return InvalidArgument("expected a ", expression.op == Op::kFilter ? "filter" : "test",
                             " that docs/chat-templates.md lists, found ", expression.name);
    return RunBuiltin(*expression.builtin, input, arguments, &budget_);
  }

  Result<Value> EvaluateCall(const Expression& expression) {
    const Expression& callee = *expression.args[0];
    if (callee.op != Op::kAttribute) {
      PS_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
      PS_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
      return CallValue(function, arguments);
    }
    PS_ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.args[0]));
    PS_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
    if (const Builtin* method = FindMethod(object, callee.name))
      return RunBuiltin(*method, object, arguments, &budget_);
    PS_ASSIGN_OR_RETURN(const Value function, Attribute(object, callee.name));
    if (function.callable()) return CallValue(function, arguments);
    return InvalidArgument("expected a method that docs/chat-templates.md lists, found ",
                           callee.name, " of ", object.TypeName());
  }

  Result<Value> CallValue(const Value& function, const Arguments& arguments) {
    if (function.AsMacro().macro != nullptr) return CallMacro(function.AsMacro(), arguments);
    if (const Value* object = function.method_object())
      return RunBuiltin(*FindMethod(*object, function.method_name()), *object, arguments, &budget_);
    if (function.callable())
      return RunBuiltin(*FindFunction(function.AsFunction()), Value(), arguments, &budget_);
    if (function.undefined())
      return InvalidArgument("expected a function that docs/chat-templates.md lists, found ",
                             function.missing_name());
    return InvalidArgument("expected a function, found ", function.TypeName());
  }

  // A macro sees its parameters and the names around its definition.
  Result<Value> CallMacro(const Value::MacroHere& called, const Arguments& arguments) {
    const Macro& macro = *called.macro;
    if (called.scopes > scopes_.size() || scopes_[called.scopes - 1].number != called.scope)
      return InvalidArgument(macro.name, ": expected a call in the block that defines the macro, ",
                             "found one outside of it");
    if (arguments.positional.size() > macro.parameters.size())
      return InvalidArgument(macro.name, ": expected at most ", macro.parameters.size(),
                             " arguments, found ", arguments.positional.size());
    for (const auto& [key, given] : arguments.named) {
      const auto same = [&key = key](const auto& parameter) { return parameter.first == key; };
      const auto found = std::find_if(macro.parameters.begin(), macro.parameters.end(), same);
      if (found == macro.parameters.end())
        return InvalidArgument(macro.name, ": expected arguments that it has, found ", key);
      if (found - macro.parameters.begin() < std::ssize(arguments.positional))
        return InvalidArgument(macro.name, ": expected ", key, " once, found it twice");
    }
    std::vector<Scope> caller(std::make_move_iterator(scopes_.begin() + called.scopes),
                              std::make_move_iterator(scopes_.end()));
    scopes_.resize(called.scopes);
    OpenScope();
    Status status = BindParameters(macro, arguments);
    MarkedText text;
    if (status.ok()) {
      Result<MarkedText> written = Captured(macro.body);
      status = written.status();
      if (written.ok()) text = *std::move(written);
    }
    scopes_.resize(called.scopes);
    std::move(caller.begin(), caller.end(), std::back_inserter(scopes_));
    PS_RETURN_IF_ERROR(status);
    return Value::String(std::move(text));
  }

  // The parameters in the scope of the macro. Their defaults may name the ones before them.
  Status BindParameters(const Macro& macro, const Arguments& arguments) {
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, missing] = macro.parameters[i];
      Value value = Value::Missing(name);
      const auto named =
          std::find_if(arguments.named.begin(), arguments.named.end(),
                       [&name = name](const auto& argument) { return argument.first == name; });
      if (i < arguments.positional.size()) {
        value = arguments.positional[i];
      } else if (named != arguments.named.end()) {
        value = named->second;
      } else if (missing != nullptr) {
        PS_ASSIGN_OR_RETURN(value, Evaluate(*missing));
      }
      scopes_.back().names[name] = std::move(value);
    }
    return Status();
  }

  std::vector<Scope> scopes_;
  uint32_t scope_numbers_ = 0;  // the last one; a rendering has at most Budget::kSteps
  MarkedText output_;
  Budget budget_;
  Value captured_;
  int level_ = 0;
};

}  // namespace

Result<MarkedText> Render(const Block& block, const Dict& variables, HoldMemory hold) {
  return Interpreter(variables, std::move(hold)).Run(block);
}

}  // namespace polysketch::chat
