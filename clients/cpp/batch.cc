// polysketch batch: completes the requests of a file, some at a time.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "clients/cpp/batch_files.h"
#include "clients/cpp/commands.h"
#include "clients/cpp/complete_stream.h"
#include "clients/cpp/completion_json.h"
#include "clients/cpp/conversation.h"
#include "clients/cpp/http_call.h"
#include "clients/cpp/progress.h"
#include "clients/cpp/retried_calls.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

constexpr char kNotWritten[] = "the output could not be written";
// Of an answer over HTTP. No answer is as long.
constexpr size_t kMaxAnswerBytes = size_t{256} << 20;
// Of results in the order of the input: how many may wait for an earlier one, for each worker.
constexpr size_t kWaitingPerWorker = 16;

struct BatchOptions {
  std::string input = "-";
  std::string output = "-";
  std::string http_server;  // empty: the default HTTP port beside the gRPC port
  int32_t concurrency = 8;
  int32_t retries = 5;
  bool in_order = false;
  bool progress = false;
};

// Reads the responses of Complete or of CompleteStream.
template <typename Stream>
grpc::Status ReadCompletion(Stream* stream, CompletionJson* json, v1::Finish* finish) {
  v1::CompleteResponse message;
  while (stream->Read(&message)) {
    if (message.has_delta()) json->Add(message.delta());
    if (message.has_choice()) json->Add(message.choice());
    if (message.has_finish()) *finish = message.finish();
  }
  return stream->Finish();
}

class Batch {
 public:
  Batch(const BatchOptions& options, const CallOptions& call, BatchInput* input,
        BatchOutput* output)
      : options_(options),
        call_(call),
        stub_(v1::PolySketch::NewStub(Connect(call.connection))),
        input_(input),
        calls_(options.retries),
        output_(output),
        progress_("batch", options.progress, "requests") {}

  // Returns the exit status. first: the first item of the input, which has been read.
  int Run(std::optional<BatchItem> first);

 private:
  void Work();
  // The next item; none at the end, and after an error or an interrupt.
  std::optional<BatchItem> Take();
  // The line of the output. None: the batch was stopped.
  std::optional<Json> Complete(const BatchItem& item);
  // One attempt. A migrated completion counts as UNAVAILABLE.
  grpc::Status Call(const v1::CompleteRequest& request, grpc::ClientContext* context,
                    Json* response);
  // The same of an item with a url.
  std::optional<Json> CompleteOverHttp(const BatchItem& item);
  void Write(const BatchItem& item, const Json& line);
  // Requests under way are completed; no other one is taken. mutex_ is held.
  void End(Status error);
  void Stop();
  int Report() const;

  const BatchOptions& options_;
  const CallOptions& call_;
  const std::unique_ptr<v1::PolySketch::Stub> stub_;
  BatchInput* const input_;
  RetriedCalls calls_;

  std::mutex input_mutex_;  // guards *input_ and first_; taken before mutex_
  std::optional<BatchItem> first_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  BatchOutput* const output_;
  ProgressLine progress_;
  bool stopped_ = false;
  int64_t succeeded_ = 0;
  int64_t failed_ = 0;
  Status error_;  // of the input or the output
};

int Batch::Run(std::optional<BatchItem> first) {
  first_ = std::move(first);
  const CancelOnInterrupt cancel_on_interrupt([this] { Stop(); });
  std::vector<std::thread> workers;
  for (int i = 0; i < options_.concurrency; ++i) workers.emplace_back([this] { Work(); });
  for (std::thread& worker : workers) worker.join();
  progress_.Clear();
  if (!output_->Flush() && error_.ok()) error_ = Unavailable(kNotWritten);
  return Report();
}

void Batch::End(Status error) {
  if (error_.ok()) error_ = std::move(error);
  stopped_ = true;
  calls_.StopRetries();
}

void Batch::Stop() {
  calls_.Stop();
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  input_->Interrupt();
  changed_.notify_all();
}

void Batch::Work() {
  while (const auto item = Take()) {
    const auto line = Complete(*item);
    if (!line) return;
    Write(*item, *line);
  }
}

