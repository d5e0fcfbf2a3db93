// Replies of a Redis server, read from bytes that arrive in pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct redisReader;

namespace polysketch {

struct RedisReply {
  enum class Kind { kText, kArray, kNumber, kNil, kStatus, kError };

  Kind kind = Kind::kNil;
  std::string text;                                   // kText, kStatus, kError
  int64_t number = 0;                                 // kNumber
  std::vector<std::unique_ptr<RedisReply>> elements;  // kArray; none of them is null

  bool is_text() const { return kind == Kind::kText; }
};

class RedisReplyReader {
 public:
  // Maximum number of elements of an array; a larger one is an error before memory is taken for it.
  static constexpr int kMaxElements = 1 << 20;

  RedisReplyReader();

  void Add(std::string_view bytes);
  // Returns the next reply; null until its last byte has arrived. UNAVAILABLE for bytes that are no
  // reply, after which the reader is not used again.
  Result<std::unique_ptr<RedisReply>> Next();
  // Whether every byte so far belongs to a reply that Next has returned.
  bool IsEmpty() const;

 private:
  struct Free {
    void operator()(redisReader* reader) const;
  };
  std::unique_ptr<redisReader, Free> reader_;
};

}  // namespace polysketch
