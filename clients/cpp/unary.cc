// The commands of one unary call: tokenize, detokenize, info, health.
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <thread>

#include "clients/cpp/commands.h"
#include "clients/cpp/input.h"
#include "clients/cpp/json.h"
#include "clients/cpp/terminal.h"
#include "clients/cpp/unary_rpc.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace polysketch {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using Stub = v1::PolySketch::Stub;

struct TokenizeOptions {
  InputOptions input;
  v1::TokenizeRequest request;
};

int Tokenize(TokenizeOptions* options, const CallOptions& call) {
  const Result<std::string> text = options->input.ReadText();
  if (!text.ok()) return ReportUsageError(text.status());
  options->request.set_text(*text);
  return PrintUnary(call, &Stub::Tokenize, options->request,
                    [](const v1::TokenizeResponse& response) {
                      for (int i = 0; i < response.tokens_size(); ++i) {
                        std::cout << (i == 0 ? "" : " ") << response.tokens(i);
                      }
                      std::cout << "\n";
                    });
}

int Detokenize(const InputOptions& input, const CallOptions& call) {
  const Result<std::vector<int32_t>> ids = input.ReadTokens();
  if (!ids.ok()) return ReportUsageError(ids.status());
  v1::DetokenizeRequest request;
  request.mutable_tokens()->Assign(ids->begin(), ids->end());
  return PrintUnary(call, &Stub::Detokenize, request, [](const v1::DetokenizeResponse& response) {
    std::cout << TerminalText(STDOUT_FILENO, response.text()) << "\n";
  });
}

// Prints one line for each field; the fields of an inner message are indented.
void PrintFields(const Json& json, const std::string& indent) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) {
      std::cout << indent << name << "\n";
      PrintFields(value, indent + "  ");
    } else {
      const size_t width = 28 - indent.size();
      std::cout << indent << name << std::string(width - std::min(width - 1, name.size()), ' ')
                << TerminalText(STDOUT_FILENO,
                                value.is_string() ? value.get<std::string>() : JsonText(value))
                << "\n";
    }
  }
}

int Info(const CallOptions& call) {
  return PrintUnary(
      call, &Stub::GetModel, v1::GetModelRequest(),
      [](const v1::GetModelResponse& response) { PrintFields(MessageToJson(response), ""); });
}

struct HealthOptions {
  std::string service;
  bool wait = false;
};

// Checks once, and prints the status or the error. Returns the exit status, or nothing if `retry`
// is set and the service does not serve.
std::optional<int> CheckHealth(const std::string& service, const CallOptions& call, bool retry) {
  const auto stub = grpc::health::v1::Health::NewStub(Connect(call.connection));
  grpc::ClientContext context;
  Prepare(call, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  const bool serving = status.ok() && response.status() == HealthCheckResponse::SERVING;
  if (retry && !serving && status.error_code() != grpc::StatusCode::CANCELLED) return std::nullopt;
  if (!status.ok()) return ReportRpcError(status, call, context);
  const std::string& name = HealthCheckResponse::ServingStatus_Name(response.status());
  if (call.json) {
    PrintJson({{"status", name}});
  } else {
    std::cout << name << "\n";
  }
  return serving ? kExitOk : kExitFailed;
}

int Health(const HealthOptions& options, const CallOptions& call) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const bool retry = options.wait && (call.timeout <= 0 || elapsed.count() < call.timeout);
    if (const auto code = CheckHealth(options.service, call, retry)) return *code;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

void AddTokenize(CommandLine* line) {
  const auto options = std::make_shared<TokenizeOptions>();
  CLI::App* const command =
      AddCallCommand(line->app, "tokenize", "Prints the token ids of a text.", line,
                     [=] { return Tokenize(options.get(), line->call); });
  options->input.AddText(command);
  AddFlag(command, "--no-bos", "Omits BOS. Default: add_bos of the model.",
          [options] { options->request.set_add_bos(false); });
  AddFlag(command, "--parse-special", "Maps the text of a control piece (</s>) to its id.",
          [options] { options->request.set_parse_special(true); });
}

void AddDetokenize(CommandLine* line) {
  const auto input = std::make_shared<InputOptions>();
  CLI::App* const command = AddCallCommand(line->app, "detokenize", "Prints the text of token ids.",
                                           line, [=] { return Detokenize(*input, line->call); });
  input->AddTokens(command);
}

void AddInfo(CommandLine* line) {
  AddCallCommand(line->app, "info", "Prints the model, device and limits of the server.", line,
                 [=] { return Info(line->call); });
}

void AddHealth(CommandLine* line) {
  const auto options = std::make_shared<HealthOptions>();
  CLI::App* const command =
      AddCallCommand(line->app, "health", "Prints the serving status. Exit status 0: SERVING.",
                     line, [=] { return Health(*options, line->call); });
  AddOption(command, "--service", "NAME", "Service to check. Default: the whole server.",
            &options->service);
  AddFlag(command, "--wait", "Repeats the check until the status is SERVING or --timeout ends.",
          &options->wait);
}

}  // namespace polysketch
