#include "server/net/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/descriptor_database.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/convert/wire.h"

namespace polysketch {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::DescriptorPoolDatabase;
using google::protobuf::FileDescriptorProto;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

constexpr const char* kReflectionServices[] = {"grpc.reflection.v1.ServerReflection",
                                               "grpc.reflection.v1alpha.ServerReflection"};

// Adds the files that `file` imports, then `file`.
void AddFile(const FileDescriptorProto& file, std::unordered_set<std::string>* added,
             ServerReflectionResponse* response) {
  if (!added->insert(file.name()).second) return;
  DescriptorPoolDatabase database(*DescriptorPool::generated_pool());
  for (const std::string& name : file.dependency()) {
    FileDescriptorProto import;
    if (database.FindFileByName(name, &import)) AddFile(import, added, response);
  }
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(file.SerializeAsString());
}

void SetError(grpc::StatusCode code, const char* message, ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(message);
}

ServerReflectionResponse Answer(const Router& router, const ServerReflectionRequest& request) {
  DescriptorPoolDatabase database(*DescriptorPool::generated_pool());
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  FileDescriptorProto file;
  bool found = true;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      found = database.FindFileByName(request.file_by_filename(), &file);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      found = database.FindFileContainingSymbol(request.file_containing_symbol(), &file);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& extension = request.file_containing_extension();
      found = database.FindFileContainingExtension(extension.containing_type(),
                                                   extension.extension_number(), &file);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const std::string& type = request.all_extension_numbers_of_type();
      std::vector<int> numbers;
      found = database.FindAllExtensionNumbers(type, &numbers);
      if (!found) break;
      auto* extensions = response.mutable_all_extension_numbers_response();
      extensions->set_base_type_name(type);
      extensions->mutable_extension_number()->Add(numbers.begin(), numbers.end());
      break;
    }
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : router.services())
        response.mutable_list_services_response()->add_service()->set_name(name);
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT, "empty request", &response);
      break;
  }
  std::unordered_set<std::string> added;
  if (!found) SetError(grpc::StatusCode::NOT_FOUND, "not found", &response);
  if (file.has_name()) AddFile(file, &added, &response);
  return response;
}

// Answers each request before it reads the next one, until the client closes its side.
class ReflectionCall final : public CountedReactor {
 public:
  ReflectionCall(const Router& router, ConnectionTable* connections, CallContext* context)
      : CountedReactor(connections, context), router_(router) {
    if (verdict() == ConnectionTable::Verdict::kAccepted) {
      context_->StartRead(&bytes_);
    } else {
      context_->Finish(ResourceExhausted("too many calls at once"));
    }
  }
  void OnReadDone(bool ok) override {
    if (!ok) return context_->Finish(Status());
    ServerReflectionRequest request;
    if (const Status status = ParseMessage(bytes_, &request); !status.ok())
      return context_->Finish(status);
    bytes_ = SerializeMessage(Answer(router_, request));
    context_->StartWrite(&bytes_);
  }
  void OnWriteDone(bool ok) override {
    ok ? context_->StartRead(&bytes_)
       : context_->Finish(Status(Code::kCancelled, "the client cancelled"));
  }

 private:
  const Router& router_;
  grpc::ByteBuffer bytes_;  // of the one operation outstanding
};

}  // namespace

void AddReflectionMethods(ConnectionTable* connections, Router* router) {
  // Nothing else links the description of v1alpha, whose messages are those of v1.
  PS_CHECK(grpc::reflection::v1alpha::ServerReflectionRequest::descriptor() != nullptr);
  for (const char* service : kReflectionServices) {
    router->Add(service, "ServerReflectionInfo", [router, connections](CallContext* context) {
      return new ReflectionCall(*router, connections, context);
    });
  }
}

}  // namespace polysketch
