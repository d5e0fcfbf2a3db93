#include "server/openai/control_filter.h"

#include <algorithm>
#include <utility>

namespace polysketch {

void ControlFilter::Add(int32_t token) {
  if (!tokenizer_->IsControl(token)) return;
  const std::string_view piece = tokenizer_->Piece(token);
  if (!piece.empty() && std::ranges::find(marks_, piece) == marks_.end()) due_.push_back(piece);
}

std::string ControlFilter::Take(std::string_view text, bool ends) {
  held_ += text;
  std::string out;
  while (!due_.empty()) {
    const std::string_view piece = due_.front();
    const size_t at = held_.find(piece);
    if (at != std::string::npos) {
      out += held_.substr(0, at);
      held_.erase(0, at + piece.size());
      due_.pop_front();
      continue;
    }
    size_t keep = ends ? 0 : std::min(held_.size(), piece.size() - 1);
    while (keep > 0 && !held_.ends_with(piece.substr(0, keep))) --keep;
    out += held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return out;
  }
  return out + std::exchange(held_, "");
}

}  // namespace polysketch
