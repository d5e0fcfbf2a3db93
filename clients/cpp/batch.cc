// polysketch batch: completes the requests of a file, some at a time.
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
#include "clients/cpp/progress.h"
#include "clients/cpp/retried_calls.h"

namespace polysketch {
namespace {

constexpr char kNotWritten[] = "the output could not be written";
// Of results in the order of the input: how many may wait for an earlier one, for each worker.
constexpr size_t kWaitingPerWorker = 16;

struct BatchOptions {
  std::string input = "-";
  std::string output = "-";
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

  // Returns the exit status.
  int Run();

 private:
  void Work();
  // The next item; none at the end, and after an error or an interrupt.
  std::optional<BatchItem> Take();
  // The line of the output. None: the batch was stopped.
  std::optional<Json> Complete(const BatchItem& item);
  // One attempt. A migrated completion counts as UNAVAILABLE.
  grpc::Status Call(const v1::CompleteRequest& request, grpc::ClientContext* context,
                    Json* response);
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

  std::mutex input_mutex_;  // guards *input_; taken before mutex_
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

int Batch::Run() {
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
  Result<std::optional<BatchItem>> item = input_->Next();
  const std::lock_guard lock(mutex_);
  if (!item.ok()) End(item.status());
  return stopped_ ? std::nullopt : *std::move(item);
}

std::optional<Json> Batch::Complete(const BatchItem& item) {
  if (!item.status.ok()) {
    return BatchError(item, item.status.code(), std::string(item.status.message()));
  }
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

void Batch::Write(const BatchItem& item, const Json& line) {
  const std::lock_guard lock(mutex_);
  ++(line["error"].is_null() ? succeeded_ : failed_);
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

int Run(const BatchOptions& options, const CallOptions& call) {
  auto file = InputFile::Open(options.input);
  if (!file.ok()) return ReportUsageError(file.status());
  std::unordered_set<std::string> done;
  const auto output = BatchOutput::Open(options.output, options.in_order, &done);
  if (!output.ok()) return ReportUsageError(output.status());
  if (const auto code = CheckServer(call)) return *code;
  BatchInput input(*std::move(file), std::move(done));
  return Batch(options, call, &input, output->get()).Run();
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
      "An output file is continued: requests whose response it has are skipped, and failed ones\n"
      "are sent again. Exit status 1: a request failed.");
  AddOption(command, "--input", "FILE", "Requests, one JSON object a line. -: standard input.",
            &options->input);
  AddOption(command, "--output", "FILE", "Results, one JSON object a line. -: standard output.",
            &options->output);
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
