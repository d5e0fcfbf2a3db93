#include "server/chat/text.h"

#include <clocale>
#include <cstring>
#include <cwctype>

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace polysketch::chat {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// As Python's str.isspace.
bool IsSpace(char32_t c) {
  static constexpr std::array<char32_t, 9> kOthers = {0x20,   0x85,   0xa0,   0x1680, 0x2028,
                                                      0x2029, 0x202f, 0x205f, 0x3000};
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f) || (c >= 0x2000 && c <= 0x200a) ||
         std::find(kOthers.begin(), kOthers.end(), c) != kOthers.end();
}

// The ends of lines of Python's str.splitlines.
bool EndsLine(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

size_t CharacterSize(std::string_view text) {
  return static_cast<size_t>(std::max(1, DecodeUtf8(text).length));
}

bool SpaceAt(std::string_view text) { return IsSpace(DecodeUtf8(text).code_point); }

// The locale of C with the letters of Unicode; null where the system has none.
locale_t UnicodeLocale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

char32_t Upper(char32_t c) {
  if (c < 0x80 || UnicodeLocale() == nullptr) return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c;
  return static_cast<char32_t>(towupper_l(static_cast<wint_t>(c), UnicodeLocale()));
}
char32_t Lower(char32_t c) {
  if (c < 0x80 || UnicodeLocale() == nullptr) return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
  return static_cast<char32_t>(towlower_l(static_cast<wint_t>(c), UnicodeLocale()));
}
bool IsLetter(char32_t c) {
  if (c < 0x80 || UnicodeLocale() == nullptr) return Upper(c) != Lower(c);
  return iswalpha_l(static_cast<wint_t>(c), UnicodeLocale()) != 0;
}
bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }

Result<List> SplitAtSpace(const MarkedText& text, int64_t limit, Budget* budget) {
  const std::string_view all = text.text();
  List parts;
  for (size_t begin = 0;;) {
    while (begin < all.size() && SpaceAt(all.substr(begin)))
      begin += CharacterSize(all.substr(begin));
    if (begin >= all.size()) return parts;
    PS_RETURN_IF_ERROR(budget->Spend(Budget::kText));
    if (limit >= 0 && std::ssize(parts) >= limit) {
      parts.push_back(Value::String(text.Slice(begin, all.size())));
      return parts;
    }
    size_t end = begin;
    while (end < all.size() && !SpaceAt(all.substr(end))) end += CharacterSize(all.substr(end));
    parts.push_back(Value::String(text.Slice(begin, end)));
    begin = end;
  }
}

// The same from the right: parts are in reverse order.
Result<List> SplitAtSpaceFromRight(const MarkedText& text, int64_t limit, Budget* budget) {
  const std::string_view all = text.text();
  const auto before = [&](size_t end) {
    while (end > 0 && IsContinuation(all[--end])) {
    }
    return end;
  };
  List parts;
  for (size_t end = all.size();;) {
    while (end > 0 && SpaceAt(all.substr(before(end)))) end = before(end);
    if (end == 0) return parts;
    PS_RETURN_IF_ERROR(budget->Spend(Budget::kText));
    if (limit >= 0 && std::ssize(parts) >= limit) {
      parts.push_back(Value::String(text.Slice(0, end)));
      return parts;
    }
    size_t begin = end;
    while (begin > 0 && !SpaceAt(all.substr(before(begin)))) begin = before(begin);
    parts.push_back(Value::String(text.Slice(begin, end)));
    end = begin;
  }
}

// Characters without a glyph that the C library prints: formats, and those of private use.
struct CodePoints {
  char32_t first, last;
};
constexpr CodePoints kWithoutGlyph[] = {
    {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},     {0x6dd, 0x6dd},
    {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x180e, 0x180e},
    {0x200b, 0x200f},   {0x202a, 0x202e},   {0x2060, 0x2064},   {0x2066, 0x206f},
    {0xe000, 0xf8ff},   {0xfeff, 0xfeff},   {0xfff9, 0xfffb},   {0x110bd, 0x110bd},
    {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
    {0xe0001, 0xe0001}, {0xe0020, 0xe007f}, {0xf0000, 0xffffd}, {0x100000, 0x10fffd},
};

}  // namespace

