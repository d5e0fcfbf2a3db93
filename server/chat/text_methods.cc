// Methods of strings. Each result keeps the marks of the bytes that it is made of.
#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "server/chat/builtins.h"

namespace polysketch::chat {
namespace {

// As Python's str.isspace.
bool IsSpace(char32_t c) {
  static constexpr std::array<char32_t, 9> kOthers = {0x20,   0x85,   0xa0,   0x1680, 0x2028,
                                                      0x2029, 0x202f, 0x205f, 0x3000};
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f) || (c >= 0x2000 && c <= 0x200a) ||
         std::find(kOthers.begin(), kOthers.end(), c) != kOthers.end();
}

bool InSet(std::string_view character, const std::string* characters) {
  if (characters == nullptr) return IsSpace(DecodeUtf8(character).code_point);
  return characters->find(character) != characters->npos;
}

char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

size_t CharacterSize(std::string_view text) {
  return static_cast<size_t>(std::max(1, DecodeUtf8(text).length));
}

// The parts between runs of white space, at most limit + 1 (the last has the rest).
List SplitAtSpace(const MarkedText& text, int64_t limit) {
  const std::string_view all = text.text();
  List parts;
  size_t begin = 0;
  while (true) {
    while (begin < all.size() &&
           InSet(all.substr(begin, CharacterSize(all.substr(begin))), nullptr))
      begin += CharacterSize(all.substr(begin));
    if (begin >= all.size()) return parts;
    size_t end = begin;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      const MarkedText rest = text.Slice(begin, all.size());
      parts.push_back(Value::String(Stripped(rest, nullptr, false, true)));
      return parts;
    }
    while (end < all.size() && !InSet(all.substr(end, CharacterSize(all.substr(end))), nullptr))
      end += CharacterSize(all.substr(end));
    parts.push_back(Value::String(text.Slice(begin, end)));
    begin = end;
  }
}

Result<const MarkedText*> TextArgument(const Arguments& arguments, int index,
                                       std::string_view name) {
  const Value* value = arguments.Get(index, name);
  if (value == nullptr) return InvalidArgument("expected the argument ", name, ", found none");
  if (!value->string())
    return InvalidArgument(name, ": expected a string, found ", value->TypeName());
  return &value->AsText();
}

// Null without the argument, and for none.
Result<const std::string*> OptionalText(const Arguments& arguments, int index,
                                        std::string_view name) {
  const Value* value = arguments.Get(index, name);
  if (value == nullptr || value->none()) return static_cast<const std::string*>(nullptr);
  if (!value->string())
    return InvalidArgument(name, ": expected a string, found ", value->TypeName());
  return &value->AsText().text();
}

Result<int64_t> IntegerArgument(const Arguments& arguments, int index, std::string_view name,
                                int64_t missing) {
  const Value* value = arguments.Get(index, name);
  if (value == nullptr) return missing;
  if (!value->integer())
    return InvalidArgument(name, ": expected an integer, found ", value->TypeName());
  return value->AsInt();
}

// text.startswith(x): x is a string or several.
Result<Value> HasEnd(const std::string& text, const Arguments& arguments, bool at_end) {
  const Value* argument = arguments.Get(0, "prefix");
  if (argument == nullptr) return InvalidArgument("expected a string, found no argument");
  const List several = argument->list() ? argument->AsList() : List{*argument};
  for (const Value& one : several) {
    if (!one.string()) return InvalidArgument("expected a string, found ", one.TypeName());
    const std::string& end = one.AsText().text();
    if (at_end ? text.ends_with(end) : text.starts_with(end)) return Value::Bool(true);
  }
  return Value::Bool(false);
}

using Characters = bool (*)(char);
Value AllCharacters(const std::string& text, Characters is) {
  return Value::Bool(!text.empty() && std::all_of(text.begin(), text.end(), is));
}

}  // namespace

MarkedText Stripped(const MarkedText& text, const std::string* characters, bool left, bool right) {
  const std::string_view all = text.text();
  size_t begin = 0, end = all.size();
  while (left && begin < end) {
    const size_t size = CharacterSize(all.substr(begin));
    if (!InSet(all.substr(begin, size), characters)) break;
    begin += size;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(all[last]) & 0xc0) == 0x80) --last;
    if (!InSet(all.substr(last, end - last), characters)) break;
    end = last;
  }
  return text.Slice(begin, end);
}

Result<MarkedText> Replaced(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                            int64_t count, Budget* budget) {
  if (from.size() == 0) return InvalidArgument("replace: expected a text to replace, found none");
  MarkedText out;
  size_t begin = 0;
  for (; count != 0; --count) {
    const size_t found = text.text().find(from.text(), begin);
    if (found == std::string::npos) break;
    const size_t end = found + from.size();
    PS_RETURN_IF_ERROR(budget->Spend(end - begin + to.size()));
    out.Append(text.Slice(begin, found));
    // What takes the place of a text of a message is text of that message.
    if (text.IsTemplate(found, end)) {
      out.Append(to);
    } else {
      out.Append(to.text(), TextOrigin::kMessage);
    }
    begin = end;
  }
  out.Append(text.Slice(begin, text.size()));
  return out;
}

