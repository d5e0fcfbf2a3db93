// Converts bytes of the wire to messages and back.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "base/status.h"

namespace polysketch {

// INVALID_ARGUMENT names the field of a string that is not UTF-8 ("prompt.text: expected UTF-8,
// found an invalid byte at offset 3"), and the type of a message that does not parse.
Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace polysketch