bool IsPrintable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  if (c < 0xa0 || IsSpace(c)) return false;
  for (const CodePoints& range : kWithoutGlyph)
    if (c >= range.first && c <= range.last) return false;
  return UnicodeLocale() == nullptr || iswprint_l(static_cast<wint_t>(c), UnicodeLocale()) != 0;
}

void AppendUtf8(char32_t code, std::string* out) {
  const auto byte = [out](char32_t bits) { *out += static_cast<char>(bits); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xc0 | code >> 6);
  } else if (code < 0x10000) {
    byte(0xe0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3f));
  } else {
    byte(0xf0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3f));
    byte(0x80 | (code >> 6 & 0x3f));
  }
  byte(0x80 | (code & 0x3f));
}

size_t FindText(std::string_view text, std::string_view wanted, size_t begin) {
  if (begin > text.size()) return text.npos;
  const void* found =
      memmem(text.data() + begin, text.size() - begin, wanted.data(), wanted.size());
  if (wanted.empty()) return begin;
  if (found == nullptr) return text.npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLastText(std::string_view text, std::string_view wanted, size_t end) {
  // Of the reversed texts the first place: std::string_view::rfind takes the product of both sizes.
  end = std::min(end, text.size());
  if (wanted.size() > end) return text.npos;
  if (wanted.empty()) return end;
  std::string backwards(wanted.rbegin(), wanted.rend());
  // Most often the text is near: parts of doubling size.
  for (size_t size = std::max<size_t>(256, 2 * wanted.size());; size *= 2) {
    size = std::min(size, end);
    const std::string part(text.rbegin() + static_cast<long>(text.size() - end),
                           text.rbegin() + static_cast<long>(text.size() - end + size));
    const size_t found = FindText(part, backwards, 0);
    if (found != part.npos) return end - found - wanted.size();
    if (size == end) return text.npos;
  }
}

bool AllCharacters(std::string_view text, CharacterClass wanted) {
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(CharacterSize(rest))) {
    const char32_t c = DecodeUtf8(rest).code_point;
    const bool in = wanted == CharacterClass::kSpace    ? IsSpace(c)
                    : wanted == CharacterClass::kLetter ? IsLetter(c)
                    : wanted == CharacterClass::kDigit  ? IsDigit(c)
                    : wanted == CharacterClass::kAscii  ? c < 0x80
                                                        : IsLetter(c) || IsDigit(c);
    if (!in) return false;
  }
  return !text.empty() || wanted == CharacterClass::kAscii;
}

MarkedText Stripped(const MarkedText& text, const std::string* characters, bool left, bool right) {
  std::vector<char32_t> set;
  std::string_view rest = characters == nullptr ? std::string_view() : *characters;
  for (; !rest.empty(); rest.remove_prefix(CharacterSize(rest)))
    set.push_back(DecodeUtf8(rest).code_point);
  std::sort(set.begin(), set.end());
  const auto strips = [&](std::string_view character) {
    const char32_t c = DecodeUtf8(character).code_point;
    return characters == nullptr ? IsSpace(c) : std::binary_search(set.begin(), set.end(), c);
  };
  const std::string_view all = text.text();
  size_t begin = 0, end = all.size();
  while (left && begin < end && strips(all.substr(begin)))
    begin += CharacterSize(all.substr(begin));
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && IsContinuation(all[last])) --last;
    if (!strips(all.substr(last, end - last))) break;
    end = last;
  }
  return text.Slice(begin, end);
}

