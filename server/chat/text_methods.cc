// The methods of strings, and the filters that take text.
#include <algorithm>

#include "server/chat/builtins.h"
#include "server/chat/text.h"

namespace polysketch::chat {
namespace {

// The bytes of a method's object, or of a part of it: text[start:end] in characters, by parameters
// `first` and the next.
struct Part {
  size_t begin = 0, end = 0;
  bool exists = true;  // false for a start after the end, where not even "" is found
};

Result<Part> PartOf(const Call& call, size_t first) {
  const std::string& text = call.input().AsText().text();
  if (call.GetSome(first) == nullptr && call.GetSome(first + 1) == nullptr)
    return Part{0, text.size()};
  PS_RETURN_IF_ERROR(call.budget()->Spend(10 * text.size()));
  const std::vector<size_t> offsets = CharacterOffsets(text);
  const auto size = std::ssize(offsets) - 1;
  int64_t begin = 0, end = size;
  if (call.GetSome(first) != nullptr) {
    PS_ASSIGN_OR_RETURN(begin, call.Int(first, 0));
  }
  if (call.GetSome(first + 1) != nullptr) {
    PS_ASSIGN_OR_RETURN(end, call.Int(first + 1, 0));
  }
  if (begin > size) return Part{text.size(), text.size(), false};
  begin = begin < 0 ? std::max<int64_t>(begin + size, 0) : begin;
  end = std::clamp<int64_t>(end < 0 ? end + size : end, 0, size);
  return Part{offsets[static_cast<size_t>(begin)],
              offsets[static_cast<size_t>(std::max(begin, end))], begin <= end};
}

Result<Value> Strip(const Call& call, bool left, bool right) {
  PS_ASSIGN_OR_RETURN(const MarkedText* characters, call.Text(0));
  PS_RETURN_IF_ERROR(call.budget()->Spend(2 * call.input().AsText().size() +
                                          (characters == nullptr ? 0 : 32 * characters->size())));
  return Value::String(Stripped(
      call.input().AsText(), characters == nullptr ? nullptr : &characters->text(), left, right));
}

// The texts of an argument: one string, or a tuple of them.
Result<List> Texts(const Call& call, size_t index) {
  const Value& argument = *call.Get(index);
  const List texts = argument.list(ListKind::kTuple) ? argument.AsList() : List{argument};
  for (const Value& one : texts)
    if (!one.string()) return call.Wrong(index, "a string or a tuple of strings");
  return texts;
}

Result<Value> HasEnd(const Call& call, bool at_end) {
  PS_ASSIGN_OR_RETURN(const List texts, Texts(call, 0));
  PS_ASSIGN_OR_RETURN(const Part part, PartOf(call, 1));
  const std::string_view text =
      std::string_view(call.input().AsText().text()).substr(part.begin, part.end - part.begin);
  for (const Value& one : texts) {
    const std::string& wanted = one.AsText().text();
    PS_RETURN_IF_ERROR(call.budget()->Spend(wanted.size() + Budget::kElement));
    if (part.exists && (at_end ? text.ends_with(wanted) : text.starts_with(wanted)))
      return Value::Bool(true);
  }
  return Value::Bool(false);
}

// find, rfind, index, rindex.
Result<Value> Find(const Call& call, bool last, bool required) {
  PS_ASSIGN_OR_RETURN(const MarkedText* wanted, call.Text(0));
  if (wanted == nullptr) return call.Wrong(0, "a string");
  PS_ASSIGN_OR_RETURN(const Part part, PartOf(call, 1));
  const std::string& text = call.input().AsText().text();
  PS_RETURN_IF_ERROR(call.budget()->Spend(4 * text.size() + 2 * wanted->size()));
  const std::string_view within = std::string_view(text).substr(0, part.end);
  size_t found = last ? FindLastText(within, wanted->text(), within.size())
                      : FindText(within, wanted->text(), part.begin);
  if (!part.exists || (found != text.npos && found < part.begin)) found = text.npos;
  if (found != text.npos)
    return Value::Int(
        static_cast<int64_t>(CharacterCount(std::string_view(text).substr(0, found))));
  if (required)
    return InvalidArgument(call.name(), ": expected a text with ", "sub, found another");
  return Value::Int(-1);
}

Result<Value> Count(const Call& call) {
  PS_ASSIGN_OR_RETURN(const MarkedText* wanted, call.Text(0));
  if (wanted == nullptr) return call.Wrong(0, "a string");
  PS_ASSIGN_OR_RETURN(const Part part, PartOf(call, 1));
  const std::string_view text = std::string_view(call.input().AsText().text()).substr(0, part.end);
  PS_RETURN_IF_ERROR(call.budget()->Spend(4 * text.size() + wanted->size()));
  if (!part.exists) return Value::Int(0);
  if (wanted->size() == 0)
    return Value::Int(static_cast<int64_t>(CharacterCount(text.substr(part.begin))) + 1);
  int64_t count = 0;
  for (size_t at = part.begin; (at = FindText(text, wanted->text(), at)) != text.npos; ++count) {
    PS_RETURN_IF_ERROR(call.budget()->Spend(Budget::kElement));
    at += wanted->size();
  }
  return Value::Int(count);
}

Result<Value> SplitText(const Call& call, bool from_right) {
  PS_ASSIGN_OR_RETURN(const MarkedText* separator, call.Text(0));
  PS_ASSIGN_OR_RETURN(const int64_t limit, call.Int(1, -1));
  return ListOf(Split(call.input().AsText(), separator == nullptr ? nullptr : &separator->text(),
                      limit, from_right, call.budget()));
}

Result<Value> Partition(const Call& call, bool from_right) {
  const MarkedText& text = call.input().AsText();
  PS_ASSIGN_OR_RETURN(const MarkedText* separator, call.Text(0));
  if (separator == nullptr || separator->size() == 0)
    return call.Wrong(0, "a string that is not empty");
  PS_RETURN_IF_ERROR(call.budget()->Spend(4 * text.size() + 2 * separator->size()));
  const size_t found = from_right ? FindLastText(text.text(), separator->text(), text.size())
                                  : FindText(text.text(), separator->text(), 0);
  List parts = {Value::String(text), Value::TemplateString(""), Value::TemplateString("")};
  if (found == std::string::npos) {
    if (from_right) std::rotate(parts.begin(), parts.begin() + 1, parts.end());
  } else {
    parts = {Value::String(text.Slice(0, found)), *call.Get(0),
             Value::String(text.Slice(found + separator->size(), text.size()))};
  }
  return Value::FromList(std::move(parts), ListKind::kTuple);
}

// Without `prefix`, or without `suffix`.
Result<Value> Removed(const Call& call, bool at_end) {
  const MarkedText& text = call.input().AsText();
  PS_ASSIGN_OR_RETURN(const MarkedText* part, call.Text(0));
  if (part == nullptr) return call.Wrong(0, "a string");
  PS_RETURN_IF_ERROR(call.budget()->Spend(text.size()));
  const bool has =
      at_end ? text.text().ends_with(part->text()) : text.text().starts_with(part->text());
  if (!has) return call.input();
  const size_t left = text.size() - part->size();
  return Value::String(at_end ? text.Slice(0, left) : text.Slice(part->size(), text.size()));
}

// The text with `left` and `right` characters before and after it.
Result<Value> Padded(const Call& call, const MarkedText& text, int64_t left, int64_t right) {
  PS_ASSIGN_OR_RETURN(const MarkedText* fill, call.Text(1));
  if (fill != nullptr && CharacterCount(fill->text()) != 1) return call.Wrong(1, "one character");
  const MarkedText pad = fill == nullptr ? MarkedText(" ", TextOrigin::kMessage) : *fill;
  PS_RETURN_IF_ERROR(call.budget()->Spend(static_cast<size_t>(left + right), 24));
  MarkedText out;
  for (int64_t i = 0; i < left; ++i) out.Append(pad);
  out.Append(text);
  for (int64_t i = 0; i < right; ++i) out.Append(pad);
  return Value::String(std::move(out));
}

enum class Side { kLeft, kRight, kBoth };
Result<Value> Padded(const Call& call, Side text_at) {
  const MarkedText& text = call.input().AsText();
  PS_RETURN_IF_ERROR(call.budget()->Spend(2 * text.size()));
  PS_ASSIGN_OR_RETURN(const int64_t width, call.Int(0, 80));
  const int64_t size = static_cast<int64_t>(CharacterCount(text.text()));
  const int64_t missing =
      std::max<int64_t>(0, std::clamp<int64_t>(width, 0, int64_t{1} << 40) - size);
  // Python's odd space is on the left if the width is odd.
  const int64_t left = text_at == Side::kLeft    ? 0
                       : text_at == Side::kRight ? missing
                                                 : missing / 2 + (missing & width & 1);
  return Padded(call, text, left, missing - left);
}

Result<Value> ZeroFilled(const Call& call) {
  const MarkedText& text = call.input().AsText();
  PS_RETURN_IF_ERROR(call.budget()->Spend(2 * text.size()));
  PS_ASSIGN_OR_RETURN(const int64_t width, call.Int(0, 0));
  const int64_t size = static_cast<int64_t>(CharacterCount(text.text()));
  const int64_t missing =
      std::max<int64_t>(0, std::clamp<int64_t>(width, 0, int64_t{1} << 40) - size);
  PS_RETURN_IF_ERROR(call.budget()->Spend(static_cast<size_t>(missing)));
  const size_t sign = text.text().starts_with('-') || text.text().starts_with('+') ? 1 : 0;
  MarkedText out = text.Slice(0, sign);
  out.Append(std::string(static_cast<size_t>(missing), '0'), TextOrigin::kMessage);
  out.Append(text.Slice(sign, text.size()));
  return Value::String(std::move(out));
}

Result<Value> ReplaceText(const Call& call) {
  PS_ASSIGN_OR_RETURN(const MarkedText* from, call.Text(0));
  PS_ASSIGN_OR_RETURN(const MarkedText* to, call.Text(1));
  if (from == nullptr || to == nullptr) return call.Wrong(from == nullptr ? 0 : 1, "a string");
  PS_ASSIGN_OR_RETURN(const int64_t count, call.Int(2, -1));
  return TextValue(Replaced(call.input().AsText(), *from, *to, count, call.budget()));
}

template <CharacterClass kClass>
Result<Value> AllOf(const Call& call) {
  PS_RETURN_IF_ERROR(call.budget()->Spend(4 * call.input().AsText().size()));
  return Value::Bool(AllCharacters(call.input().AsText().text(), kClass));
}

template <LetterCase kCase>
Result<Value> ChangeCase(const Call& call) {
  return TextValue(InCase(call.input().AsText(), kCase, call.budget()));
}

// Whether the text has letters, all in one case.
template <LetterCase kCase>
Result<Value> IsInCase(const Call& call) {
  const MarkedText& text = call.input().AsText();
  PS_ASSIGN_OR_RETURN(const MarkedText upper, InCase(text, LetterCase::kUpper, call.budget()));
  PS_ASSIGN_OR_RETURN(const MarkedText lower, InCase(text, LetterCase::kLower, call.budget()));
  PS_ASSIGN_OR_RETURN(const MarkedText same, InCase(text, kCase, call.budget()));
  return Value::Bool(upper.text() != lower.text() && same.text() == text.text());
}

Result<Value> JoinMethod(const Call& call) {
  PS_ASSIGN_OR_RETURN(const List list, Elements(*call.Get(0), call.budget()));
  for (const Value& element : list)
    if (!element.string()) return call.Wrong(0, "strings");
  return TextValue(Joined(list, call.input().AsText(), call.budget()));
}

constexpr Builtin kTextMethods[] = {
    {"capitalize", "", ChangeCase<LetterCase::kCapitalized>},
    {"center", "/ width fillchar?", [](const Call& call) { return Padded(call, Side::kBoth); }},
    {"count", "/ sub start? end?", Count},
    {"endswith", "/ suffix start? end?", [](const Call& call) { return HasEnd(call, true); }},
    {"find", "/ sub start? end?", [](const Call& call) { return Find(call, false, false); }},
    {"index", "/ sub start? end?", [](const Call& call) { return Find(call, false, true); }},
    {"isalnum", "", AllOf<CharacterClass::kLetterOrDigit>},
    {"isalpha", "", AllOf<CharacterClass::kLetter>},
    {"isascii", "", AllOf<CharacterClass::kAscii>},
    {"isdecimal", "", AllOf<CharacterClass::kDigit>},
    {"isdigit", "", AllOf<CharacterClass::kDigit>},
    {"islower", "", IsInCase<LetterCase::kLower>},
    {"isnumeric", "", AllOf<CharacterClass::kDigit>},
    {"isspace", "", AllOf<CharacterClass::kSpace>},
    {"istitle", "", IsInCase<LetterCase::kTitle>},
    {"isupper", "", IsInCase<LetterCase::kUpper>},
    {"join", "/ iterable", JoinMethod},
    {"ljust", "/ width fillchar?", [](const Call& call) { return Padded(call, Side::kLeft); }},
    {"lower", "", ChangeCase<LetterCase::kLower>},
    {"lstrip", "/ chars?", [](const Call& call) { return Strip(call, true, false); }},
    {"partition", "/ sep", [](const Call& call) { return Partition(call, false); }},
    {"removeprefix", "/ prefix", [](const Call& call) { return Removed(call, false); }},
    {"removesuffix", "/ suffix", [](const Call& call) { return Removed(call, true); }},
    {"replace", "/ old new count?", ReplaceText},
    {"rfind", "/ sub start? end?", [](const Call& call) { return Find(call, true, false); }},
    {"rindex", "/ sub start? end?", [](const Call& call) { return Find(call, true, true); }},
    {"rjust", "/ width fillchar?", [](const Call& call) { return Padded(call, Side::kRight); }},
    {"rpartition", "/ sep", [](const Call& call) { return Partition(call, true); }},
    {"rsplit", "sep? maxsplit?", [](const Call& call) { return SplitText(call, true); }},
    {"rstrip", "/ chars?", [](const Call& call) { return Strip(call, false, true); }},
    {"split", "sep? maxsplit?", [](const Call& call) { return SplitText(call, false); }},
    {"splitlines", "keepends?",
     [](const Call& call) {
       return ListOf(SplitLines(call.input().AsText(), call.Truth(0, false), call.budget()));
     }},
    {"startswith", "/ prefix start? end?", [](const Call& call) { return HasEnd(call, false); }},
    {"strip", "/ chars?", [](const Call& call) { return Strip(call, true, true); }},
    {"swapcase", "", ChangeCase<LetterCase::kSwapped>},
    {"title", "", ChangeCase<LetterCase::kTitle>},
    {"upper", "", ChangeCase<LetterCase::kUpper>},
    {"zfill", "/ width", ZeroFilled},
};

// --- filters of text; of another value, of its text ---

// Of the filters that take no other values than strings.
Status WrongInput(const Call& call) {
  return InvalidArgument(call.name(), ": expected a string, found ", call.input().TypeName());
}

Result<Value> Indented(const Call& call) {
  if (!call.input().string()) return WrongInput(call);
  const MarkedText& text = call.input().AsText();
  MarkedText indent(std::string(4, ' '), TextOrigin::kMessage);
  if (const Value* width = call.Get(0)) {
    if (width->string()) {
      indent = width->AsText();
    } else {
      PS_ASSIGN_OR_RETURN(const int64_t spaces, call.Int(0, 4));
      if (spaces > 4096) return call.Wrong(0, "at most 4096");
      indent = MarkedText(std::string(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' '),
                          TextOrigin::kMessage);
    }
  }
  const bool blank = call.Truth(2, false);
  MarkedText whole = text;
  whole.Append("\n", TextOrigin::kMessage);
  PS_ASSIGN_OR_RETURN(const List lines, SplitLines(whole, false, call.budget()));
  MarkedText out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const MarkedText& line = lines[i].AsText();
    PS_RETURN_IF_ERROR(call.budget()->Spend(line.size() + indent.size() + 1));
    if (i > 0) out.Append("\n", TextOrigin::kMessage);
    if (i == 0 ? call.Truth(1, false) : blank || line.size() > 0) out.Append(indent);
    out.Append(line);
  }
  return Value::String(std::move(out));
}

Result<Value> Truncated(const Call& call) {
  const Value& input = call.input();
  PS_ASSIGN_OR_RETURN(const Value size,
                      RunBuiltin(*FindFilter("length"), input, {}, call.budget()));
  PS_ASSIGN_OR_RETURN(const int64_t length, call.Int(0, 255));
  PS_ASSIGN_OR_RETURN(const MarkedText* end, call.Text(2));
  PS_ASSIGN_OR_RETURN(const int64_t leeway, call.GetSome(3) == nullptr ? 5 : call.Int(3, 5));
  const MarkedText ending = end == nullptr ? MarkedText("...", TextOrigin::kTemplate) : *end;
  const auto ending_size = static_cast<int64_t>(CharacterCount(ending.text()));
  if (length < ending_size) return call.Wrong(0, "a number of characters that holds the end");
  if (leeway < 0) return call.Wrong(3, "0 or more");
  if (size.AsInt() - leeway <= length) return input;
  if (!input.string()) return WrongInput(call);
  const MarkedText& text = input.AsText();
  const int64_t kept = length - ending_size;
  PS_ASSIGN_OR_RETURN(MarkedText cut, CharacterSlice(text, nullptr, &kept, 1, call.budget()));
  if (!call.Truth(1, false)) {
    const size_t space = cut.text().rfind(' ');
    if (space != std::string::npos) cut = cut.Slice(0, space);
  }
  cut.Append(ending);
  return Value::String(std::move(cut));
}

Result<Value> ReplaceFilter(const Call& call) {
  if (call.GetSome(2) == nullptr || call.Get(2)->integer() || call.Get(2)->boolean()) {
    PS_ASSIGN_OR_RETURN(const MarkedText from, TextOf(*call.Get(0), call.budget()));
    PS_ASSIGN_OR_RETURN(const MarkedText to, TextOf(*call.Get(1), call.budget()));
    const int64_t count = call.GetSome(2) == nullptr ? -1 : call.Get(2)->AsInt();
    return TextValue(Replaced(call.input().AsText(), from, to, count, call.budget()));
  }
  return call.Wrong(2, "an integer");
}

Result<Value> FormatFilter(const Call& call) {
  const Arguments& all = call.all();
  if (!all.named.empty() && !all.positional.empty())
    return InvalidArgument("format: expected arguments of one kind, found named ones and others");
  Value values;
  if (all.named.empty()) {
    PS_ASSIGN_OR_RETURN(values, Value::FromList(all.positional, ListKind::kTuple));
  } else {
    Dict dict;
    for (const auto& [name, value] : all.named) dict.Set(name, value);
    PS_ASSIGN_OR_RETURN(values, Value::FromDict(std::move(dict)));
  }
  return TextValue(PercentFormat(call.input().AsText(), values, call.budget()));
}

Result<Value> Safe(const Call& call) { return Value::Markup(call.input().AsText()); }

Result<Value> Escape(const Call& call) {
  if (call.input().markup()) return call.input();
  PS_ASSIGN_OR_RETURN(MarkedText text, Escaped(call.input().AsText(), call.budget()));
  return Value::Markup(std::move(text));
}

Result<Value> String(const Call& call) { return call.input(); }

constexpr Builtin kTextFilters[] = {
    {"capitalize", "", ChangeCase<LetterCase::kCapitalized>},
    {"center", "width?", [](const Call& call) { return Padded(call, Side::kBoth); }},
    {"e", "", Escape},
    {"escape", "", Escape},
    {"format", "* **", FormatFilter},
    {"lower", "", ChangeCase<LetterCase::kLower>},
    {"replace", "old new count?", ReplaceFilter},
    {"safe", "", Safe},
    {"string", "", String},
    {"title", "", ChangeCase<LetterCase::kTitleWords>},
    {"trim", "chars?", [](const Call& call) { return Strip(call, true, true); }},
    {"upper", "", ChangeCase<LetterCase::kUpper>},
};

constexpr Builtin kStringFilters[] = {
    {"indent", "width? first? blank?", Indented},
    {"truncate", "length? killwords? end? leeway?", Truncated},
};

const Builtin* FindIn(const Builtin* begin, const Builtin* end, std::string_view name) {
  const Builtin* found = std::lower_bound(
      begin, end, name,
      [](const Builtin& builtin, std::string_view wanted) { return builtin.name < wanted; });
  return found != end && found->name == name ? found : nullptr;
}

}  // namespace

const Builtin* FindTextMethod(std::string_view name) {
  return FindIn(std::begin(kTextMethods), std::end(kTextMethods), name);
}

const Builtin* FindStringFilter(std::string_view name) {
  return FindIn(std::begin(kStringFilters), std::end(kStringFilters), name);
}

const Builtin* FindTextFilter(std::string_view name) {
  return FindIn(std::begin(kTextFilters), std::end(kTextFilters), name);
}

}  // namespace polysketch::chat
