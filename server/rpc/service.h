// polysketch.v1.PolySketch. Requests and responses are bytes here (server/convert/wire.h says why); each
// kind of call lives in its own service_*.cc.
#pragma once

#include "polysketch/v1/polysketch.grpc.pb.h"
#include "server/rpc/call.h"

namespace polysketch {

using RawSessions = v1::PolySketch::WithRawCallbackMethod_CreateSession<
    v1::PolySketch::WithRawCallbackMethod_Append<v1::PolySketch::WithRawCallbackMethod_ForkSession<
        v1::PolySketch::WithRawCallbackMethod_SnapshotSession<
            v1::PolySketch::WithRawCallbackMethod_RestoreSession<
                v1::PolySketch::WithRawCallbackMethod_ListSessions<
                    v1::PolySketch::WithRawCallbackMethod_DeleteSession<
                        v1::PolySketch::WithRawCallbackMethod_CompleteWithState<
                            v1::PolySketch::Service>>>>>>>>;
using RawPolySketch = v1::PolySketch::WithRawCallbackMethod_Complete<
    v1::PolySketch::WithRawCallbackMethod_CompleteUnary<
        v1::PolySketch::WithRawCallbackMethod_Score<v1::PolySketch::WithRawCallbackMethod_Tokenize<
            v1::PolySketch::WithRawCallbackMethod_Detokenize<
                v1::PolySketch::WithRawCallbackMethod_GetModel<RawSessions>>>>>>;

class PolySketchService final : public RawPolySketch {
 public:
  explicit PolySketchService(ServiceContext* context) : context_(context) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Complete(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* CompleteUnary(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Score(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CompleteWithState(
      grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Append(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* SnapshotSession(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RestoreSession(grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;

 private:
  ServiceContext* const context_;
};

}  // namespace polysketch
