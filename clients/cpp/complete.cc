#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "clients/cpp/commands.h"
#include "clients/cpp/input.h"
#include "clients/cpp/json.h"
#include "clients/cpp/progress.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch {
namespace {

// Of a state: below the 4 MiB that gRPC takes by default.
constexpr size_t kStatePartBytes = size_t{1} << 20;

struct CompleteOptions {
  CallOptions call;
  InputOptions input;
  v1::CompleteRequest request;          // all but the prompt
  std::optional<std::string> state_in;  // files of CompleteWithState
  std::optional<std::string> state_out;
  bool print_ids = false;
  bool progress = false;
};

void AddRequestOptions(v1::CompleteRequest* request, Options* options) {
  v1::Sampling* sampling = request->mutable_sampling();
  options->Field<int32_t>("--max-tokens", "N",
                          "most tokens to generate; default: the server's limit",
                          [request](int32_t n) { request->set_max_tokens(n); });
  options->Field<float>("--temperature", "T", "0 is greedy; default 1",
                        [sampling](float t) { sampling->set_temperature(t); });
  options->Field<int32_t>("--top-k", "K", "only the K most likely tokens; 0: all",
                          [sampling](int32_t k) { sampling->set_top_k(k); });
  options->Field<float>("--top-p", "P", "only the most likely tokens that together reach P",
                        [sampling](float p) { sampling->set_top_p(p); });
  options->Field<float>("--min-p", "P", "only tokens P times as likely as the likeliest",
                        [sampling](float p) { sampling->set_min_p(p); });
  options->Field<float>("--repetition-penalty", "X", "over prompt and output; 1: off",
                        [sampling](float x) { sampling->set_repetition_penalty(x); });
  options->Field<float>("--frequency-penalty", "X", "over the output, by count; 0: off",
                        [sampling](float x) { sampling->set_frequency_penalty(x); });
  options->Field<float>("--presence-penalty", "X", "over the output; 0: off",
                        [sampling](float x) { sampling->set_presence_penalty(x); });
  options->Field<std::pair<int32_t, float>>(
      "--logit-bias", "ID=V", "added to a token's logit; repeatable",
      [sampling](const std::pair<int32_t, float>& bias) {
        (*sampling->mutable_logit_bias())[bias.first] = bias.second;
      });
  options->Field<int32_t>("--n", "N", "so many outputs of the prompt; needs --json",
                          [request](int32_t n) { request->set_n(n); });
  options->Field<int32_t>("--best-of", "N", "make so many, give those of the highest probability",
                          [request](int32_t n) { request->set_best_of(n); });
  options->Field<int32_t>("--priority", "P", "the higher goes first; default 0",
                          [request](int32_t p) { request->set_priority(p); });
  options->Field<int32_t>("--draft-tokens", "N",
                          "guess so many tokens ahead; same output; default: the server's",
                          [request](int32_t n) { request->set_draft_tokens(n); });
  options->Field<uint64_t>("--seed", "N", "same seed, same tokens; default: the server draws one",
                           [sampling](uint64_t seed) { sampling->set_seed(seed); });
  options->Field<std::string>("--stop", "TEXT", "end before this text; repeatable",
                              [request](std::string stop) { request->add_stop(std::move(stop)); });
  options->Field<int32_t>("--stop-token-id", "ID", "end with this token; repeatable",
                          [request](int32_t id) { request->add_stop_token_ids(id); });
  options->Field<int32_t>("--logprobs", "N",
                          "log-probabilities, and those of the N likeliest tokens",
                          [request](int32_t n) { request->set_logprobs(n); });
}

// Behind a session or a state there may be none.
Status ReadPrompt(const InputOptions& input, bool optional, v1::CompleteRequest* request) {
  if (optional && !input.text && !input.text_file && !input.token_file) return Status();
  v1::Prompt* prompt = request->mutable_prompt();
  PS_RETURN_IF_ERROR(input.Check());
  PS_ASSIGN_OR_RETURN(const auto file, input.Open());
  if (input.token_file) {
    PS_ASSIGN_OR_RETURN(const auto ids, ReadTokens(file.get()));
    prompt->mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  } else if (input.text_file) {
    PS_ASSIGN_OR_RETURN(*prompt->mutable_text(), ReadText(file.get()));
  } else {
    prompt->set_text(*input.text);
  }
  return Status();
}

const char* ReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_MIGRATED:
      return "migrated";
    default:
      return "unspecified";
  }
}

