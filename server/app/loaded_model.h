// A loaded model with everything that serves it.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/model/folder_model.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/sampler/generation_config.h"
#include "engine/session/session_table.h"
#include "engine/store/state_store.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "server/chat/chat_template.h"
#include "server/rpc/served_model.h"

namespace polysketch {

struct LoadedModel {
  // Set by the engine thread when the device has failed; the process then stops.
  std::atomic<bool> device_failed{false};
  // In order of construction: each refers to those above it.
  std::unique_ptr<Backend> backend;
  std::unique_ptr<FolderModel> model;
  std::unique_ptr<FolderModel> draft_model;  // null without --draft-model
  std::unique_ptr<Tokenizer> tokenizer;      // null without a file of one
  ModelFolder folder{""};                    // whose files the model was loaded from
  bool add_bos = false;         // text begins with bos_id: by config.json or the tokenizer
  int bos_id = -1;              // -1: none
  GenerationConfig generation;  // with the tokens that end an output, EOS first
  std::unique_ptr<GrammarCompiler> grammars;    // null without a tokenizer
  std::unique_ptr<ChatTemplate> chat_template;  // null without one
  std::string no_chat_template;                 // why there is none
  std::unique_ptr<PrefixCache> prefix_cache;    // null without a prefix cache
  std::unique_ptr<Engine> engine;
  std::unique_ptr<StateStore> store;  // null without --state-store
  std::unique_ptr<SessionTable> sessions;
  ServedModel served;
};

}  // namespace polysketch
