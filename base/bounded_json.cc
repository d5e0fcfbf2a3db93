#include "base/bounded_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace polysketch {
namespace {

constexpr size_t kMaxNumberLength = 4096;
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The text of a JSON value without white space between its parts.
std::string WithoutSpace(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    quoted = quoted != (json[i] == '"');
    if (quoted || kSpace.find(json[i]) == std::string_view::npos) text += json[i];
    if (quoted && json[i] == '\\') text += json[++i];
  }
  return text;
}

void AppendUtf8(uint32_t code, std::string* out) {
  const auto add = [&](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xe0 | code >> 12);
    } else {
      add(0xf0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3f));
    }
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

// The values that are open, outermost first, and those that are complete in them.
template <typename Json>
class Document {
 public:
  bool empty() const { return open_.empty(); }
  size_t depth() const { return open_.size(); }
  bool in_object() const { return !open_.empty() && open_.back().value.is_object(); }
  Json& root() { return root_; }

  // `begin`: where the container begins in the text.
  void Open(Json container, size_t begin) {
    open_.push_back({.value = std::move(container), .begin = begin});
  }

  // Adds a value to the container that is open, under the key of SetKey in an object.
  void Add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return;
    }
    Level& level = open_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else if constexpr (kOrdered) {
      // The library looks for a key among all others, one by one, and copies values when it moves
      // them.
      const auto [found, added] = level.places.emplace(level.key, level.members.size());
      if (added) {
        level.members.emplace_back(std::move(level.key), std::move(value));
      } else {
        level.members[found->second].second = std::move(value);
      }
    } else {
      level.value[std::move(level.key)] = std::move(value);
    }
  }

  void Close() {
    Level level = std::move(open_.back());
    open_.pop_back();
    if constexpr (kOrdered) {
      level.places.clear();
      if (level.value.is_object()) {
        auto& object = level.value.template get_ref<typename Json::object_t&>();
        object.reserve(level.members.size());
        for (auto& [key, value] : level.members)
          object.emplace_back(std::move(key), std::move(value));
      }
    }
    Add(std::move(level.value));
  }

  // Closes the container that is open; `value` takes its place.
  void CloseAs(Json value) {
    open_.pop_back();
    Add(std::move(value));
  }
  size_t begin() const { return open_.back().begin; }
  // Whether `path` leads to the container that is open.
  bool IsAt(const JsonPath& path) const {
    const auto leads = [](const std::string& key, const Level& level) {
      return level.value.is_object() && level.key == key;
    };
    return path.size() + 1 == open_.size() &&
           std::equal(path.begin(), path.end(), open_.begin(), leads);
  }

  // Sets the key of the member that follows in the object that is open.
  void SetKey(std::string&& key) { open_.back().key = std::move(key); }

  bool HasKey(const std::string& key) const {
    const Level& level = open_.back();
    return kOrdered ? level.places.contains(key) : level.value.contains(key);
  }

 private:
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;
  struct Level {
    Json value;
    size_t begin = 0;
    std::string key = {};  // of the member that follows, or that is open
    // Of an ordered object, until it is closed:
    std::vector<std::pair<std::string, Json>> members = {};
    std::unordered_map<std::string, size_t> places = {};  // in members
  };

  Json root_;
  std::vector<Level> open_;
};

template <typename Json>
class Parser {
 public:
  Parser(std::string_view text, JsonLimits limits) : text_(text), limits_(limits) {}

  Result<Json> Parse() {
    if (text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
    do {
      PS_RETURN_IF_ERROR(Value());
      PS_RETURN_IF_ERROR(AfterValue());
    } while (!document_.empty());
    if (at_ < text_.size()) return Expected("the end of the text");
    return std::move(document_.root());
  }

 private:
  Status Expected(std::string_view what) const {
    return InvalidArgument("expected JSON, found an error at byte ", at_ + 1, ": expected ", what);
  }

  void SkipSpace() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }
  // The next byte; NUL at the end, which no rule accepts either.
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Skip(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }

