// Hashes of the contents of files, which identify the model and the tokenizer of a snapshot.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace polysketch {

using ContentHash = std::array<uint64_t, 2>;  // XXH3, 128 bits

ContentHash HashContent(std::string_view bytes);
// 32 hexadecimal digits.
std::string HashText(const ContentHash& hash);

// HashContent of bytes that arrive in pieces.
class ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  ContentHasher(const ContentHasher&) = delete;
  ContentHasher& operator=(const ContentHasher&) = delete;

  void Add(std::string_view piece);
  ContentHash Hash() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace polysketch