std::optional<BatchItem> Batch::Take() {
  const std::lock_guard input_lock(input_mutex_);
  const size_t max_waiting = kWaitingPerWorker * static_cast<size_t>(options_.concurrency);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stopped_ || output_->waiting() < max_waiting; });
    if (stopped_) return std::nullopt;
  }
  Result<std::optional<BatchItem>> item =
      first_ ? Result<std::optional<BatchItem>>(std::exchange(first_, std::nullopt))
             : input_->Next();
  const std::lock_guard lock(mutex_);
  if (!item.ok()) End(item.status());
  return stopped_ ? std::nullopt : *std::move(item);
}

std::optional<Json> Batch::Complete(const BatchItem& item) {
  if (!item.status.ok()) {
    return BatchError(item, item.status.code(), std::string(item.status.message()));
  }
  if (!item.url.empty()) return CompleteOverHttp(item);
  CallOptions call = call_;
  call.session = item.request.session();
  Json response;
  const auto status = calls_.Run(
      call, [&](grpc::ClientContext* context) { return Call(item.request, context, &response); });
  if (!status) return std::nullopt;
  if (status->ok()) return BatchResponse(item, std::move(response));
  return BatchError(item, static_cast<Code>(status->error_code()), status->error_message(),
                    ErrorReason(*status));
}

grpc::Status Batch::Call(const v1::CompleteRequest& request, grpc::ClientContext* context,
                         Json* response) {
  CompletionJson json(request);
  v1::Finish finish;
  grpc::Status status;
  if (NeedsStream(request)) {
    const auto stream = stub_->CompleteStream(context);
    WriteRequest(request, stream.get());
    status = ReadCompletion(stream.get(), &json, &finish);
  } else {
    status = ReadCompletion(stub_->Complete(context, request).get(), &json, &finish);
  }
  if (!status.ok()) return status;
  if (finish.reason() == v1::FINISH_REASON_MIGRATED) {
    return {grpc::StatusCode::UNAVAILABLE, "the server shut down during the completion"};
  }
  *response = json.Finish(finish);
  return status;
}

// Makes a call over HTTP. UNAVAILABLE: there is no answer, or one that says to try again.
grpc::Status CallOnce(const BatchOptions& options, const CallOptions& call, HttpRequest request,
                      BatchAnswer* answer) {
  request.server = options.http_server;
  if (!call.tenant.empty()) request.headers.push_back("x-tenant-id: " + call.tenant);
  if (!call.request_id.empty()) request.headers.push_back("x-request-id: " + call.request_id);
  *answer = {};
  const auto take = [answer](std::string_view bytes) {
    answer->body += bytes;
    return answer->body.size() <= kMaxAnswerBytes
               ? Status()
               : InvalidArgument("expected an answer of at most ", kMaxAnswerBytes, " bytes");
  };
  const auto reply = CallHttp(call.connection, request, take, [] { return Interrupted(); });
  if (!reply.ok()) {
    const bool again = reply.status().code() == Code::kUnavailable;
    return {again ? grpc::StatusCode::UNAVAILABLE : grpc::StatusCode::INTERNAL,
            std::string(reply.status().message())};
  }
  answer->status = reply->status;
  answer->request_id = reply->request_id;
  if (reply->status == 200) return grpc::Status::OK;
  answer->body = reply->body;
  const bool again = reply->status == 429 || reply->status == 503;
  return {again ? grpc::StatusCode::UNAVAILABLE : grpc::StatusCode::UNKNOWN,
          ApiError(reply->status, reply->body)};
}

std::optional<Json> Batch::CompleteOverHttp(const BatchItem& item) {
  BatchAnswer answer;
  const auto status = calls_.Run(call_, [&](grpc::ClientContext*) {
    return CallOnce(options_, call_,
                    {.server = "", .method = "POST", .path = item.url, .body = item.body}, &answer);
  });
  if (!status) return std::nullopt;
  if (answer.status != 0) return BatchHttpResponse(item, answer);
  return BatchError(item, static_cast<Code>(status->error_code()), status->error_message());
}

void Batch::Write(const BatchItem& item, const Json& line) {
  const std::lock_guard lock(mutex_);
  ++(IsAnswered(line) ? succeeded_ : failed_);
  progress_.Clear();
  if (!output_->Write(item.index, line)) End(Unavailable(kNotWritten));
  progress_.Show(succeeded_ + failed_, 0);
  changed_.notify_all();
}

int Batch::Report() const {
  if (!error_.ok()) {
    ReportUsageError(error_);
    return error_.code() == Code::kUnavailable ? kExitFailed : kExitUsage;
  }
  std::cerr << "polysketch: " << succeeded_ << " succeeded, " << failed_ << " failed, "
            << input_->skipped() << " skipped\n";
  if (Interrupted()) return kExitInterrupted;
  return failed_ == 0 ? kExitOk : kExitFailed;
}