  // Reads a value up to its end or, of an array or object that has elements, to the first of them.
  Status Value() {
    for (;;) {
      SkipSpace();
      const char c = Peek();
      if (c != '[' && c != '{') return Scalar();
      if (static_cast<int>(document_.depth()) >= limits_.max_depth) {
        return InvalidArgument("expected at most ", limits_.max_depth,
                               " levels of arrays and objects, found more");
      }
      document_.Open(c == '[' ? Json::array() : Json::object(), at_++);
      SkipSpace();
      if (Skip(c == '[' ? ']' : '}')) {
        Close();
        return Status();
      }
      if (c == '{') PS_RETURN_IF_ERROR(Key());
    }
  }

  // Reads what follows a value, up to the next value of a container or the end.
  Status AfterValue() {
    for (;;) {
      SkipSpace();
      if (document_.empty()) return Status();
      const bool object = document_.in_object();
      if (Skip(',')) {
        SkipSpace();
        return object ? Key() : Status();
      }
      if (!Skip(object ? '}' : ']')) return Expected(object ? ", or }" : ", or ]");
      Close();
    }
  }

  void Close() {
    const auto is_open = [this](const JsonPath& path) { return document_.IsAt(path); };
    if (!document_.in_object() || std::ranges::none_of(limits_.as_text, is_open))
      return document_.Close();
    const size_t begin = document_.begin();
    document_.CloseAs(WithoutSpace(text_.substr(begin, at_ - begin)));
  }

  Status Key() {
    if (Peek() != '"') return Expected("a key in quotes");
    std::string key;
    PS_RETURN_IF_ERROR(String(&key));
    if (limits_.unique_keys && document_.HasKey(key))
      return InvalidArgument("key \"", Abbreviate(key), "\" appears twice");
    document_.SetKey(std::move(key));
    SkipSpace();
    return Skip(':') ? Status() : Expected(":");
  }

  Status Scalar() {
    const char c = Peek();
    if (c == '"') {
      std::string text;
      PS_RETURN_IF_ERROR(String(&text));
      document_.Add(std::move(text));
      return Status();
    }
    if (c == '-' || (c >= '0' && c <= '9')) return Number();
    if (Literal("true")) return document_.Add(true), Status();
    if (Literal("false")) return document_.Add(false), Status();
    if (Literal("null")) return document_.Add(nullptr), Status();
    return Expected("a value");
  }