Result<List> Split(const MarkedText& text, const std::string* separator, int64_t limit,
                   bool from_right, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(text.size() * sizeof(Value)));
  if (separator == nullptr && from_right && limit >= 0)
    return InvalidArgument("rsplit: expected a separator, found none");
  if (separator == nullptr) return SplitAtSpace(text, limit);
  if (separator->empty()) return InvalidArgument("split: expected a separator, found an empty one");
  List parts;
  const std::string& all = text.text();
  if (from_right) {
    size_t end = all.size();
    while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
      const size_t found =
          end < separator->size() ? all.npos : all.rfind(*separator, end - separator->size());
      if (found == all.npos) break;
      parts.push_back(Value::String(text.Slice(found + separator->size(), end)));
      end = found;
    }
    parts.push_back(Value::String(text.Slice(0, end)));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t found = all.find(*separator, begin);
    if (found == all.npos) break;
    parts.push_back(Value::String(text.Slice(begin, found)));
    begin = found + separator->size();
  }
  parts.push_back(Value::String(text.Slice(begin, all.size())));
  return parts;
}

MarkedText InCase(const MarkedText& text, LetterCase letter_case) {
  std::string out = text.text();
  bool begins = true;  // a word of a title, or the text
  for (char& c : out) {
    const bool upper =
        letter_case == LetterCase::kUpper || (letter_case != LetterCase::kLower && begins);
    const bool letter = Upper(c) != Lower(c);
    c = upper ? Upper(c) : Lower(c);
    begins = letter_case == LetterCase::kTitle && !letter;
  }
  return text.WithBytes(std::move(out));
}

Result<MarkedText> Joined(const List& list, const MarkedText& separator, Budget* budget) {
  MarkedText out;
  for (size_t i = 0; i < list.size(); ++i) {
    PS_RETURN_IF_ERROR(budget->Spend(list[i].weight() + separator.size()));
    if (i > 0) out.Append(separator);
    out.Append(list[i].ToText());
  }
  return out;
}

Result<Value> CallTextMethod(const MarkedText& text, const std::string& name,
                             const Arguments& arguments, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(text.size()));
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    PS_ASSIGN_OR_RETURN(const std::string* characters, OptionalText(arguments, 0, "chars"));
    return Value::String(Stripped(text, characters, name != "rstrip", name != "lstrip"));
  }
  if (name == "startswith") return HasEnd(text.text(), arguments, false);
  if (name == "endswith") return HasEnd(text.text(), arguments, true);
  if (name == "upper") return Value::String(InCase(text, LetterCase::kUpper));
  if (name == "lower") return Value::String(InCase(text, LetterCase::kLower));
  if (name == "capitalize") return Value::String(InCase(text, LetterCase::kCapitalized));
  if (name == "title") return Value::String(InCase(text, LetterCase::kTitle));
  if (name == "split" || name == "rsplit") {
    PS_ASSIGN_OR_RETURN(const std::string* separator, OptionalText(arguments, 0, "sep"));
    PS_ASSIGN_OR_RETURN(const int64_t limit, IntegerArgument(arguments, 1, "maxsplit", -1));
    PS_ASSIGN_OR_RETURN(List parts, Split(text, separator, limit, name == "rsplit", budget));
    return Value::FromList(std::move(parts));
  }
  if (name == "replace") {
    PS_ASSIGN_OR_RETURN(const MarkedText* from, TextArgument(arguments, 0, "old"));
    PS_ASSIGN_OR_RETURN(const MarkedText* to, TextArgument(arguments, 1, "new"));
    PS_ASSIGN_OR_RETURN(const int64_t count, IntegerArgument(arguments, 2, "count", -1));
    PS_ASSIGN_OR_RETURN(MarkedText replaced, Replaced(text, *from, *to, count, budget));
    return Value::String(std::move(replaced));
  }
  if (name == "find") {
    PS_ASSIGN_OR_RETURN(const MarkedText* wanted, TextArgument(arguments, 0, "sub"));
    const size_t found = text.text().find(wanted->text());
    if (found == std::string::npos) return Value::Int(-1);
    return Value::Int(static_cast<int64_t>(CharacterCount(text.text().substr(0, found))));
  }
  if (name == "count") {
    PS_ASSIGN_OR_RETURN(const MarkedText* wanted, TextArgument(arguments, 0, "sub"));
    if (wanted->size() == 0) return InvalidArgument("count: expected a text, found an empty one");
    int64_t count = 0;
    for (size_t at = 0; (at = text.text().find(wanted->text(), at)) != std::string::npos; ++count)
      at += wanted->size();
    return Value::Int(count);
  }
  if (name == "join") {
    if (arguments.Get(0, "iterable") == nullptr)
      return InvalidArgument("join: expected a list, found no argument");
    PS_ASSIGN_OR_RETURN(const List list, Elements(*arguments.Get(0, "iterable"), budget));
    PS_ASSIGN_OR_RETURN(MarkedText joined, Joined(list, text, budget));
    return Value::String(std::move(joined));
  }
  if (name == "isdigit")
    return AllCharacters(text.text(), [](char c) { return c >= '0' && c <= '9'; });
  if (name == "isupper" || name == "islower") {
    const bool letters =
        InCase(text, LetterCase::kUpper).text() != InCase(text, LetterCase::kLower).text();
    const LetterCase wanted = name == "isupper" ? LetterCase::kUpper : LetterCase::kLower;
    return Value::Bool(letters && InCase(text, wanted).text() == text.text());
  }
  return InvalidArgument("expected a method of strings that docs/chat-templates.md lists, found ",
                         name);
}

}  // namespace polysketch::chat