Result<MarkedText> Replaced(const MarkedText& text, const MarkedText& from, const MarkedText& to,
                            int64_t count, Budget* budget) {
  const std::string& all = text.text();
  MarkedText out;
  size_t begin = 0;  // bytes before here are in `out`
  for (size_t at = 0; count != 0; --count) {
    const size_t found = FindText(all, from.text(), at);
    if (found == std::string::npos) break;
    const size_t end = found + from.size();
    PS_RETURN_IF_ERROR(budget->Spend(end - begin + to.size() + Budget::kElement));
    out.Append(text.Slice(begin, found));
    // What takes the place of a text of a message is text of that message.
    if (text.IsTemplate(found, end)) {
      out.Append(to);
    } else {
      out.Append(to.text(), TextOrigin::kMessage);
    }
    begin = end;
    if (!from.text().empty()) {
      at = end;
    } else if (found == all.size()) {
      break;
    } else {
      at = found + CharacterSize(std::string_view(all).substr(found));
    }
  }
  PS_RETURN_IF_ERROR(budget->Spend(text.size() - begin));
  out.Append(text.Slice(begin, text.size()));
  return out;
}

Result<List> Split(const MarkedText& text, const std::string* separator, int64_t limit,
                   bool from_right, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(8 * text.size()));
  List parts;
  const std::string& all = text.text();
  if (separator == nullptr) {
    if (!from_right) return SplitAtSpace(text, limit, budget);
    PS_ASSIGN_OR_RETURN(parts, SplitAtSpaceFromRight(text, limit, budget));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  if (separator->empty()) return InvalidArgument("split: expected a separator, found an empty one");
  size_t begin = 0, end = all.size();
  while (limit < 0 || std::ssize(parts) < limit) {
    PS_RETURN_IF_ERROR(budget->Spend(Budget::kText));
    const size_t found =
        from_right ? FindLastText(all, *separator, end) : FindText(all, *separator, begin);
    if (found == all.npos) break;
    if (from_right) {
      parts.push_back(Value::String(text.Slice(found + separator->size(), end)));
      end = found;
    } else {
      parts.push_back(Value::String(text.Slice(begin, found)));
      begin = found + separator->size();
    }
  }
  parts.push_back(Value::String(text.Slice(begin, end)));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<List> SplitLines(const MarkedText& text, bool keep_ends, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(8 * text.size()));
  const std::string_view all = text.text();
  List lines;
  size_t begin = 0;
  for (size_t at = 0; at < all.size();) {
    size_t size = CharacterSize(all.substr(at));
    if (!EndsLine(DecodeUtf8(all.substr(at)).code_point)) {
      at += size;
      continue;
    }
    if (all.substr(at).starts_with("\r\n")) size = 2;
    PS_RETURN_IF_ERROR(budget->Spend(Budget::kText));
    lines.push_back(Value::String(text.Slice(begin, keep_ends ? at + size : at)));
    begin = at += size;
  }
  if (begin < all.size()) lines.push_back(Value::String(text.Slice(begin, all.size())));
  return lines;
}

Result<MarkedText> Joined(const List& list, const MarkedText& separator, Budget* budget) {
  MarkedText out;
  for (size_t i = 0; i < list.size(); ++i) {
    PS_RETURN_IF_ERROR(budget->Spend(list[i].weight() + separator.size()));
    if (i > 0) out.Append(separator);
    if (list[i].string()) {
      out.Append(list[i].AsText());
    } else {
      out.Append(list[i].ToText());
    }
  }
  return out;
}

Span SliceSpan(const int64_t* begin, const int64_t* end, int64_t step, int64_t size) {
  const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? size : size - 1;
  const auto place = [&](const int64_t* part, int64_t missing) {
    if (part == nullptr) return missing;
    return std::clamp(*part < 0 ? *part + size : *part, lowest, highest);
  };
  return {place(begin, step > 0 ? lowest : highest), place(end, step > 0 ? highest : lowest)};
}