Json LogprobToJson(const v1::TokenLogprob& logprob) {
  Json json;
  json["logprob"] = logprob.has_logprob() ? FloatToJson(logprob.logprob()) : Json(nullptr);
  json["top"] = Json::array();
  for (const v1::Alternative& top : logprob.top()) json["top"].push_back(MessageToJson(top));
  return json;
}

// One output.
struct JsonText {
  void Add(const v1::Delta& delta) {
    for (const int32_t token : delta.tokens()) tokens.push_back(token);
    for (const v1::TokenLogprob& logprob : delta.logprobs()) {
      logprobs.push_back(LogprobToJson(logprob));
    }
    text += delta.text();
  }
  void Add(JsonText more) {
    for (Json& token : more.tokens) tokens.push_back(std::move(token));
    for (Json& logprob : more.logprobs) logprobs.push_back(std::move(logprob));
    text += more.text;
  }

  Json tokens = Json::array();
  Json logprobs = Json::array();
  std::string text;
};

// Collects a stream for --json.
class JsonOutput {
 public:
  // several: outputs were asked for, of which each has a finish of its own. A completion that is
  // resumed tells by its output.
  explicit JsonOutput(bool several) : several_(several) {}

  void Add(const v1::Delta& delta) {
    if (delta.echoed()) return text_.Add(delta);
    several_ = several_ || delta.choice() > 0;
    choices_[delta.choice()].output.Add(delta);
  }
  void Add(const v1::ChoiceFinish& finish) {
    several_ = true;
    choices_[finish.choice()].finish = finish;
  }

  void Print(const v1::Finish& finish, bool with_logprobs) {
    if (!several_) text_.Add(std::move(choices_[0].output));
    Json json;
    json["text"] = text_.text + finish.text();
    json["finish_reason"] = ReasonName(finish.reason());
    if (!finish.matched_stop().empty()) json["matched_stop"] = finish.matched_stop();
    if (!finish.resume_token().empty()) json["resume_token"] = finish.resume_token();
    AddCacheMiss(finish.cache_miss(), &json);
    if (finish.has_session()) json["session"] = MessageToJson(finish.session());
    json["seed"] = finish.seed();
    json["usage"] = MessageToJson(finish.usage());
    json["timings"] = MessageToJson(finish.timings());
    json["tokens"] = std::move(text_.tokens);
    if (with_logprobs || !text_.logprobs.empty()) json["logprobs"] = std::move(text_.logprobs);
    if (several_) json["choices"] = Choices(with_logprobs);
    PrintJson(json);
  }

 private:
  struct Choice {
    JsonText output;
    v1::ChoiceFinish finish;
  };

  Json Choices(bool with_logprobs) {
    Json list = Json::array();
    for (auto& [index, choice] : choices_) {
      const v1::ChoiceFinish& finish = choice.finish;
      Json json;
      json["choice"] = index;
      json["text"] = choice.output.text + finish.text();
      json["finish_reason"] = ReasonName(finish.reason());
      if (!finish.matched_stop().empty()) json["matched_stop"] = finish.matched_stop();
      json["seed"] = finish.seed();
      json["completion_tokens"] = finish.completion_tokens();
      json["logprob_sum"] = finish.logprob_sum();
      json["tokens"] = std::move(choice.output.tokens);
      if (with_logprobs || !choice.output.logprobs.empty()) {
        json["logprobs"] = std::move(choice.output.logprobs);
      }
      list.push_back(std::move(json));
    }
    return list;
  }

  bool several_;
  JsonText text_;                      // what was echoed; in the end, the only output too
  std::map<int32_t, Choice> choices_;  // by index; of one output, the first
};

// Writes a stream to the terminal as it arrives.
class TextOutput {
 public:
  explicit TextOutput(bool print_ids) : print_ids_(print_ids) {}

  void Add(const v1::Delta& delta) {
    if (!print_ids_) return Write(delta.text());
    for (const int32_t token : delta.tokens()) Write(std::to_string(token) + " ");
  }

