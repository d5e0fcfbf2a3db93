// The commands of one question and one answer: tokenize, detokenize, info, health.
#include <chrono>
#include <iostream>
#include <thread>

#include "clients/cpp/commands.h"
#include "clients/cpp/input.h"
#include "clients/cpp/json.h"
#include "clients/cpp/unary_rpc.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace polysketch {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// A message as "name  value" lines; the fields of a message inside it are indented.
void PrintFields(const Json& json, const std::string& indent) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) {
      std::cout << indent << name << "\n";
      PrintFields(value, indent + "  ");
    } else {
      const size_t width = 28 - indent.size();
      std::cout << indent << name << std::string(width - std::min(width - 1, name.size()), ' ')
                << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
    }
  }
}

grpc::Status CheckHealth(const CallOptions& call, const std::string& service,
                         HealthCheckResponse* response) {
  const auto stub = grpc::health::v1::Health::NewStub(Connect(call));
  grpc::ClientContext context;
  Prepare(call, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);
  HealthCheckRequest request;
  request.set_service(service);
  return stub->Check(&context, request, response);
}

}  // namespace

int RunTokenize(Arguments args, CallOptions call) {
  InputOptions input;
  bool no_bos = false;
  Options options("tokenize (--prompt TEXT | --prompt-file F) [options]",
                  "Token ids of a text, as complete --prompt-tokens reads them.");
  input.AddText(&options);
  options.Switch("--no-bos", "no BOS in front, whatever the model wants", &no_bos);
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;

  if (const Status status = input.Check(); !status.ok()) return ReportUsageError(status);
  const auto file = input.Open();
  if (!file.ok()) return ReportUsageError(file.status());
  const Result<std::string> text = input.text ? *input.text : ReadText(file->get());
  if (!text.ok()) return ReportUsageError(text.status());

  v1::TokenizeRequest request;
  request.set_text(*text);
  if (no_bos) request.set_add_bos(false);
  v1::TokenizeResponse response;
  const grpc::Status status = CallUnary(call, &v1::PolySketch::Stub::Tokenize, request, &response);
  if (!status.ok()) return ReportRpcError(status, call);
  if (call.json) {
    PrintJson({{"tokens", response.tokens()}, {"pieces", response.pieces()}});
  } else {
    for (int i = 0; i < response.tokens_size(); ++i) {
      std::cout << (i == 0 ? "" : " ") << response.tokens(i);
    }
    std::cout << "\n";
  }
  return kExitOk;
}

int RunDetokenize(Arguments args, CallOptions call) {
  InputOptions input;
  Options options("detokenize --prompt-tokens F [options]", "Text of token ids.");
  input.AddTokens(&options);
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;

  if (const Status status = input.Check(); !status.ok()) return ReportUsageError(status);
  const auto file = input.Open();
  if (!file.ok()) return ReportUsageError(file.status());
  const auto ids = ReadTokens(file->get());
  if (!ids.ok()) return ReportUsageError(ids.status());

  v1::DetokenizeRequest request;
  request.mutable_tokens()->Assign(ids->begin(), ids->end());
  v1::DetokenizeResponse response;
  const grpc::Status status =
      CallUnary(call, &v1::PolySketch::Stub::Detokenize, request, &response);
  if (!status.ok()) return ReportRpcError(status, call);
  if (call.json) {
    PrintJson({{"text", response.text()}});
  } else {
    std::cout << response.text() << "\n";
  }
  return kExitOk;
}

int RunInfo(Arguments args, CallOptions call) {
  Options options("info [options]", "What the server serves, and its limits.");
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;

  v1::GetModelResponse response;
  const grpc::Status status =
      CallUnary(call, &v1::PolySketch::Stub::GetModel, v1::GetModelRequest(), &response);
  if (!status.ok()) return ReportRpcError(status, call);
  if (call.json) {
    PrintJson(MessageToJson(response));
  } else {
    PrintFields(MessageToJson(response), "");
  }
  return kExitOk;
}

int RunHealth(Arguments args, CallOptions call) {
  std::string service;
  bool wait = false;
  Options options("health [options]",
                  "Whether the server is ready. Exit status 0: it is serving; 1: it is not.");
  options.Value("--service", "NAME", "default: the whole server", &service);
  options.Switch("--wait", "ask again until it is serving, or --timeout has passed", &wait);
  if (const auto exit_code = ParseArguments(&options, &call, &args)) return *exit_code;

  const auto start = std::chrono::steady_clock::now();
  HealthCheckResponse response;
  grpc::Status status;
  while (true) {
    status = CheckHealth(call, service, &response);
    const bool serving = status.ok() && response.status() == HealthCheckResponse::SERVING;
    const bool interrupted = status.error_code() == grpc::StatusCode::CANCELLED;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (serving || interrupted || !wait || (call.timeout > 0 && elapsed.count() >= call.timeout))
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (!status.ok()) return ReportRpcError(status, call);
  const std::string& name = HealthCheckResponse::ServingStatus_Name(response.status());
  if (call.json) {
    PrintJson({{"status", name}});
  } else {
    std::cout << name << "\n";
  }
  return response.status() == HealthCheckResponse::SERVING ? kExitOk : kExitFailed;
}

}  // namespace polysketch