Result<MarkedText> CharacterSlice(const MarkedText& text, const int64_t* begin, const int64_t* end,
                                  int64_t step, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(10 * text.size()));
  const std::vector<size_t> offsets = CharacterOffsets(text.text());
  const Span span = SliceSpan(begin, end, step, std::ssize(offsets) - 1);
  if (step == 1) {
    return text.Slice(offsets[static_cast<size_t>(span.begin)],
                      offsets[static_cast<size_t>(std::max(span.begin, span.end))]);
  }
  MarkedText out;
  for (int64_t i = span.begin; step > 0 ? i < span.end : i > span.end; i += step) {
    PS_RETURN_IF_ERROR(budget->Spend(Budget::kText));
    const auto at = static_cast<size_t>(i);
    out.Append(text.Slice(offsets[at], offsets[at + 1]));
  }
  return out;
}

Result<MarkedText> InCase(const MarkedText& text, LetterCase letter_case, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(16 * text.size()));
  MarkedText out;
  bool begins = true;  // a word of a title, or the text
  size_t at = 0;
  for (const MarkedText::Run& run : text.runs()) {
    std::string changed;
    while (at < run.end) {
      const std::string_view rest = std::string_view(text.text()).substr(at, run.end - at);
      const char32_t c = DecodeUtf8(rest).code_point;
      const bool upper =
          letter_case == LetterCase::kSwapped
              ? Lower(c) == c
              : letter_case == LetterCase::kUpper || (letter_case != LetterCase::kLower && begins);
      if (upper && c == 0xdf) {  // of the letters with an upper case of two the one that is common
        changed +=
            letter_case == LetterCase::kUpper || letter_case == LetterCase::kSwapped ? "SS" : "Ss";
      } else {
        AppendUtf8(upper ? Upper(c) : Lower(c), &changed);
      }
      static constexpr std::u32string_view kBefore = U"-({[<";
      begins = letter_case == LetterCase::kTitle ? Upper(c) == Lower(c) && c != 0xdf
               : letter_case == LetterCase::kTitleWords
                   ? IsSpace(c) || kBefore.find(c) != kBefore.npos
                   : false;
      at += CharacterSize(rest);
    }
    out.Append(changed, run.origin);
  }
  return out;
}

Result<MarkedText> Escaped(const MarkedText& text, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(6 * text.size()));
  MarkedText out;
  size_t at = 0;
  for (const MarkedText::Run& run : text.runs()) {
    std::string escaped;
    for (; at < run.end; ++at) {
      const char c = text.text()[at];
      c == '&'    ? void(escaped += "&amp;")
      : c == '<'  ? void(escaped += "&lt;")
      : c == '>'  ? void(escaped += "&gt;")
      : c == '\'' ? void(escaped += "&#39;")
      : c == '"'  ? void(escaped += "&#34;")
                  : void(escaped += c);
    }
    out.Append(escaped, run.origin);
  }
  return out;
}

