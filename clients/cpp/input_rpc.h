// Calls that stream an input of any length in chunks, cancelled by an interrupt.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "clients/cpp/input.h"
#include "clients/cpp/progress.h"
#include "clients/cpp/rpc.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch {

template <typename Request, typename Response>
struct InputRpc {
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> (v1::PolySketch::Stub::*method)(
      grpc::ClientContext*);
  // Ids in a message. A message of text has four times as many bytes: English has about four bytes
  // a token.
  size_t chunk_tokens = 0;
  Request first = {};  // fields of the first message besides its input
};

// Writes the input and ends the stream of requests. file: null if the input is --prompt TEXT, which
// is one message. Returns an error of the input; errors of the call are reported by its Finish.
template <typename Request, typename Response>
Status SendInput(const InputOptions& input, InputFile* file, const InputRpc<Request, Response>& rpc,
                 grpc::ClientReaderWriter<Request, Response>* stream) {
  TextReader text(file);
  TokenReader tokens(file);
  bool first = true;
  for (Request request = rpc.first; true; request.Clear()) {
    if (file == nullptr) {
      if (!std::exchange(first, false)) break;
      request.set_text(*input.text);
    } else if (input.token_file) {
      PS_ASSIGN_OR_RETURN(const auto ids, tokens.Read(rpc.chunk_tokens));
      if (ids.empty()) break;
      request.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
    } else {
      PS_ASSIGN_OR_RETURN(std::string piece, text.Read(4 * rpc.chunk_tokens));
      if (piece.empty()) break;
      request.set_text(std::move(piece));
    }
    if (!stream->Write(request)) return Status();
  }
  stream->WritesDone();
  return Status();
}

// Sends the input, and passes every response but progress to `on_response`, which returns whether
// the call goes on: if not, it is cancelled, which is no error. Reports an error on stderr. Returns
// the exit status.
template <typename Request, typename Response, typename OnResponse>
int CallWithInput(const CallOptions& options, const InputOptions& input,
                  const InputRpc<Request, Response>& rpc, ProgressLine* progress,
                  const OnResponse& on_response) {
  const auto file = input.Open();
  if (!file.ok()) return ReportUsageError(file.status());
  const auto stub = v1::PolySketch::NewStub(Connect(options.connection));
  grpc::ClientContext context;
  Prepare(options, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);
  const auto stream = ((*stub).*rpc.method)(&context);

  // In its own thread: flow control blocks a client that writes without reading.
  Status input_status;  // written by `writer` until it is joined
  std::thread writer([&] {
    input_status = SendInput(input, file->get(), rpc, stream.get());
    if (!input_status.ok()) context.TryCancel();
  });
  Response response;
  bool goes_on = true;
  while (goes_on && stream->Read(&response)) {
    if (response.has_progress()) {
      progress->Show(response.progress().processed(), response.progress().total());
    } else {
      goes_on = on_response(response);
    }
  }
  if (!goes_on) context.TryCancel();
  if (*file != nullptr) (*file)->Interrupt();  // `writer` may wait for input that is not needed
  writer.join();
  progress->Clear();
  const grpc::Status status = stream->Finish();
  if (!input_status.ok()) return ReportUsageError(input_status);
  if (!goes_on) return kExitOk;
  return status.ok() ? kExitOk : ReportRpcError(status, options, context);
}

}  // namespace polysketch
