// A call that takes input of any length in chunks and answers meanwhile, ended by Ctrl-C.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <thread>
#include <utility>

#include "clients/cpp/chunk_reader.h"
#include "clients/cpp/input.h"
#include "clients/cpp/progress.h"
#include "clients/cpp/rpc.h"
#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch {

template <typename Request, typename Response>
struct InputRpc {
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> (v1::PolySketch::Stub::*method)(
      grpc::ClientContext*);
  size_t chunk_tokens = 0;  // of a message; ChunkReader
  Request first = {};       // what the first message has beside its input
};

// Gives `take` every response that is no progress. file: as for ChunkReader; its reading ends with
// the call. Returns kExitOk, or reports what went wrong and returns its code.
template <typename Request, typename Response, typename Take>
int CallWithInput(const CallOptions& options, const InputOptions& input, InputFile* file,
                  const InputRpc<Request, Response>& rpc, ProgressLine* progress,
                  const Take& take) {
  const auto stub = v1::PolySketch::NewStub(Connect(options));
  grpc::ClientContext context;
  Prepare(options, &context);
  const CancelOnInterrupt cancel_on_interrupt(&context);
  const auto stream = ((*stub).*rpc.method)(&context);

  // On a thread of its own: a client that only writes is stopped by flow control.
  Status input_status;  // the writer's until it is joined
  std::thread writer([&] {
    ChunkReader chunks(input, file, rpc.chunk_tokens);
    Request request = rpc.first;
    while (true) {
      const Result<bool> more = chunks.Next(&request);
      if (!more.ok()) {
        input_status = more.status();
        context.TryCancel();
        return;
      }
      if (!*more) break;
      if (!stream->Write(request)) return;  // the call has ended; the reader learns why
      request.Clear();
    }
    stream->WritesDone();
  });

  Response response;
  while (stream->Read(&response)) {
    if (response.has_progress()) {
      progress->Show(response.progress().processed(), response.progress().total());
    } else {
      take(response);
    }
  }
  if (file != nullptr) file->Interrupt();  // the writer may still wait for input that nobody needs
  writer.join();
  progress->Clear();
  const grpc::Status status = WithRetryDelay(stream->Finish(), context);
  if (!input_status.ok()) return ReportUsageError(input_status);
  return status.ok() ? kExitOk : ReportRpcError(status, options);
}

}  // namespace polysketch
