#include <fstream>
#include <memory>
#include <utility>

#include "clients/cpp/commands.h"
#include "clients/cpp/complete_stream.h"
#include "clients/cpp/completion_output.h"
#include "clients/cpp/input.h"
#include "clients/cpp/progress.h"
#include "clients/cpp/structured_output.h"

namespace polysketch {
namespace {

// Bytes of a state in a message: below gRPC's default limit of 4 MiB.
constexpr size_t kStatePartBytes = size_t{1} << 20;

struct CompleteOptions {
  InputOptions input;
  v1::CompleteRequest request;          // without the prompt and the session
  std::optional<std::string> state_in;  // files
  std::optional<std::string> state_out;
  bool print_ids = false;
  bool json_stream = false;
  bool progress = false;
};

std::unique_ptr<CompletionOutput> NewOutput(const CompleteOptions& options, bool json) {
  if (options.json_stream) return NewJsonStreamOutput(options.request);
  return json ? NewJsonOutput(options.request) : NewTextOutput(options.print_ids);
}

Status WriteState(const std::string& path, const std::string& state) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(state.data(), static_cast<std::streamsize>(state.size()));
  file.close();
  if (!file) return InvalidArgument("--state-out: cannot write ", path);
  return Status();
}

// Reads the responses of Complete or of CompleteStream. Returns the exit status.
template <typename Stream>
int ReadCompletion(const CompleteOptions& options, const CallOptions& call,
                   const grpc::ClientContext& context, Stream* stream) {
  const auto output = NewOutput(options, call.json);
  ProgressLine progress("reading the prompt", options.progress);
  v1::Finish finish;
  v1::CompleteResponse response;
  std::string state;
  while (stream->Read(&response)) {
    if (response.has_progress()) {
      progress.Show(response.progress().processed(), response.progress().total());
      continue;
    }
    progress.Clear();
    if (response.has_delta()) output->Add(response.delta());
    if (response.has_choice()) output->Add(response.choice());
    if (response.has_finish()) finish = response.finish();
    state += response.state();
  }
  progress.Clear();
  if (const grpc::Status status = stream->Finish(); !status.ok()) {
    const bool cancelled = Interrupted() && status.error_code() == grpc::StatusCode::CANCELLED;
    cancelled ? output->Cancel() : output->Abort();
    return ReportRpcError(status, call, context);
  }
  output->Finish(finish);
  if (!options.state_out) return kExitOk;
  const Status written = WriteState(*options.state_out, state);
  return written.ok() ? kExitOk : ReportUsageError(written);
}

// Sends the state of --state-in. Returns an error of its file; errors of the call are reported by
// its Finish.
Status WriteStateIn(const std::string& path, CompleteStream* stream) {
  PS_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  v1::CompleteStreamRequest message;
  while (true) {
    PS_ASSIGN_OR_RETURN(std::string part, file->Read(kStatePartBytes));
    if (part.empty()) return Status();
    message.set_state(std::move(part));
    if (!stream->Write(message)) return Status();
  }
}

int CompleteInParts(const CompleteOptions& options, const CallOptions& call,
                    v1::PolySketch::Stub* stub, grpc::ClientContext* context) {
  const auto stream = stub->CompleteStream(context);
  if (options.state_in) {
    const Status status = WriteStateIn(*options.state_in, stream.get());
    if (!status.ok()) return ReportUsageError(status);
  }
  WriteRequest(options.request, stream.get());
  return ReadCompletion(options, call, *context, stream.get());
}

// The prompt is optional if the request continues a session, a state or a stopped completion.
Status ReadPrompt(const InputOptions& input, bool optional, v1::CompleteRequest* request) {
  if (optional && !input.given()) return Status();
  if (input.token_file) {
    PS_ASSIGN_OR_RETURN(const auto ids, input.ReadTokens());
    request->mutable_prompt()->mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  } else {
    PS_ASSIGN_OR_RETURN(*request->mutable_prompt()->mutable_text(), input.ReadText());
  }
  return Status();
}

// Completes the request from the options.
Status PrepareRequest(const CallOptions& call, CompleteOptions* options) {
  v1::CompleteRequest& request = options->request;
  // A resume token is refused beside any other field.
  if (request.sampling().ByteSizeLong() == 0) request.clear_sampling();
  request.set_session(call.session);
  if (options->state_out) request.set_return_state(true);
  const bool continues =
      !request.session().empty() || !request.resume_token().empty() || options->state_in;
  PS_RETURN_IF_ERROR(ReadPrompt(options->input, continues, &request));
  for (const std::string& stop : request.stop()) PS_RETURN_IF_ERROR(CheckUtf8("--stop", stop));
  if (call.json || options->json_stream) return Status();
  if (request.n() > 1) {
    return InvalidArgument("--n: expected --json or --json-stream beside it, since the choices ",
                           "arrive interleaved");
  }
  if (request.has_logprobs()) {
    return InvalidArgument(
        "--logprobs: expected --json or --json-stream beside it, since text has ",
        "no place for them");
  }
  return Status();
}

int Complete(CompleteOptions* options, const CallOptions& call) {
  const Status status = PrepareRequest(call, options);
  if (!status.ok()) return ReportUsageError(status);
  const auto stub = v1::PolySketch::NewStub(Connect(call.connection));
  grpc::ClientContext context;
  Prepare(call, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);
  if (options->state_in || NeedsStream(options->request))
    return CompleteInParts(*options, call, stub.get(), &context);
  const auto stream = stub->Complete(&context, options->request);
  return ReadCompletion(*options, call, context, stream.get());
}

void AddSampling(CLI::App* command, v1::Sampling* sampling) {
  using S = v1::Sampling;
  const auto field = [&](const char* name, const char* value, const char* help, auto set) {
    AddOption(command, name, value, help, sampling, set);
  };
  field("--temperature", "T",
        "Sampling temperature, 0 to 100. 0: greedy.\nDefault: that of the model, or 1.",
        &S::set_temperature);
  field("--top-k", "K",
        "Samples from the K most likely tokens.\nDefault: that of the model, or 0 (off).",
        &S::set_top_k);
  field("--top-p", "P",
        "Samples from the nucleus of probability P, above 0 to 1.\nDefault: that of the model, or "
        "1 (off).",
        &S::set_top_p);
  field("--min-p", "P",
        "Minimum probability, 0 to 1, relative to the most likely token.\nDefault: that of the "
        "model, or 0.",
        &S::set_min_p);
  field("--repetition-penalty", "X",
        "Divides the logits of tokens in prompt and output, 0.01 to 100.\nDefault: that of the "
        "model, or 1 (off).",
        &S::set_repetition_penalty);
  field("--frequency-penalty", "X",
        "Subtracted for each occurrence of a token in the output, -2 to 2.\nDefault: 0 (off).",
        &S::set_frequency_penalty);
  field("--presence-penalty", "X",
        "Subtracted for tokens in the output, -2 to 2. Default: 0 (off).",
        &S::set_presence_penalty);
  field("--seed", "N", "Seed of the sampler. Default: chosen by the server.", &S::set_seed);
  AddOption(command, "--logit-bias", "ID=X",
            "Adds X, -100 to 100, to the logit of token ID. Repeatable.",
            [sampling](const std::string& text) {
              std::pair<int32_t, float> bias;
              const Status status = ParseValue(text, &bias);
              (*sampling->mutable_logit_bias())[bias.first] = bias.second;
              return status;
            });
}

void AddOutput(CLI::App* command, v1::CompleteRequest* request) {
  using R = v1::CompleteRequest;
  const auto field = [&](const char* name, const char* value, const char* help, auto set) {
    AddOption(command, name, value, help, request, set);
  };
  field("--max-tokens", "N",
        "Maximum output length in tokens. 0: prefill only.\n"
        "Default: --default-max-tokens of the server.",
        &R::set_max_tokens);
  AddOption(command, "--stop", "TEXT", "Ends the output before this text. Repeatable.",
            [request](const std::string& text) {
              request->add_stop(text);
              return Status();
            });
  field("--stop-token-id", "ID", "Ends the output with this token. Repeatable.",
        &R::add_stop_token_ids);
  field("--n", "N",
        "Number of choices, 1 to 64. Above 1 with --json or --json-stream only.\nDefault: 1.",
        &R::set_n);
  field("--best-of", "N",
        "Number of outputs, --n to 64, of which the --n most likely are returned.\nDefault: --n.",
        &R::set_best_of);
  field("--logprobs", "N",
        "Log-probabilities of each token and of the N most likely ones, 0 to 20,\n"
        "with --json or --json-stream only.",
        &R::set_logprobs);
  field("--logprobs-from", "N",
        "With --echo and --logprobs: index of the first prompt token that is returned\n"
        "with its log-probability. Default: 0.",
        &R::set_logprobs_from);
  field("--priority", "P",
        "Requests of higher priority run first. Default: 0. Limits: plus and minus\n"
        "--max-priority of the server (0 by default), or max_priority of the API key.",
        &R::set_priority);
  field("--draft-tokens", "N",
        "Maximum draft length of speculative decoding in tokens, 0 to 64. Does not\n"
        "change the output. Default: --draft-tokens of the server.",
        &R::set_draft_tokens);
  const auto flag = [&](const char* name, const char* help, void (R::*set)(bool)) {
    AddFlag(command, name, help, [request, set] { (request->*set)(true); });
  };
  flag("--ignore-eos", "Continues after the tokens that end an output.", &R::set_ignore_eos);
  flag("--include-stop", "Keeps the matched stop text.", &R::set_include_stop_in_output);
  flag("--echo", "Returns the prompt before the output.", &R::set_echo);
}

// Sessions, states and the prefix cache.
void AddStates(CLI::App* command, CompleteOptions* options, std::string* session) {
  v1::CompleteRequest* const request = &options->request;
  AddOption(command, "--cache-point", "N",
            "Stores the state after N prompt tokens in the prefix cache. Repeatable, in\n"
            "rising order.",
            [request](const std::string& text) {
              int64_t tokens = 0;
              const Status status = ParseValue(text, &tokens);
              request->mutable_cache()->add_points(tokens);
              return status;
            });
  const auto disable_cache = [request] {
    request->mutable_cache()->set_read(false);
    request->mutable_cache()->set_write(false);
  };
  AddFlag(command, "--no-cache", "Does not use the prefix cache.", disable_cache);
  AddOption(command, "--session", "ID", "Continues a session. The prompt is optional.", session);
  AddOption(command, "--expected-position", "N", "Fails unless the session holds N tokens.",
            request, &v1::CompleteRequest::set_expected_position);
  AddOption(command, "--resume", "TOKEN",
            "Continues a migrated completion (resume_token). Excludes other options\n"
            "of the request.",
            request->mutable_resume_token());
  AddOption(command, "--state-in", "FILE", "Continues a state. The prompt is optional.",
            &options->state_in);
  AddOption(command, "--state-out", "FILE", "Writes the final state.", &options->state_out);
}

}  // namespace

void AddComplete(CommandLine* line) {
  const auto options = std::make_shared<CompleteOptions>();
  CLI::App* const command = AddCallCommand(
      line->app, "complete", "Completes a prompt and prints the output as it arrives.", line,
      [=] { return Complete(options.get(), line->call); },
      "Ctrl-C cancels the request; what has arrived is printed, with --json too (finish_reason\n"
      "cancelled). On a terminal, control characters of the output are shown as \\u001b.");
  options->input.AddText(command);
  options->input.AddTokens(command);
  AddOutput(command, &options->request);
  AddStructuredOutput(command, &options->request);
  AddSampling(command, options->request.mutable_sampling());
  AddStates(command, options.get(), &line->call.session);
  AddFlag(command, "--json-stream",
          "Prints a JSON object a line for each response of the server. The last one\n"
          "has usage.",
          &options->json_stream);
  AddFlag(command, "--ids", "Prints token ids in place of text.", &options->print_ids);
  AddFlag(command, "--progress", kProgressHelp, &options->progress);
}

}  // namespace polysketch
