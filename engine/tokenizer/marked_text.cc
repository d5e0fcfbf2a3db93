#include "engine/tokenizer/marked_text.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "engine/tokenizer/encode_pace.h"

namespace polysketch {

void MarkedText::Append(std::string_view text, TextOrigin origin) {
  if (text.empty()) return;
  text_.append(text);
  if (runs_.empty() || runs_.back().origin != origin) runs_.push_back({0, origin});
  runs_.back().end = text_.size();
}

void MarkedText::Append(const MarkedText& other) {
  size_t begin = 0;
  for (const Run& run : other.runs_) {
    Append(std::string_view(other.text_).substr(begin, run.end - begin), run.origin);
    begin = run.end;
  }
}

size_t MarkedText::RunAt(size_t position) const {
  const auto found =
      std::upper_bound(runs_.begin(), runs_.end(), position,
                       [](size_t wanted, const Run& run) { return wanted < run.end; });
  return static_cast<size_t>(found - runs_.begin());
}

MarkedText MarkedText::Slice(size_t begin, size_t end) const {
  PS_CHECK(begin <= end && end <= size()) << begin << " to " << end;
  MarkedText slice;
  for (size_t run = RunAt(begin); begin < end; ++run) {
    const size_t stop = std::min(end, runs_[run].end);
    slice.Append(std::string_view(text_).substr(begin, stop - begin), runs_[run].origin);
    begin = stop;
  }
  return slice;
}

MarkedText MarkedText::WithBytes(std::string text) const {
  PS_CHECK(text.size() == size());
  MarkedText result;
  result.text_ = std::move(text);
  result.runs_ = runs_;
  return result;
}

bool MarkedText::IsTemplate(size_t begin, size_t end) const {
  if (begin == end) return true;
  const size_t run = RunAt(begin);
  return runs_[run].origin == TextOrigin::kTemplate && runs_[run].end >= end;
}

namespace {

Status EncodeRun(const Tokenizer& tokenizer, std::string_view text, bool continued,
                 std::vector<int32_t>* ids) {
  if (text.empty()) return Status();
  // In slices: the encoder holds one of them, and its ids, beside `text` and `ids`.
  IncrementalEncoder encoder(&tokenizer, continued);
  while (true) {
    const std::string_view slice = text.substr(0, EncodePace::kBytes);
    text.remove_prefix(slice.size());
    PS_ASSIGN_OR_RETURN(const std::vector<int32_t> more,
                        slice.empty() ? encoder.Finish() : encoder.Append(slice));
    ids->insert(ids->end(), more.begin(), more.end());
    if (slice.empty()) return Status();
  }
}

// The bytes at which a control piece can begin.
std::string FirstBytes(std::span<const ControlPiece> pieces) {
  std::string bytes;
  for (const ControlPiece& piece : pieces) {
    if (bytes.find(piece.text.front()) == std::string::npos) bytes += piece.text.front();
  }
  return bytes;
}

}  // namespace

Result<std::vector<int32_t>> EncodeMarkedText(const Tokenizer& tokenizer, const MarkedText& text,
                                              bool continued) {
  const std::span<const ControlPiece> pieces = tokenizer.ControlPieces();
  const std::string first_bytes = FirstBytes(pieces);
  const std::string_view all = text.text();
  std::vector<int32_t> ids;
  size_t encoded = 0;  // bytes before here are in ids
  size_t begin = 0;
  for (const MarkedText::Run& run : text.runs()) {
    size_t at = begin;
    begin = run.end;
    if (run.origin != TextOrigin::kTemplate) continue;
    while ((at = all.find_first_of(first_bytes, at)) < run.end) {
      const std::string_view rest = all.substr(at, run.end - at);
      const auto found = std::find_if(pieces.begin(), pieces.end(), [&](const ControlPiece& piece) {
        return rest.starts_with(piece.text);
      });
      if (found == pieces.end()) {
        ++at;
        continue;
      }
      PS_RETURN_IF_ERROR(
          EncodeRun(tokenizer, all.substr(encoded, at - encoded), continued || encoded > 0, &ids));
      ids.push_back(found->id);
      at += found->text.size();
      encoded = at;
    }
  }
  PS_RETURN_IF_ERROR(EncodeRun(tokenizer, all.substr(encoded), continued || encoded > 0, &ids));
  return ids;
}

}  // namespace polysketch