  bool Literal(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool SkipDigits() {
    const size_t begin = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    return at_ > begin;
  }

  Status Number() {
    const size_t begin = at_;
    const bool negative = Skip('-');
    if (!Skip('0') && !SkipDigits()) return Expected("a digit");
    bool integer = true;
    if (Skip('.')) {
      integer = false;
      if (!SkipDigits()) return Expected("a digit");
    }
    if (Skip('e') || Skip('E')) {
      integer = false;
      if (!Skip('+')) Skip('-');
      if (!SkipDigits()) return Expected("a digit");
    }
    const std::string_view number = text_.substr(begin, at_ - begin);
    if (number.size() > kMaxNumberLength) {
      return InvalidArgument("expected numbers of at most ", kMaxNumberLength,
                             " characters, found one of ", number.size());
    }
    if (integer && negative && AddInteger<int64_t>(number)) return Status();
    if (integer && !negative && AddInteger<uint64_t>(number)) return Status();
    // from_chars does not say which end of the range a number is beyond.
    const double value = std::strtod(std::string(number).c_str(), nullptr);
    if (!std::isfinite(value))
      return InvalidArgument("expected numbers that fit in 64 bits, found a larger one");
    document_.Add(value);
    return Status();
  }

  // Adds an integer if it is in range.
  template <typename Integer>
  bool AddInteger(std::string_view number) {
    Integer value = 0;
    const char* const end = number.data() + number.size();
    if (std::from_chars(number.data(), end, value).ec != std::errc()) return false;
    document_.Add(value);
    return true;
  }

  // Reads a string in quotes, whose memory is that of its text.
  Status String(std::string* out) {
    const size_t begin = ++at_;
    size_t end = begin;
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    out->reserve(std::min(end, text_.size()) - begin);
    for (;;) {
      size_t special = at_;
      while (special < text_.size() && !EndsPlainText(text_[special])) ++special;
      const std::string_view plain = text_.substr(at_, special - at_);
      const size_t valid = ValidUtf8Prefix(plain);
      at_ += valid;
      if (valid < plain.size()) return Expected("UTF-8");
      out->append(plain);
      if (Skip('"')) return Status();
      if (!Skip('\\')) return Expected("a character or the end of the string");
      PS_RETURN_IF_ERROR(Escape(out));
    }
  }

  static bool EndsPlainText(char c) {
    return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
  }

  Status Escape(std::string* out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kCharacters = "\"\\/\b\f\n\r\t";
    if (const size_t letter = kLetters.find(Peek()); letter != std::string_view::npos) {
      ++at_;
      out->push_back(kCharacters[letter]);
      return Status();
    }
    if (Peek() != 'u') return Expected("an escape sequence");
    uint32_t code = 0;
    PS_RETURN_IF_ERROR(CodeUnit(&code));
    if (code >= 0xdc00 && code <= 0xdfff) return Expected("no low surrogate without a high one");
    if (code >= 0xd800 && code <= 0xdbff) {
      uint32_t low = 0;
      if (!Skip('\\') || Peek() != 'u') return Expected("a low surrogate");
      PS_RETURN_IF_ERROR(CodeUnit(&low));
      if (low < 0xdc00 || low > 0xdfff) return Expected("a low surrogate");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    AppendUtf8(code, out);
    return Status();
  }

  // Reads "u" and four hexadecimal digits.
  Status CodeUnit(uint32_t* code) {
    ++at_;
    const std::string_view digits = text_.substr(at_, 4);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), *code, 16);
    if (digits.size() < 4 || error != std::errc() || end != digits.data() + 4)
      return Expected("four hexadecimal digits");
    at_ += 4;
    return Status();
  }

  const std::string_view text_;
  const JsonLimits limits_;
  size_t at_ = 0;
  Document<Json> document_;
};

}  // namespace

template <typename Json>
Result<Json> ParseJson(std::string_view text, JsonLimits limits) {
  return Parser<Json>(text, limits).Parse();
}

template Result<nlohmann::json> ParseJson(std::string_view, JsonLimits);
template Result<nlohmann::ordered_json> ParseJson(std::string_view, JsonLimits);

int64_t ParsedJsonBytes(std::string_view text) {
  // Bytes of a 64-bit machine with glibc's allocator, which adds 8 and rounds up to 16.
  constexpr int64_t kElement = 48;  // 16, in a vector that doubles: the old one and the new one
  constexpr int64_t kContainer =
      112;  // an empty map or vector, and the first allocation of a vector
  // The node of a map; or a pair of an ordered object (48) in a vector that doubles and in the
  // object, and the entry of its key in the index.
  constexpr int64_t kMember = 288;
  constexpr int64_t kString = 48;
  constexpr int64_t kInline = 15;  // characters of a string without memory of its own
  int64_t bytes = 8192, last = 0;  // of the last string
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const size_t begin = i++;
      while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
      const auto length = static_cast<int64_t>(std::min(i, text.size()) - begin);
      last = length > kInline ? length + length / 32 + 24 : 0;  // large ones in whole pages
      bytes += kString + last;
    } else if (c == '[' || c == '{') {
      bytes += kContainer + kElement;
    } else if (c == ',') {
      bytes += kElement;
    } else if (c == ':') {
      bytes += kMember + last;  // the index has a key of its own
    }
  }
  return bytes;
}

std::string Abbreviate(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // whole UTF-8
  return StrCat(text.substr(0, end), "...");
}

}  // namespace polysketch
