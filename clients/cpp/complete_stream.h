// Completions whose prompt is too large for one message.
#pragma once

#include <memory>

#include "polysketch/v1/polysketch.grpc.pb.h"

namespace polysketch {

using CompleteStream = grpc::ClientReaderWriter<v1::CompleteStreamRequest, v1::CompleteResponse>;

// Whether the request goes over CompleteStream: Complete takes it in one message, and the server
// accepts at least 4 MiB by default.
bool NeedsStream(const v1::CompleteRequest& request);

// Writes the request, its prompt in chunks, and ends the stream of requests. Once the call has
// ended the rest is not written; Finish says why.
void WriteRequest(const v1::CompleteRequest& request, CompleteStream* stream);

}  // namespace polysketch
