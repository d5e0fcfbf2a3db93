#include "engine/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/utf8.h"
#include "engine/checkpoint/strict_json.h"
#include "engine/tokenizer/space_marker.h"

namespace polysketch {
namespace {

using nlohmann::json;

constexpr int kMaxTokenizerDepth = 32;
constexpr size_t kMaxGrowth = 1024;  // bytes that a normalizer makes of one
constexpr size_t kMaxMessageBytes = 300;
constexpr int64_t kMaxFreeIds = 1 << 20;  // below the largest id; pieces are stored by id
// What ByteLevel splits by, as GPT-2 does.
constexpr std::string_view kByteLevelRegex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The code point that stands for each byte in a byte-level vocabulary: printable bytes stand for
// themselves, the others for U+0100 and the code points after it (GPT-2's bytes_to_unicode).
const std::array<char32_t, 256>& ByteCharacters() {
  static const std::array<char32_t, 256> characters = [] {
    std::array<char32_t, 256> made{};
    char32_t next = 0x100;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                             (byte >= 0xAE && byte <= 0xFF);
      made[byte] = printable ? byte : next++;
    }
    return made;
  }();
  return characters;
}

// The bytes of a token of a byte-level vocabulary; nullopt if it holds another character.
std::optional<std::string> BytesOfByteLevel(std::string_view token) {
  static const std::unordered_map<char32_t, char> bytes = [] {
    std::unordered_map<char32_t, char> made;
    for (size_t byte = 0; byte < 256; ++byte)
      made.emplace(ByteCharacters()[byte], static_cast<char>(byte));
    return made;
  }();
  std::string out;
  while (!token.empty()) {
    const Utf8Char c = DecodeUtf8(token);
    const auto byte = bytes.find(c.code_point);
    if (byte == bytes.end()) return std::nullopt;
    out += byte->second;
    token.remove_prefix(static_cast<size_t>(c.length));
  }
  return out;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  while (true) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

// "<0x0A>" of byte 10.
std::string ByteToken(size_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
}

class Reader {
 public:
  Reader(const json& root, const std::string& source) : root_(root), source_(source) {}

  Result<TokenizerJson> Read() {
    if (!root_.is_object()) return Wrong("", "an object", root_);
    tokens_ = std::ssize(Field(Field(root_, "model"), "vocab")) +
              std::ssize(Field(root_, "added_tokens"));
    PS_RETURN_IF_ERROR(Steps("normalizer", "normalizers", &Reader::ReadNormalizer));
    PS_RETURN_IF_ERROR(Steps("pre_tokenizer", "pretokenizers", &Reader::ReadPreTokenizer));
    PS_RETURN_IF_ERROR(ReadAddedTokens(Field(root_, "added_tokens")));
    PS_RETURN_IF_ERROR(ReadModel(Field(root_, "model")));
    PS_RETURN_IF_ERROR(Steps("decoder", "decoders", &Reader::ReadDecoder));
    if (byte_level_ != decodes_byte_level_)
      return Error("decoder", "expected ", byte_level_ ? "ByteLevel" : "none of ByteLevel",
                   ", as pre_tokenizer has it, found another");
    PS_RETURN_IF_ERROR(Steps("post_processor", "processors", &Reader::ReadPostProcessor));
    PS_RETURN_IF_ERROR(SetPieces());
    return std::move(out_);
  }

 private:
  template <typename... Args>
  Status Error(const std::string& path, const Args&... args) const {
    return InvalidArgument(source_, ": ", path, path.empty() ? "" : ": ",
                           Abbreviate(StrCat(args...), kMaxMessageBytes));
  }
  Status Wrong(const std::string& path, std::string_view expected, const json& found) const {
    return Error(path, "expected ", expected, ", found ", DescribeJson(found));
  }
  static const json& Field(const json& object, const std::string& name) {
    static const json null;
    const auto found = object.find(name);
    return found == object.end() ? null : *found;
  }
  Result<bool> Flag(const json& object, const char* name, bool otherwise,
                    const std::string& path) const {
    const json& value = Field(object, name);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) return Wrong(path + "." + name, "true or false", value);
    return value.get<bool>();
  }
  Result<std::string> Text(const json& object, const char* name, const std::string& path) const {
    const json& value = Field(object, name);
    if (!value.is_string()) return Wrong(path + "." + name, "a string", value);
    return value.get<std::string>();
  }
  Result<std::string> Type(const json& object, const std::string& path) const {
    if (!object.is_object()) return Wrong(path, "an object with a type", object);
    return Text(object, "type", path);
  }
  // Calls `read` for each element of the array `name` of a Sequence.
  template <typename Read>
  Status Each(const json& object, const char* name, const std::string& path, const Read& read) {
    const json& list = Field(object, name);
    const std::string list_path = path + "." + name;
    if (!list.is_array()) return Wrong(list_path, "an array", list);
    for (size_t i = 0; i < list.size(); ++i)
      PS_RETURN_IF_ERROR(read(list[i], StrCat(list_path, "[", i, "]")));
    return Status();
  }

  using ReadStep = Status (Reader::*)(const json& step, const std::string& type,
                                      const std::string& path);
  // Reads the step that field `name` of the file has, or the steps of its Sequence, in `list`.
  Status Steps(const char* name, const char* list, ReadStep read) {
    return StepsOf(Field(root_, name), list, name, read);
  }
  Status StepsOf(const json& value, const char* list, const std::string& path, ReadStep read) {
    if (value.is_null()) return Status();
    PS_ASSIGN_OR_RETURN(const std::string type, Type(value, path));
    if (type != "Sequence") return (this->*read)(value, type, path);
    return Each(value, list, path, [&](const json& one, const std::string& at) {
      return StepsOf(one, list, at, read);
    });
  }

  // {"String": "..."} or {"Regex": "..."}.
  Result<std::shared_ptr<const Regex>> Pattern(const json& object, const std::string& path) const {
    const json& pattern = Field(object, "pattern");
    const std::string at = path + ".pattern";
    if (pattern.is_object() && pattern.size() == 1 && pattern.begin()->is_string()) {
      const auto& text = pattern.begin()->get_ref<const std::string&>();
      if (pattern.contains("String") && !text.empty()) return Shared(Regex::Literal(text), at);
      if (pattern.contains("Regex")) return Shared(Regex::Compile(text), at);
    }
    return Wrong(at, R"({"String": TEXT} or {"Regex": TEXT})", pattern);
  }
  Result<std::shared_ptr<const Regex>> Shared(Result<Regex> regex, const std::string& path) const {
    if (!regex.ok()) return Error(path, regex.status().message());
    return std::make_shared<const Regex>(std::move(regex).value());
  }
  // A regular expression of this file, which is supported.
  static std::shared_ptr<const Regex> Own(std::string_view pattern) {
    return std::make_shared<const Regex>(Regex::Compile(pattern).value());
  }

  Status ReadNormalizer(const json& value, const std::string& type, const std::string& path) {
    StageSpec stage;
    if (type == "NFC") {
      stage.kind = StageSpec::Kind::kNfc;
    } else if (type == "Prepend") {
      stage.kind = StageSpec::Kind::kPrepend;
      PS_ASSIGN_OR_RETURN(stage.content, Text(value, "prepend", path));
    } else if (type == "Replace") {
      stage.kind = StageSpec::Kind::kReplace;
      PS_ASSIGN_OR_RETURN(stage.regex, Pattern(value, path));
      PS_ASSIGN_OR_RETURN(stage.content, Text(value, "content", path));
    } else {
      return Error(path + ".type", "expected NFC, Prepend, Replace or Sequence, found ", type);
    }
    growth_ *= 1 + stage.content.size();
    if (growth_ > kMaxGrowth)
      return Error(path, "expected normalizers that make at most ", kMaxGrowth,
                   " bytes of one, found more");
    out_.normalizer.push_back(std::move(stage));
    return Status();
  }

  Result<SplitBehavior> Behavior(const json& object, const std::string& path) const {
    static const std::map<std::string, SplitBehavior, std::less<>> names = {
        {"Isolated", SplitBehavior::kIsolated},
        {"Removed", SplitBehavior::kRemoved},
        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
        {"MergedWithNext", SplitBehavior::kMergedWithNext},
        {"Contiguous", SplitBehavior::kContiguous}};
    PS_ASSIGN_OR_RETURN(const std::string name, Text(object, "behavior", path));
    const auto found = names.find(name);
    if (found == names.end()) return Error(path + ".behavior", "found ", name);
    return found->second;
  }

  void AddSplit(std::shared_ptr<const Regex> regex, SplitBehavior behavior, bool inverted = false) {
    out_.pre_tokenizer.push_back({.kind = StageSpec::Kind::kSplit,
                                  .regex = std::move(regex),
                                  .behavior = behavior,
                                  .inverted = inverted});
  }

  Status ReadPreTokenizer(const json& value, const std::string& type, const std::string& path) {
    if (byte_level_) return Error(path, "expected nothing after ByteLevel, found ", type);
    if (type == "Split") {
      PS_ASSIGN_OR_RETURN(auto regex, Pattern(value, path));
      PS_ASSIGN_OR_RETURN(const SplitBehavior behavior, Behavior(value, path));
      PS_ASSIGN_OR_RETURN(const bool inverted, Flag(value, "invert", false, path));
      AddSplit(std::move(regex), behavior, inverted);
      return Status();
    }
    if (type == "Digits") {
      PS_ASSIGN_OR_RETURN(const bool single, Flag(value, "individual_digits", false, path));
      AddSplit(Own(single ? R"(\p{N})" : R"(\p{N}+)"), SplitBehavior::kIsolated);
      return Status();
    }
    if (type == "ByteLevel") return ReadByteLevel(value, path);
    if (type == "Metaspace") return ReadMetaspace(value, path);
    return Error(path + ".type", "expected Split, Digits, ByteLevel, Metaspace or Sequence, found ",
                 type);
  }

  Status ReadByteLevel(const json& value, const std::string& path) {
    byte_level_ = true;
    PS_ASSIGN_OR_RETURN(const bool prefix, Flag(value, "add_prefix_space", true, path));
    PS_ASSIGN_OR_RETURN(const bool splits, Flag(value, "use_regex", true, path));
    if (prefix) out_.pre_tokenizer.push_back({.kind = StageSpec::Kind::kPrefix, .content = " "});
    if (splits) AddSplit(Own(kByteLevelRegex), SplitBehavior::kIsolated);
    return Status();
  }

  // Of older files: add_prefix_space.
  Result<std::string> PrependScheme(const json& value, const std::string& path) const {
    if (!Field(value, "prepend_scheme").is_null()) return Text(value, "prepend_scheme", path);
    PS_ASSIGN_OR_RETURN(const bool prefix, Flag(value, "add_prefix_space", true, path));
    return std::string(prefix ? "always" : "never");
  }

  Status ReadMetaspace(const json& value, const std::string& path) {
    PS_ASSIGN_OR_RETURN(const std::string marker, Text(value, "replacement", path));
    PS_ASSIGN_OR_RETURN(const std::string scheme, PrependScheme(value, path));
    PS_ASSIGN_OR_RETURN(const bool splits, Flag(value, "split", true, path));
    if (DecodeUtf8(marker + " ").length != static_cast<int>(marker.size()))
      return Error(path + ".replacement", "expected one character, found ", marker);
    out_.pre_tokenizer.push_back(
        {.kind = StageSpec::Kind::kReplace,
         .content = marker,
         .regex = std::make_shared<const Regex>(Regex::Literal(" ").value())});
    if (scheme == "always" || scheme == "first") {
      out_.pre_tokenizer.push_back({.kind = StageSpec::Kind::kPrefix,
                                    .content = marker,
                                    .only_at_start = scheme == "first"});
    } else if (scheme != "never") {
      return Error(path + ".prepend_scheme", "expected always, first or never, found ", scheme);
    }
    if (splits) {
      AddSplit(std::make_shared<const Regex>(Regex::Literal(marker).value()),
               SplitBehavior::kMergedWithNext);
    }
    return Status();
  }

  Status AddPiece(const std::string& piece, int64_t id, const std::string& path) {
    if (id < 0 || id >= tokens_ + kMaxFreeIds) {
      return Error(path, "expected an id of 0 to ", tokens_ + kMaxFreeIds - 1, " for one of ",
                   tokens_, " tokens, found ", id);
    }
    const auto index = static_cast<size_t>(id);
    if (out_.pieces.size() <= index) out_.pieces.resize(index + 1);
    if (!out_.pieces[index].empty() && out_.pieces[index] != piece)
      return Error(path, "expected one token with id ", id, ", found two");
    out_.pieces[index] = piece;
    return Status();
  }

  Status ReadModel(const json& model) {
    PS_ASSIGN_OR_RETURN(const std::string type,
                        model.is_object() && !model.contains("type") && model.contains("merges")
                            ? Result<std::string>("BPE")
                            : Type(model, "model"));
    if (type != "BPE") return Error("model.type", "expected BPE, found ", type);
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json& value = Field(model, name);
      const auto* text = value.get_ptr<const json::string_t*>();
      if (!value.is_null() && (text == nullptr || !text->empty()))
        return Wrong(StrCat("model.", name), "none", value);
    }
    if (const json& dropout = Field(model, "dropout"); !dropout.is_null() && dropout != 0.0)
      return Wrong("model.dropout", "none", dropout);
    PS_ASSIGN_OR_RETURN(byte_fallback_, Flag(model, "byte_fallback", false, "model"));
    PS_ASSIGN_OR_RETURN(out_.model.fuse_unk, Flag(model, "fuse_unk", false, "model"));
    PS_ASSIGN_OR_RETURN(out_.model.ignore_merges, Flag(model, "ignore_merges", false, "model"));
    out_.model.byte_level = byte_level_;
    PS_RETURN_IF_ERROR(ReadVocabulary(Field(model, "vocab")));
    PS_RETURN_IF_ERROR(ReadMerges(Field(model, "merges")));
    const json& unknown = Field(model, "unk_token");
    if (unknown.is_null()) return Status();
    if (!unknown.is_string() || !vocabulary_.contains(unknown.get<std::string>()))
      return Wrong("model.unk_token", "a token of model.vocab", unknown);
    out_.model.unk_id = vocabulary_.at(unknown.get<std::string>());
    return Status();
  }

