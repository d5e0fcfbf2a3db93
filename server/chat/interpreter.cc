#include "server/chat/interpreter.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "server/chat/builtins.h"

namespace polysketch::chat {
namespace {

// Expressions and statements inside each other, calls of macros included. All of them take less than
// 1 MiB of stack; AddressSanitizer takes several times as much.
constexpr int kMaxDepth = 250;

enum class Flow { kNext, kBreak, kContinue };

using Scope = std::unordered_map<std::string, Value>;

class Interpreter {
 public:
  explicit Interpreter(const Dict& variables) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables.entries()) scopes_[0][name] = value;
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
    if (status.ok() || status.message().starts_with("line ") ||
        status.message().starts_with("the template "))
      return status;
    return Status(status.code(), StrCat("line ", line, ": ", status.message()));
  }
  template <typename T>
  static Result<T> At(int line, Result<T> result) {
    if (result.ok()) return result;
    return At(line, result.status());
  }

  // --- names ---
  const Value* Find(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    }
    return nullptr;
  }
  Status Assign(const std::string& target, Value value) {
    const size_t dot = target.find('.');
    if (dot == target.npos) {
      scopes_.back()[target] = std::move(value);
      return Status();
    }
    const Value* object = Find(target.substr(0, dot));
    if (object == nullptr || !object->is_namespace())
      return InvalidArgument("expected a namespace in ", target.substr(0, dot), ", found ",
                             object == nullptr ? "none" : object->TypeName());
    if (value.is_namespace())
      return InvalidArgument("expected no namespace inside a namespace, found one");
    object->fields()->Set(target.substr(dot + 1), std::move(value));
    return Status();
  }
  // Assigns one value to one target, or the elements of a list to several.
  Status AssignAll(const std::vector<std::string>& targets, const Value& value) {
    if (targets.size() == 1) return Assign(targets[0], value);
    if (!value.list() || value.AsList().size() != targets.size())
      return InvalidArgument("expected a list of ", targets.size(), " values, found ",
                             value.list() ? "one of another size" : value.TypeName());
    for (size_t i = 0; i < targets.size(); ++i)
      PS_RETURN_IF_ERROR(Assign(targets[i], value.AsList()[i]));
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
        PS_RETURN_IF_ERROR(budget_.Spend(value.weight()));
        PS_RETURN_IF_ERROR(Write(value.ToText()));
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
        PS_ASSIGN_OR_RETURN(MarkedText text, Captured(statement.body));
        PS_RETURN_IF_ERROR(Assign(statement.targets[0], Value::String(std::move(text))));
        return Flow::kNext;
      }
      case Action::kMacro:
        PS_RETURN_IF_ERROR(Assign(statement.macro.name, Value::OfMacro(&statement.macro)));
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
    scopes_.emplace_back();
    const Status status = Execute(block).status();
    scopes_.pop_back();
    MarkedText text = std::exchange(output_, std::move(outer));
    PS_RETURN_IF_ERROR(status);
    return text;
  }

  Result<Flow> ExecuteFor(const Statement& statement) {
    PS_ASSIGN_OR_RETURN(const Value values, Evaluate(*statement.expression));
    PS_ASSIGN_OR_RETURN(List elements, Elements(values, &budget_));
    scopes_.emplace_back();
    Result<Flow> flow = ExecuteLoop(statement, &elements);
    scopes_.pop_back();
    if (!flow.ok() || !elements.empty()) return flow;
    return Execute(statement.otherwise);
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

  Result<Flow> ExecuteLoop(const Statement& statement, List* elements) {
    PS_RETURN_IF_ERROR(Choose(statement, elements));
    for (size_t i = 0; i < elements->size(); ++i) {
      PS_RETURN_IF_ERROR(budget_.Step());
      scopes_.back().clear();
      PS_ASSIGN_OR_RETURN(Value loop, LoopState(*elements, i));
      scopes_.back()["loop"] = std::move(loop);
      PS_RETURN_IF_ERROR(AssignAll(statement.targets, (*elements)[i]));
      PS_ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body));
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  static Result<Value> LoopState(const List& elements, size_t i) {
    const auto index = static_cast<int64_t>(i);
    const auto length = static_cast<int64_t>(elements.size());
    Dict loop;
    loop.Set("index", Value::Int(index + 1));
    loop.Set("index0", Value::Int(index));
    loop.Set("revindex", Value::Int(length - index));
    loop.Set("revindex0", Value::Int(length - index - 1));
    loop.Set("first", Value::Bool(i == 0));
    loop.Set("last", Value::Bool(i + 1 == elements.size()));
    loop.Set("length", Value::Int(length));
    if (i > 0) loop.Set("previtem", elements[i - 1]);
    if (i + 1 < elements.size()) loop.Set("nextitem", elements[i + 1]);
    return Value::FromDict(std::move(loop));
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
        return EvaluateList(expression);
      case Op::kDict:
        return EvaluateDict(expression);
      case Op::kAttribute:
      case Op::kItem:
        return EvaluateItem(expression);
      case Op::kSlice:
        return EvaluateSlice(expression);
      case Op::kCall:
        return EvaluateCall(expression);
      case Op::kFilter:
      case Op::kTest:
        return EvaluateFilter(expression);
      case Op::kNot:
      case Op::kNegate:
        return EvaluateUnary(expression);
      case Op::kAnd:
      case Op::kOr:
      case Op::kIf:
        return EvaluateChoice(expression);
      case Op::kCompare:
      case Op::kBinary: {
        PS_ASSIGN_OR_RETURN(const Value left, Evaluate(*expression.args[0]));
        PS_ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.args[1]));
        return expression.op == Op::kCompare ? Compare(expression.name, left, right)
                                             : Calculate(expression.name, left, right);
      }
    }
    return Value();
  }

  Result<Value> EvaluateName(const std::string& name) const {
    if (const Value* value = Find(name)) return *value;
    for (const std::string_view function :
         {"raise_exception", "range", "namespace", "strftime_now", "dict"}) {
      if (name == function) return Value::OfFunction(function);
    }
    return Value::Missing(name);
  }

  Result<Value> EvaluateList(const Expression& expression) {
    List list;
    for (const ExpressionPointer& arg : expression.args) {
      PS_ASSIGN_OR_RETURN(Value value, Evaluate(*arg));
      list.push_back(std::move(value));
    }
    return Value::FromList(std::move(list));
  }

  Result<Value> EvaluateDict(const Expression& expression) {
    Dict dict;
    for (size_t i = 0; i < expression.args.size(); i += 2) {
      PS_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.args[i]));
      if (!key.string())
        return InvalidArgument("expected a string as a key, found ", key.TypeName());
      PS_ASSIGN_OR_RETURN(Value value, Evaluate(*expression.args[i + 1]));
      dict.Set(key.AsText().text(), std::move(value));
    }
    return Value::FromDict(std::move(dict));
  }

  Result<Value> EvaluateUnary(const Expression& expression) {
    PS_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.args[0]));
    if (expression.op == Op::kNot) return Value::Bool(!value.Truth());
    if (value.floating()) return Value::Float(-value.AsDouble());
    if (!value.number() || value.AsInt() == INT64_MIN)
      return InvalidArgument("-: expected a number, found ", value.TypeName());
    return Value::Int(-value.AsInt());
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

  Result<Value> EvaluateItem(const Expression& expression) {
    PS_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.args[0]));
    Value key = Value::TemplateString(expression.name);
    if (expression.op == Op::kItem) {
      PS_ASSIGN_OR_RETURN(key, Evaluate(*expression.args[1]));
    }
    if (object.undefined())
      return InvalidArgument("expected a value of ", object.missing_name(), ", found none");
    const Value missing = Value::Missing(key.string() ? key.AsText().text() : "an element");
    if (key.string() && (object.dict() || object.is_namespace())) {
      const Dict& dict = object.dict() ? object.AsDict() : *object.fields();
      const Value* found = dict.Find(key.AsText().text());
      return found == nullptr ? missing : *found;
    }
    if (!key.integer() || !(object.list() || object.string())) return missing;
    if (object.list()) {
      const auto size = static_cast<int64_t>(object.AsList().size());
      const int64_t index = key.AsInt() < 0 ? key.AsInt() + size : key.AsInt();
      if (index < 0 || index >= size) return missing;
      return object.AsList()[static_cast<size_t>(index)];
    }
    PS_ASSIGN_OR_RETURN(const List characters, Elements(object, &budget_));
    const auto size = static_cast<int64_t>(characters.size());
    const int64_t index = key.AsInt() < 0 ? key.AsInt() + size : key.AsInt();
    if (index < 0 || index >= size) return missing;
    return characters[static_cast<size_t>(index)];
  }

  // The value of part `index` of a slice, which may be missing.
  Result<std::optional<int64_t>> SlicePart(const Expression& expression, size_t index) {
    const ExpressionPointer& part = expression.args[index];
    if (part == nullptr) return std::optional<int64_t>();
    PS_ASSIGN_OR_RETURN(const Value value, Evaluate(*part));
    if (value.none()) return std::optional<int64_t>();
    if (!value.integer())
      return InvalidArgument("a slice: expected integers, found ", value.TypeName());
    constexpr int64_t kLargest = int64_t{1} << 40;  // more than any value has elements
    return std::optional<int64_t>(std::clamp(value.AsInt(), -kLargest, kLargest));
  }

  Result<Value> EvaluateSlice(const Expression& expression) {
    PS_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.args[0]));
    PS_ASSIGN_OR_RETURN(const auto begin, SlicePart(expression, 1));
    PS_ASSIGN_OR_RETURN(const auto end, SlicePart(expression, 2));
    PS_ASSIGN_OR_RETURN(const auto given_step, SlicePart(expression, 3));
    const int64_t step = given_step.value_or(1);
    if (step == 0) return InvalidArgument("a slice: expected a step other than 0, found 0");
    if (!object.list() && !object.string())
      return InvalidArgument("a slice: expected a list or a string, found ", object.TypeName());
    PS_ASSIGN_OR_RETURN(const List elements, Elements(object, &budget_));
    const auto size = static_cast<int64_t>(elements.size());
    const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
    const auto place = [&](std::optional<int64_t> part, int64_t missing) {
      if (!part) return missing;
      return std::clamp(*part < 0 ? *part + size : *part, lowest, highest);
    };
    const int64_t stop = place(end, step > 0 ? highest : lowest);
    List chosen;
    for (int64_t i = place(begin, step > 0 ? lowest : highest); step > 0 ? i < stop : i > stop;
         i += step)
      chosen.push_back(elements[static_cast<size_t>(i)]);
    if (object.list()) return Value::FromList(std::move(chosen));
    PS_ASSIGN_OR_RETURN(MarkedText text, Joined(chosen, MarkedText(), &budget_));
    return Value::String(std::move(text));
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
      arguments.named.emplace_back(name, std::move(value));
    }
    return arguments;
  }

  Result<Value> EvaluateFilter(const Expression& expression) {
    PS_ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.args[0]));
    PS_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
    if (expression.op == Op::kFilter)
      return ApplyFilter(expression.name, input, arguments, &budget_);
    const Value* other = arguments.Get(0, "other");
    PS_RETURN_IF_ERROR(
        budget_.Spend(other == nullptr ? 0 : std::min(input.weight(), other->weight())));
    PS_ASSIGN_OR_RETURN(const bool truth, ApplyTest(expression.name, input, arguments));
    return Value::Bool(truth);
  }

  Result<Value> EvaluateCall(const Expression& expression) {
    const Expression& callee = *expression.args[0];
    if (callee.op == Op::kAttribute) {
      PS_ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.args[0]));
      PS_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
      return CallMethod(object, callee.name, arguments, &budget_);
    }
    PS_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
    PS_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression));
    if (function.AsMacro() != nullptr) return CallMacro(*function.AsMacro(), arguments);
    if (function.callable()) return CallFunction(function.AsFunction(), arguments, &budget_);
    if (function.undefined())
      return InvalidArgument("expected a function that docs/chat-templates.md lists, found ",
                             function.missing_name());
    return InvalidArgument("expected a function, found ", function.TypeName());
  }

  // A macro sees its parameters and the names of the template outside of loops.
  Result<Value> CallMacro(const Macro& macro, const Arguments& arguments) {
    if (arguments.positional.size() > macro.parameters.size())
      return InvalidArgument(macro.name, ": expected at most ", macro.parameters.size(),
                             " arguments, found ", arguments.positional.size());
    Scope scope;
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, missing] = macro.parameters[i];
      if (const Value* value = arguments.Get(static_cast<int>(i), name)) {
        scope[name] = *value;
      } else if (missing != nullptr) {
        PS_ASSIGN_OR_RETURN(scope[name], Evaluate(*missing));
      } else {
        scope[name] = Value::Missing(name);
      }
    }
    std::vector<Scope> caller(std::make_move_iterator(scopes_.begin() + 1),
                              std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.push_back(std::move(scope));
    Result<MarkedText> text = Captured(macro.body);
    scopes_.resize(1);
    std::move(caller.begin(), caller.end(), std::back_inserter(scopes_));
    PS_RETURN_IF_ERROR(text.status());
    return Value::String(*std::move(text));
  }

  // --- operators ---
  Result<Value> Compare(const std::string& op, const Value& left, const Value& right) {
    PS_RETURN_IF_ERROR(budget_.Spend(op == "in" || op == "not in"
                                         ? left.weight() + right.weight()
                                         : std::min(left.weight(), right.weight())));
    if (op == "==") return Value::Bool(left == right);
    if (op == "!=") return Value::Bool(!(left == right));
    if (op == "in" || op == "not in") {
      PS_ASSIGN_OR_RETURN(const bool contains, IsIn(left, right));
      return Value::Bool(contains == (op == "in"));
    }
    int order = 0;
    if (left.string() && right.string()) {
      order = left.AsText().text().compare(right.AsText().text());
    } else if (left.number() && right.number()) {
      const bool integers = !left.floating() && !right.floating();
      const bool below =
          integers ? left.AsInt() < right.AsInt() : left.AsDouble() < right.AsDouble();
      order = below ? -1 : left == right ? 0 : 1;
    } else {
      return InvalidArgument(op, ": expected two numbers or two strings, found ", left.TypeName(),
                             " and ", right.TypeName());
    }
    const bool truth = op == "<"    ? order < 0
                       : op == "<=" ? order <= 0
                       : op == ">"  ? order > 0
                                    : order >= 0;
    return Value::Bool(truth);
  }

  static Result<bool> IsIn(const Value& left, const Value& right) {
    if (right.undefined()) return false;
    if (right.list())
      return std::find(right.AsList().begin(), right.AsList().end(), left) != right.AsList().end();
    if (right.dict()) return left.string() && right.AsDict().Find(left.AsText().text()) != nullptr;
    if (right.string() && left.string())
      return right.AsText().text().find(left.AsText().text()) != std::string::npos;
    return InvalidArgument("in: expected a list, a dict or two strings, found ", left.TypeName(),
                           " and ", right.TypeName());
  }

  Result<Value> Calculate(const std::string& op, const Value& left, const Value& right) {
    if (op == "~" || (op == "+" && left.string() && right.string())) {
      PS_RETURN_IF_ERROR(budget_.Spend(left.weight() + right.weight()));
      MarkedText text = left.ToText();
      text.Append(right.ToText());
      return Value::String(std::move(text));
    }
    if (op == "+" && left.list() && right.list()) {
      PS_ASSIGN_OR_RETURN(List list, Elements(left, &budget_));
      PS_ASSIGN_OR_RETURN(const List more, Elements(right, &budget_));
      list.insert(list.end(), more.begin(), more.end());
      return Value::FromList(std::move(list));
    }
    if (op == "*" && left.string() && right.integer())
      return Repeated(left.AsText(), right.AsInt());
    if (!left.number() || !right.number()) {
      const Value& wrong =
          left.undefined() || right.undefined() ? (left.undefined() ? left : right) : right;
      if (wrong.undefined())
        return InvalidArgument(op, ": expected a value of ", wrong.missing_name(), ", found none");
      return InvalidArgument(op, ": expected two numbers", op == "+" ? ", strings or lists" : "",
                             ", found ", left.TypeName(), " and ", right.TypeName());
    }
    if (op == "/" || left.floating() || right.floating())
      return CalculateFloat(op, left.AsDouble(), right.AsDouble());
    return CalculateInt(op, left.AsInt(), right.AsInt());
  }

  Result<Value> Repeated(const MarkedText& text, int64_t count) {
    if (count <= 0 || text.size() == 0) return Value::String(MarkedText());
    size_t bytes = 0;
    if (__builtin_mul_overflow(text.size(), static_cast<size_t>(count), &bytes)) bytes = SIZE_MAX;
    PS_RETURN_IF_ERROR(budget_.Spend(bytes));
    MarkedText out;
    for (int64_t i = 0; i < count; ++i) out.Append(text);
    return Value::String(std::move(out));
  }

  static Result<Value> CalculateFloat(const std::string& op, double a, double b) {
    if (op == "+") return Value::Float(a + b);
    if (op == "-") return Value::Float(a - b);
    if (op == "*") return Value::Float(a * b);
    if (b == 0) return InvalidArgument(op, ": expected a divisor other than 0, found 0");
    if (op == "/") return Value::Float(a / b);
    if (op == "//") return Value::Float(std::floor(a / b));
    return Value::Float(a - b * std::floor(a / b));
  }

  static Result<Value> CalculateInt(const std::string& op, int64_t a, int64_t b) {
    int64_t result = 0;
    const bool divides = op == "//" || op == "%";
    if (divides && b == 0) return InvalidArgument(op, ": expected a divisor other than 0, found 0");
    bool overflow = divides && a == INT64_MIN && b == -1;
    if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
    if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
    if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
    if (overflow) return InvalidArgument(op, ": expected a result of 64 bits, found a larger one");
    if (!divides) return Value::Int(result);
    // Python rounds down.
    const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    return Value::Int(op == "//" ? quotient : a - quotient * b);
  }

  std::vector<Scope> scopes_;
  MarkedText output_;
  Budget budget_;
  int level_ = 0;
};

}  // namespace

Result<MarkedText> Render(const Block& block, const Dict& variables) {
  return Interpreter(variables).Run(block);
}

}  // namespace polysketch::chat
