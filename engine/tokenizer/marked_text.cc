#include "engine/tokenizer/marked_text.h"

#include <algorithm>
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

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

Result<std::vector<int32_t>> EncodeMarkedText(const Tokenizer& tokenizer, const MarkedText& text,
                                              bool continued, std::vector<ControlPlace>* controls) {
  const std::string_view all = text.text();
  std::vector<int32_t> ids;
  TextPlace place = continued ? TextPlace::kContinued : TextPlace::kStart;
  size_t encoded = 0;  // bytes before here are in ids
  size_t begin = 0;
  for (const MarkedText::Run& run : text.runs()) {
    size_t at = std::max(begin, encoded);
    begin = run.end;
    if (run.origin != TextOrigin::kTemplate) continue;
    for (; at < run.end; ++at) {
      if (!tokenizer.BeginsControlPiece(all[at])) continue;
      const ControlPiece* piece = tokenizer.ControlPieceAt(all.substr(at, run.end - at));
      if (piece == nullptr) continue;
      size_t end = at;
      while (piece->strip_left && end > encoded && IsSpace(all[end - 1])) --end;
      PS_RETURN_IF_ERROR(EncodeText(tokenizer, all.substr(encoded, end - encoded), place, &ids));
      if (controls != nullptr) controls->push_back({at, std::ssize(ids)});
      ids.push_back(piece->id);
      place = TextPlace::kAfterControl;
      encoded = at + piece->text.size();
      while (piece->strip_right && encoded < all.size() && IsSpace(all[encoded])) ++encoded;
      at = encoded - 1;
    }
  }
  PS_RETURN_IF_ERROR(EncodeText(tokenizer, all.substr(encoded), place, &ids));
  return ids;
}

}  // namespace polysketch
