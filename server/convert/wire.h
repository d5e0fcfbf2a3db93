// Bytes of the wire <-> messages. gRPC's own parser answers a broken message with UNIMPLEMENTED and
// no word; the service takes bytes instead and says what is wrong.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "base/status.h"

namespace polysketch {

// INVALID_ARGUMENT names the field for a string that is not UTF-8 ("prompt.text: expected UTF-8,
// found an invalid byte at offset 3"), and the message for bytes that are none.
Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

}  // namespace polysketch
