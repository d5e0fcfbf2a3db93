// The chat template of a model folder: messages to token ids. docs/chat-templates.md describes the
// language.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/checkpoint/model_folder.h"
#include "engine/tokenizer/marked_text.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/chat/syntax.h"
#include "server/chat/value.h"

namespace polysketch {

// One message. The role is one of the API's names, never text of a client.
struct ChatMessage {
  std::string role;
  std::string content;
  std::string name;  // of the participant; empty: none
  // Of an assistant's message: the calls that it made, an array of {"id", "type", "function":
  // {"name", "arguments": {...}}}, or null. `content` is then none to the template if it is empty.
  nlohmann::ordered_json tool_calls = nullptr;
  std::string tool_call_id = {};  // of a tool's message: the call that it answers; empty: none
  std::string reasoning = {};     // of an assistant's message, before the answer; empty: none
};

struct ChatOptions {
  // Whether the prompt ends with the beginning of an answer.
  bool add_generation_prompt = true;
  // Whether the prompt ends inside the last message, which the output continues.
  bool continue_final_message = false;
  // More variables of the template: an object, or null. A template sees the members of one within
  // in their order.
  nlohmann::ordered_json variables;
  // The tools that the model may call, as the API describes them: an array, or null.
  nlohmann::ordered_json tools = nullptr;
  // Takes the memory of what the template makes; null: nothing is counted.
  chat::HoldMemory hold = nullptr;
};

// Bytes of a template of a request.
inline constexpr size_t kMaxRequestTemplateBytes = size_t{64} << 10;

// Thread-safe after it is made.
class ChatTemplate {
 public:
  // A template and the pieces that it names.
  struct Source {
    std::string text;
    // "bos_token", "eos_token", "pad_token", "unk_token" and their texts.
    std::vector<std::pair<std::string, std::string>> pieces;
    // Texts that end an answer, of a template whose turns have no control pieces.
    std::vector<std::string> stops = {};
  };

  // Reads chat_template.jinja of a model folder, or else chat_template of tokenizer_config.json,
  // and the pieces that the latter names. `file`: a file of the template that is used in place of
  // the folder's, or "plain", the built-in one; empty: none. NOT_FOUND if the folder has no
  // template; INVALID_ARGUMENT names the file, the line and what is wrong. `tokenizer` outlives the
  // result. `add_bos`: BOS begins a prompt whose template does not write it.
  static Result<std::unique_ptr<ChatTemplate>> Load(const ModelFolder& folder,
                                                    const Tokenizer* tokenizer, bool add_bos,
                                                    const std::string& file = "");
  static Result<std::unique_ptr<ChatTemplate>> Make(Source source, const Tokenizer* tokenizer,
                                                    bool add_bos);

  // A template of a request, with the pieces and the BOS of `of_model` (null: none), for Encode of
  // `options`. It continues no response. INVALID_ARGUMENT for one that is too large.
  static Result<std::unique_ptr<ChatTemplate>> MakeForRequest(std::string text,
                                                              const ChatTemplate* of_model,
                                                              const Tokenizer* tokenizer,
                                                              const ChatOptions& options);

  // The template itself.
  const std::string& source() const { return source_.text; }

  // Returns the text of a conversation. INVALID_ARGUMENT for messages that the template refuses.
  Result<MarkedText> Render(const std::vector<ChatMessage>& messages,
                            const ChatOptions& options) const;
  // Returns the token ids of a conversation. `beginnings` (null: none) gets the numbers of tokens
  // after which other conversations may go on in another way: after the system message, and, if the
  // template does not write the beginning of an answer before answers, before it.
  Result<std::vector<int32_t>> Encode(const std::vector<ChatMessage>& messages,
                                      const ChatOptions& options,
                                      std::vector<int64_t>* beginnings = nullptr) const;

  // Returns the token ids that `messages` add to a conversation whose last message is an answer
  // that ended with turn_end(). FAILED_PRECONDITION when appends() is an error.
  Result<std::vector<int32_t>> EncodeTurn(const std::vector<ChatMessage>& messages,
                                          const ChatOptions& options) const;
  // OK if the text of a later turn follows the text of the turns before it, whatever they hold.
  // Otherwise the reason.
  const Status& appends() const { return appends_; }

  // Whether the text of a conversation has the tools that may be called.
  bool takes_tools() const { return takes_tools_; }
  // Whether it has what a system message says.
  bool takes_system() const { return takes_system_; }

  // Texts that end an answer; empty: control pieces do.
  const std::vector<std::string>& stops() const { return source_.stops; }

  // FAILED_PRECONDITION if the template has no such texts and writes another text than a control
  // piece of the vocabulary after an answer: output then does not stop there, and text of a message
  // can end a turn.
  Status CheckTurnEnd() const;

  // The control id that ends an answer; -1: the template writes none.
  int32_t turn_end() const { return turn_end_; }
  // The control ids that end an answer: that of eos_token, and turn_end().
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }

 private:
  ChatTemplate(Source source, chat::Block block, const Tokenizer* tokenizer, bool add_bos)
      : source_(std::move(source)),
        block_(std::move(block)),
        tokenizer_(tokenizer),
        add_bos_(add_bos) {}
  // The template, before anything is known of what it writes.
  static Result<std::unique_ptr<ChatTemplate>> Parse(Source source, const Tokenizer* tokenizer,
                                                     bool add_bos);
  // The text after the answer of the last message of `before`, which is a stand-in.
  Result<MarkedText> TextAfter(const std::vector<ChatMessage>& before,
                               const std::vector<ChatMessage>& messages,
                               const ChatOptions& options) const;
  // The control id whose piece the template has written at `begin`, the longest one; -1: none.
  int32_t ControlAt(const MarkedText& text, size_t begin) const;
  // The same without the control piece that ends the answer, whose id *turn_end becomes.
  Result<MarkedText> TurnText(const MarkedText& after, int32_t* turn_end) const;
  // The bytes after which Encode's beginnings end, ascending.
  std::vector<size_t> BeginningsOf(const MarkedText& text, const std::vector<ChatMessage>& messages,
                                   const ChatOptions& options) const;
  Status CheckAppends();
  // What the template writes in front of an answer; empty if it writes nothing, or refuses a
  // message.
  std::string AnswerBeginning() const;
  bool WritesTools(chat::HoldMemory hold) const;
  bool WritesSystem(chat::HoldMemory hold) const;
  int32_t ControlId(const std::string& piece) const;

  const Source source_;
  const chat::Block block_;
  const Tokenizer* const tokenizer_;
  const bool add_bos_;
  Status appends_;
  std::string answer_beginning_;
  bool takes_tools_ = false;
  bool takes_system_ = false;
  int32_t turn_end_ = -1;
  std::vector<int32_t> stop_ids_;
};

}  // namespace polysketch
