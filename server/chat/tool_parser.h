// Reads the calls of tools in an output, as it arrives.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/tool_form.h"

namespace polysketch {

// What an output was found to be. The events of a call follow each other: kCall, any number of
// kArguments, kEnd or kBroken.
struct ToolEvent {
  enum class Kind {
    kText,       // `text` is no part of a call
    kCall,       // a call of the tool `text` begins
    kArguments,  // `text` continues its arguments, a JSON object
    kEnd,        // it is complete
    kBroken,     // it is no call: `text` is all of it, its arguments included
  };
  Kind kind = Kind::kText;
  std::string text = {};

  bool operator==(const ToolEvent&) const = default;
};
using ToolEvents = std::vector<ToolEvent>;

// Bytes of one call. A longer one is text.
inline constexpr size_t kMaxCallBytes = size_t{1} << 20;
inline constexpr int kMaxCalls = 128;  // of one output; further ones are text

struct ToolParsing {
  ToolForm form = ToolForm::kJson;
  std::set<std::string> names;  // of the tools; a call of another name is text
  int max_calls = kMaxCalls;
  // The text of the output has no marks around the calls, because they are control pieces: calls
  // begin the output.
  bool unmarked = false;
};

// Used by one thread at a time. The events are the same however the output arrives, but for the
// cuts of kText and kArguments: an event of one of these kinds that follows one of its own kind
// continues it.
class ToolParser {
 public:
  virtual ~ToolParser() = default;
  // Takes more of the output. Appends to `events`.
  virtual void Append(std::string_view text, ToolEvents* events) = 0;
  // The output has ended. A call that is not complete is text.
  virtual void Finish(ToolEvents* events) = 0;
  // Append, and Finish with the last piece.
  ToolEvents Read(std::string_view text, bool last) {
    ToolEvents events;
    Append(text, &events);
    if (last) Finish(&events);
    return events;
  }
  // Memory of what waits for its end.
  virtual size_t held_bytes() const = 0;
};

std::unique_ptr<ToolParser> NewToolParser(const ToolParsing& parsing);

// --- for the files of the forms ---

void AddToolEvent(ToolEvent::Kind kind, std::string_view text, ToolEvents* events);
std::unique_ptr<ToolParser> NewJsonToolParser(const ToolParsing& parsing);
std::unique_ptr<ToolParser> NewPythonicToolParser(const ToolParsing& parsing);

}  // namespace polysketch