  // The bytes of a token as words hold them; nullopt for one that no word can hold.
  std::optional<std::string> InWords(const std::string& token) const {
    return byte_level_ ? BytesOfByteLevel(token) : std::optional<std::string>(token);
  }

  Status ReadVocabulary(const json& vocabulary) {
    if (!vocabulary.is_object()) return Wrong("model.vocab", "an object", vocabulary);
    for (const auto& [token, id] : vocabulary.items()) {
      if (!id.is_number_integer()) return Wrong("model.vocab", "ids", id);
      PS_RETURN_IF_ERROR(AddPiece(token, id.get<int64_t>(), "model.vocab"));
      vocabulary_.emplace(token, id.get<int32_t>());
      if (special_.contains(token)) continue;  // no text becomes a control token
      std::optional<std::string> bytes = InWords(token);
      if (bytes.has_value() && !bytes->empty())
        out_.model.tokens.emplace_back(*std::move(bytes), id.get<int32_t>());
    }
    if (!byte_fallback_) return Status();
    out_.model.byte_ids.assign(256, -1);
    for (size_t byte = 0; byte < 256; ++byte) {
      const auto found = vocabulary_.find(ByteToken(byte));
      if (found != vocabulary_.end()) out_.model.byte_ids[byte] = found->second;
    }
    return Status();
  }

