// ServedModel: the parts of the loaded model that calls use.
#pragma once

#include <optional>
#include <string>

#include "engine/checkpoint/model_folder.h"
#include "engine/engine.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/session/session_table.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/chat/reasoning.h"
#include "server/chat/tool_form.h"
#include "server/convert/convert.h"

namespace polysketch {

class ChatTemplate;

// Outlives the server.
struct ServedModel {
  Engine* engine = nullptr;
  SessionTable* sessions = nullptr;             // may wait for the store: see NeedsStore
  const PrefixCache* prefix_cache = nullptr;    // null without a prefix cache
  const ChatTemplate* chat_template = nullptr;  // null without one
  std::string no_chat_template;                 // why there is none
  bool trusts_request_template = false;         // --trust-request-chat-template
  std::optional<ToolForm> tool_form;  // in which the model calls tools; nullopt: not known
  bool tool_form_named = false;       // by --tool-format
  std::optional<ReasoningMarks>
      reasoning;  // nullopt: the model does not reason, or that is not told apart
  ModelFolder folder{""};
  std::string architecture, model_type;  // as of ModelSpec
  RequestRules rules;
  v1::GetModelResponse description;
};

}  // namespace polysketch