  // Of best_of, the only choice.
  void Add(const v1::ChoiceFinish& finish) {
    if (!print_ids_) Write(finish.text());
  }

  // Ends the line, and tells a person (never a pipe) how it went.
  void Print(const v1::Finish& finish) {
    if (!print_ids_) Write(finish.text());
    End();
    if (isatty(STDERR_FILENO) != 1) return;
    const v1::Timings& timings = finish.timings();
    const int64_t tokens = finish.usage().completion_tokens();
    std::fprintf(
        stderr, "[%lld tokens behind %lld, first after %.3f s", static_cast<long long>(tokens),
        static_cast<long long>(finish.usage().prompt_tokens()), timings.first_token_seconds());
    if (tokens > 1 && timings.decode_seconds() > 0) {
      std::fprintf(stderr, ", then %.1f a second", double(tokens - 1) / timings.decode_seconds());
    }
    std::fprintf(stderr, "; ended by %s]\n", ReasonName(finish.reason()));
  }

  // Told to pipes too: without it the rest is lost.
  static void PrintResumeToken(const v1::Finish& finish) {
    if (finish.resume_token().empty()) return;
    std::fprintf(stderr, "polysketch: the server is shutting down; go on with --resume %s\n",
                 finish.resume_token().c_str());
  }

  // Leaves the terminal's cursor at the beginning of a line.
  void End() {
    if (last_ != '\n') Write("\n");
  }

 private:
  void Write(const std::string& text) {
    if (text.empty()) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    last_ = text.back();
  }

  const bool print_ids_;
  char last_ = '\n';
};

// The responses of Complete or of CompleteWithState.
class CompletionReader {
 public:
  virtual ~CompletionReader() = default;
  virtual bool Read(v1::CompleteResponse* response) = 0;
  virtual grpc::Status Finish() = 0;
};

template <typename Stream>
class StreamReader : public CompletionReader {
 public:
  explicit StreamReader(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}
  bool Read(v1::CompleteResponse* response) override { return stream_->Read(response); }
  grpc::Status Finish() override { return stream_->Finish(); }

 private:
  const std::unique_ptr<Stream> stream_;
};

Result<std::unique_ptr<CompletionReader>> StartCompletion(v1::PolySketch::Stub* stub,
                                                          grpc::ClientContext* context,
                                                          const CompleteOptions& options) {
  if (!options.state_in) {
    return std::unique_ptr<CompletionReader>(
        std::make_unique<StreamReader<grpc::ClientReader<v1::CompleteResponse>>>(
            stub->Complete(context, options.request)));
  }
  PS_ASSIGN_OR_RETURN(const auto file, InputFile::Open(*options.state_in));
  using Stream = grpc::ClientReaderWriter<v1::CompleteWithStateRequest, v1::CompleteResponse>;
  std::unique_ptr<Stream> stream = stub->CompleteWithState(context);
  v1::CompleteWithStateRequest message;
  while (true) {
    PS_ASSIGN_OR_RETURN(std::string part, file->Read(kStatePartBytes));
    if (part.empty()) break;
    message.set_state(std::move(part));
    if (!stream->Write(message)) break;  // Finish says why
  }
  *message.mutable_request() = options.request;
  stream->Write(message);
  stream->WritesDone();
  return std::unique_ptr<CompletionReader>(
      std::make_unique<StreamReader<Stream>>(std::move(stream)));
}

Status WriteState(const std::string& path, const std::string& state) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(state.data(), static_cast<std::streamsize>(state.size()));
  file.close();
  if (!file) return InvalidArgument("--state-out: cannot write ", path);
  return Status();
}

