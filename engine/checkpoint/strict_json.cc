#include "engine/checkpoint/strict_json.h"

#include <utility>
#include <vector>

#include "base/utf8.h"
#include "engine/checkpoint/mapped_file.h"

namespace polysketch {
namespace {

using nlohmann::json;

// The library's messages quote the text up to any byte. Bytes that are no character become U+FFFD.
std::string Characters(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    const auto length = static_cast<size_t>(c.length);
    out += c.kind == Utf8Char::Kind::kValid ? text.substr(0, length) : kReplacementCharacter;
    text.remove_prefix(length);
  }
  return out;
}

// Builds the document event by event, so that a duplicate key or a hostile depth ends the parse at
// once. The library's own builder silently keeps the last of two equal keys.
class StrictHandler final : public nlohmann::json_sax<json> {
 public:
  explicit StrictHandler(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Fail("unexpected binary value"); }
  bool start_object(size_t) override { return Open(json::object()); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    if (open_.back()->contains(value))
      return Fail(StrCat("key \"", Abbreviate(value), "\" appears twice"));
    key_ = std::move(value);
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    // The library's text is "[json.exception...] parse error at line 1, column 2: ...". Its prefix
    // does not help a user.
    std::string_view text = e.what();
    if (const size_t end = text.find("] "); end != std::string_view::npos)
      text.remove_prefix(end + 2);
    return Fail(
        StrCat("not valid JSON at byte ", position, ": ", Abbreviate(Characters(text), 200)));
  }

  json& root() { return root_; }
  const std::string& error() const { return error_; }

 private:
  bool Fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  json* Place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[std::move(key_)] = std::move(value));
  }

  bool Add(json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(json value) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return Fail(StrCat("nested too deeply: expected at most ", max_depth_, " levels"));
    }
    // A child never moves while it is open: nothing is added to its parent until it is closed.
    open_.push_back(Place(std::move(value)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  int max_depth_;
  json root_;
  std::vector<json*> open_;
  std::string key_;
  std::string error_;
};

}  // namespace

Result<json> ParseStrictJson(std::string_view text, std::string_view what, int max_depth) {
  // The library takes a NUL for the end of its input, and would ignore the bytes after it.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return InvalidArgument(what, ": not valid JSON at byte ", nul, ": NUL");
  }
  StrictHandler handler(max_depth);
  if (!json::sax_parse(text.begin(), text.end(), &handler))
    return InvalidArgument(what, ": ", handler.error());
  return std::move(handler.root());
}

Result<json> ReadStrictJson(const std::string& path, size_t max_bytes, int max_depth) {
  PS_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  if (file.size() > max_bytes) {
    return InvalidArgument(path, ": expected at most ", max_bytes, " bytes, found ", file.size());
  }
  return ParseStrictJson({reinterpret_cast<const char*>(file.data()), file.size()}, path,
                         max_depth);
}

std::string Abbreviate(std::string_view name, size_t most) {
  if (name.size() <= most) return std::string(name);
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;  // whole UTF-8
  return StrCat(name.substr(0, end), "...");
}

std::string DescribeJson(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string: {
      const auto& text = value.get_ref<const std::string&>();
      return StrCat("the string \"", Abbreviate(text), "\"");
    }
    case json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    default:
      return StrCat("the number ", value.dump());
  }
}

}  // namespace polysketch
