#include "engine/store/redis_reply.h"

#include <hiredis/read.h>

#include <utility>

#include "base/check.h"

namespace polysketch {
namespace {

using Kind = RedisReply::Kind;

// hiredis holds the first reply of a tree; every other one belongs to the array around it.
RedisReply* Place(const redisReadTask* task, std::unique_ptr<RedisReply> reply) {
  if (task->parent == nullptr) return reply.release();
  auto* const around = static_cast<RedisReply*>(task->parent->obj);
  auto& place = around->elements[static_cast<size_t>(task->idx)];
  place = std::move(reply);
  return place.get();
}

void* NewText(const redisReadTask* task, char* bytes, size_t size) {
  auto reply = std::make_unique<RedisReply>();
  reply->kind = task->type == REDIS_REPLY_ERROR    ? Kind::kError
                : task->type == REDIS_REPLY_STATUS ? Kind::kStatus
                                                   : Kind::kText;
  reply->text.assign(bytes, size);
  return Place(task, std::move(reply));
}

void* NewArray(const redisReadTask* task, int elements) {
  if (elements > RedisReplyReader::kMaxElements) return nullptr;
  auto reply = std::make_unique<RedisReply>();
  reply->kind = Kind::kArray;
  reply->elements.resize(static_cast<size_t>(elements));
  return Place(task, std::move(reply));
}

void* NewNumber(const redisReadTask* task,
                long long number) {  // NOLINT(google-runtime-int): hiredis
  auto reply = std::make_unique<RedisReply>();
  reply->kind = Kind::kNumber;
  reply->number = number;
  return Place(task, std::move(reply));
}

void* NewNil(const redisReadTask* task) { return Place(task, std::make_unique<RedisReply>()); }

void FreeTree(void* reply) { delete static_cast<RedisReply*>(reply); }

redisReplyObjectFunctions functions = {NewText, NewArray, NewNumber, NewNil, FreeTree};

}  // namespace

RedisReplyReader::RedisReplyReader() : reader_(redisReaderCreateWithFunctions(&functions)) {
  PS_CHECK(reader_ != nullptr) << "out of memory";
}

void RedisReplyReader::Free::operator()(redisReader* reader) const { redisReaderFree(reader); }

bool RedisReplyReader::IsEmpty() const {
  return reader_->pos == reader_->len && reader_->ridx == -1;
}

void RedisReplyReader::Add(std::string_view bytes) {
  (void)redisReaderFeed(reader_.get(), bytes.data(), bytes.size());  // Next returns its error
}

Result<std::unique_ptr<RedisReply>> RedisReplyReader::Next() {
  void* reply = nullptr;
  if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
    return Unavailable("expected a reply, found something else: ", reader_->errstr);
  }
  return std::unique_ptr<RedisReply>(static_cast<RedisReply*>(reply));
}

}  // namespace polysketch
