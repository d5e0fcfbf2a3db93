// A model of chats: the demo tokenizer and a template, for requests of the OpenAI API; and samples
// of grammars, read as the output of a model is.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/grammar/grammar.h"
#include "engine/grammar/token_masks.h"
#include "gtest/gtest.h"
#include "server/chat/chat_template.h"
#include "server/convert/convert.h"
#include "server/openai/chat_request.h"
#include "server/openai/structured_output.h"
#include "tests/testing/environment.h"

namespace polysketch::testing {

class ChatModel : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Load((SourceDir() / "models/demo/tokenizer.model").string());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    tokenizer_ = *std::move(tokenizer);
  }
  void UseTemplate(const std::string& text) {
    auto made = ChatTemplate::Make({.text = text, .pieces = {}}, tokenizer_.get(), true);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    template_ = *std::move(made);
    model_.chat_template = template_.get();
    model_.rules.tokenizer = tokenizer_.get();
    model_.rules.vocab_size = tokenizer_->vocab_size();
    model_.description.add_eos_ids(tokenizer_->eos_id());
    if (template_->takes_tools()) model_.tool_form = DetectToolForm(text);
  }
  Result<CompletionJob> Job(const std::string& more) {
    const auto body = ParseCompletionBody(StrCat(
        R"({"messages": [{"role": "user", "content": "x"}])", more.empty() ? "" : ", ", more, "}"));
    EXPECT_TRUE(body.ok()) << body.status().ToString() << more;
    return ToChatJob(*body, model_);
  }
  std::string ErrorOf(const std::string& more) {
    const auto job = Job(more);
    EXPECT_FALSE(job.ok()) << more;
    return job.ok() ? "" : job.status().message();
  }
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  ServedModel model_;
};

class ChatGrammars : public ChatModel {
 protected:
  // Uniform over the tokens that are allowed, but for EOS, which ends the output when it may.
  std::optional<std::string> Sample(const CompletionJob& job, uint32_t seed) {
    const auto source = ToGrammarSource(job.common.structured_output());
    EXPECT_TRUE(source.ok()) << source.status().ToString();
    const auto grammar = compiler().Compile(*source);
    EXPECT_TRUE(grammar.ok()) << grammar.status().ToString() << source->text;
    if (!grammar.ok()) return std::nullopt;
    std::mt19937 random(seed);
    TokenMasks masks(*grammar, /*begins_text=*/false);
    std::string text;
    for (int i = 0; i < 400; ++i) {
      masks.Begin({});
      const auto mask = masks.Await(0, std::chrono::milliseconds(60'000));
      if (!mask || !mask->ok()) return std::nullopt;
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
        if ((**mask)[static_cast<size_t>(id / 32)] >> (id % 32) & 1) allowed.push_back(id);
      }
      const bool ends = std::ranges::count(allowed, tokenizer_->eos_id()) > 0 && random() % 3 == 0;
      if (!ends && allowed.size() > 1) std::erase(allowed, tokenizer_->eos_id());
      const int32_t token = ends ? tokenizer_->eos_id() : allowed[random() % allowed.size()];
      if (token == tokenizer_->eos_id()) return text;
      text += tokenizer_->PieceBytes(token);
      masks.Accept(token);
    }
    return std::nullopt;
  }
  GrammarCompiler& compiler() {
    if (compiler_ == nullptr)
      compiler_ = std::make_unique<GrammarCompiler>(tokenizer_.get(), tokenizer_->vocab_size(),
                                                    std::vector<int32_t>{tokenizer_->eos_id()});
    return *compiler_;
  }

  // Whether an output that begins with `text` may end there, and has these tokens.
  bool Accepts(const CompletionJob& job, const std::string& text) {
    const auto grammar = compiler().Compile(*ToGrammarSource(job.common.structured_output()));
    EXPECT_TRUE(grammar.ok()) << grammar.status().ToString();
    if (!grammar.ok()) return false;
    TokenMasks masks(*grammar, /*begins_text=*/false);
    // Tokens of a text that goes on.
    const size_t before = tokenizer_->Encode("x")->size();
    std::vector<int32_t> tokens = *tokenizer_->Encode("x" + text);
    tokens.push_back(tokenizer_->eos_id());
    for (size_t i = before; i < tokens.size(); ++i) {
      masks.Begin({});
      const auto mask = masks.Await(0, std::chrono::milliseconds(60'000));
      if (!mask || !mask->ok()) return false;
      if (!((**mask)[static_cast<size_t>(tokens[i] / 32)] >> (tokens[i] % 32) & 1)) return false;
      masks.Accept(tokens[i]);
    }
    return true;
  }

  std::unique_ptr<GrammarCompiler> compiler_;
};

}  // namespace polysketch::testing