// Reports a server that cannot be reached once, in place of once for each request.
std::optional<int> CheckHttpServer(const BatchOptions& options, const CallOptions& call) {
  BatchAnswer answer;
  const CancelOnInterrupt cancel_on_interrupt([] {});
  const grpc::Status status = CallOnce(
      options, call, {.server = "", .method = "GET", .path = "/v1/models", .body = ""}, &answer);
  if (status.ok()) return std::nullopt;
  if (Interrupted()) return kExitInterrupted;
  std::cerr << "polysketch: " << TerminalText(STDERR_FILENO, status.error_message()) << "\n";
  return kExitFailed;
}

std::optional<int> CheckServer(const CallOptions& call) {
  const auto stub = v1::PolySketch::NewStub(Connect(call.connection));
  grpc::ClientContext context;
  Prepare(call, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);
  v1::GetModelResponse model;
  const grpc::Status status = stub->GetModel(&context, {}, &model);
  if (status.ok()) return std::nullopt;
  return ReportRpcError(status, call, context);
}

int Run(BatchOptions options, const CallOptions& call) {
  if (options.http_server.empty()) options.http_server = HttpServerBeside(call.connection.server);
  auto file = InputFile::Open(options.input);
  if (!file.ok()) return ReportUsageError(file.status());
  std::unordered_set<std::string> done;
  const auto output = BatchOutput::Open(options.output, options.in_order, &done);
  if (!output.ok()) return ReportUsageError(output.status());
  BatchInput input(*std::move(file), std::move(done));
  auto first = input.Next();
  if (!first.ok()) return ReportUsageError(first.status());
  const bool http = first->has_value() && !(*first)->url.empty();
  if (http && options.http_server.empty()) {
    return ReportUsageError(InvalidArgument("batch: expected --http-server HOST:PORT, since ",
                                            call.connection.server, " has no HTTP port"));
  }
  if (const auto code = http ? CheckHttpServer(options, call) : CheckServer(call)) return *code;
  return Batch(options, call, &input, output->get()).Run(*std::move(first));
}

}  // namespace

void AddBatch(CommandLine* line) {
  const auto options = std::make_shared<BatchOptions>();
  CLI::App* const command = AddCallCommand(
      line->app, "batch", "Completes the requests of a file, some at a time.", line,
      [=] { return Run(*options, line->call); },
      "A line of the input is {\"custom_id\": ID, \"body\": REQUEST}, with the request in the "
      "JSON\n"
      "form of CompleteRequest: {\"prompt\": {\"text\": \"It was\"}, \"max_tokens\": 20}. A line "
      "of the\n"
      "output is {\"custom_id\": ID, \"response\": RESPONSE, \"error\": null}, with the response "
      "as\n"
      "complete --json prints it, or has null for the response and an error {\"code\", "
      "\"message\"}.\n"
      "A line with \"url\", as in OpenAI's batch files, is posted to that path of the HTTP port; "
      "its\n"
      "response is {\"status_code\", \"request_id\", \"body\"}.\n"
      "An output file is continued: requests whose response it has are skipped, and failed ones\n"
      "are sent again; a line of the input that is no request has its error there once.\n"
      "Exit status 1: a request failed.");
  AddOption(command, "--input", "FILE", "Requests, one JSON object a line. -: standard input.",
            &options->input);
  AddOption(command, "--output", "FILE", "Results, one JSON object a line. -: standard output.",
            &options->output);
  AddOption(command, "--http-server", "HOST:PORT",
            "Address of the HTTP port, for lines with a url. Default: port 8000 of the host\n"
            "of --server.",
            [options](const std::string& text) -> Status {
              PS_ASSIGN_OR_RETURN(options->http_server, HttpServerAddress(text));
              return Status();
            });
  AddNumber(command, "--concurrency", "N", "Requests in flight.", 1, 1024, &options->concurrency);
  AddNumber(command, "--retries", "N",
            "Maximum number of retries of a request while the queue is full or the\n"
            "server is away.",
            0, 1000, &options->retries);
  AddFlag(command, "--in-order",
          "Writes results in the order of the input. Default: as requests end.",
          &options->in_order);
  AddFlag(command, "--progress", kProgressHelp, &options->progress);
}

}  // namespace polysketch
