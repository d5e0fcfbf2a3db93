#include "engine/tokenizer/marked_text.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

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

struct ControlPiece {
  std::string_view text;
  int32_t id;
};

// The longest first, so that a piece is not taken for its beginning.
std::vector<ControlPiece> ControlPieces(const Tokenizer& tokenizer) {
  std::vector<ControlPiece> pieces;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsControl(id) && !tokenizer.Piece(id).empty())
      pieces.push_back({tokenizer.Piece(id), id});
  }
  std::stable_sort(pieces.begin(), pieces.end(), [](const ControlPiece& a, const ControlPiece& b) {
    return a.text.size() > b.text.size();
  });
  return pieces;
}

Status EncodeRun(const Tokenizer& tokenizer, std::string_view text, bool continued,
                 std::vector<int32_t>* ids) {
  if (text.empty()) return Status();
  IncrementalEncoder encoder(&tokenizer, continued);
  for (const auto& encoded : {encoder.Append(text), encoder.Finish()}) {
    PS_RETURN_IF_ERROR(encoded.status());
    ids->insert(ids->end(), encoded->begin(), encoded->end());
  }
  return Status();
}

}  // namespace

Result<std::vector<int32_t>> EncodeMarkedText(const Tokenizer& tokenizer, const MarkedText& text,
                                              bool continued) {
  const std::vector<ControlPiece> pieces = ControlPieces(tokenizer);
  const std::string_view all = text.text();
  std::vector<int32_t> ids;
  size_t encoded = 0;  // bytes before here are in ids
  size_t begin = 0;
  for (const MarkedText::Run& run : text.runs()) {
    for (size_t at = begin; run.origin == TextOrigin::kTemplate && at < run.end;) {
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
    begin = run.end;
  }
  PS_RETURN_IF_ERROR(EncodeRun(tokenizer, all.substr(encoded), continued || encoded > 0, &ids));
  return ids;
}

}  // namespace polysketch