namespace {

// One directive of a format: %-5.2f.
struct Directive {
  std::string flags;
  int width = 0;
  int precision = -1;
  char type = 's';
};

int TakeNumber(std::string_view* rest) {
  int number = 0;
  while (!rest->empty() && IsDigit(static_cast<char32_t>(rest->front())) && number < 100000) {
    number = number * 10 + (rest->front() - '0');
    rest->remove_prefix(1);
  }
  return number;
}

Result<MarkedText> FormatOne(const Directive& directive, const Value& value, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(value.weight() + static_cast<size_t>(directive.width)));
  if (directive.width > 4096 || directive.precision > 300)
    return InvalidArgument("%: expected a width of at most 4096, found a larger one");
  MarkedText text;
  const bool as_text = directive.type == 's' || directive.type == 'r';
  if (as_text) {
    text = directive.type == 's' ? value.ToText() : MarkedText(Repr(value), TextOrigin::kMessage);
    const int64_t end = directive.precision;
    if (directive.precision >= 0) {
      PS_ASSIGN_OR_RETURN(text, CharacterSlice(text, nullptr, &end, 1, budget));
    }
  } else {
    if (!value.number())
      return InvalidArgument("%", directive.type, ": expected a number, found ", value.TypeName());
    std::string form = "%" + directive.flags;
    char out[5000];
    const auto put = [&](const char* length, auto number) {
      form += std::to_string(directive.width);
      if (directive.precision >= 0) form += StrCat(".", directive.precision);
      form += StrCat(length, directive.type);
      std::snprintf(out, sizeof(out), form.c_str(), number);
    };
    static constexpr std::string_view kInteger = "diu", kBases = "xXo", kFloat = "eEfFgG";
    if (kInteger.find(directive.type) != kInteger.npos) {
      if (value.floating() && !(std::abs(value.AsDouble()) < 9e18))
        return InvalidArgument("%d: expected a number of 64 bits, found a larger one");
      const long long number = value.floating() ? static_cast<long long>(value.AsDouble())
                                                : static_cast<long long>(value.AsInt());
      put("ll", number);
    } else if (kBases.find(directive.type) != kBases.npos && !value.floating() &&
               value.AsInt() >= 0) {
      put("ll", static_cast<long long>(value.AsInt()));
    } else if (kFloat.find(directive.type) != kFloat.npos) {
      put("", value.AsDouble());
    } else {
      return InvalidArgument(
          "%: expected one of s, r, d, i, u, x, X, o, e, E, f, F, g and G, found ", directive.type);
    }
    return MarkedText(out, TextOrigin::kMessage);
  }
  const auto length = static_cast<int64_t>(CharacterCount(text.text()));
  if (length >= directive.width) return text;
  const MarkedText spaces(std::string(static_cast<size_t>(directive.width - length), ' '),
                          TextOrigin::kMessage);
  MarkedText padded = directive.flags.find('-') == std::string::npos ? spaces : text;
  padded.Append(directive.flags.find('-') == std::string::npos ? text : spaces);
  return padded;
}

}  // namespace

Result<MarkedText> PercentFormat(const MarkedText& text, const Value& values, Budget* budget) {
  PS_RETURN_IF_ERROR(budget->Spend(text.size()));
  const bool several = values.list(ListKind::kTuple);
  size_t used = 0;
  MarkedText out;
  std::string_view rest = text.text();
  while (true) {
    const size_t sign = rest.find('%');
    const size_t at = text.size() - rest.size();
    out.Append(text.Slice(at, sign == rest.npos ? text.size() : at + sign));
    if (sign == rest.npos) break;
    rest.remove_prefix(sign + 1);
    const Value* value = nullptr;
    if (rest.starts_with('(') && values.dict()) {
      const size_t end = rest.find(')');
      if (end == rest.npos) return InvalidArgument("%: expected ) after a name, found none");
      value = values.AsDict().Find(std::string(rest.substr(1, end - 1)));
      if (value == nullptr)
        return InvalidArgument("%: expected a value of ", rest.substr(1, end - 1), ", found none");
      rest.remove_prefix(end + 1);
    }
    Directive directive;
    while (!rest.empty() && std::string_view("-+ 0#").find(rest.front()) != rest.npos &&
           directive.flags.size() < 8) {
      directive.flags += rest.front();
      rest.remove_prefix(1);
    }
    directive.width = TakeNumber(&rest);
    if (rest.starts_with('.')) {
      rest.remove_prefix(1);
      directive.precision = TakeNumber(&rest);
    }
    if (rest.empty()) return InvalidArgument("%: expected the letter of a format, found none");
    directive.type = rest.front();
    rest.remove_prefix(1);
    if (directive.type == '%') {
      out.Append("%", TextOrigin::kTemplate);
      continue;
    }
    if (value == nullptr) {
      if (used >= (several ? values.AsList().size() : 1))
        return InvalidArgument("%: expected a value for each format, found too few");
      value = several ? &values.AsList()[used] : &values;
      ++used;
    }
    PS_ASSIGN_OR_RETURN(const MarkedText one, FormatOne(directive, *value, budget));
    out.Append(one);
  }
  if (used < (several ? values.AsList().size() : 1) && !values.dict() &&
      !values.list(ListKind::kList) && !values.list(ListKind::kRange))
    return InvalidArgument("%: expected a format for each value, found too few");
  return out;
}

}  // namespace polysketch::chat
