#include "server/net/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/support/server_callback.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "grpc/reflection/v1/reflection.pb.h"
#include "server/convert/status_map.h"
#include "server/convert/wire.h"
#include "server/net/counted_call.h"

namespace polysketch {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

constexpr const char* kServices[] = {"polysketch.v1.PolySketch", "grpc.health.v1.Health",
                                     "grpc.reflection.v1.ServerReflection",
                                     "grpc.reflection.v1alpha.ServerReflection"};

class UnknownMethod final : public grpc::ServerGenericBidiReactor {
 public:
  UnknownMethod(ConnectionTable* connections, grpc::GenericCallbackServerContext* context)
      : counted_(connections, context) {
    Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "unknown method"));
  }
  void OnDone() override {
    counted_.End();
    delete this;
  }

 private:
  CountedCall counted_;
};

// A file behind all files that it imports.
void AddFile(const FileDescriptor* file, std::unordered_set<std::string>* added,
             ServerReflectionResponse* response) {
  if (!added->insert(file->name()).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) AddFile(file->dependency(i), added, response);
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(
      proto.SerializeAsString());
}

void AnswerFile(const FileDescriptor* file, ServerReflectionResponse* response) {
  if (file == nullptr) {
    response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    response->mutable_error_response()->set_error_message("not found");
    return;
  }
  std::unordered_set<std::string> added;
  AddFile(file, &added, response);
}

ServerReflectionResponse Answer(const ServerReflectionRequest& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      AnswerFile(pool.FindFileByName(request.file_by_filename()), &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      AnswerFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), &response);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& extension = request.file_containing_extension();
      const Descriptor* type = pool.FindMessageTypeByName(extension.containing_type());
      const FieldDescriptor* field =
          type == nullptr ? nullptr
                          : pool.FindExtensionByNumber(type, extension.extension_number());
      AnswerFile(field == nullptr ? nullptr : field->file(), &response);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const Descriptor* type = pool.FindMessageTypeByName(request.all_extension_numbers_of_type());
      if (type == nullptr) {
        AnswerFile(nullptr, &response);
        break;
      }
      std::vector<const FieldDescriptor*> extensions;
      pool.FindAllExtensions(type, &extensions);
      response.mutable_all_extension_numbers_response()->set_base_type_name(type->full_name());
      for (const FieldDescriptor* field : extensions) {
        response.mutable_all_extension_numbers_response()->add_extension_number(field->number());
      }
      break;
    }
    case ServerReflectionRequest::kListServices:
      for (const char* name : kServices)
        response.mutable_list_services_response()->add_service()->set_name(name);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message("empty request");
      break;
  }
  return response;
}

// Strictly one request, one answer, until the client closes.
class ReflectionCall final : public grpc::ServerGenericBidiReactor {
 public:
  ReflectionCall(ConnectionTable* connections, grpc::GenericCallbackServerContext* context)
      : counted_(connections, context) {
    if (counted_.verdict() == ConnectionTable::Verdict::kAccepted) {
      StartRead(&bytes_);
    } else {
      Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls at once"));
    }
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    ServerReflectionRequest request;
    if (const Status status = ParseMessage(bytes_, &request); !status.ok())
      return Finish(ToGrpcStatus(status));
    bytes_ = SerializeMessage(Answer(request));
    StartWrite(&bytes_);
  }
  void OnWriteDone(bool ok) override { ok ? StartRead(&bytes_) : Finish(grpc::Status::CANCELLED); }
  void OnDone() override {
    counted_.End();
    delete this;
  }

 private:
  CountedCall counted_;
  grpc::ByteBuffer bytes_;  // of the one operation outstanding
};

}  // namespace

grpc::ServerGenericBidiReactor* ReflectionService::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  const std::string& method = context->method();
  if (method == "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" ||
      method == "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo") {
    return new ReflectionCall(connections_, context);
  }
  return new UnknownMethod(connections_, context);
}

}  // namespace polysketch
