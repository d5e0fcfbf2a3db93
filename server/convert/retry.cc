#include "server/convert/retry.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

namespace polysketch {
namespace {

using google::protobuf::io::CodedOutputStream;

// The messages of google.rpc are not part of protobuf; their few fields are written here.
constexpr uint32_t kLengthDelimited = 2;

void WriteBytes(uint32_t field, const std::string& bytes, CodedOutputStream* out) {
  out->WriteTag(field << 3 | kLengthDelimited);
  out->WriteVarint32(static_cast<uint32_t>(bytes.size()));
  out->WriteString(bytes);
}

template <typename Write>
std::string Written(const Write& write) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  CodedOutputStream out(&stream);
  write(&out);
  out.Trim();
  return bytes;
}

}  // namespace

std::string RetryDetails(const Status& status) {
  if (!status.retry_after().has_value()) return {};
  const int64_t milliseconds = status.retry_after()->count();
  google::protobuf::Duration delay;
  delay.set_seconds(milliseconds / 1000);
  delay.set_nanos(static_cast<int32_t>(milliseconds % 1000 * 1'000'000));

  google::protobuf::Any detail;
  detail.set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  // RetryInfo { Duration retry_delay = 1; }
  detail.set_value(
      Written([&](CodedOutputStream* out) { WriteBytes(1, delay.SerializeAsString(), out); }));
  // Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  return Written([&](CodedOutputStream* out) {
    out->WriteTag(1 << 3);
    out->WriteVarint32(static_cast<uint32_t>(status.code()));
    WriteBytes(2, status.message(), out);
    WriteBytes(3, detail.SerializeAsString(), out);
  });
}

void AddRetryMetadata(const Status& status, grpc::ServerContextBase* context) {
  if (!status.retry_after().has_value()) return;
  context->AddTrailingMetadata("retry-after-ms", std::to_string(status.retry_after()->count()));
}

}  // namespace polysketch
