// Converts bytes of the wire to messages and back.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace polysketch {

// INVALID_ARGUMENT names the field of a string that is not UTF-8 ("prompt.text: expected UTF-8,
// found an invalid byte at offset 3"), and the type of a message that does not parse.
Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// The memory that ParseMessage takes for the message at most, from one reading of its fields. It
// may be thirty times that of the bytes.
int64_t ParsedMessageBytes(const grpc::ByteBuffer& bytes, const google::protobuf::Message& message);

// A message of `size` bytes, below 2 GiB, which `write` writes. All messages of calls are made
// here: a message may have no bytes, for which gRPC's writer aborts.
grpc::ByteBuffer MakeMessage(
    size_t size, const std::function<void(google::protobuf::io::CodedOutputStream*)>& write);
grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace polysketch