  // ["a b", ...] or [["a", "b"], ...].
  Status ReadMerges(const json& merges) {
    if (!merges.is_array()) return Wrong("model.merges", "an array", merges);
    out_.model.merges.reserve(merges.size());
    for (size_t i = 0; i < merges.size(); ++i) {
      const json& merge = merges[i];
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
          left = text.substr(0, space);
          right = text.substr(space + 1);
        }
      }
      if (left.empty() || right.empty())
        return Wrong(StrCat("model.merges[", i, "]"), "two tokens", merge);
      if (byte_fallback_ && (IsByteToken(left) || IsByteToken(right)))
        return Wrong(StrCat("model.merges[", i, "]"), "no token of a byte", merge);
      const std::optional<std::string> a = InWords(left), b = InWords(right);
      if (!a || !b) return Wrong(StrCat("model.merges[", i, "]"), "two tokens of bytes", merge);
      out_.model.merges.emplace_back(*a, *b);
    }
    return Status();
  }

  bool IsByteToken(const std::string& token) const {
    if (token.size() != 6 || !token.starts_with("<0x")) return false;
    for (size_t byte = 0; byte < 256; ++byte) {
      if (token == ByteToken(byte)) return true;
    }
    return false;
  }

  Status ReadAddedTokens(const json& tokens) {
    if (tokens.is_null()) return Status();
    if (!tokens.is_array()) return Wrong("added_tokens", "an array", tokens);
    // The id is that which Hugging Face's tokenizers give a text, whatever the file says: that of the vocabulary;
    // else the next one, beyond the size of the vocabulary and the added tokens before.
    const json& vocab = Field(Field(root_, "model"), "vocab");
    int64_t next = vocab.is_object() ? static_cast<int64_t>(vocab.size()) : 0;
    std::set<std::string> texts;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string path = StrCat("added_tokens[", i, "]");
      const json& one = tokens[i];
      if (!one.is_object()) return Wrong(path, "an object", one);
      AddedToken token;
      PS_ASSIGN_OR_RETURN(token.text, Text(one, "content", path));
      const json& id = Field(one, "id");
      if (!id.is_number_integer()) return Wrong(path + ".id", "an id", id);
      const json& known = Field(vocab, token.text);
      const int64_t assigned = known.is_number_integer() ? known.get<int64_t>() : next;
      PS_RETURN_IF_ERROR(AddPiece(token.text, assigned, path));
      token.id = static_cast<int32_t>(assigned);
      next = std::max(next, assigned + 1);
      PS_ASSIGN_OR_RETURN(token.special, Flag(one, "special", false, path));
      PS_ASSIGN_OR_RETURN(token.single_word, Flag(one, "single_word", false, path));
      PS_ASSIGN_OR_RETURN(token.strip_left, Flag(one, "lstrip", false, path));
      PS_ASSIGN_OR_RETURN(token.strip_right, Flag(one, "rstrip", false, path));
      PS_ASSIGN_OR_RETURN(token.normalized, Flag(one, "normalized", !token.special, path));
      if (token.text.empty() || !texts.insert(token.text).second)
        return Error(path + ".content", "expected a text that no other added token has, found \"",
                     Abbreviate(token.text), "\"");
      if (token.special && token.single_word)
        return Error(path + ".single_word", "expected false of a special token, found true");
      if (token.special) special_.insert(token.text);
      out_.added_tokens.push_back(std::move(token));
    }
    return Status();
  }

  // The decoders that undo the supported pre-tokenizers. What they do to each token is known from the
  // model; what is left is the space at the beginning of a text.
  Status ReadDecoder(const json& value, const std::string& type, const std::string& path) {
    if (type == "ByteLevel") decodes_byte_level_ = true;
    if (type == "ByteLevel" || type == "ByteFallback" || type == "Fuse") return Status();
    if (type == "Metaspace") {
      PS_ASSIGN_OR_RETURN(const std::string scheme, PrependScheme(value, path));
      out_.strips_leading_space = scheme != "never";
      marker_ = true;
      return Status();
    }
    if (type == "Replace") {
      const json expected = {{"String", kSpaceMarker}};
      if (Field(value, "pattern") != expected || Field(value, "content") != " ")
        return Wrong(path, "U+2581 replaced by a space", value);
      marker_ = true;
      return Status();
    }
    if (type == "Strip") {
      if (Field(value, "content") != " " || Field(value, "start") != 1 || Field(value, "stop") != 0)
        return Wrong(path, "one space at the start", value);
      out_.strips_leading_space = true;
      return Status();
    }
    return Error(
        path + ".type",
        "expected ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip or Sequence, found ",
        type);
  }

  Status ReadPostProcessor(const json& value, const std::string& type, const std::string& path) {
    if (type == "ByteLevel") return Status();  // offsets only
    if (type != "TemplateProcessing")
      return Error(path + ".type", "expected TemplateProcessing, ByteLevel or Sequence, found ",
                   type);
    bool before = true;
    PS_RETURN_IF_ERROR(Each(value, "single", path, [&](const json& one, const std::string& at) {
      if (one.is_object() && one.contains("Sequence")) {
        if (!before || !one["Sequence"].is_object() || Field(one["Sequence"], "id") != "A")
          return Wrong(at, "the Sequence A once", one);
        before = false;
        return Status();
      }
      const json& token = one.is_object() ? Field(one, "SpecialToken") : one;
      if (!token.is_object()) return Wrong(at, "a Sequence or a SpecialToken", one);
      if (!before) return Status();  // what ends a training text ends no prompt
      PS_ASSIGN_OR_RETURN(const std::string name, Text(token, "id", at));
      const auto piece = std::find(out_.pieces.begin(), out_.pieces.end(), name);
      if (piece == out_.pieces.end()) return Error(at, "expected a token, found ", name);
      out_.before_text.push_back(static_cast<int32_t>(piece - out_.pieces.begin()));
      return Status();
    }));
    return before ? Error(path + ".single", "expected the Sequence A, found none") : Status();
  }

  Status SetPieces() {
    std::unordered_map<int32_t, const AddedToken*> added;
    for (const AddedToken& token : out_.added_tokens) added.emplace(token.id, &token);
    for (size_t i = 0; i < out_.pieces.size(); ++i) {
      const std::string& piece = out_.pieces[i];
      const auto token = added.find(static_cast<int32_t>(i));
      if (token != added.end() && token->second->special) {
        out_.bytes.emplace_back();
      } else if (byte_level_) {
        // An added token may be spelled in characters that stand for no byte: it is its own text.
        out_.bytes.push_back(BytesOfByteLevel(piece).value_or(piece));
      } else if (byte_fallback_ && IsByteToken(piece)) {
        const auto byte = std::find(out_.model.byte_ids.begin(), out_.model.byte_ids.end(),
                                    static_cast<int32_t>(i));
        out_.bytes.emplace_back(1, static_cast<char>(byte - out_.model.byte_ids.begin()));
      } else {
        out_.bytes.push_back(marker_ ? ReplaceAll(piece, kSpaceMarker, " ") : piece);
      }
    }
    return Status();
  }

  const json& root_;
  const std::string& source_;
  TokenizerJson out_;
  std::unordered_map<std::string, int32_t> vocabulary_;
  std::set<std::string> special_;  // texts of control tokens
  int64_t tokens_ = 0;             // of the file
  size_t growth_ = 1;              // of a text, by the texts that normalizers put into it
  bool byte_level_ = false;
  bool decodes_byte_level_ = false;
  bool byte_fallback_ = false;
  bool marker_ = false;  // decoding makes spaces of U+2581
};

}  // namespace

Result<TokenizerJson> ParseTokenizerJson(std::string_view text, const std::string& source) {
  PS_ASSIGN_OR_RETURN(const json root, ParseStrictJson(text, source, kMaxTokenizerDepth));
  return Reader(root, source).Read();
}

}  // namespace polysketch
