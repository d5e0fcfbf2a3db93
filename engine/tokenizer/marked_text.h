// A text whose bytes are marked with where they come from. Text of a chat template may spell
// control pieces ("<s>"); text of a message never does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

enum class TextOrigin { kTemplate, kMessage };

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string_view text, TextOrigin origin) { Append(text, origin); }

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  void Append(std::string_view text, TextOrigin origin);
  void Append(const MarkedText& other);
  // The bytes [begin, end), with their marks. begin <= end <= size().
  MarkedText Slice(size_t begin, size_t end) const;
  // Replaces the bytes by as many others, with the same marks.
  MarkedText WithBytes(std::string text) const;
  // Whether all bytes of [begin, end) are of the template.
  bool IsTemplate(size_t begin, size_t end) const;

  // Consecutive bytes of one origin, in order; neighbours differ.
  struct Run {
    size_t end = 0;  // the run begins where the one before it ends
    TextOrigin origin = TextOrigin::kTemplate;
  };
  const std::vector<Run>& runs() const { return runs_; }

 private:
  // The index of the run that holds the byte at `position`.
  size_t RunAt(size_t position) const;

  std::string text_;
  std::vector<Run> runs_;
};

// A control piece in a text.
struct ControlPlace {
  size_t byte = 0;    // where it begins
  int64_t token = 0;  // index of its id
};

// Returns the ids of a text. A control piece that is spelled in bytes of the template alone becomes
// its id; all other text is encoded as text, as one run between two control ids. `continued`: other
// tokens precede the text, so that it gets no dummy prefix. `controls` (null: none) gets the places
// of the control pieces. INVALID_ARGUMENT as IncrementalEncoder.
Result<std::vector<int32_t>> EncodeMarkedText(const Tokenizer& tokenizer, const MarkedText& text,
                                              bool continued,
                                              std::vector<ControlPlace>* controls = nullptr);

}  // namespace polysketch
