#include "server/convert/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/proto_buffer_writer.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace polysketch {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Reads the fields that `descriptor` knows, in wire order, up to the first string that is not
// UTF-8. Returns whether it read the whole message. Otherwise `fault` is the string's path and what
// is wrong, or empty if the bytes end or do not parse before such a string. The schema has no
// recursion, which bounds the depth.
bool ReadStrings(const Descriptor& descriptor, const std::string& prefix, CodedInputStream* input,
                 std::string* fault) {
  while (const uint32_t tag = input->ReadTag()) {
    const FieldDescriptor* field =
        descriptor.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool delimited =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    uint32_t length = 0;
    if (field == nullptr || !delimited || field->is_packable()) {
      if (!WireFormatLite::SkipField(input, tag)) return false;
      continue;
    }
    if (!input->ReadVarint32(&length) || length > INT32_MAX) return false;
    const std::string path = prefix.empty() ? field->name() : StrCat(prefix, ".", field->name());
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      const CodedInputStream::Limit limit = input->PushLimit(static_cast<int>(length));
      if (!ReadStrings(*field->message_type(), path, input, fault)) return false;
      input->PopLimit(limit);
      continue;
    }
    std::string text;
    if (!input->ReadString(&text, static_cast<int>(length))) return false;
    if (field->type() != FieldDescriptor::TYPE_STRING) continue;
    if (const size_t valid = ValidUtf8Prefix(text); valid != text.size()) {
      *fault = StrCat(path, ": expected UTF-8, found an invalid byte at offset ", valid);
      return false;
    }
  }
  return input->ConsumedEntireMessage();
}

// Adds the memory of the fields, in wire order. False: they do not parse further. The schema has no
// recursion.
bool AddFieldBytes(const Descriptor& descriptor, CodedInputStream* input, int64_t* bytes) {
  // Of an element: a string, or a message of a few fields, and its place in an array that doubles.
  constexpr int64_t kString = 48, kMessage = 256;
  constexpr int64_t kPackedByte = 8;  // a number of one byte, in an array that is copied to grow
  constexpr int64_t kPlace = 48, kNumber = 48;
  constexpr int64_t kUnknownByte = 48;  // of a field that the message does not know
  while (true) {
    const int begin = input->CurrentPosition();
    const uint32_t tag = input->ReadTag();
    if (tag == 0) return input->ConsumedEntireMessage();
    const FieldDescriptor* const field =
        descriptor.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool delimited =
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (!delimited) {
      if (!WireFormatLite::SkipField(input, tag)) return false;
      *bytes += field == nullptr ? kUnknownByte * (input->CurrentPosition() - begin) : kNumber;
      continue;
    }
    uint32_t length = 0;
    if (!input->ReadVarint32(&length) || length > INT32_MAX) return false;
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      *bytes += kMessage;
      const CodedInputStream::Limit limit = input->PushLimit(static_cast<int>(length));
      if (!AddFieldBytes(*field->message_type(), input, bytes)) return false;
      input->PopLimit(limit);
      continue;
    }
    const bool packed = field != nullptr && field->is_packable();
    *bytes += packed ? kPackedByte * length : kString + kPlace + length;
    if (!input->Skip(static_cast<int>(length))) return false;
  }
}

// A message up to this size is one slice.
constexpr size_t kOneSliceBytes = 1024;

}  // namespace

Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  if (!bytes.Valid())
    return InvalidArgument("expected a ", message->GetDescriptor()->name(), ", found no message");
  // Reading consumes a buffer: each pass reads its own copy, which shares the slices.
  grpc::ByteBuffer copy = bytes;
  {
    grpc::ProtoBufferReader reader(&copy);
    if (reader.status().ok() && message->ParseFromZeroCopyStream(&reader)) return Status();
  }
  grpc::ProtoBufferReader reader(&copy);
  if (reader.status().ok()) {
    CodedInputStream input(&reader);
    // A string that declares more bytes than there are reserves no memory for them.
    input.PushLimit(static_cast<int>(std::min<size_t>(bytes.Length(), INT32_MAX)));
    std::string fault;
    if (!ReadStrings(*message->GetDescriptor(), "", &input, &fault) && !fault.empty()) {
      return Status(Code::kInvalidArgument, std::move(fault));
    }
  }
  return InvalidArgument("expected a ", message->GetDescriptor()->full_name(),
                         ", found bytes that do not parse");
}

int64_t ParsedMessageBytes(const grpc::ByteBuffer& bytes,
                           const google::protobuf::Message& message) {
  grpc::ByteBuffer copy = bytes;
  grpc::ProtoBufferReader reader(&copy);
  int64_t parsed = 1024;
  if (!bytes.Valid() || !reader.status().ok()) return parsed;
  CodedInputStream input(&reader);
  input.PushLimit(static_cast<int>(std::min<size_t>(bytes.Length(), INT32_MAX)));
  (void)AddFieldBytes(*message.GetDescriptor(), &input, &parsed);
  return parsed;
}

grpc::ByteBuffer MakeMessage(size_t size, const std::function<void(CodedOutputStream*)>& write) {
  PS_CHECK(size <= INT32_MAX) << size << " bytes";
  const auto fill = [&](google::protobuf::io::ZeroCopyOutputStream* stream) {
    CodedOutputStream out(stream);
    write(&out);
    PS_CHECK(!out.HadError() && static_cast<size_t>(out.ByteCount()) == size)
        << out.ByteCount() << " of " << size << " bytes";
  };
  if (size <= kOneSliceBytes) {
    grpc::Slice slice(size);
    google::protobuf::io::ArrayOutputStream stream(const_cast<uint8_t*>(slice.begin()),
                                                   static_cast<int>(size));
    if (size > 0) fill(&stream);
    return grpc::ByteBuffer(&slice, 1);
  }
  grpc::ByteBuffer bytes;
  grpc::ProtoBufferWriter writer(&bytes, grpc::kProtoBufferWriterMaxBufferLength,
                                 static_cast<int>(size));
  fill(&writer);
  return bytes;
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  return MakeMessage(message.ByteSizeLong(),
                     [&](CodedOutputStream* out) { message.SerializeWithCachedSizes(out); });
}

}  // namespace polysketch
