// What happens to a text before its words are encoded: a chain of stages, each of which takes text
// as it arrives, holds what depends on text that follows, and passes the rest on. So a text of any
// length is encoded in bounded memory, with the ids that Hugging Face's tokenizers give the whole
// text.
//
// A stage takes segments. A segment ends where no later stage may look across: at an added token,
// or between two words. An empty segment is no segment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/token_trie.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

// What the stages of one encoder share.
struct StageContext {
  std::vector<int32_t>* ids = nullptr;  // where ids go
  // Of the segment that is next; after the first one, and after a token, kAfterControl.
  TextPlace place = TextPlace::kStart;
};

// Used by one thread at a time.
class TextStage {
 public:
  virtual ~TextStage() = default;
  // Takes more text, whole characters of valid UTF-8. `ends`: the segment ends here.
  virtual Status Push(std::string_view text, bool ends) = 0;
};

// How a pre-tokenizer divides a text at its matches (SplitDelimiterBehavior of tokenizers).
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A token that is found in a text, whatever the model makes of its characters (AddedToken of
// tokenizers).
struct AddedToken {
  std::string text;
  int32_t id = -1;
  bool special = false;      // a control piece
  bool single_word = false;  // only between characters that belong to no word
  bool strip_left = false;   // with the white space before it
  bool strip_right = false;  // with the white space after it
  bool normalized = false;   // found in the text that the normalizer has made
};

// One step of a normalizer or pre-tokenizer.
struct StageSpec {
  enum class Kind {
    kNfc,      // Unicode's normalization form C
    kPrepend,  // puts `content` before a segment, if it continues no other text
    kReplace,  // puts `content` in the place of each match of `regex`
    kSplit,    // divides at the matches of `regex`
    kPrefix,   // the same, if the segment does not begin with it
  };
  Kind kind = Kind::kNfc;
  std::string content = {};
  std::shared_ptr<const Regex> regex = nullptr;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool inverted = false;       // kSplit: what is between two matches is a match
  bool only_at_start = false;  // kPrefix: of the first segment of a text
};

// Bytes that a stage holds at most while it waits for the end of a word.
inline constexpr size_t kMaxHeldBytes = size_t{4} << 20;

// `context`, `spec` and `next` outlive the stage.
std::unique_ptr<TextStage> NewStage(const StageSpec& spec, StageContext* context, TextStage* next);
// Finds added tokens: their ids go to the context.
std::unique_ptr<TextStage> NewAddedTokenStage(const std::vector<AddedToken>& tokens,
                                              const TokenTrie& trie, StageContext* context,
                                              TextStage* next);
// The last stage: the words of `model`.
std::unique_ptr<TextStage> NewBpeStage(const BpeModel& model, StageContext* context);

}  // namespace polysketch
