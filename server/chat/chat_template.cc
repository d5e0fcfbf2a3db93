#include "server/chat/chat_template.h"

#include <algorithm>
#include <optional>

#include "base/bounded_json.h"
#include "engine/tokenizer/tokenizer_files.h"
#include "server/chat/interpreter.h"

namespace polysketch {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr const char* kPieces[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
constexpr auto kReplace = json::error_handler_t::replace;  // of bytes that are no UTF-8
constexpr std::string_view kSpace = " \t\r\n";

// For models that know no form of chats, such as those trained on books: turns as in a play.
constexpr char kPlainName[] = "plain";
constexpr char kPlain[] =
    R"({%- for message in messages %}
{%- set content = (message.content or '') | trim %}
{%- if message.role == 'system' %}{{ content + '\n\n' }}
{%- else %}{{ message.role | capitalize + ': ' + content + '\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %})";
constexpr const char* kPlainStops[] = {"\nUser:", "\nAssistant:"};

// Words without a meaning to templates, in place of the messages of earlier turns.
const ChatMessage kSystemStandIn = {"system", "standinzero", ""};
const ChatMessage kUserStandIn = {"user", "standinone", ""};
const ChatMessage kAnswerStandIn = {"assistant", "standintwo", ""};

// The bytes of a file; nullopt without it.
Result<std::optional<std::string>> ReadIfThere(const ModelFolder& folder, const char* name) {
  if (!folder.Has(name)) return std::optional<std::string>();
  PS_ASSIGN_OR_RETURN(std::string text, folder.Read(name, kMaxFileBytes));
  return std::optional<std::string>(std::move(text));
}

// The bytes of a file that the operator names.
Result<std::optional<std::string>> ReadNamed(const std::string& path) {
  const Result<MappedFile> file = MappedFile::Open(path);
  if (!file.ok())
    return file.status().WithMessage(StrCat("expected a file or plain: ", file.status().message()));
  if (file->size() > kMaxFileBytes)
    return InvalidArgument(path, ": expected at most ", kMaxFileBytes, " bytes, found ",
                           file->size());
  return std::optional<std::string>(std::in_place, reinterpret_cast<const char*>(file->data()),
                                    file->size());
}

Result<json> ParseConfig(const std::string& path, std::string_view text) {
  Result<json> config = ParseJson(text);
  if (!config.ok()) return InvalidArgument(path, ": ", config.status().message());
  if (config->is_object()) return config;
  return InvalidArgument(path, ": expected a JSON object, found another value");
}

// The string `name` of an object; empty without one.
std::string StringOf(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// A piece is a string, or an object with its `content`.
std::string PieceOf(const json& config, const char* name) {
  const auto found = config.find(name);
  if (found != config.end() && found->is_object()) return StringOf(*found, "content");
  return StringOf(config, name);
}

// chat_template: a string, or a list of {"name", "template"}, of which "default" counts.
std::string TemplateOf(const json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  for (const json& named : *found) {
    if (named.is_object() && StringOf(named, "name") == "default")
      return StringOf(named, "template");
  }
  return "";
}

}  // namespace

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const ModelFolder& folder,
                                                         const Tokenizer* tokenizer, bool add_bos,
                                                         const std::string& file) {
  std::string path = folder.PathOf(kTokenizerConfigFile);
  PS_ASSIGN_OR_RETURN(const std::optional<std::string> config_text,
                      ReadIfThere(folder, kTokenizerConfigFile));
  PS_ASSIGN_OR_RETURN(const json config, ParseConfig(path, config_text.value_or("{}")));
  Source source;
  for (const char* name : kPieces) {
    if (const std::string piece = PieceOf(config, name); !piece.empty())
      source.pieces.emplace_back(name, piece);
  }
  if (file == kPlainName) {
    source.text = kPlain;
    source.stops.assign(std::begin(kPlainStops), std::end(kPlainStops));
    return Make(std::move(source), tokenizer, add_bos);
  }
  source.text = TemplateOf(config);
  PS_ASSIGN_OR_RETURN(std::optional<std::string> text,
                      file.empty() ? ReadIfThere(folder, kChatTemplateFile) : ReadNamed(file));
  if (!file.empty()) {
    path = file;
    source.text = *std::move(text);
  } else if (text.has_value()) {
    path = folder.PathOf(kChatTemplateFile);
    source.text = *std::move(text);
  } else if (source.text.empty()) {
    return NotFound(folder.path().string(), ": expected ", kChatTemplateFile, " or ",
                    kTokenizerConfigFile, " with chat_template, found neither");
  }
  Result<std::unique_ptr<ChatTemplate>> made = Make(std::move(source), tokenizer, add_bos);
  if (made.ok()) return made;
  return Status(made.status().code(), StrCat(path, ": ", made.status().message()));
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(Source source, const Tokenizer* tokenizer,
                                                          bool add_bos) {
  PS_ASSIGN_OR_RETURN(chat::Block block, chat::ParseTemplate(source.text));
  const auto add = [&](const char* name, int id) {
    const bool named = std::any_of(source.pieces.begin(), source.pieces.end(),
                                   [&](const auto& piece) { return piece.first == name; });
    if (!named && id >= 0) source.pieces.emplace_back(name, std::string(tokenizer->Piece(id)));
  };
  add("bos_token", tokenizer->bos_id());
  add("eos_token", tokenizer->eos_id());
  return std::unique_ptr<ChatTemplate>(
      new ChatTemplate(std::move(source), std::move(block), tokenizer, add_bos));
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Make(Source source, const Tokenizer* tokenizer,
                                                         bool add_bos) {
  PS_ASSIGN_OR_RETURN(std::unique_ptr<ChatTemplate> made,
                      Parse(std::move(source), tokenizer, add_bos));
  made->appends_ = made->CheckAppends();
  made->answer_beginning_ = made->AnswerBeginning();
  made->takes_tools_ = made->WritesTools(nullptr);
  made->takes_system_ = made->WritesSystem(nullptr);
  for (const auto& [name, piece] : made->source_.pieces) {
    const int32_t id = name == "eos_token" ? made->ControlId(piece) : -1;
    if (id >= 0) made->stop_ids_.push_back(id);
  }
  if (made->turn_end_ >= 0) made->stop_ids_.push_back(made->turn_end_);
  return made;
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::MakeForRequest(std::string text,
                                                                   const ChatTemplate* of_model,
                                                                   const Tokenizer* tokenizer,
                                                                   const ChatOptions& options) {
  // Of a parsed template, for each byte.
  constexpr int64_t kParsedBytes = 64;
  if (text.size() > kMaxRequestTemplateBytes) {
    return InvalidArgument("expected at most ", kMaxRequestTemplateBytes, " bytes, found ",
                           text.size());
  }
  if (options.hold) PS_RETURN_IF_ERROR(options.hold(kParsedBytes * std::ssize(text)));
  Source source{std::move(text), {}};
  if (of_model != nullptr) source.pieces = of_model->source_.pieces;
  const bool add_bos = of_model != nullptr && of_model->add_bos_;
  PS_ASSIGN_OR_RETURN(std::unique_ptr<ChatTemplate> made,
                      Parse(std::move(source), tokenizer, add_bos));
  made->appends_ = FailedPrecondition("expected the template of the server");
  made->takes_tools_ = made->WritesTools(options.hold);
  made->takes_system_ = made->WritesSystem(options.hold);
  return made;
}

int32_t ChatTemplate::ControlId(const std::string& piece) const {
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    if (tokenizer_->IsControl(id) && tokenizer_->Piece(id) == piece) return id;
  }
  return -1;
}

namespace {

using chat::Dict;
using chat::Value;

Result<Value> MessagesValue(const std::vector<ChatMessage>& messages) {
  chat::List list;
  for (const ChatMessage& message : messages) {
    Dict dict;
    dict.Set("role", Value::TemplateString(message.role));
    const bool calls = !message.tool_calls.is_null();
    dict.Set("content", calls && message.content.empty() ? Value::NoneValue()
                                                         : Value::MessageString(message.content));
    if (!message.name.empty()) dict.Set("name", Value::MessageString(message.name));
    if (!message.tool_call_id.empty())
      dict.Set("tool_call_id", Value::MessageString(message.tool_call_id));
    // Templates ask whether the key is there.
    if (!message.reasoning.empty())
      dict.Set("reasoning_content", Value::MessageString(message.reasoning));
    if (calls) {
      PS_ASSIGN_OR_RETURN(Value list_of_calls, Value::FromJson(message.tool_calls));
      dict.Set("tool_calls", std::move(list_of_calls));
    }
    PS_ASSIGN_OR_RETURN(Value value, Value::FromDict(std::move(dict)));
    list.push_back(std::move(value));
  }
  return Value::FromList(std::move(list));
}

// Where `content`, without white space around it, begins at the end of the last text of messages;
// npos: elsewhere or nowhere. What the template writes after a message may spell it too.
size_t LastContent(const MarkedText& text, std::string_view content) {
  const auto& runs = text.runs();
  const auto last = std::find_if(runs.rbegin(), runs.rend(), [](const MarkedText::Run& run) {
    return run.origin == TextOrigin::kMessage;
  });
  if (last == runs.rend()) return std::string::npos;
  const size_t begin = last + 1 == runs.rend() ? 0 : (last + 1)->end;
  std::string_view run = std::string_view(text.text()).substr(begin, last->end - begin);
  run = run.substr(0, run.find_last_not_of(kSpace) + 1);
  return run.ends_with(content) ? begin + run.size() - content.size() : std::string::npos;
}

// Ends a prompt after the content of its last message, without what the template writes after it.
Result<MarkedText> CutAfter(const MarkedText& text, const std::string& content) {
  const size_t begin = std::min(content.size(), content.find_first_not_of(kSpace));
  const std::string left = content.substr(begin);
  const std::string stripped = left.substr(0, left.find_last_not_of(kSpace) + 1);
  const size_t found = stripped.empty() ? std::string::npos : LastContent(text, stripped);
  if (found == std::string::npos)
    return InvalidArgument(
        "continue_final_message: expected the content of the last message at the "
        "end of the prompt, found none");
  const bool whole = text.text().compare(found, left.size(), left) == 0;
  return text.Slice(0, found + (whole ? left.size() : stripped.size()));
}

}  // namespace

Result<MarkedText> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                        const ChatOptions& options) const {
  Dict variables;
  for (const auto& [name, piece] : source_.pieces)
    variables.Set(name, Value::TemplateString(piece));
  variables.Set("documents", Value::NoneValue());
  Result<Value> tools = Value::FromJson(options.tools);
  if (!tools.ok()) return tools.status().WithMessage(StrCat("tools: ", tools.status().message()));
  variables.Set("tools", *std::move(tools));
  if (options.variables.is_object()) {
    for (const auto& [name, variable] : options.variables.items()) {
      PS_ASSIGN_OR_RETURN(Value value, Value::FromJson(variable));
      variables.Set(name, std::move(value));
    }
  }
  Result<Value> list = MessagesValue(messages);
  if (!list.ok()) return list.status().WithMessage(StrCat("messages: ", list.status().message()));
  variables.Set("messages", *std::move(list));
  variables.Set("add_generation_prompt", Value::Bool(options.add_generation_prompt));
  Result<MarkedText> text = chat::Render(block_, variables, options.hold);
  if (text.status().code() == Code::kResourceExhausted) return text;  // no fault of the template
  if (!text.ok())
    return Status(text.status().code(), StrCat("chat template: ", text.status().message()));
  if (!options.continue_final_message) return text;
  return CutAfter(*text, messages.back().content);
}

std::vector<size_t> ChatTemplate::BeginningsOf(const MarkedText& text,
                                               const std::vector<ChatMessage>& messages,
                                               const ChatOptions& options) const {
  std::vector<size_t> found;
  if (messages.size() > 1 && messages.front().role == "system") {
    ChatOptions closed = options;
    closed.add_generation_prompt = closed.continue_final_message = false;
    // Templates may refuse a system message alone.
    const Result<MarkedText> system = Render({messages.front()}, closed);
    if (system.ok() && text.text().starts_with(system->text())) found.push_back(system->size());
  }
  const bool begins = options.add_generation_prompt && !options.continue_final_message;
  if (!appends_.ok() && begins && !answer_beginning_.empty() &&
      text.text().ends_with(answer_beginning_))
    found.push_back(text.size() - answer_beginning_.size());
  return found;
}

Result<std::vector<int32_t>> ChatTemplate::Encode(const std::vector<ChatMessage>& messages,
                                                  const ChatOptions& options,
                                                  std::vector<int64_t>* beginnings) const {
  PS_ASSIGN_OR_RETURN(const MarkedText text, Render(messages, options));
  std::vector<ControlPlace> controls;
  PS_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      EncodeMarkedText(*tokenizer_, text, /*continued=*/false, &controls));
  const int bos = tokenizer_->bos_id();
  const bool adds_bos = add_bos_ && bos >= 0 && (ids.empty() || ids.front() != bos);
  if (adds_bos) ids.insert(ids.begin(), bos);
  if (beginnings == nullptr) return ids;
  // In front of a control piece the tokens do not depend on what follows.
  for (const size_t byte : BeginningsOf(text, messages, options)) {
    const auto at = std::ranges::lower_bound(controls, byte, {}, &ControlPlace::byte);
    if (at == controls.end() || at->byte != byte) continue;
    const int64_t tokens = at->token + (adds_bos ? 1 : 0);
    if (tokens > (beginnings->empty() ? 0 : beginnings->back())) beginnings->push_back(tokens);
  }
  return ids;
}

Result<MarkedText> ChatTemplate::TextAfter(const std::vector<ChatMessage>& before,
                                           const std::vector<ChatMessage>& messages,
                                           const ChatOptions& options) const {
  const ChatMessage& answer = before.back();
  std::vector<ChatMessage> conversation(before.begin(), before.end() - 1);
  ChatOptions open = options;
  open.add_generation_prompt = true;
  open.continue_final_message = false;
  PS_ASSIGN_OR_RETURN(const MarkedText base, Render(conversation, open));
  conversation.push_back(answer);
  conversation.insert(conversation.end(), messages.begin(), messages.end());
  PS_ASSIGN_OR_RETURN(const MarkedText whole, Render(conversation, options));
  // The model generates the spaces before an answer itself.
  const std::string& text = whole.text();
  const size_t begin = std::min(text.size(), text.find_first_not_of(kSpace, base.size()));
  if (!text.starts_with(base.text()) ||
      text.compare(begin, answer.content.size(), answer.content) != 0)
    return FailedPrecondition(
        "expected a chat template that appends each turn to the text of the turns before it, found "
        "one that writes earlier turns in another way");
  return whole.Slice(begin + answer.content.size(), whole.size());
}

Result<MarkedText> ChatTemplate::TurnText(const MarkedText& after, int32_t* turn_end) const {
  const size_t begin = std::min(after.size(), after.text().find_first_not_of(kSpace));
  *turn_end = ControlAt(after, begin);
  return after.Slice(*turn_end < 0 ? 0 : begin + tokenizer_->Piece(*turn_end).size(), after.size());
}

int32_t ChatTemplate::ControlAt(const MarkedText& text, size_t begin) const {
  int32_t found = -1;
  size_t longest = 0;
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    const std::string_view piece = tokenizer_->Piece(id);
    if (!tokenizer_->IsControl(id) || piece.size() <= longest ||
        text.text().compare(begin, piece.size(), piece) != 0 ||
        !text.IsTemplate(begin, begin + piece.size()))
      continue;
    longest = piece.size();
    found = id;
  }
  return found;
}

Status ChatTemplate::CheckTurnEnd() const {
  if (!source_.stops.empty()) return Status();
  const Result<MarkedText> text =
      Render({kUserStandIn, kAnswerStandIn, {"user", "standinthree", ""}}, ChatOptions());
  // One that refuses these messages, or does not write the answer, ends no turn of it.
  if (!text.ok()) return Status();
  const size_t answer = text->text().rfind(kAnswerStandIn.content);
  if (answer == std::string::npos) return Status();
  const size_t after = answer + kAnswerStandIn.content.size();
  const size_t begin = std::min(text->size(), text->text().find_first_not_of(kSpace, after));
  if (ControlAt(*text, begin) >= 0) return Status();
  constexpr size_t kShown = 40;
  const std::string found = text->text().substr(after, kShown);
  return FailedPrecondition(
      "expected a control piece of the vocabulary at the end of an answer, found ",
      found.empty() ? "nothing" : StrCat(json(found).dump(-1, ' ', false, kReplace)),
      ": output would not stop there, and text of a message could end a turn");
}

Status ChatTemplate::CheckAppends() {
  // The state of a conversation has a part of the text that ended its answer.
  if (!source_.stops.empty())
    return FailedPrecondition(
        "expected a chat template whose turns end with a control piece, found one whose turns end "
        "with text");
  const ChatOptions options;
  const std::vector<ChatMessage> next = {{"user", "standinthree", ""}};
  const std::vector<ChatMessage> first = {kUserStandIn, kAnswerStandIn};
  PS_ASSIGN_OR_RETURN(const MarkedText expected, TextAfter(first, next, options));
  std::vector<std::vector<ChatMessage>> others = {
      {kUserStandIn, kAnswerStandIn, kUserStandIn, kAnswerStandIn}};
  // Templates without a system message refuse it.
  if (Render({kSystemStandIn, kUserStandIn}, options).ok())
    others.push_back({kSystemStandIn, kUserStandIn, kAnswerStandIn});
  for (const std::vector<ChatMessage>& before : others) {
    PS_ASSIGN_OR_RETURN(const MarkedText text, TextAfter(before, next, options));
    if (text.text() != expected.text())
      return FailedPrecondition(
          "expected a chat template that writes a turn in the same way after "
          "any other turns, found one that does not");
  }
  return TurnText(expected, &turn_end_).status();
}

std::string ChatTemplate::AnswerBeginning() const {
  ChatOptions options;
  const Result<MarkedText> open = Render({kUserStandIn}, options);
  options.add_generation_prompt = false;
  const Result<MarkedText> closed = Render({kUserStandIn}, options);
  const bool found = open.ok() && closed.ok() && open->text().starts_with(closed->text());
  return found ? open->text().substr(closed->size()) : "";
}

bool ChatTemplate::WritesTools(chat::HoldMemory hold) const {
  constexpr char kName[] = "standintool";
  ChatOptions options;
  options.hold = std::move(hold);
  nlohmann::ordered_json function;
  function["name"] = kName;
  function["description"] = "standindescription";
  function["parameters"] = {{"type", "object"}, {"properties", nlohmann::ordered_json::object()}};
  nlohmann::ordered_json tool;
  tool["type"] = "function";
  tool["function"] = std::move(function);
  options.tools = nlohmann::ordered_json::array();
  options.tools.push_back(std::move(tool));
  const Result<MarkedText> text = Render({kUserStandIn}, options);
  return text.ok() && text->text().find(kName) != std::string::npos;
}

bool ChatTemplate::WritesSystem(chat::HoldMemory hold) const {
  ChatOptions options;
  options.hold = std::move(hold);
  const Result<MarkedText> text = Render({kSystemStandIn, kUserStandIn}, options);
  return text.ok() && text->text().find(kSystemStandIn.content) != std::string::npos;
}

Result<std::vector<int32_t>> ChatTemplate::EncodeTurn(const std::vector<ChatMessage>& messages,
                                                      const ChatOptions& options) const {
  PS_RETURN_IF_ERROR(appends_);
  PS_ASSIGN_OR_RETURN(const MarkedText after,
                      TextAfter({kUserStandIn, kAnswerStandIn}, messages, options));
  int32_t turn_end = -1;
  PS_ASSIGN_OR_RETURN(const MarkedText text, TurnText(after, &turn_end));
  if (turn_end != turn_end_)
    return FailedPrecondition(
        "expected a chat template that ends each answer with one control "
        "piece, found another one for these messages");
  return EncodeMarkedText(*tokenizer_, text, /*continued=*/true);
}

}  // namespace polysketch
