#include "engine/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/bounded_json.h"
#include "base/check.h"
#include "engine/tokenizer/tokenizer_json.h"

namespace polysketch {
namespace {

class BpeTokenizer;

// A chain of stages: added tokens, normalizer, added tokens in normalized text, pre-tokenizer, words.
class BpeEncoder final : public TextEncoder {
 public:
  BpeEncoder(const BpeTokenizer& tokenizer, TextPlace place);

  Status Append(std::string_view text, std::vector<int32_t>* ids) override {
    context_.ids = ids;
    return stages_.back()->Push(text, false);
  }
  Status Finish(std::vector<int32_t>* ids) override {
    context_.ids = ids;
    return stages_.back()->Push({}, true);
  }

 private:
  void Add(std::unique_ptr<TextStage> stage) { stages_.push_back(std::move(stage)); }
  TextStage* next() const { return stages_.back().get(); }

  StageContext context_;
  std::vector<std::unique_ptr<TextStage>> stages_;  // the last stage first
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(std::optional<bool> add_bos) : add_bos_(add_bos) {}

  Status Init(std::string_view text, std::string_view bos, std::string_view eos,
              const std::string& source) {
    PS_ASSIGN_OR_RETURN(json_, ParseTokenizerJson(text, source));
    Result<BpeModel> model = BpeModel::Make(std::move(json_.model));
    if (!model.ok()) return InvalidArgument(source, ": ", model.status().message());
    model_ = std::make_unique<BpeModel>(std::move(model).value());
    unk_id_ = json_.model.unk_id;
    PS_ASSIGN_OR_RETURN(bos_id_, IdOf(bos, source));
    PS_ASSIGN_OR_RETURN(eos_id_, IdOf(eos, source));
    if (bos.empty() && !json_.before_text.empty()) bos_id_ = json_.before_text.front();
    control_.assign(json_.pieces.size(), false);
    std::vector<ControlPiece> pieces;
    for (const AddedToken& token : json_.added_tokens) {
      if (token.special) {
        control_[static_cast<size_t>(token.id)] = true;
        pieces.push_back({token.text, token.id, token.strip_left, token.strip_right});
        continue;
      }
      Found& found = token.normalized ? normalized_ : raw_;
      found.tokens.push_back(token);
    }
    SetControlPieces(std::move(pieces));
    for (size_t id = 0; id < control_.size(); ++id)
      if (json_.pieces[id].empty()) control_[id] = true;  // an id that nothing has
    for (size_t i = 0; i < raw_.tokens.size(); ++i)
      raw_.trie.Add(raw_.tokens[i].text, static_cast<int32_t>(i));
    for (size_t i = 0; i < normalized_.tokens.size(); ++i) {
      PS_ASSIGN_OR_RETURN(const std::string normalized, Normalized(normalized_.tokens[i].text));
      if (!normalized.empty()) normalized_.trie.Add(normalized, static_cast<int32_t>(i));
    }
    return Status();
  }

  std::string_view class_name() const override { return "PreTrainedTokenizerFast"; }
  int vocab_size() const override { return static_cast<int>(json_.pieces.size()); }
  int bos_id() const override { return bos_id_; }
  bool begins_with_bos() const override {
    const bool by_processor = !json_.before_text.empty() && json_.before_text.front() == bos_id_;
    return bos_id_ >= 0 && add_bos_.value_or(by_processor);
  }
  int eos_id() const override { return eos_id_; }
  int unk_id() const override { return unk_id_; }

  std::unique_ptr<TextEncoder> NewEncoder(TextPlace place) const override {
    return std::make_unique<BpeEncoder>(*this, place);
  }

  std::string_view PieceBytes(int32_t id) const override { return json_.bytes[Checked(id)]; }
  std::string_view Piece(int32_t id) const override { return json_.pieces[Checked(id)]; }
  bool IsControl(int32_t id) const override { return control_[Checked(id)]; }
  bool StripsLeadingSpace() const override { return json_.strips_leading_space; }

 private:
  friend class BpeEncoder;
  struct Found {  // added tokens that texts may spell
    std::vector<AddedToken> tokens;
    TokenTrie trie;
  };

  size_t Checked(int32_t id) const {
    PS_CHECK(id >= 0 && id < vocab_size()) << "id=" << id;
    return static_cast<size_t>(id);
  }

  Result<int> IdOf(std::string_view piece, const std::string& source) const {
    if (piece.empty()) return -1;
    const auto found = std::find(json_.pieces.begin(), json_.pieces.end(), piece);
    if (found != json_.pieces.end()) return static_cast<int>(found - json_.pieces.begin());
    return InvalidArgument(source, ": expected the token ", Abbreviate(piece), ", found none");
  }

  Result<std::string> Normalized(const std::string& text) const {
    class Collector final : public TextStage {
     public:
      Status Push(std::string_view more, bool) override {
        text += more;
        return Status();
      }
      std::string text;
    } collector;
    StageContext context;
    std::vector<std::unique_ptr<TextStage>> stages;
    TextStage* next = &collector;
    for (auto spec = json_.normalizer.rbegin(); spec != json_.normalizer.rend(); ++spec) {
      stages.push_back(NewStage(*spec, &context, next));
      next = stages.back().get();
    }
    PS_RETURN_IF_ERROR(next->Push(text, true));
    return collector.text;
  }

  const std::optional<bool> add_bos_;
  TokenizerJson json_;
  std::unique_ptr<const BpeModel> model_;
  std::vector<bool> control_;  // by id
  Found raw_;                  // found in the text as it is
  Found normalized_;           // found in what the normalizer makes
  int bos_id_ = -1;
  int eos_id_ = -1;
  int unk_id_ = -1;
};

BpeEncoder::BpeEncoder(const BpeTokenizer& tokenizer, TextPlace place) {
  const TokenizerJson& json = tokenizer.json_;
  context_.place = place;
  const auto add = [&](const std::vector<StageSpec>& specs) {
    for (auto spec = specs.rbegin(); spec != specs.rend(); ++spec)
      Add(NewStage(*spec, &context_, next()));
  };
  Add(NewBpeStage(*tokenizer.model_, &context_));
  add(json.pre_tokenizer);
  if (!tokenizer.normalized_.tokens.empty()) {
    Add(NewAddedTokenStage(tokenizer.normalized_.tokens, tokenizer.normalized_.trie, &context_,
                           next()));
  }
  add(json.normalizer);
  if (!tokenizer.raw_.tokens.empty())
    Add(NewAddedTokenStage(tokenizer.raw_.tokens, tokenizer.raw_.trie, &context_, next()));
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> NewBpeTokenizer(std::string_view text, std::string_view bos,
                                                   std::string_view eos,
                                                   std::optional<bool> add_bos,
                                                   const std::string& source) {
  auto tokenizer = std::make_unique<BpeTokenizer>(add_bos);
  PS_RETURN_IF_ERROR(tokenizer->Init(text, bos, eos, source));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace polysketch