int Complete(const CompleteOptions& options) {
  const auto stub = v1::PolySketch::NewStub(Connect(options.call));
  grpc::ClientContext context;
  Prepare(options.call, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);

  JsonOutput json(options.request.n() > 1 || options.request.best_of() > 1);
  TextOutput text(options.print_ids);
  ProgressLine progress("reading the prompt", options.progress);
  v1::Finish finish;
  v1::CompleteResponse response;
  std::string state;
  Result<std::unique_ptr<CompletionReader>> reader = StartCompletion(stub.get(), &context, options);
  if (!reader.ok()) return ReportUsageError(reader.status());
  while ((*reader)->Read(&response)) {
    if (response.event_case() == v1::CompleteResponse::kState) {
      state += response.state();
      continue;
    }
    if (response.has_progress()) {
      progress.Show(response.progress().processed(), response.progress().total());
      continue;
    }
    progress.Clear();
    if (response.has_finish()) {
      finish = response.finish();
    } else if (response.has_choice()) {
      if (options.call.json) {
        json.Add(response.choice());
      } else {
        text.Add(response.choice());
      }
    } else if (options.call.json) {
      json.Add(response.delta());
    } else {
      text.Add(response.delta());
    }
  }
  progress.Clear();
  if (const grpc::Status status = (*reader)->Finish(); !status.ok()) {
    text.End();
    return ReportRpcError(WithRetryDelay(status, context), options.call);
  }
  if (options.call.json) {
    json.Print(finish, options.request.has_logprobs());
  } else {
    text.Print(finish);
    TextOutput::PrintResumeToken(finish);
  }
  if (!options.state_out) return kExitOk;
  const Status written = WriteState(*options.state_out, state);
  return written.ok() ? kExitOk : ReportUsageError(written);
}

}  // namespace

int RunComplete(Arguments args, CallOptions call) {
  CompleteOptions run;
  run.call = std::move(call);
  bool ignore_eos = false;
  bool include_stop = false;
  bool echo = false;
  bool no_cache = false;
  Options options("complete (--prompt TEXT | --prompt-file F | --prompt-tokens F) [options]",
                  "Continues a prompt; the text appears as it is generated.");
  run.input.AddText(&options);
  run.input.AddTokens(&options);
  AddRequestOptions(&run.request, &options);
  options.Switch("--ignore-eos", "go on behind the model's end of text", &ignore_eos);
  options.Switch("--include-stop", "keep the matched stop text in the output", &include_stop);
  options.Switch("--echo", "the prompt first", &echo);
  options.Field<std::string>("--session", "ID", "go on in a session; a prompt is optional then",
                             [&run](std::string id) { run.request.set_session(std::move(id)); });
  options.Field<uint64_t>(
      "--expected-position", "N", "refuse unless the session is at N tokens",
      [&run](uint64_t n) { run.request.set_expected_position(static_cast<int64_t>(n)); });
  options.Field<std::string>(
      "--resume", "TOKEN", "the rest of a completion that a shutdown stopped; alone",
      [&run](std::string token) { run.request.set_resume_token(std::move(token)); });
  options.Value("--state-in", "F", "go on from a state of your own", &run.state_in);
  options.Value("--state-out", "F", "write the state at the end", &run.state_out);
  options.Field<uint64_t>(
      "--cache-point", "N",
      "keep the state behind N tokens of the prompt for later ones; repeatable",
      [&run](uint64_t n) { run.request.mutable_cache()->add_points(static_cast<int64_t>(n)); });
  options.Switch("--no-cache", "take nothing from stored prompts, and store none", &no_cache);
  options.Switch("--ids", "print token ids in place of text", &run.print_ids);
  options.Switch("--progress", "show how far a long prompt is read, also without a terminal",
                 &run.progress);
  if (const auto exit_code = ParseArguments(&options, &run.call, &args)) return *exit_code;
  // Unset is false; a resumed request has no other field at all.
  if (ignore_eos) run.request.set_ignore_eos(true);
  if (include_stop) run.request.set_include_stop_in_output(true);
  if (echo) run.request.set_echo(true);
  if (run.request.sampling().ByteSizeLong() == 0) run.request.clear_sampling();
  if (no_cache) {
    run.request.mutable_cache()->set_read(false);
    run.request.mutable_cache()->set_write(false);
  }

  run.call.session = run.request.session();
  if (run.state_out) run.request.set_return_state(true);
  const bool goes_on =
      !run.request.session().empty() || !run.request.resume_token().empty() || run.state_in;
  Status status = ReadPrompt(run.input, goes_on, &run.request);
  for (const std::string& stop : run.request.stop()) {
    if (status.ok()) status = CheckUtf8("--stop", stop);
  }
  if (status.ok() && run.request.n() > 1 && !run.call.json) {
    status = InvalidArgument("--n: several outputs come mixed, so they need --json");
  }
  if (!status.ok()) return ReportUsageError(status);
  return Complete(run);
}

}  // namespace polysketch
